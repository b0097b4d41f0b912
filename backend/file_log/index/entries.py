"""An entries file of the index: the bytes of its blocks (docs/formats-index.md), and the search in them.

A block consists of columns, so that hashing, packing and searching run in C: a message costs about 0.1 µs,
and a lookup in an unsorted block is one search for four bytes. The hashes are stored, so they must never
change; therefore Python's hash() cannot be used.

Rules: a block's body is checked before it is used. A damaged block is reported and skipped. A block that
extends past the end of the file is not written yet, and is not damage.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import google_crc32c

from backend.file_log.core.names import entries_name
from backend.file_log.storage import File

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
    """The header of a block of index entries. `body_crc` still has to be compared with the body."""

    segment_start: int
    covers_from: int
    covers_to: int
    first_ms: int
    last_ms: int
    rows: int
    body_crc: int

    @property
    def size(self) -> int:
        """The bytes of header and body together."""
        return HEADER_BYTES + self.rows * ROW_BYTES


def pack_header(start: int, covers: tuple[int, int], times: tuple[int, int], rows: int, body: bytes) -> bytes:
    """Encode the header of a block of `rows` rows; `times`: the first and last store time."""
    crc = google_crc32c.value(body)
    head = _HEADER.pack(MAGIC, VERSION, start, *covers, *times, rows, crc, 0, 0)[:-4]
    return b"%b%b" % (head, google_crc32c.value(head).to_bytes(4, "little"))


def unpack_header(data: bytes, segment_start: int) -> Block | None:
    """Decode the header at the start of `data`; None if it is not a valid one of that segment."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, *fields, zero, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or crc != google_crc32c.value(data[: HEADER_BYTES - 4]):
        return None
    block = Block(*fields)
    valid = version == VERSION and zero == 0 and block.rows <= ROWS_MAX
    return block if valid and block.segment_start == segment_start else None


def version_of(data: bytes, segment_start: int, magic: bytes) -> int | None:
    """Return the version of the block or table header at the start of `data`; None if it is not valid."""
    if len(data) < HEADER_BYTES or data[:7] != magic or data[8:16] != segment_start.to_bytes(8, "little"):
        return None
    valid = data[HEADER_BYTES - 4 : HEADER_BYTES] == google_crc32c.value(data[: HEADER_BYTES - 4]).to_bytes(
        4, "little"
    )
    return data[7] if valid else None


def is_valid_body(block: Block, body: bytes) -> bool:
    """Return whether these are the bytes that were written after that header."""
    return len(body) == block.rows * ROW_BYTES and google_crc32c.value(body) == block.body_crc


def read_column(body: bytes, which: int) -> array[int]:
    """Return one column of a block as numbers."""
    size = len(body) // 4
    return from_little_endian("I", body[which * size : (which + 1) * size])


def rows_with_hash(body: bytes, which: int, hash_value: int) -> Iterator[int]:
    """Yield the numbers of rows whose hash in that column is `hash_value`, last row first."""
    needle = hash_value.to_bytes(4, "little")
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
    """Build the lookup table's entries for the messages of a block, each `hash << 32 | position`: by id, then
    by key.

    `body`: the bytes of the block without its header. Messages without a key have no entry by key.
    """
    positions = read_column(body, POSITION_COLUMN)
    entries = _interleave_halves(positions, read_column(body, ID_COLUMN))
    keys = read_column(body, KEY_COLUMN)
    if any(keys):
        entries += [entry for entry in _interleave_halves(positions, keys) if entry > U32_MAX]
    return entries


def _interleave_halves(low: array[int], high: array[int]) -> list[int]:
    pairs = array("I", bytes(8 * len(low)))
    first, second = (1, 0) if sys.byteorder == "big" else (0, 1)
    pairs[first::2] = low
    pairs[second::2] = high
    return array("Q", pairs.tobytes()).tolist()


def to_little_endian(values: array[int]) -> bytes:
    """Encode numbers as little-endian bytes."""
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def from_little_endian(typecode: str, data: bytes) -> array[int]:
    """Decode numbers from little-endian bytes."""
    values: array[int] = array(typecode, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


ID_BYTES = 16
TOPICS_REMEMBERED_MAX = 20_000


class Seeds(dict[str, int]):
    """A cache of the CRCs of topic names with a zero byte; cleared when it grows past its bound."""

    def __missing__(self, topic: str) -> int:
        if len(self) >= TOPICS_REMEMBERED_MAX:
            self.clear()
        seed = self[topic] = crc32(topic.encode() + b"\0")
        return seed


def key_hash(topic: str, key: bytes) -> int:
    """Return the index hash of a key in a topic. It is never 0, because 0 means "no key"."""
    return crc32(key, crc32(topic.encode() + b"\0")) or 1


def key_column(topics: Sequence[str], keys: Sequence[bytes], seeds: Seeds) -> array[int]:
    """Return the key hash of each record, 0 for an empty key."""
    if all(keys):
        column = array("I", map(crc32, keys, map(seeds.__getitem__, topics)))
        if 0 not in column:
            return column
    elif not any(keys):
        return array("I", bytes(4 * len(keys)))
    pairs = zip(keys, topics, strict=True)
    return array("I", [crc32(key, seeds[topic]) or 1 if key else 0 for key, topic in pairs])


def id_hash(message_id: bytes) -> int:
    """Return the index hash of a 16-byte message id: the XOR of its four words."""
    return int.from_bytes(id_column([message_id]), "little")


def id_column(message_ids: Sequence[bytes]) -> bytes:
    """Return the hashes of ids, 4 little-endian bytes each. Raises ValueError for ids of another length."""
    joined = b"".join(message_ids)
    count = len(message_ids)
    if len(joined) != ID_BYTES * count:
        raise ValueError(f"message ids must have {ID_BYTES} bytes each")
    words = array("I", joined)
    folded = 0
    for word in range(4):
        folded ^= int.from_bytes(words[word::4].tobytes(), "little")
    return folded.to_bytes(4 * count, "little")


_WINDOW = 64 * 1024


class BlockEntry(NamedTuple):
    """A block with a valid header, and its position in the file."""

    at: int
    block: Block


def walk_blocks(file: File, segment_start: int, on_damage: OnDamage) -> Iterator[BlockEntry]:
    """Yield every block with a valid header, in file order, without checking the bodies."""
    at, size = 0, file.size()
    while at + HEADER_BYTES <= size:
        block = unpack_header(file.salvage(HEADER_BYTES, at), segment_start)
        if block is None:
            on_damage(IndexDamage(segment_start, entries_name(segment_start), at, "header"))
            at = _next_header(file, segment_start, at + 1, size)
        elif at + block.size > size:
            return
        else:
            yield BlockEntry(at, block)
            at += block.size


def _next_header(file: File, segment_start: int, at: int, size: int) -> int:
    """Return the position of the next valid header, or `size` if there is none."""
    while at < size:
        window = file.salvage(_WINDOW, at)
        hit = window.find(MAGIC)
        if hit < 0:
            at += max(len(window) - len(MAGIC) + 1, 1)
            continue
        at += hit
        if unpack_header(file.salvage(HEADER_BYTES, at), segment_start):
            return at
        at += 1
    return size


def read_body(file: File, entry: BlockEntry, on_damage: OnDamage) -> bytes | None:
    """Return the checked body of a block; report damage and return None if it is damaged."""
    body = file.salvage(entry.block.rows * ROW_BYTES, entry.at + HEADER_BYTES)
    if is_valid_body(entry.block, body):
        return body
    start = entry.block.segment_start
    on_damage(IndexDamage(start, entries_name(start), entry.at, "body"))
    return None


def newest_with_hash(
    file: File, segment_start: int, which: int, hash_value: int, on_damage: OnDamage
) -> Iterator[int]:
    """Yield the log positions of a segment whose hash in column `which` is `hash_value`, descending."""
    for entry in reversed(list(walk_blocks(file, segment_start, on_damage))):
        body = read_body(file, entry, on_damage)
        if body is not None:
            yield from find_in_body(body, segment_start, which, hash_value)


def find_in_body(body: bytes, segment_start: int, which: int, hash_value: int) -> Iterator[int]:
    """Yield the log positions in one block whose hash in column `which` is `hash_value`, descending."""
    positions = None
    for row in rows_with_hash(body, which, hash_value):
        if positions is None:
            positions = read_column(body, POSITION_COLUMN)
        yield segment_start + positions[row]


def valid_prefix(file: File, segment_start: int, log_end: int) -> tuple[int, int, int]:
    """Return (bytes, covered to, last store time) of the leading blocks that are valid and without gaps.

    They end at or before `log_end`. The writer truncates the rest and adds it again from the log.
    """
    end, covered, last_ms = 0, segment_start, 0
    for entry in walk_blocks(file, segment_start, _ignore_damage):
        block = entry.block
        if entry.at != end or block.covers_from != covered or block.covers_to > log_end:
            break
        if read_body(file, entry, _ignore_damage) is None:
            break
        end, covered, last_ms = entry.at + block.size, block.covers_to, block.last_ms
    return end, covered, last_ms


def _ignore_damage(_: IndexDamage) -> None:
    """Do nothing about damage in the tail of a file, because a crash can cause it."""


def find_gaps(
    file: File, segment_start: int, segment_end: int, on_damage: OnDamage
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the segment that no valid block covers, ascending. Checks the bodies."""
    covered = segment_start
    for entry in walk_blocks(file, segment_start, on_damage):
        if read_body(file, entry, on_damage) is None:
            continue
        if entry.block.covers_from > covered:
            yield covered, entry.block.covers_from
        covered = max(covered, entry.block.covers_to)
    if covered < segment_end:
        yield covered, segment_end


class IndexDamage(NamedTuple):
    """A part of an index file whose checksum failed; it was not used."""

    segment_start: int
    file: str  # name in the index folder
    offset: int  # where it starts, in bytes
    what: str  # header, body, page


OnDamage = Callable[[IndexDamage], None]
