"""Copies of a shard on the disk: their names, who holds them, and how one is made from another.

A copy is a folder `SHARD-EPOCH-REVISION` (12 and 3 digits) in the delay folder. Rules:
* Who uses a copy holds the flock on its file `copy.lock`; the kernel gives it back when the process dies.
  The lock moves with the folder when that is renamed.
* The newest copy (epoch, then revision) is the shard. Older ones are garbage once nobody holds them.
* A copy comes into being by one rename, after everything in it is synced. Unfinished ones end in
  `.making`, those being removed in `.gone`, damaged ones that were replaced in `.damaged` (kept for people).
* A process that was stopped still holds its copy, and may go on changing it: a clone takes the files as they
  are at one moment, and starts again when they change under it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddmq_common.errors import StorageError

LOCK_FILE = "copy.lock"
MARK_FILE = "DAMAGED"  # in a copy that is not to be trusted
MAKING, REMOVED, DAMAGED = ".making", ".gone", ".damaged"
_NAME = re.compile(r"(\d+)-(\d{12,})-(\d{3})")  # epochs of Kafka have 16 digits
_NOT_COPIED = re.compile(r"LOCK|LOG(\.old.*)?|.*\.dbtmp|copy\.lock")
_TRIES = 20


class Copy(NamedTuple):
    """One copy of a shard's store, as its folder's name describes it."""

    epoch: int
    revision: int
    path: Path


class ChangedMeanwhileError(StorageError):
    """The files of a copy kept changing while they were cloned."""


class CopyLock:
    """The exclusive right to use a copy, from `try_take` to `release`. May be released twice."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def try_take(cls, path: Path) -> CopyLock | None:
        """Lock the copy; return None if a living process (also this one) holds it, or the folder is gone or
        renamed.
        """
        try:
            fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino == os.stat(path / LOCK_FILE).st_ino:
                return cls(fd)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(fd)
        return None

    def release(self) -> None:
        """Unlock the copy for other processes."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def copy_name(shard: int, epoch: int, revision: int = 0) -> str:
    """Return the folder name of a copy."""
    return f"{shard}-{epoch:012d}-{revision:03d}"


def copies_of(folder: Path, shard: int) -> list[Copy]:
    """Return the finished copies of a shard, oldest first."""
    copies = []
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match and int(match[1]) == shard:
            copies.append(Copy(int(match[2]), int(match[3]), folder / name))
    return sorted(copies)


def has_copies(folder: Path) -> bool:
    """Return whether the folder exists and contains a finished copy of any shard."""
    return folder.is_dir() and any(_NAME.fullmatch(name) for name in os.listdir(folder))


def sweep_copies(folder: Path, shard: int, newest: Path) -> None:
    """Delete the copies of a shard other than `newest`, and unfinished ones, unless another process holds
    them.
    """
    for name in os.listdir(folder):
        path = folder / name
        base, dot, end = name.partition(".")
        match = _NAME.fullmatch(base)
        if not match or int(match[1]) != shard or path == newest or dot + end == DAMAGED:
            continue
        lock = CopyLock.try_take(path)
        if lock is not None:
            if (path / MARK_FILE).exists() and not dot:
                path.rename(path.with_name(name + DAMAGED))
            else:
                _remove(path)
            lock.release()


def _remove(path: Path) -> None:
    """Delete a folder after renaming it.

    Because of the name, a half-deleted folder is never taken for a copy.
    """
    removed_path = path if path.name.endswith(REMOVED) else path.with_name(path.name + REMOVED)
    if removed_path != path:
        shutil.rmtree(removed_path, ignore_errors=True)
        path.rename(removed_path)
    shutil.rmtree(removed_path, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_path(path.parent)


def new_folder(path: Path) -> tuple[Path, CopyLock]:
    """Create the unfinished copy that will become `path`; return its folder and its lock."""
    making = path.with_name(path.name + MAKING)
    stale_lock = CopyLock.try_take(making) if making.exists() else None
    if stale_lock is not None:
        _remove(making)
        stale_lock.release()
    making.mkdir()
    lock = CopyLock.try_take(making)
    if lock is None:
        raise StorageError(f"cannot lock the new copy {making}: another process took it")
    return making, lock


def finish_copy(making: Path, path: Path) -> None:
    """Sync all files of an unfinished copy, then rename it to its final name."""
    for file in files_in(making):
        sync_path(making / file)
    sync_path(making)
    making.rename(path)
    sync_path(path.parent)


def clone_files(source: Path, target: Path) -> None:
    """Clone the files of `source` as of one moment: tables as hard links, all other files as copies.

    Raises ChangedMeanwhileError if the holder of `source` keeps writing.
    """
    for _ in range(_TRIES):
        try:
            before = _file_sizes(source)
            for name in before:
                _take_file(source / name, target / name)
            if _file_sizes(source) == before:
                return
        except FileNotFoundError:
            pass  # its holder removed one meanwhile
        for name in files_in(target):
            if name != LOCK_FILE:
                (target / name).unlink()
    raise ChangedMeanwhileError(
        f"{source} changed {_TRIES} times while it was copied: its holder is alive; stop that process"
    )


def _file_sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of the files by name, to detect changes; 0 for the write-ahead log, because it may
    grow."""
    return {
        name: 0 if name.endswith(".log") else (folder / name).stat().st_size
        for name in files_in(folder)
        if not _NOT_COPIED.fullmatch(name)
    }


def _take_file(source: Path, target: Path) -> None:
    if source.suffix == ".sst":
        try:
            os.link(source, target)
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
    shutil.copyfile(source, target)


def files_in(folder: Path) -> Iterator[str]:
    """Return the names of the regular files in a folder."""
    return iter([entry.name for entry in os.scandir(folder) if entry.is_file()])


def sync_path(path: Path) -> None:
    """Call fsync on a file, or on a folder to make its entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
