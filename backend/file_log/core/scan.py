"""Walking through commit-log bytes: frames, records, and what is neither. Pure: bytes in, items out.

`view` is a segment's bytes (mapped or not), `base` the log position of its first byte. Everything else is
in log positions. A piece counts when its header's CRC is right and it names the position it lies at, so
after damage the walk goes on at the next such piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from backend.file_log.core.frame import FRAME_BYTES, FRAME_MAGIC, Frame, unpack_frame
from backend.file_log.core.record import RECORD_MAGIC, Record, unpack_record

_MAGIC_PREFIX = b"DQ"


class Bad(NamedTuple):
    """`[start, end)` holds nothing sound."""

    start: int
    end: int


def walk(view: Any, base: int, start: int, end: int) -> Iterator[Frame | Record | Bad]:
    """Every sound frame header and record, and what lies between, in log order."""
    at = start
    while at < end:
        found = sound_at(view, base, at, end)
        if found is None:
            after = next_sound(view, base, at + 1, end)
            yield Bad(at, after)
            at = after
        else:
            yield found
            at = at + FRAME_BYTES if isinstance(found, Frame) else found.end


def sound_at(view: Any, base: int, at: int, end: int) -> Frame | Record | None:
    """The frame header or record at a log position, if there is a sound one that ends by `end`."""
    place = at - base
    if view[place : place + 4] == FRAME_MAGIC:
        frame = unpack_frame(view[place : min(place + FRAME_BYTES, end - base)], at)
        if frame is not None and frame.end <= end:
            return frame
    record = unpack_record(view, place, at)
    return record if record is not None and record.end <= end else None


def next_sound(view: Any, base: int, start: int, end: int) -> int:
    """Where the next sound frame header or record lies; `end` when there is none."""
    place = view.find(_MAGIC_PREFIX, start - base, end - base)
    while place >= 0:
        if view[place : place + 4] in (FRAME_MAGIC, RECORD_MAGIC) and sound_at(view, base, place + base, end):
            return base + int(place)
        place = view.find(_MAGIC_PREFIX, place + 1, end - base)
    return end


def frames(view: Any, base: int, start: int, end: int) -> Iterator[Frame | Bad]:
    """Sound frame headers only, jumping over their records; Bad from where one is missing up to the next."""
    at = start
    while at < end:
        found = sound_at(view, base, at, end)
        if isinstance(found, Frame):
            yield found
            at = found.end
            continue
        after = at
        while after < end:
            after = next_sound(view, base, after + 1, end)
            if after < end and isinstance(sound_at(view, base, after, end), Frame):
                break
        yield Bad(at, after)
        at = after


def is_whole(view: Any, base: int, frame: Frame) -> bool:
    """Whether all of a frame's records are there, without a gap, every CRC right."""
    count = 0
    for item in walk(view, base, frame.position + FRAME_BYTES, frame.end):
        if not isinstance(item, Record) or not delivery_is_sound(view, base, item):
            return False
        count += 1
    return count == frame.records


def delivery_is_sound(view: Any, base: int, record: Record) -> bool:
    """Whether the delivery bytes have the CRC that the header names."""
    place = record.position - base
    delivery: bytes = view[place + record.meta_bytes : place + record.size]
    return record.delivery_is(delivery)
