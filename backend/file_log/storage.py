"""Every file operation of the file log, in one place, so that tests can make each of them fail.

Rules: calls block and belong in a native thread, except `pread` and `map` of cached pages and `pwrite` of a
few bytes to the page cache. Errors are OSError. `pwrite` writes everything or raises. A mapped page that
cannot be read ends the process that touches it (SIGBUS): `check` each range before touching it.
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
_POPULATE_READ = 22  # for madvise: loads pages like touching them, and fails where touching would kill
_CHECK_BYTES = 1 << 20
PAGE_BYTES = mmap.PAGESIZE
_SEEK_DATA = getattr(os, "SEEK_DATA", None)
_libc = ctypes.CDLL(None, use_errno=True)
_syncfs = getattr(_libc, "syncfs", None)
_sync_file_range = getattr(_libc, "sync_file_range", None)
_RANGE_WRITE = 2  # for sync_file_range: start writing dirty pages without waiting
_MEMINFO = "/proc/meminfo"


def is_full(error: BaseException | None) -> bool:
    """Return whether a file operation failed for lack of disk space or quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class Space(NamedTuple):
    """The free and total bytes of a file system."""

    free: int
    total: int


class File:
    """An open file with the operations that the log needs."""

    __slots__ = ("_dsync", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._dsync = _DSYNC

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at `offset`; fewer only at the end of the file."""
        return os.pread(self.fd, size, offset)

    def salvage(self, size: int, offset: int) -> bytes:
        """Read like `pread`, with zeros for the pages that cannot be read (EIO), so that checksums detect
        them.
        """
        try:
            return self.pread(size, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        end = min(offset + size, self.size())
        chunks = []
        while offset < end:
            step = min(end, offset - offset % PAGE_BYTES + PAGE_BYTES) - offset
            try:
                chunks.append(self.pread(step, offset))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                chunks.append(bytes(step))
            offset += step
        return b"".join(chunks)

    def pwrite(self, data: bytes, offset: int) -> None:
        """Write all of `data` to the page cache."""
        written = os.pwrite(self.fd, data, offset)
        while written < len(data):
            more = os.pwrite(self.fd, memoryview(data)[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "nothing was written", self.path)
            written += more

    def write_through(self, data: bytes, offset: int) -> None:
        """Write all of `data`, durable on return. Earlier writes may still be undurable.

        Uses one system call where possible, because each call hands the interpreter over.
        """
        if not self._pwrite_through(data, offset):
            self.pwrite(data, offset)
            self.sync()

    def _pwrite_through(self, data: bytes, offset: int) -> bool:
        """Try to write all of `data` durably with one system call; return whether that succeeded.

        On a file system that does not support such writes, only the first call tries it.
        """
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
        """Return the size of the file in bytes."""
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros that take no space."""
        os.ftruncate(self.fd, size)

    def allocate(self, offset: int, size: int) -> None:
        """Allocate space, so that a write there cannot fail because the disk is full."""
        os.posix_fallocate(self.fd, offset, size)

    def is_deleted(self) -> bool:
        """Return whether the file has no name any more, and takes space only while it is open."""
        return os.fstat(self.fd).st_nlink == 0

    def open_elsewhere(self) -> bool:
        """Return whether another process has the file open; False where the system does not report it."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def sync(self) -> None:
        """Make the data durable, with the metadata needed to read it (fdatasync)."""
        os.fdatasync(self.fd)

    def sync_all(self) -> None:
        """Make the data and all metadata durable (fsync)."""
        os.fsync(self.fd)

    def write_back(self) -> None:
        """Start writing dirty pages to the disk, where the system can. Guarantees nothing."""
        if _sync_file_range is not None:
            _sync_file_range(self.fd, ctypes.c_int64(0), ctypes.c_int64(0), _RANGE_WRITE)

    def map(self) -> mmap.mmap:
        """Map the present extent of the file for reading."""
        return mmap.mmap(self.fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def check(self, view: mmap.mmap, start: int, end: int) -> None:
        """Raise OSError (EIO) if a page of `view`, made by `map`, in `[start, end)` cannot be read."""
        start -= start % PAGE_BYTES
        try:
            view.madvise(_POPULATE_READ, start, end - start)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise OSError(errno.EIO, "a page cannot be read", self.path) from error
            while start < end:  # before Linux 5.14
                self.pread(min(_CHECK_BYTES, end - start), start)
                start += _CHECK_BYTES

    def data_end(self, start: int) -> int:
        """Return an offset at or after `start` from which all bytes are zero."""
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
        """Close the file. May be called twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Storage:
    """The operations on the file system. Paths are absolute or relative to the working directory."""

    def open(self, path: str, *, write: bool = False) -> File:
        """Open a file for reading; with `write` also for writing, and create it if it is missing.

        Raises FileNotFoundError.
        """
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        return File(path, os.open(path, flags | os.O_CLOEXEC, 0o644))

    def list(self, folder: str) -> Sequence[str]:
        """Return the sorted names in a folder; none if it does not exist."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make_folder(self, folder: str) -> None:
        """Create a folder and its parents, if they are missing."""
        os.makedirs(folder, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing an existing `new`."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_folder(self, folder: str) -> None:
        """Remove a folder, if it exists and is empty."""
        try:
            os.rmdir(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise

    def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in a folder durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes without opening it, or None if it does not exist."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def sync_disk(self, folder: str) -> bool:
        """Make all files and names on the file system of `folder` durable; False where the system cannot."""
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
        """Return the dirty bytes in the page cache, of all processes; 0 where the system does not report
        them.
        """
        try:
            with open(_MEMINFO, encoding="ascii") as file:
                kibibytes = next((line.split()[1] for line in file if line.startswith("Dirty:")), "0")
            return int(kibibytes) << 10
        except OSError:
            return 0

    def space(self, folder: str) -> Space:
        """Return the space of the file system that holds `folder`."""
        stats = os.statvfs(folder)
        return Space(stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize)
