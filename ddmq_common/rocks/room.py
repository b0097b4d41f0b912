"""Whether RocksDB takes a write at once.

Its buffers become tables in the background. Where that falls behind, a write would wait in RocksDB, where it
keeps the interpreter, and on a full disk until there is space, however long. So room is looked for before, by
its own numbers. Each function raises StorageError where tables cannot be written at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ddmq_common.errors import StorageError

ROOM_S = 5.0  # that a write waits for tables to be written
UNMERGED_MAX = 20  # tables that a read looks into one by one: then the database grows no more, …
UNMERGED_LAST = 4 * UNMERGED_MAX  # … and then nothing is written
Number = Callable[[str], int]
"""A property of RocksDB by its name."""


def has_room(number: Number, folder: Path, full: int, growing: bool) -> bool:
    """See `Rocks.has_room`. `full`: so many buffers may wait to become tables before a write does."""
    waiting, unmerged = _waiting_buffers(number, folder), number("rocksdb.num-files-at-level0")
    if growing:
        return waiting < max(1, full - 1) and unmerged < UNMERGED_MAX
    return waiting < full and unmerged < UNMERGED_LAST


def await_room(number: Number, folder: Path, full: int) -> None:
    """Block until a write goes through, ROOM_S at most, then it is a StorageError."""
    give_up = None
    while _waiting_buffers(number, folder) >= full:
        give_up = give_up or time.monotonic() + ROOM_S
        if time.monotonic() >= give_up:
            raise StorageError(
                f"cannot write to {folder}: for {ROOM_S:.0f} s its tables were written too slowly"
            )
        time.sleep(0.0005)


def _waiting_buffers(number: Number, folder: Path) -> int:
    waiting = number("rocksdb.num-immutable-mem-table")
    if waiting and number("rocksdb.background-errors"):
        raise StorageError(
            f"cannot write to {folder}: its tables cannot be written; is there space on the disk? "
            "The file LOG there says what failed"
        )
    return waiting
