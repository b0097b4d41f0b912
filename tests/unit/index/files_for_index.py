"""The real storage with a switch: writes then store half of the bytes and fail."""

import errno
import os

from backend.file_log.storage import File, Storage


class _SwitchedFile(File):
    __slots__ = ("storage",)
    storage: "OsStorage"

    def pwrite(self, data: bytes, offset: int) -> None:
        if self.storage.fail_writes:
            super().pwrite(data[: len(data) // 2], offset)
            raise OSError(self.storage.fails_with, os.strerror(self.storage.fails_with))
        super().pwrite(data, offset)


class OsStorage(Storage):
    def __init__(self) -> None:
        self.fail_writes = False
        self.fails_with = errno.EIO

    def open(self, path: str, *, write: bool = False) -> File:
        file = super().open(path, write=write)
        switched = _SwitchedFile(path, os.dup(file.fd))
        switched.storage = self
        file.close()
        return switched
