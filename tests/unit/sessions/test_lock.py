"""The writer's lock: one holder, told by name, given back by the kernel."""

import os
import subprocess
import sys
from pathlib import Path
from socket import gethostname

import pytest

from backend.file_log.lock import LOCK_FILE, DirectoryInUseError, DirectoryLock, find_lock_owner, lock_owner
from ddmq_common.errors import StorageError


def test_a_second_opening_is_rejected_and_names_the_owner(tmp_path: Path) -> None:
    lock = DirectoryLock.acquire(tmp_path, 7)
    with pytest.raises(DirectoryInUseError, match=rf"written by another process \(pid {os.getpid()} on host"):
        DirectoryLock.acquire(tmp_path, 8)
    assert lock.is_locked
    lock.release()
    lock.release()
    assert not lock.is_locked
    DirectoryLock.acquire(tmp_path, 9).release()
    assert "since 9 ms" in (tmp_path / LOCK_FILE).read_text()


@pytest.mark.slow
def test_the_lock_of_a_killed_owner_is_free(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from backend.file_log.lock import DirectoryLock\n"
        "lock = DirectoryLock.acquire(pathlib.Path(sys.argv[1]), 1)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryInUseError, match=f"pid {owner.pid} "):
            DirectoryLock.acquire(tmp_path, 2)
    finally:
        owner.kill()
        owner.communicate()
    DirectoryLock.acquire(tmp_path, 3).release()


def test_a_directory_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot open the lock file .*gone"):
        DirectoryLock.acquire(tmp_path / "gone", 1)
    assert lock_owner(tmp_path / "gone") == "unknown"


def test_the_present_owner_is_found_without_taking_the_lock(tmp_path: Path) -> None:
    assert find_lock_owner(tmp_path) is None, "never locked"
    lock = DirectoryLock.acquire(tmp_path, 0)
    assert find_lock_owner(tmp_path) == lock_owner(tmp_path) == f"pid {os.getpid()} on host {gethostname()}"
    lock.release()
    assert find_lock_owner(tmp_path) is None
    DirectoryLock.acquire(tmp_path, 0).release()
