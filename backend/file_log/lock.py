"""The writer's lock: its owner is the only process that may write this directory.

Rules:
* The lock is an flock on DIR/writer.lock. The kernel releases it when the process dies, however it dies. No
  code ever deletes the file, because a deleted lock file can be locked twice.
* The file's text (pid, host, start time) is for people only; no code decides by it.
* The lock does not fence a stopped process: epochs fence the ownership of queues.
* Two openings inside one process exclude each other too.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from ddmq_common.errors import CallerError, NotWriterError, StorageError

LOCK_FILE = "writer.lock"
_TEXT_BYTES_MAX = 512


class DirectoryInUseError(CallerError):
    """Another process (or another opening in this one) is the writer of the directory."""


class DirectoryLock:
    """The lock of one directory, held from `acquire` to `release`; `release` may be called twice."""

    __slots__ = ("_fd", "_until_exit", "directory")

    def __init__(self, directory: Path, fd: int) -> None:
        self.directory = directory
        self._fd = fd
        self._until_exit = False

    @property
    def is_locked(self) -> bool:
        """Whether this object owns the lock."""
        return self._fd >= 0

    @classmethod
    def acquire(cls, directory: Path, wall_ms: int) -> DirectoryLock:
        """Take the lock without waiting. `wall_ms` is written into the file, for people.

        Raises DirectoryInUseError when it is held, StorageError when the directory cannot be used.
        """
        path = directory / LOCK_FILE
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"cannot open the lock file {path}: {error.strerror}") from error
        try:
            os.fchmod(fd, 0o600)  # an earlier release let every user open, and so lock, the file
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # the text is for people; the disk may be full
                _write_owner(fd, wall_ms)
        except BlockingIOError:
            os.close(fd)
            raise DirectoryInUseError(
                f"{directory} is written by another process ({lock_owner(directory)});"
                " stop that one or give this one a directory of its own"
            ) from None
        except OSError as error:
            os.close(fd)
            raise StorageError(f"cannot lock {path}: {error.strerror}") from error
        return cls(directory, fd)

    def check(self) -> None:
        """Raise NotWriterError if the lock file was deleted or replaced: another process may lock the new
        file.
        """
        path = self.directory / LOCK_FILE
        try:
            same = os.path.samestat(os.stat(path), os.fstat(self._fd))
        except FileNotFoundError:
            same = False
        if not same:
            raise NotWriterError(
                f"the lock file {path} was deleted or replaced while this process wrote the log; nothing more"
                " is written, because others may write it now: stop all servers of the directory, start one"
            )

    def keep_until_exit(self) -> None:
        """Keep the lock until the process and all its threads have ended; `release` has no effect any
        more.
        """
        self._until_exit = True

    def release(self) -> None:
        """Release the lock, unless `keep_until_exit` was called."""
        if self._until_exit:
            return
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def lock_owner(directory: Path) -> str:
    """Return the last owner of the lock, formatted like `pid 12 on host h`, or "unknown"."""
    try:
        with open(directory / LOCK_FILE, "rb") as file:
            text = file.read(_TEXT_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError:
        return "unknown"
    return text.partition(",")[0] or "unknown"


def find_lock_owner(directory: Path) -> str | None:
    """Return the process that holds the lock now, formatted like `pid 12 on host h`; None if no process holds
    it, or if the lock file cannot be read.

    For an instant it takes a shared lock, so that a server which starts in that instant tries again.
    """
    try:
        fd = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return lock_owner(directory)
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


def _write_owner(fd: int, wall_ms: int) -> None:
    text = f"pid {os.getpid()} on host {socket.gethostname()}, since {wall_ms} ms\n"
    os.ftruncate(fd, 0)
    os.pwrite(fd, text.encode("utf-8"), 0)
