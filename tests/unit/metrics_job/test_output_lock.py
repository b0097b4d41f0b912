"""One run at a time over an output folder; a killed run holds nobody up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddmq_common.errors import ConfigError
from metrics_job.lock import check_unlocked, locked_folder

OWNER = """
import sys
from pathlib import Path
from metrics_job.lock import locked_folder
with locked_folder(Path(sys.argv[1]), "metrics_job batch"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_names_the_running_one(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    with locked_folder(out, "metrics_job stream"):
        for attempt in (
            lambda: locked_folder(out, "metrics_job batch").__enter__(),
            lambda: check_unlocked(out),
        ):
            with pytest.raises(ConfigError) as error:
                attempt()
            text = str(error.value)
            assert text.startswith(f"another run writes the tables in {out}: metrics_job stream, process ")
            assert f"process {os.getpid()} on {socket.gethostname()}, since 20" in text
            assert text.endswith("wait until it has ended, or name another folder")
            assert "\n" not in text
    with locked_folder(out, "metrics_job batch"):
        pass
    check_unlocked(out)


def test_other_folders_and_stores_without_a_lock_are_free(tmp_path: Path) -> None:
    with (
        locked_folder(tmp_path / "one", "a"),
        locked_folder(tmp_path / "two", "b"),
        locked_folder(None, "c"),
        locked_folder(None, "d"),
    ):
        check_unlocked(tmp_path / "three")
    assert not (tmp_path / "three").exists()


@pytest.mark.slow
def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match=f"process {owner.pid} on"):
            check_unlocked(tmp_path)
        owner.send_signal(signal.SIGKILL)
    check_unlocked(tmp_path)


def test_a_run_that_has_just_begun_is_not_named_yet(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "a"):
        (tmp_path / "_job.lock").write_bytes(b"")
        with pytest.raises(ConfigError, match="it has just begun; wait"):
            check_unlocked(tmp_path)


def test_an_impossible_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"tables cannot be written to .*/file/out: Not a directory"):
        locked_folder(tmp_path / "file" / "out", "a").__enter__()
