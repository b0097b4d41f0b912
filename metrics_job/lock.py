"""One run at a time over an output folder: a lock that the kernel gives back when its process ends.

The lock is `flock` on a file in the folder, so a killed run leaves none behind. The file also says who took
it, for the error of the next run. Other stores than disks (and file systems mounted like disks) have no such
lock: there the caller's scheduler has to start one run at a time (docs/metrics-job.md).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from ddmq_common.errors import ConfigError

LOCK_FILE = "_job.lock"


@contextmanager
def locked_folder(folder: Path | None, run: str) -> Iterator[None]:
    """Hold the lock of an output folder in the `with` block. `run`: the lock's purpose. None: do nothing.

    Raises ConfigError at once if another run holds it; the text says which one.
    """
    if folder is None:
        yield
        return
    descriptor = _open_lock(folder)
    try:
        _take_lock(descriptor, folder)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_describe_owner(run)).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def check_unlocked(folder: Path) -> None:
    """Raise ConfigError if another run holds the lock of this folder."""
    if folder.is_dir():
        descriptor = _open_lock(folder)
        try:
            _take_lock(descriptor, folder)
        finally:
            os.close(descriptor)


def _open_lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"tables cannot be written to {folder}: {error.strerror}; name another folder"
        ) from error


def _take_lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"another run writes the tables in {folder}: {_read_owner(descriptor)}; "
            "wait until it has ended, or name another folder"
        ) from error


def _describe_owner(run: str) -> dict[str, str | int]:
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    return {"run": run, "pid": os.getpid(), "host": socket.gethostname(), "since": since}


def _read_owner(descriptor: int) -> str:
    """Return the owner's description: `metrics_job batch, process 4711 on host, since 2026-11-28 12:00:00
    UTC`.
    """
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"{owner['run']}, process {owner['pid']} on {owner['host']}, since {owner['since']} UTC"
    except (ValueError, KeyError, TypeError):
        return "it has just begun"
