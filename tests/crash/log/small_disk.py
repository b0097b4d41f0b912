"""A disk of a few MiB that is really full when it is full: storage that counts what its folder takes."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from backend.file_log.storage import File, Space, Storage

BLOCK = 4096


class SmallFile(File):
    """A file of a SmallDisk; new blocks are taken from it."""

    __slots__ = ("disk",)
    disk: SmallDisk

    def pwrite(self, data: bytes, offset: int) -> None:
        self.disk.take(self, offset, len(data))
        super().pwrite(data, offset)

    def write_through(self, data: bytes, offset: int) -> None:
        self.disk.take(self, offset, len(data))
        super().write_through(data, offset)

    def allocate(self, offset: int, size: int) -> None:
        """As ext4 does it: what is there is taken, and kept although the call fails."""
        self.disk.allocations += 1
        missing = self.disk.missing(self, offset, size)
        if missing > self.disk.free():
            super().allocate(offset, max(self.disk.free() - BLOCK, 1))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        super().allocate(offset, size)


class SmallDisk(Storage):
    """`total` bytes, of which `others` are taken by somebody else; files of `folder` take the rest."""

    def __init__(self, folder: Path, total: int) -> None:
        self.folder = folder
        self.total = total
        self.others = 0
        self.allocations = 0

    def used(self) -> int:
        """By all files, those included that are deleted but still open here."""
        inodes: dict[int, int] = {}
        for where, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):  # renamed by another thread
                    status = os.lstat(f"{where}/{name}")
                    inodes[status.st_ino] = status.st_blocks * 512
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                path, status = os.readlink(f"/proc/self/fd/{descriptor}"), os.stat(int(descriptor))
            except OSError:
                continue
            if path.startswith(f"{self.folder}/"):
                inodes[status.st_ino] = status.st_blocks * 512
        return sum(inodes.values())

    def free(self) -> int:
        return max(self.total - self.others - self.used(), 0)

    def fill(self, free_bytes: int = 0) -> None:
        """Let another program use the disk up to `free_bytes`."""
        self.others = 0
        self.others = max(self.free() - free_bytes, 0)

    def missing(self, file: File, offset: int, size: int) -> int:
        """Bytes that are new to the file. It has no holes behind its first one."""
        have = os.fstat(file.fd).st_blocks * 512
        return max(-(-(offset + size) // BLOCK) * BLOCK - have, 0)

    def take(self, file: File, offset: int, size: int) -> None:
        if 0 < self.missing(file, offset, size) > self.free():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.path)

    # --- Storage

    def open(self, path: str, *, write: bool = False) -> File:
        file = SmallFile(path, super().open(path, write=write).fd)
        file.disk = self
        return file

    def space(self, folder: str) -> Space:
        return Space(self.free(), self.total)
