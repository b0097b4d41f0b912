"""The folder of the File sink: how much is in it, and files that nobody else writes.

A file is NAME.NUMBER.jsonl, made with the next free number and with the promise that it was not there
(O_EXCL): several proxies may share a folder, and after a crash a new file is begun, so that a torn last
line is never written on. All calls block; they are made in native threads, of several sinks at once.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

SUFFIX = ".jsonl"
_NUMBER_DIGITS = 8
_TRIES_MAX = 1_000


class FilesFolder:
    """One folder, its bytes counted at the first file and kept up with by those who write."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self.path = Path(path) if path else None
        self.bytes_max = bytes_max
        self._bytes: int | None = None
        self._lock = threading.Lock()

    @property
    def fault(self) -> str | None:
        """Why File may not be used here."""
        if self.path is None:
            return "push_files_dir is not set in proxy_consumer.yaml of the proxy; File writes nowhere"
        return None

    def begin(self, name: str) -> tuple[int, Path]:
        """A new file, its entry durable; returns its descriptor and path. Raises OSError."""
        assert self.path is not None
        self.path.mkdir(parents=True, exist_ok=True)
        number = 1 + max((_number(known.name, name) for known in self.path.iterdir()), default=0)
        for candidate in range(number, number + _TRIES_MAX):
            path = self.path / f"{name}.{candidate:0{_NUMBER_DIGITS}}{SUFFIX}"
            try:
                made = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                continue
            try:
                self._sync_entry()
            except OSError:
                self.drop_empty(made, path)
                os.close(made)
                raise
            return made, path
        raise FileExistsError(f"{_TRIES_MAX} files of {name} were made by others meanwhile")

    def drop_empty(self, descriptor: int, path: Path) -> None:
        """After a fault: remove the file if it has no byte; else a full disk gets more and more of them."""
        with suppress(OSError):
            if os.fstat(descriptor).st_size == 0:
                path.unlink()

    def room(self, size: int) -> bool:
        """Whether `size` more bytes fit; what was deleted meanwhile is seen before the answer is no."""
        with self._lock:
            if self._bytes is None or self._bytes + size > self.bytes_max:
                self._bytes = self._count()
            return self._bytes + size <= self.bytes_max

    def add(self, size: int) -> None:
        """So many bytes were written."""
        with self._lock:
            self._bytes = (self._bytes or 0) + size

    def _count(self) -> int:
        assert self.path is not None
        if not self.path.is_dir():
            return 0
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    total += entry.stat(follow_symlinks=False).st_size
        return total

    def _sync_entry(self) -> None:
        folder = os.open(str(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _number(file: str, name: str) -> int:
    """The number of one of the files of `name`, 0 for any other."""
    middle = file.removeprefix(name + ".").removesuffix(SUFFIX)
    return int(middle) if file == f"{name}.{middle}{SUFFIX}" and middle.isdecimal() else 0
