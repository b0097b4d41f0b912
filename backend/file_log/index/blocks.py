"""Bytes of one block of an entries file (docs/formats-index.md). Pure: no files in here.

A block is made of columns, so that hashing, packing and searching run in C: a lookup in an unsorted
block is one search for four bytes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from backend.file_log.index.hashes import Seeds, id_column, key_column

MAGIC = b"DDMQIXB"
VERSION = 1
_HEADER = struct.Struct("<7sBQQQQQIIII")
HEADER_BYTES = _HEADER.size
ROW_BYTES = 16
BLOCK_ROWS = 1_024  # a block is closed at this many; a larger batch makes a larger block
ROWS_MAX = 1 << 20
U32_MAX = (1 << 32) - 1
SEGMENT_BYTES_MAX = 1 << 32

ID_COLUMN, KEY_COLUMN, POSITION_COLUMN, TIME_COLUMN = range(4)


class Block(NamedTuple):
    """A block's header. `body_crc` still has to be compared with the body."""

    segment_start: int
    covers_from: int
    covers_to: int
    first_ms: int
    last_ms: int
    rows: int
    body_crc: int

    @property
    def size(self) -> int:
        """Header and body, in bytes."""
        return HEADER_BYTES + self.rows * ROW_BYTES


class Rows:
    """Rows that are not packed yet, column by column. Owned by one thread."""

    __slots__ = ("keys", "message_ids", "positions", "runs", "topics")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.topics: list[str] = []
        self.keys: list[bytes] = []
        self.message_ids: list[bytes] = []
        self.runs: list[tuple[int, int]] = []  # (how many, their store time)

    def add(
        self,
        positions: Sequence[int],
        topics: Sequence[str],
        keys: Sequence[bytes],
        message_ids: Sequence[bytes],
        stored_ms: int,
    ) -> None:
        """One value per record, positions ascending; `stored_ms` is not below the one before."""
        self.positions += positions
        self.topics += topics
        self.keys += keys
        self.message_ids += message_ids
        self.runs.append((len(positions), stored_ms))

    def takes(self, stored_ms: int) -> bool:
        """Whether that store time still fits behind the first one."""
        return not self.runs or stored_ms - self.runs[0][1] <= U32_MAX

    def last_ms(self, before: int) -> int:
        """Store time of the last row; `before` when there are none."""
        return self.runs[-1][1] if self.runs else before

    def pack(self, segment_start: int, covers: tuple[int, int], last_ms: int, seeds: Seeds) -> bytes:
        """The block; `last_ms` is the store time before these rows, shown when there are none."""
        first = self.runs[0][1] if self.runs else last_ms
        last = self.last_ms(last_ms)
        times = array("I")
        for count, stored_ms in self.runs:
            times.extend(array("I", (stored_ms - first,)) * count)
        body = b"".join(
            (
                id_column(self.message_ids),
                little(key_column(self.topics, self.keys, seeds)),
                little(array("I", [position - segment_start for position in self.positions])),
                little(times),
            )
        )
        if len(body) != ROW_BYTES * len(self.positions):
            raise ValueError("columns of different length")
        return _header(segment_start, covers, (first, last), len(self.positions), body) + body


def _header(start: int, covers: tuple[int, int], times: tuple[int, int], rows: int, body: bytes) -> bytes:
    crc = google_crc32c.value(body)
    head = _HEADER.pack(MAGIC, VERSION, start, *covers, *times, rows, crc, 0, 0)[:-4]
    return b"%b%b" % (head, google_crc32c.value(head).to_bytes(4, "little"))


def unpack_header(data: bytes, segment_start: int) -> Block | None:
    """The header at the start of `data`, or None when it is not a sound one of that segment."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, *fields, zero, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or crc != google_crc32c.value(data[: HEADER_BYTES - 4]):
        return None
    block = Block(*fields)
    sound = version == VERSION and zero == 0 and block.rows <= ROWS_MAX
    return block if sound and block.segment_start == segment_start else None


def version_of(data: bytes, segment_start: int, magic: bytes) -> int | None:
    """The version of the header (of a block or table) at the start of `data`; None: it is no sound one."""
    if len(data) < HEADER_BYTES or data[:7] != magic or data[8:16] != segment_start.to_bytes(8, "little"):
        return None
    sound = data[HEADER_BYTES - 4 : HEADER_BYTES] == google_crc32c.value(data[: HEADER_BYTES - 4]).to_bytes(
        4, "little"
    )
    return data[7] if sound else None


def body_is_sound(block: Block, body: bytes) -> bool:
    """Whether these are the bytes that were written behind that header."""
    return len(body) == block.rows * ROW_BYTES and google_crc32c.value(body) == block.body_crc


def column(body: bytes, which: int) -> array[int]:
    """One column as numbers."""
    size = len(body) // 4
    return numbers("I", body[which * size : (which + 1) * size])


def rows_with_hash(body: bytes, which: int, wanted: int) -> Iterator[int]:
    """Row numbers whose hash in that column is `wanted`, last first."""
    needle = wanted.to_bytes(4, "little")
    size = len(body) // 4
    start, end = which * size, (which + 1) * size
    at = body.rfind(needle, start, end)
    while at >= 0:
        if at % 4:
            end = at + 3
        else:
            yield (at - start) // 4
            end = at
        at = body.rfind(needle, start, end)


def table_entries(body: bytes) -> list[int]:
    """Every row's entries for the sorted table, `hash << 32 | position`: ids, then keys where there are."""
    positions = column(body, POSITION_COLUMN)
    entries = _interleaved(positions, column(body, ID_COLUMN))
    keys = column(body, KEY_COLUMN)
    if any(keys):
        entries += [entry for entry in _interleaved(positions, keys) if entry > U32_MAX]
    return entries


def _interleaved(low: array[int], high: array[int]) -> list[int]:
    pairs = array("I", bytes(8 * len(low)))
    first, second = (1, 0) if sys.byteorder == "big" else (0, 1)
    pairs[first::2] = low
    pairs[second::2] = high
    return array("Q", pairs.tobytes()).tolist()


def little(values: array[int]) -> bytes:
    """The numbers as little-endian bytes."""
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def numbers(typecode: str, data: bytes) -> array[int]:
    """Numbers from little-endian bytes."""
    values: array[int] = array(typecode, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
