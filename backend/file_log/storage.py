"""Every file operation of the file log, in one place, so that tests can make each of them fail.

Rules: calls block and belong into a native thread, except `pread` and `map` of what is cached and
`pwrite` of a few bytes to the page cache. Errors are OSError. `pwrite` writes all or raises. A mapped page
that cannot be read ends the process that touches it (SIGBUS): `check` what is about to be touched.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

_DSYNC = getattr(os, "RWF_DSYNC", 0)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_POPULATE_READ = 22  # of madvise: brings pages in as touching them would, and fails where that would kill
_CHECK_BYTES = 1 << 20
PAGE_BYTES = mmap.PAGESIZE
_SEEK_DATA = getattr(os, "SEEK_DATA", None)
_libc = ctypes.CDLL(None, use_errno=True)
_syncfs = getattr(_libc, "syncfs", None)
_sync_file_range = getattr(_libc, "sync_file_range", None)
_RANGE_WRITE = 2  # of sync_file_range: begin to write dirty pages, wait for nothing
_MEMINFO = "/proc/meminfo"


def is_full(error: BaseException | None) -> bool:
    """Whether a file operation failed because there is no space, or no more of it for us."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class Space(NamedTuple):
    """Of the file system, bytes."""

    free: int
    total: int


class File:
    """A file that is open."""

    __slots__ = ("_dsync", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._dsync = _DSYNC

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; shorter only at the end of the file."""
        return os.pread(self.fd, size, offset)

    def salvage(self, size: int, offset: int) -> bytes:
        """As pread; pages that cannot be read (EIO) are zeros, so that checksums tell what is lost."""
        try:
            return self.pread(size, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        end = min(offset + size, self.size())
        parts = []
        while offset < end:
            step = min(end, offset - offset % PAGE_BYTES + PAGE_BYTES) - offset
            try:
                parts.append(self.pread(step, offset))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                parts.append(bytes(step))
            offset += step
        return b"".join(parts)

    def pwrite(self, data: bytes, offset: int) -> None:
        """All of `data`, to the page cache."""
        written = os.pwrite(self.fd, data, offset)
        while written < len(data):
            more = os.pwrite(self.fd, memoryview(data)[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "nothing was written", self.path)
            written += more

    def write_through(self, data: bytes, offset: int) -> None:
        """All of `data`, durable on return; says nothing about what was written before.

        One system call where the system can, because each one costs a hand-over of the interpreter.
        """
        if not self._pwrite_through(data, offset):
            self.pwrite(data, offset)
            self.sync()

    def _pwrite_through(self, data: bytes, offset: int) -> bool:
        """Whether one call has done it all; a file system that has no such call is not asked again."""
        if not self._dsync:
            return False
        try:
            return os.pwritev(self.fd, [data], offset, self._dsync) == len(data)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._dsync = 0
            return False

    def size(self) -> int:
        """The size in bytes."""
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros that take no space."""
        os.ftruncate(self.fd, size)

    def allocate(self, offset: int, size: int) -> None:
        """Set space aside, so that writing there cannot find the disk full."""
        os.posix_fallocate(self.fd, offset, size)

    def deleted(self) -> bool:
        """Whether its name is gone: then it takes space only because it is open."""
        return os.fstat(self.fd).st_nlink == 0

    def open_elsewhere(self) -> bool:
        """Whether somebody else has it open; False where the system cannot tell."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def sync(self) -> None:
        """fdatasync: the data, and what is needed to read it back."""
        os.fdatasync(self.fd)

    def sync_all(self) -> None:
        """fsync."""
        os.fsync(self.fd)

    def write_back(self) -> None:
        """Let the disk begin with what is only in the page cache; proves nothing, and may do nothing."""
        if _sync_file_range is not None:
            _sync_file_range(self.fd, ctypes.c_int64(0), ctypes.c_int64(0), _RANGE_WRITE)

    def map(self) -> mmap.mmap:
        """The whole file, for reading; later growth is not in it."""
        return mmap.mmap(self.fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def check(self, view: mmap.mmap, start: int, end: int) -> None:
        """Raises OSError (EIO) when a page of `view`, from `map`, in `[start, end)` cannot be read."""
        start -= start % PAGE_BYTES
        try:
            view.madvise(_POPULATE_READ, start, end - start)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise OSError(errno.EIO, "a page cannot be read", self.path) from error
            while start < end:  # a system from before Linux 5.14
                self.pread(min(_CHECK_BYTES, end - start), start)
                start += _CHECK_BYTES

    def data_end(self, start: int) -> int:
        """An offset behind all bytes from `start` on that may be other than zero."""
        size = self.size()
        if _SEEK_DATA is None:
            return size
        at = start
        try:
            while at < size:
                at = os.lseek(self.fd, os.lseek(self.fd, at, _SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return at if error.errno == errno.ENXIO else size
        return at

    def close(self) -> None:
        """May be called twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Storage:
    """The file system. Paths are text, absolute or relative to the working directory."""

    def open(self, path: str, *, write: bool = False) -> File:
        """For reading, or for writing too: created when missing. Raises FileNotFoundError."""
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        return File(path, os.open(path, flags | os.O_CLOEXEC, 0o644))

    def list(self, folder: str) -> Sequence[str]:
        """Sorted names in the folder; empty when it does not exist."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make_folder(self, folder: str) -> None:
        """With its parents; harmless when it exists."""
        os.makedirs(folder, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; an existing `new` is replaced."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        """Harmless when it is gone."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_folder(self, folder: str) -> None:
        """Harmless when something is in it, or when it is gone."""
        try:
            os.rmdir(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise

    def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in it durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def size(self, path: str) -> int | None:
        """Of a file, bytes, without opening it; None when it does not exist."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def sync_disk(self, folder: str) -> bool:
        """Make all files and names durable on the file system that holds `folder`; False where none can."""
        if _syncfs is None:
            return False
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(fd):
                raise OSError(ctypes.get_errno(), "the file system cannot be synced", folder)
        finally:
            os.close(fd)
        return True

    def dirty_bytes(self) -> int:
        """In the page cache and not on a disk yet, of everybody's; 0 where the system does not tell."""
        try:
            with open(_MEMINFO, encoding="ascii") as file:
                found = next((line.split()[1] for line in file if line.startswith("Dirty:")), "0")
            return int(found) << 10
        except OSError:
            return 0

    def space(self, folder: str) -> Space:
        """Return the space of the file system that holds `folder`."""
        found = os.statvfs(folder)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
