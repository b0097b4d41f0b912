"""The sorted table of a full segment: its bytes, the search in it, and its creation.

Rules:
* A lookup is one binary search over pages, each of which is checked before it is used. A bad page raises
  DamagedError, and the caller reads the entries file instead. A table whose entries file has another size is
  out of date.
* Creation runs in steps: an iterator whose every `next` does a bounded amount of work (it holds the
  interpreter well under a millisecond and does one file operation), to be run in a native thread with pauses.
  Abandoning it leaves a `.new` file that the next start removes; a file counts only after it was synced and
  renamed.
* A sort in C holds the interpreter until it is done, so at most SORT_MAX numbers are sorted at once. Numbers
  are distributed into buckets by their top bits; an oversized bucket (of a popular key) is split by the next
  bits. Above PASS_MAX numbers the source is read once per share of the number range.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import google_crc32c

from backend.file_log.core.names import UNFINISHED, entries_name, sorted_name
from backend.file_log.index import entries
from backend.file_log.index.entries import U32_MAX, OnDamage, Seeds, from_little_endian, to_little_endian
from backend.file_log.index.writer import Rows
from backend.file_log.storage import File, Storage
from ddmq_common.errors import DamagedError

MAGIC = b"DDMQIXS"
VERSION = 1
_HEADER = struct.Struct("<7sBQQQQQQII")
HEADER_BYTES = _HEADER.size
PAGE_BYTES = 4_096
PAGE_ENTRIES = (PAGE_BYTES - 8) // 8

ReadAt = Callable[[int, int], bytes]
"""Reads (size, offset); returns fewer bytes at the end of the file."""


class IndexTable(NamedTuple):
    """The header of a sorted table."""

    segment_start: int
    covers_from: int
    covers_to: int
    entries_bytes: int
    entries: int
    last_ms: int

    @property
    def pages(self) -> int:
        return -(-self.entries // PAGE_ENTRIES)

    @property
    def size(self) -> int:
        """The size of the complete file in bytes."""
        return HEADER_BYTES + self.pages * PAGE_BYTES

    def pack(self) -> bytes:
        head = _HEADER.pack(MAGIC, VERSION, *self, 0, 0)[:-4]
        return b"%b%b" % (head, google_crc32c.value(head).to_bytes(4, "little"))


def unpack_header(data: bytes, segment_start: int) -> IndexTable | None:
    """Decode a table's header; None if it is not a valid one of that segment."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, *fields, zero, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or zero or crc != google_crc32c.value(data[: HEADER_BYTES - 4]):
        return None
    table = IndexTable(*fields)
    return table if table.segment_start == segment_start else None


def pack_page(segment_start: int, number: int, entries: array[int]) -> bytes:
    """Encode one page of up to PAGE_ENTRIES ascending entries."""
    rest = number.to_bytes(4, "little") + to_little_endian(entries).ljust(PAGE_BYTES - 8, b"\xff")
    return _page_crc(rest, segment_start).to_bytes(4, "little") + rest


def _page_crc(rest: bytes, segment_start: int) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(rest), segment_start.to_bytes(8, "little"))
    return crc


def read_page(read_at: ReadAt, table: IndexTable, number: int) -> array[int]:
    """Read the entries of one page. Raises DamagedError if its bytes are not valid."""
    data = read_at(PAGE_BYTES, HEADER_BYTES + number * PAGE_BYTES)
    rest = data[4:]
    valid = (
        len(data) == PAGE_BYTES
        and int.from_bytes(data[:4], "little") == _page_crc(rest, table.segment_start)
        and int.from_bytes(rest[:4], "little") == number
    )
    if not valid:
        raise DamagedError(f"page {number} of the sorted index of segment {table.segment_start} is damaged")
    count = min(PAGE_ENTRIES, table.entries - number * PAGE_ENTRIES)
    return from_little_endian("Q", rest[4 : 4 + 8 * count])


def newest_with_hash(read_at: ReadAt, table: IndexTable, hash_value: int) -> Iterator[int]:
    """Yield the positions of records with this hash, relative to the segment's start, descending."""
    last = hash_value << 32 | U32_MAX
    number = _last_page_at_or_below(read_at, table, last)
    while number >= 0:
        page = read_page(read_at, table, number)
        for index in range(bisect_right(page, last) - 1, -1, -1):
            if page[index] >> 32 != hash_value:
                return
            yield page[index] & U32_MAX
        number -= 1


def _last_page_at_or_below(read_at: ReadAt, table: IndexTable, entry: int) -> int:
    low, high = 0, table.pages
    while low < high:
        middle = (low + high) // 2
        if read_page(read_at, table, middle)[0] <= entry:
            low = middle + 1
        else:
            high = middle
    return low - 1


SORT_MAX = 2_048
PASS_MAX = 2_000_000  # 16 MB
_DEAL = 4_096
_FURTHER_BITS = 8

Source = Callable[[], Iterable[list[int]]]


def sort_ascending(source: Source, count: int) -> Iterator[list[int]]:
    """Yield all numbers of `source` in order, in lists of up to SORT_MAX; an empty list is only a step.

    `source` returns the same `count` numbers every time it is called.
    """
    passes = 1
    while count > passes * PASS_MAX:
        passes *= 2
    width = (1 << 64) // passes
    for low in range(0, 1 << 64, width):
        yield from _one_pass(source, low, width, count // passes)


def _one_pass(source: Source, low: int, width: int, count: int) -> Iterator[list[int]]:
    bits = max(1, (count // SORT_MAX * 2).bit_length())
    shift = (width - 1).bit_length() - bits
    buckets = [array("Q") for _ in range(1 << bits)]
    high = low + width
    for batch in source():
        for start in range(0, len(batch), _DEAL):
            chunk = [number for number in batch[start : start + _DEAL] if low <= number < high]
            _distribute_numbers(chunk, buckets, shift, low)
            yield []
    for index, bucket in enumerate(buckets):
        buckets[index] = array("Q")
        yield from _sorted_bucket(bucket, shift)


def _distribute_numbers(numbers: Iterable[int], buckets: list[array[int]], shift: int, low: int) -> None:
    for number in numbers:
        buckets[(number - low) >> shift].append(number)


def _sorted_bucket(bucket: array[int], shift: int) -> Iterator[list[int]]:
    """Sort a bucket of numbers that are equal in all bits from `shift` on."""
    if len(bucket) <= SORT_MAX or shift == 0:
        yield sorted(bucket)
        return
    further = max(0, shift - _FURTHER_BITS)
    buckets = [array("Q") for _ in range(1 << (shift - further))]
    low = bucket[0] >> shift << shift
    for start in range(0, len(bucket), _DEAL):
        _distribute_numbers(bucket[start : start + _DEAL], buckets, further, low)
        yield []
    for smaller in filter(None, buckets):
        yield from _sorted_bucket(smaller, further)


_STEP_ROWS = 128
_WRITE_BYTES = 64 * 1024


class IndexRow(NamedTuple):
    """The fields of a message that the index finds it by."""

    position: int
    topic: str
    key: bytes
    message_id: bytes
    stored_ms: int


def seal_steps(
    storage: Storage, folder: str, log_range: tuple[int, int], on_damage: OnDamage
) -> Iterator[None]:
    """Create the sorted table of the segment `[start, end)` in steps.

    Raises DamagedError if the entries are damaged or do not cover the complete segment, which must then be
    rebuilt.
    """
    start, end = log_range
    path = f"{folder}/{sorted_name(start)}"
    with closing(storage.open(f"{folder}/{entries_name(start)}")) as source:
        blocks: list[entries.BlockEntry] = []
        for block in entries.walk_blocks(source, start, on_damage):
            blocks.append(block)
            if len(blocks) % _STEP_ROWS == 0:
                yield
        _check_complete(blocks, log_range)
        yield
        with closing(storage.open(path + UNFINISHED, write=True)) as target:
            target.truncate(0)
            count = yield from _write_pages(source, target, blocks, on_damage)
            last_ms = max((block.block.last_ms for block in blocks if block.block.rows), default=0)
            target.pwrite(IndexTable(start, start, end, source.size(), count, last_ms).pack(), 0)
            target.sync()
        storage.rename(path + UNFINISHED, path)
        storage.sync_folder(folder)


def _check_complete(blocks: list[entries.BlockEntry], log_range: tuple[int, int]) -> None:
    covered = log_range[0]
    for entry in blocks:
        if entry.block.covers_from > covered:
            break
        covered = max(covered, entry.block.covers_to)
    if covered < log_range[1]:
        raise DamagedError(
            f"the index of segment {log_range[0]} ends at {covered}, the segment at {log_range[1]}"
        )


def _write_pages(
    source: File, target: File, blocks: list[entries.BlockEntry], on_damage: OnDamage
) -> Generator[None, None, int]:
    start = blocks[0].block.segment_start if blocks else 0
    rows = sum(entry.block.rows for entry in blocks)
    pages = _Pages(target, start)
    for chunk in sort_ascending(lambda: _read_bodies(source, blocks, on_damage), 2 * rows):
        pages.add(chunk)
        yield
    return pages.finish_pages()


def _read_bodies(source: File, blocks: list[entries.BlockEntry], on_damage: OnDamage) -> Iterator[list[int]]:
    for entry in blocks:
        body = entries.read_body(source, entry, on_damage)
        if body is None:
            start = entry.block.segment_start
            raise DamagedError(f"a block of the index of segment {start} is damaged, at byte {entry.at}")
        yield entries.table_entries(body)


class _Pages:
    """Packs ascending entries into pages and writes several pages at a time."""

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

    def finish_pages(self) -> int:
        """Write the remaining entries; return the number of all entries."""
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
    storage: Storage, folder: str, log_range: tuple[int, int], rows: Iterable[IndexRow], on_damage: OnDamage
) -> Iterator[None]:
    """Rebuild the index of the segment `[start, end)` from all its records in order, and seal it, in
    steps.
    """
    start, _ = log_range
    path = f"{folder}/{entries_name(start)}"
    with closing(storage.open(path + UNFINISHED, write=True)) as target:
        target.truncate(0)
        yield from _write_rows(target, log_range, rows)
        target.sync()
    storage.remove(f"{folder}/{sorted_name(start)}")
    storage.rename(path + UNFINISHED, path)
    storage.sync_folder(folder)
    yield from seal_steps(storage, folder, log_range, on_damage)


def _write_rows(target: File, log_range: tuple[int, int], rows: Iterable[IndexRow]) -> Iterator[None]:
    start, end = log_range
    seeds, pending = Seeds(), Rows()
    covered, last_ms, written = start, 0, 0
    for row in rows:
        if len(pending.positions) == entries.BLOCK_ROWS or not pending.can_take(row.stored_ms):
            block = pending.pack(start, (covered, row.position), last_ms, seeds)
            target.pwrite(block, written)
            covered, last_ms, written = row.position, pending.last_ms(last_ms), written + len(block)
            pending = Rows()
        pending.add((row.position,), (row.topic,), (row.key,), (row.message_id,), row.stored_ms)
        if len(pending.positions) % _STEP_ROWS == 0:
            yield
    target.pwrite(pending.pack(start, (covered, end), last_ms, seeds), written)
