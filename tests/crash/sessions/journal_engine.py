"""The memory engine with a journal: every change is one fsynced entry before it takes effect.

So it keeps its promises over kill -9, in the plainest way, and sessions can be broken over it without
the file log having to be right.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.memory import MemoryBackend
from backend.memory.options import MemoryOptions
from ddmq_common.clock import Clock

CHANGES = ("put_topic", "delete_topic", "append", "commit", "raise_epoch")
LENGTH = struct.Struct("<I")


class JournalBackend(MemoryBackend):
    """Opens and replays DIR/journal; a torn last entry is cut."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        super().__init__(clock, MemoryOptions(bytes_max=1 << 30))
        self._file = os.open(directory / "journal", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._replay((directory / "journal").read_bytes())
        for name in CHANGES:
            setattr(self._store, name, self._journalled(name, getattr(self._store, name)))
        self._depth = 0

    def _replay(self, data: bytes) -> None:
        at = 0
        while at + LENGTH.size <= len(data):
            end = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
            if end > len(data):
                break
            name, args = pickle.loads(data[at + LENGTH.size : end])
            getattr(self._store, name)(*args)
            at = end
        os.ftruncate(self._file, at)

    def _journalled(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def apply(*args: Any) -> Any:
            if self._depth:  # part of a change that is in the journal already
                return change(*args)
            self._depth += 1
            try:
                answer = change(*args)
            finally:
                self._depth -= 1
            entry = pickle.dumps((name, args))
            os.write(self._file, LENGTH.pack(len(entry)) + entry)
            os.fdatasync(self._file)
            return answer

        return apply

    def close(self) -> None:
        super().close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
