"""Real files behind the index's storage protocol, with a switch for failing writes."""

import os
from pathlib import Path


class OsFile:
    def __init__(self, path: str, flags: int, storage: "OsStorage") -> None:
        self._fd = os.open(path, flags, 0o644)
        self._storage = storage

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def pwrite(self, data: bytes, offset: int) -> None:
        if self._storage.fail_writes:
            os.pwrite(self._fd, data[: len(data) // 2], offset)
            raise OSError(28, "No space left on device")
        os.pwrite(self._fd, data, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class OsStorage:
    def __init__(self) -> None:
        self.fail_writes = False

    def list(self, folder: str) -> list[str]:
        return os.listdir(folder) if os.path.isdir(folder) else []

    def make_folder(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)

    def open(self, path: str, *, write: bool = False) -> OsFile:
        return OsFile(path, os.O_RDWR | os.O_CREAT if write else os.O_RDONLY, self)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def sync_folder(self, folder: str) -> None:
        """Nothing to lose in a test."""
