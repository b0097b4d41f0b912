"""Reading an entries file: walk its blocks, search them, find where sound ones end.

Rules: a block's body is checked before anything in it is believed; a damaged piece is reported and
passed over, it costs one block; a block that the file ends inside of is not there yet, and is no damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from backend.file_log.core.names import entries_name
from backend.file_log.index import blocks
from backend.file_log.index.blocks import HEADER_BYTES, MAGIC, Block
from backend.file_log.storage import File

_WINDOW = 64 * 1024


class FoundEntry(NamedTuple):
    """A block with a sound header, and where it starts in the file."""

    at: int
    block: Block


def walk(file: File, segment_start: int, on_damage: OnDamage) -> Iterator[FoundEntry]:
    """Every block with a sound header, in file order; bodies are not looked at."""
    at, size = 0, file.size()
    while at + HEADER_BYTES <= size:
        block = blocks.unpack_header(file.salvage(HEADER_BYTES, at), segment_start)
        if block is None:
            on_damage(IndexDamage(segment_start, entries_name(segment_start), at, "header"))
            at = _next_header(file, segment_start, at + 1, size)
        elif at + block.size > size:
            return
        else:
            yield FoundEntry(at, block)
            at += block.size


def _next_header(file: File, segment_start: int, at: int, size: int) -> int:
    """Where the next sound header starts; `size` when there is none."""
    while at < size:
        window = file.salvage(_WINDOW, at)
        hit = window.find(MAGIC)
        if hit < 0:
            at += max(len(window) - len(MAGIC) + 1, 1)
            continue
        at += hit
        if blocks.unpack_header(file.salvage(HEADER_BYTES, at), segment_start):
            return at
        at += 1
    return size


def read_body(file: File, found: FoundEntry, on_damage: OnDamage) -> bytes | None:
    """The checked body, or None (and a report) when it is damaged."""
    body = file.salvage(found.block.rows * blocks.ROW_BYTES, found.at + HEADER_BYTES)
    if blocks.body_is_sound(found.block, body):
        return body
    start = found.block.segment_start
    on_damage(IndexDamage(start, entries_name(start), found.at, "body"))
    return None


def newest_with_hash(
    file: File, segment_start: int, which: int, wanted: int, on_damage: OnDamage
) -> Iterator[int]:
    """Log positions whose hash in column `which` is `wanted`, descending."""
    for found in reversed(list(walk(file, segment_start, on_damage))):
        body = read_body(file, found, on_damage)
        if body is not None:
            yield from in_body(body, segment_start, which, wanted)


def in_body(body: bytes, segment_start: int, which: int, wanted: int) -> Iterator[int]:
    """The same within one block."""
    positions = None
    for row in blocks.rows_with_hash(body, which, wanted):
        if positions is None:
            positions = blocks.column(body, blocks.POSITION_COLUMN)
        yield segment_start + positions[row]


def between(file: File, segment_start: int, span: tuple[int, int], on_damage: OnDamage) -> Iterator[int]:
    """Log positions stored in the wall ms `[start, end)`, ascending."""
    start_ms, end_ms = span
    for found in walk(file, segment_start, on_damage):
        if found.block.first_ms >= end_ms:
            return
        if found.block.last_ms >= start_ms and found.block.rows:
            body = read_body(file, found, on_damage)
            if body is not None:
                yield from times_in_body(found.block, body, start_ms, end_ms)


def times_in_body(block: Block, body: bytes, start_ms: int, end_ms: int) -> Iterator[int]:
    """The same within one block."""
    times = blocks.column(body, blocks.TIME_COLUMN)
    positions = blocks.column(body, blocks.POSITION_COLUMN)
    low, high = start_ms - block.first_ms, end_ms - block.first_ms
    for stored, position in zip(times, positions, strict=True):
        if stored >= high:
            return
        if stored >= low:
            yield block.segment_start + position


def sound_prefix(file: File, segment_start: int, log_end: int) -> tuple[int, int, int]:
    """(bytes, covered to, last store time) of the leading blocks: sound, without gaps, up to `log_end`.

    What comes after is worth nothing to the writer: it is cut and added again from the log.
    """
    end, covered, last_ms = 0, segment_start, 0
    for found in walk(file, segment_start, _ignore):
        block = found.block
        if found.at != end or block.covers_from != covered or block.covers_to > log_end:
            break
        if read_body(file, found, _ignore) is None:
            break
        end, covered, last_ms = found.at + block.size, block.covers_to, block.last_ms
    return end, covered, last_ms


def _ignore(_: IndexDamage) -> None:
    """The tail that a crash left is no damage."""


def gaps(file: File, segment_start: int, segment_end: int, on_damage: OnDamage) -> Iterator[tuple[int, int]]:
    """Ranges of the segment that no sound block covers, ascending; bodies are checked."""
    covered = segment_start
    for found in walk(file, segment_start, on_damage):
        if read_body(file, found, on_damage) is None:
            continue
        if found.block.covers_from > covered:
            yield covered, found.block.covers_from
        covered = max(covered, found.block.covers_to)
    if covered < segment_end:
        yield covered, segment_end


class IndexDamage(NamedTuple):
    """A piece whose checksum failed; it was not served."""

    segment_start: int
    file: str  # name in the index folder
    offset: int  # where the piece starts, bytes
    what: str  # header, body, page


OnDamage = Callable[[IndexDamage], None]
