"""Whether RocksDB takes a write at once.

Its buffers become tables in the background. Where that falls behind, a write would wait in RocksDB, where it
keeps the interpreter, and on a full disk until there is space, however long. So capacity is checked before
each write, by RocksDB's own numbers. There is none while RocksDB is writing or merging tables. If it is not,
something has failed, and the next write is admitted to receive the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ddmq_common.errors import StorageError

WRITE_WAIT_S_MAX = 5.0  # that a write waits for tables to be written
UNMERGED_MAX = 20  # tables that a read looks into one by one: then the database grows no more, …
UNMERGED_LAST = 4 * UNMERGED_MAX  # … and then nothing is written


class WriteCapacity:
    """Determines whether a database can accept a write. Both methods raise StorageError if tables cannot be
    written.

    `number`: reads a property of RocksDB by name. `full`: from so many buffers on that wait to become tables,
    a write waits.
    """

    def __init__(self, number: Callable[[str], int], folder: Path, full: int) -> None:
        self._number = number
        self._folder = folder
        self._full = full
        self._errors = 0  # of the background, of which RocksDB has recovered: it never forgets one

    def is_available(self, growing: bool) -> bool:
        """Return whether a write would go through without waiting; see `Rocks.has_capacity`."""
        spare, most = (1, UNMERGED_MAX) if growing else (0, UNMERGED_LAST)
        if self._count_waiting() >= max(1, self._full - spare):
            return False
        merging = self._number("rocksdb.num-files-at-level0") >= most
        return not (merging and self._number("rocksdb.num-running-compactions"))

    def wait_until_available(self) -> None:
        """Block until a write would go through. Raises StorageError after WRITE_WAIT_S_MAX seconds."""
        give_up = None
        while self._count_waiting() >= self._full:
            give_up = give_up or time.monotonic() + WRITE_WAIT_S_MAX
            if time.monotonic() >= give_up:
                raise StorageError(
                    f"cannot write to {self._folder}: for {WRITE_WAIT_S_MAX:.0f} s"
                    " its tables were written too slowly"
                )
            time.sleep(0.0005)

    def _count_waiting(self) -> int:
        """Return the number of buffers that must become tables.

        Raises StorageError after a new background error.
        """
        waiting = self._number("rocksdb.num-immutable-mem-table")
        errors = self._number("rocksdb.background-errors")
        if not waiting:
            self._errors = errors
        elif errors > self._errors:
            raise StorageError(
                f"cannot write to {self._folder}: its tables cannot be written; is there space on the disk? "
                "The file LOG there says what failed"
            )
        return waiting
