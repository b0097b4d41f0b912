"""Bytes of one block of an entries file, and the two hashes in it (docs/formats-index.md). Pure.

A block is made of columns, so that hashing, packing and searching run in C: a message costs about 0.1 µs, a
lookup in an unsorted block is one search for four bytes. The hashes are stored, so they never change:
Python's hash() is of no use.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import google_crc32c

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


def pack_header(start: int, covers: tuple[int, int], times: tuple[int, int], rows: int, body: bytes) -> bytes:
    """Of a block of `rows` rows; `times`: the first and last store time."""
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


ID_BYTES = 16
TOPICS_REMEMBERED_MAX = 20_000


class Seeds(dict[str, int]):
    """CRC of a topic's name and a zero byte, remembered; forgets all when it grows past its bound."""

    def __missing__(self, topic: str) -> int:
        if len(self) >= TOPICS_REMEMBERED_MAX:
            self.clear()
        seed = self[topic] = crc32(topic.encode() + b"\0")
        return seed


def key_hash(topic: str, key: bytes) -> int:
    """The hash a record of `topic` with `key` is filed under; never 0, which means "no key"."""
    return crc32(key, crc32(topic.encode() + b"\0")) or 1


def key_column(topics: Sequence[str], keys: Sequence[bytes], seeds: Seeds) -> array[int]:
    """Per record its key hash, 0 where the key is empty."""
    if all(keys):
        column = array("I", map(crc32, keys, map(seeds.__getitem__, topics)))
        if 0 not in column:
            return column
    elif not any(keys):
        return array("I", bytes(4 * len(keys)))
    pairs = zip(keys, topics, strict=True)
    return array("I", [crc32(key, seeds[topic]) or 1 if key else 0 for key, topic in pairs])


def id_hash(message_id: bytes) -> int:
    """The four words of a 16-byte message id, XORed."""
    return int.from_bytes(id_column([message_id]), "little")


def id_column(message_ids: Sequence[bytes]) -> bytes:
    """Per id its hash as 4 little-endian bytes. Raises ValueError when their bytes do not add up."""
    joined = b"".join(message_ids)
    count = len(message_ids)
    if len(joined) != ID_BYTES * count:
        raise ValueError(f"message ids must have {ID_BYTES} bytes each")
    words = array("I", joined)
    folded = 0
    for word in range(4):
        folded ^= int.from_bytes(words[word::4].tobytes(), "little")
    return folded.to_bytes(4 * count, "little")
