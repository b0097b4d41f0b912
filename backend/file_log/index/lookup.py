"""Finding log positions, across segments; also in processes that only read.

Nothing is kept open between lookups and no list of files is held, so segments may be sealed, rebuilt or
deleted by another process at any time; one that goes away during a lookup is passed over.
Rules: results are candidates, to be compared with the record itself; they come strictly newest first
(by time: oldest first); whoever takes them reads files, so take them in a native thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from backend.file_log.index import blocks, entries, table
from backend.file_log.index.blocks import HEADER_BYTES, ID_COLUMN, KEY_COLUMN
from backend.file_log.index.damage import IndexDamage, OnDamage
from backend.file_log.index.hashes import id_hash, key_hash
from backend.file_log.index.names import entries_name, segments, sorted_name
from backend.file_log.index.table import IndexTable
from backend.file_log.storage import File, Storage
from ddmq_common.errors import DamagedError

T = TypeVar("T")
Unsaved = Sequence[tuple[int, bytes]]
"""(segment start, block) that the writer in this process has not written yet, oldest first."""


class IndexLookup:
    """Lookups over one index folder."""

    def __init__(self, storage: Storage, folder: str, on_damage: OnDamage) -> None:
        self._storage = storage
        self._folder = folder
        self._on_damage = on_damage

    def find_key(self, topic: str, key: bytes, count_max: int, unsaved: Unsaved = ()) -> Iterator[int]:
        """Positions of records that may have this topic and key, newest first."""
        if not key:
            raise ValueError("an empty key is no key")
        return islice(self._newest(KEY_COLUMN, key_hash(topic, key), unsaved), count_max)

    def find_id(self, message_id: bytes, count_max: int, unsaved: Unsaved = ()) -> Iterator[int]:
        """Positions of records that may have this 16-byte message id, newest first."""
        return islice(self._newest(ID_COLUMN, id_hash(message_id), unsaved), count_max)

    def positions_between(
        self, start_ms: int, end_ms: int, count_max: int, unsaved: Unsaved = ()
    ) -> Iterator[int]:
        """Positions of records stored in `[start_ms, end_ms)` (wall ms), oldest first."""
        return islice(self._between(start_ms, end_ms, unsaved), count_max)

    def covered_to(self) -> int:
        """The log position below which written blocks cover the log; a reader scans the log from there."""
        starts = segments(self._storage.list(self._folder))
        covered = 0
        for start in starts[-1:]:
            covered = start
            for found in self._with_entries(
                start, partial(entries.walk, segment_start=start, on_damage=_ignore)
            ):
                covered = max(covered, found.block.covers_to)
        return covered

    # --- by hash

    def _newest(self, which: int, wanted: int, unsaved: Unsaved) -> Iterator[int]:
        below = 1 << 64
        for position in self._newest_candidates(which, wanted, unsaved):
            if position < below:  # a block written meanwhile, or read twice after damage, shows up again
                below = position
                yield position

    def _newest_candidates(self, which: int, wanted: int, unsaved: Unsaved) -> Iterator[int]:
        for start, block in reversed(unsaved):
            yield from entries.in_body(block[HEADER_BYTES:], start, which, wanted)
        for start in reversed(segments(self._storage.list(self._folder))):
            yield from self._in_segment(start, which, wanted)

    def _in_segment(self, start: int, which: int, wanted: int) -> Iterator[int]:
        try:
            yield from self._in_table(start, wanted)
        except (DamagedError, FileNotFoundError):
            yield from self._with_entries(
                start, lambda file: entries.newest_with_hash(file, start, which, wanted, self._on_damage)
            )

    def _in_table(self, start: int, wanted: int) -> Iterator[int]:
        file = self._storage.open(f"{self._folder}/{sorted_name(start)}")
        try:
            header = self._header(file, start)
            try:
                for position in table.newest_with_hash(file.salvage, header, wanted):
                    yield start + position
            except DamagedError:
                self._on_damage(IndexDamage(start, sorted_name(start), HEADER_BYTES, "page"))
                raise
        finally:
            file.close()

    def _header(self, file: File, start: int) -> IndexTable:
        header = sound_table(file, start)
        if header is None:
            self._on_damage(IndexDamage(start, sorted_name(start), 0, "header"))
            raise DamagedError(f"the header of the sorted index of segment {start} is damaged")
        source = self._storage.open(f"{self._folder}/{entries_name(start)}")
        try:
            size = source.size()
        finally:
            source.close()
        if size != header.entries_bytes:
            raise DamagedError(f"the sorted index of segment {start} is out of date")
        return header

    # --- by time

    def _between(self, start_ms: int, end_ms: int, unsaved: Unsaved) -> Iterator[int]:
        above = -1
        for position in self._between_candidates(start_ms, end_ms, unsaved):
            if position > above:
                above = position
                yield position

    def _between_candidates(self, start_ms: int, end_ms: int, unsaved: Unsaved) -> Iterator[int]:
        for start in segments(self._storage.list(self._folder)):
            if not self._ends_before(start, start_ms):
                span = (start_ms, end_ms)
                yield from self._with_entries(
                    start, partial(entries.between, segment_start=start, span=span, on_damage=self._on_damage)
                )
        for start, data in unsaved:
            block = blocks.unpack_header(data, start)
            if block is not None:
                yield from entries.times_in_body(block, data[HEADER_BYTES:], start_ms, end_ms)

    def _ends_before(self, start: int, start_ms: int) -> bool:
        """Whether the table's header says that the whole segment is older."""
        try:
            file = self._storage.open(f"{self._folder}/{sorted_name(start)}")
        except FileNotFoundError:
            return False
        try:
            header = sound_table(file, start)
        finally:
            file.close()
        return header is not None and header.last_ms < start_ms

    # ---

    def _with_entries(self, start: int, read: Callable[[File], Iterator[T]]) -> Iterator[T]:
        try:
            file = self._storage.open(f"{self._folder}/{entries_name(start)}")
        except FileNotFoundError:
            return
        try:
            yield from read(file)
        finally:
            file.close()


def sound_table(file: File, segment_start: int) -> IndexTable | None:
    """The table's header when it is sound and the file is as long as it says."""
    header = table.unpack_header(file.salvage(table.HEADER_BYTES, 0), segment_start)
    return header if header is not None and file.size() == header.size else None


def _ignore(_: IndexDamage) -> None:
    """Looking for the end is no reading."""
