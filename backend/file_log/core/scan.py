"""Walking through commit-log bytes: frames, records, and what is neither. Pure: bytes in, items out.

`view` is a segment's bytes (mapped or not), `base` the log position of its first byte, `salt` the segment's.
Everything else is in log positions. A piece counts when its header's CRC is right and it names the position
it lies at, so after damage the walk goes on at the next such piece; a frame found that way also has to fit
behind the last one by batch id and writer epoch. Where a piece has to be (nothing was looked for), one of a
newer version raises NewerFormatError: what a newer release wrote is no damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

from backend.file_log.core.layout import (
    FRAME_BYTES,
    FRAME_MAGIC,
    RECORD_BYTES,
    RECORD_MAGIC,
    Frame,
    Record,
    RecordKind,
    frame_version,
    record_of_any_version,
    unpack_frame,
    unpack_record,
    version_of,
)
from backend.progress.codec import DELTA_VERSION, decode_delta
from ddmq_common.errors import newer_format

_MAGIC_PREFIX = b"DQ"
_SIZE_TO_VERSION = Struct("<I12xI52xBB")  # of a record: length, packed, kind, version
_SIZE_AT = 20


class Bad(NamedTuple):
    """`[start, end)` holds nothing sound."""

    start: int
    end: int


def walk(view: Any, base: int, start: int, end: int, salt: int = 0) -> Iterator[Frame | Record | Bad]:
    """Every sound frame header and record, and what lies between, in log order."""
    at, last = start, None
    while at < end:
        found = sound_at(view, base, at, end, salt)
        if found is None:
            refuse_newer(view, base, at, end, salt)
            after = next_sound(view, base, at + 1, end, salt, last)
            yield Bad(at, after)
            at = after
        elif isinstance(found, Frame):
            yield found
            at, last = at + FRAME_BYTES, found
        else:
            yield found
            at = found.end


def sound_at(view: Any, base: int, at: int, end: int, salt: int) -> Frame | Record | None:
    """The frame header or record at a log position, if there is a sound one that ends by `end`."""
    place = at - base
    if view[place : place + 4] == FRAME_MAGIC:
        frame = unpack_frame(view[place : min(place + FRAME_BYTES, end - base)], at, salt)
        if frame is not None and frame.end <= end:
            return frame
    record = unpack_record(view, place, at, salt, end - base)
    return record if record is not None and record.end <= end else None


def next_sound(view: Any, base: int, start: int, end: int, salt: int, last: Frame | None) -> int:
    """Where the next sound frame header or record lies that can stand behind `last`; `end` without one."""
    place = view.find(_MAGIC_PREFIX, start - base, end - base)
    while place >= 0:
        if view[place : place + 4] in (FRAME_MAGIC, RECORD_MAGIC):
            found = sound_at(view, base, place + base, end, salt)
            if found is not None and (not isinstance(found, Frame) or fits(found, last)):
                return base + int(place)
        place = view.find(_MAGIC_PREFIX, place + 1, end - base)
    return end


def fits(frame: Frame, last: Frame | None) -> bool:
    """Whether a frame can stand somewhere behind `last`: its batch id and writer epoch say so."""
    if last is None:
        return True
    if frame.position < last.end:
        return False
    most = 1 + (frame.position - last.end) // (FRAME_BYTES + RECORD_BYTES)
    return 0 < frame.batch_id - last.batch_id <= most and frame.writer_epoch >= last.writer_epoch


def frames(
    view: Any, base: int, start: int, end: int, salt: int = 0, last: Frame | None = None
) -> Iterator[Frame | Bad]:
    """Sound frame headers only, jumping over their records; Bad from where one is missing up to the next.

    `last`: the frame before, where it is known.
    """
    at = start
    while at < end:
        found = sound_at(view, base, at, end, salt)
        if isinstance(found, Frame):
            yield found
            at, last = found.end, found
            continue
        if found is None:
            refuse_newer(view, base, at, end, salt)
        after = at
        while after < end:
            after = next_sound(view, base, after + 1, end, salt, last)
            if after < end and isinstance(sound_at(view, base, after, end, salt), Frame):
                break
        yield Bad(at, after)
        at = after


def refuse_newer(view: Any, base: int, at: int, end: int, salt: int) -> None:
    """Raises NewerFormatError when a sound frame or record of a newer version lies at this log position."""
    place, known = at - base, version_of(salt)
    version = frame_version(view[place : min(place + FRAME_BYTES, end - base)], at, salt)
    if version is None:
        record = record_of_any_version(view, place, at, salt, end - base)
        version = None if record is None else record.version
    if version is not None and version > known:
        raise newer_format(f"the commit log at position {at}", version, known)


def refuse_newer_records(view: Any, base: int, frame: Frame, salt: int) -> None:
    """The same for all records of a sound frame, and their content; only version bytes are looked at, unless
    one is newer."""
    at, end, known = frame.position + FRAME_BYTES, frame.end, version_of(salt)
    for _ in range(frame.records):
        if at + RECORD_BYTES > end:
            return
        size, packed, kind, version = _SIZE_TO_VERSION.unpack_from(view, at - base + _SIZE_AT)
        if version > known:
            refuse_newer(view, base, at, end, salt)
        if kind == RecordKind.PROGRESS and RECORD_BYTES <= packed >> 8 < size and at + size <= end:
            delta = view[at - base + (packed >> 8) : at - base + size]
            if delta[0] > DELTA_VERSION:
                _refuse_newer_delta(view, base, at, salt, delta)
        if size < RECORD_BYTES:
            return
        at += size


def _refuse_newer_delta(view: Any, base: int, at: int, salt: int, delta: bytes) -> None:
    record = unpack_record(view, at - base, at, salt)
    if record is not None and record.delivery_is(delta):
        decode_delta(delta)


def is_whole(view: Any, base: int, frame: Frame, salt: int = 0) -> bool:
    """Whether all of a frame's records are there, without a gap, every CRC right."""
    count = 0
    for item in walk(view, base, frame.position + FRAME_BYTES, frame.end, salt):
        if not isinstance(item, Record) or not delivery_is_sound(view, base, item):
            return False
        count += 1
    return count == frame.records


def delivery_is_sound(view: Any, base: int, record: Record) -> bool:
    """Whether the delivery bytes have the CRC that the header names."""
    place = record.position - base
    delivery: bytes = view[place + record.meta_bytes : place + record.size]
    return record.delivery_is(delivery)
