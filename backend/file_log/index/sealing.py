"""Work on a segment that no longer grows: sort its entries into a table, or make both anew from the log.

Each function gives steps: an iterator whose every `next` is a bounded piece of work (well under a
millisecond of holding the interpreter, one file operation), to be run in a native thread with pauses,
see keeper.py. Abandoning it leaves a `.new` file that the next start removes. A file counts as
finished only after it was synced and renamed.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple

from backend.file_log.index import blocks, entries, radix
from backend.file_log.index.damage import OnDamage
from backend.file_log.index.hashes import Seeds
from backend.file_log.index.names import UNFINISHED, entries_name, sorted_name
from backend.file_log.index.table import HEADER_BYTES, PAGE_ENTRIES, IndexTable, pack_page
from backend.file_log.storage import File, Storage
from ddmq_common.errors import DamagedError

_STEP_ROWS = 128
_WRITE_BYTES = 64 * 1024


class IndexRow(NamedTuple):
    """What the index keeps of one record."""

    position: int
    topic: str
    key: bytes
    message_id: bytes
    stored_ms: int


def seal_steps(storage: Storage, folder: str, span: tuple[int, int], on_damage: OnDamage) -> Iterator[None]:
    """Make the sorted table of the segment `[start, end)`.

    Raises DamagedError when the entries are not sound or do not cover the whole segment: rebuild it.
    """
    start, end = span
    path = f"{folder}/{sorted_name(start)}"
    source = storage.open(f"{folder}/{entries_name(start)}")
    try:
        found: list[entries.FoundEntry] = []
        for one in entries.walk(source, start, on_damage):
            found.append(one)
            if len(found) % _STEP_ROWS == 0:
                yield
        _check_whole(found, span)
        yield
        target = storage.open(path + UNFINISHED, write=True)
        try:
            target.truncate(0)
            count = yield from _write_pages(source, target, found, on_damage)
            last_ms = max((one.block.last_ms for one in found if one.block.rows), default=0)
            target.pwrite(IndexTable(start, start, end, source.size(), count, last_ms).pack(), 0)
            target.sync()
        finally:
            target.close()
        storage.rename(path + UNFINISHED, path)
        storage.sync_folder(folder)
    finally:
        source.close()


def _check_whole(found: list[entries.FoundEntry], span: tuple[int, int]) -> None:
    covered = span[0]
    for one in found:
        if one.block.covers_from > covered:
            break
        covered = max(covered, one.block.covers_to)
    if covered < span[1]:
        raise DamagedError(f"the index of segment {span[0]} ends at {covered}, the segment at {span[1]}")


def _write_pages(
    source: File, target: File, found: list[entries.FoundEntry], on_damage: OnDamage
) -> Generator[None, None, int]:
    start = found[0].block.segment_start if found else 0
    rows = sum(one.block.rows for one in found)
    pages = _Pages(target, start)
    for numbers in radix.ascending(lambda: _bodies(source, found, on_damage), 2 * rows):
        pages.add(numbers)
        yield
    return pages.finish()


def _bodies(source: File, found: list[entries.FoundEntry], on_damage: OnDamage) -> Iterator[list[int]]:
    for one in found:
        body = entries.read_body(source, one, on_damage)
        if body is None:
            start = one.block.segment_start
            raise DamagedError(f"a block of the index of segment {start} is damaged, at byte {one.at}")
        yield blocks.table_entries(body)


class _Pages:
    """Cuts ascending entries into pages and writes them in larger pieces."""

    def __init__(self, target: File, segment_start: int) -> None:
        self._target = target
        self._segment_start = segment_start
        self._entries: array[int] = array("Q")
        self._packed: list[bytes] = []
        self._packed_bytes = 0
        self._written = HEADER_BYTES
        self._count = 0
        self._number = 0

    def add(self, numbers: list[int]) -> None:
        self._entries.extend(numbers)
        while len(self._entries) >= PAGE_ENTRIES:
            self._pack(self._entries[:PAGE_ENTRIES])
            del self._entries[:PAGE_ENTRIES]
        if self._packed_bytes >= _WRITE_BYTES:
            self._write()

    def finish(self) -> int:
        """Write the rest; how many entries there are."""
        if self._entries:
            self._pack(self._entries)
        self._write()
        return self._count

    def _pack(self, page: array[int]) -> None:
        self._packed.append(pack_page(self._segment_start, self._number, page))
        self._packed_bytes += len(self._packed[-1])
        self._count += len(page)
        self._number += 1

    def _write(self) -> None:
        data = b"".join(self._packed)
        self._target.pwrite(data, self._written)
        self._written += len(data)
        self._packed, self._packed_bytes = [], 0


def rebuild_steps(
    storage: Storage, folder: str, span: tuple[int, int], rows: Iterable[IndexRow], on_damage: OnDamage
) -> Iterator[None]:
    """Replace the index of the segment `[start, end)` by one of all its records in order; seal it."""
    start, _ = span
    path = f"{folder}/{entries_name(start)}"
    target = storage.open(path + UNFINISHED, write=True)
    try:
        target.truncate(0)
        yield from _write_rows(target, span, rows)
        target.sync()
    finally:
        target.close()
    storage.remove(f"{folder}/{sorted_name(start)}")
    storage.rename(path + UNFINISHED, path)
    storage.sync_folder(folder)
    yield from seal_steps(storage, folder, span, on_damage)


def _write_rows(target: File, span: tuple[int, int], rows: Iterable[IndexRow]) -> Iterator[None]:
    start, end = span
    seeds, pending = Seeds(), blocks.Rows()
    covered, last_ms, written = start, 0, 0
    for row in rows:
        if len(pending.positions) == blocks.BLOCK_ROWS or not pending.takes(row.stored_ms):
            block = pending.pack(start, (covered, row.position), last_ms, seeds)
            target.pwrite(block, written)
            covered, last_ms, written = row.position, pending.last_ms(last_ms), written + len(block)
            pending = blocks.Rows()
        pending.add((row.position,), (row.topic,), (row.key,), (row.message_id,), row.stored_ms)
        if len(pending.positions) % _STEP_ROWS == 0:
            yield
    target.pwrite(pending.pack(start, (covered, end), last_ms, seeds), written)
