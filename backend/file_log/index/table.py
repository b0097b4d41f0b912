"""Bytes of a sorted table and the search in it (docs/formats-index.md).

One binary search over pages, each read whole and checked before it is believed. Rules: a bad page
raises DamagedError, and the caller goes to the entries file instead; a table whose entries file has
another size is out of date.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import google_crc32c

from backend.file_log.index.blocks import U32_MAX, little, numbers
from ddmq_common.errors import DamagedError

MAGIC = b"DDMQIXS"
VERSION = 1
_HEADER = struct.Struct("<7sBQQQQQQII")
HEADER_BYTES = _HEADER.size
PAGE_BYTES = 4_096
PAGE_ENTRIES = (PAGE_BYTES - 8) // 8

ReadAt = Callable[[int, int], bytes]
"""(size, offset) → bytes, shorter at the end of the file."""


class IndexTable(NamedTuple):
    """A sorted table's header."""

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
        """The whole file, in bytes."""
        return HEADER_BYTES + self.pages * PAGE_BYTES

    def pack(self) -> bytes:
        head = _HEADER.pack(MAGIC, VERSION, *self, 0, 0)[:-4]
        return b"%b%b" % (head, google_crc32c.value(head).to_bytes(4, "little"))


def unpack_header(data: bytes, segment_start: int) -> IndexTable | None:
    """The header, or None when it is not a sound one of that segment."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, *fields, zero, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or zero or crc != google_crc32c.value(data[: HEADER_BYTES - 4]):
        return None
    table = IndexTable(*fields)
    return table if table.segment_start == segment_start else None


def pack_page(segment_start: int, number: int, entries: array[int]) -> bytes:
    """One page of up to PAGE_ENTRIES ascending entries."""
    rest = number.to_bytes(4, "little") + little(entries).ljust(PAGE_BYTES - 8, b"\xff")
    return _page_crc(rest, segment_start).to_bytes(4, "little") + rest


def _page_crc(rest: bytes, segment_start: int) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(rest), segment_start.to_bytes(8, "little"))
    return crc


def read_page(read_at: ReadAt, table: IndexTable, number: int) -> array[int]:
    """The entries of one page. Raises DamagedError when its bytes are not what was written."""
    data = read_at(PAGE_BYTES, HEADER_BYTES + number * PAGE_BYTES)
    rest = data[4:]
    sound = (
        len(data) == PAGE_BYTES
        and int.from_bytes(data[:4], "little") == _page_crc(rest, table.segment_start)
        and int.from_bytes(rest[:4], "little") == number
    )
    if not sound:
        raise DamagedError(f"page {number} of the sorted index of segment {table.segment_start} is damaged")
    count = min(PAGE_ENTRIES, table.entries - number * PAGE_ENTRIES)
    return numbers("Q", rest[4 : 4 + 8 * count])


def newest_with_hash(read_at: ReadAt, table: IndexTable, wanted: int) -> Iterator[int]:
    """Positions behind the segment's start filed under the hash, descending."""
    last = wanted << 32 | U32_MAX
    number = _last_page_at_or_below(read_at, table, last)
    while number >= 0:
        page = read_page(read_at, table, number)
        for index in range(bisect_right(page, last) - 1, -1, -1):
            if page[index] >> 32 != wanted:
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
