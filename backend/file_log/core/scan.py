"""Iterates over commit-log bytes: frames, records, and damaged ranges. Pure: bytes in, items out.

`view` is a segment's bytes (mapped or not), `base` the log position of its first byte, `salt` the segment's.
All other arguments are log positions. A frame or record is valid if the CRC of its header is right and it
names its own position, so that the scan can continue at the next valid one after damage. A frame found by
searching must also follow the last one by batch id and writer epoch. Where an item must start (no search was
needed), one of a newer version raises NewerFormatError: data of a newer release is not damage.
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
_SIZE_TO_VERSION = Struct("<I12xI52xBB")  # fields of a record: length, packed, kind, version
_SIZE_AT = 20


class Bad(NamedTuple):
    """A range `[start, end)` without a valid frame or record."""

    start: int
    end: int


def scan_items(view: Any, base: int, start: int, end: int, salt: int = 0) -> Iterator[Frame | Record | Bad]:
    """Yield every valid frame header and record, and the damaged ranges between them, in log order."""
    at, last = start, None
    while at < end:
        item = item_at(view, base, at, end, salt)
        if item is None:
            refuse_newer(view, base, at, end, salt)
            after = find_next_item(view, base, at + 1, end, salt, last)
            yield Bad(at, after)
            at = after
        elif isinstance(item, Frame):
            yield item
            at, last = at + FRAME_BYTES, item
        else:
            yield item
            at = item.end


def item_at(view: Any, base: int, at: int, end: int, salt: int) -> Frame | Record | None:
    """Return the valid frame header or record at a log position, or None if none ends by `end`."""
    index = at - base
    if view[index : index + 4] == FRAME_MAGIC:
        frame = unpack_frame(view[index : min(index + FRAME_BYTES, end - base)], at, salt)
        if frame is not None and frame.end <= end:
            return frame
    record = unpack_record(view, index, at, salt, end - base)
    return record if record is not None and record.end <= end else None


def find_next_item(view: Any, base: int, start: int, end: int, salt: int, last: Frame | None) -> int:
    """Return the position of the next valid frame header or record that can follow `last`, or `end`."""
    index = view.find(_MAGIC_PREFIX, start - base, end - base)
    while index >= 0:
        if view[index : index + 4] in (FRAME_MAGIC, RECORD_MAGIC):
            item = item_at(view, base, index + base, end, salt)
            if item is not None and (not isinstance(item, Frame) or can_follow(item, last)):
                return base + int(index)
        index = view.find(_MAGIC_PREFIX, index + 1, end - base)
    return end


def can_follow(frame: Frame, last: Frame | None) -> bool:
    """Return whether a frame can follow `last`, directly or later, by its batch id and writer epoch."""
    if last is None:
        return True
    if frame.position < last.end:
        return False
    most = 1 + (frame.position - last.end) // (FRAME_BYTES + RECORD_BYTES)
    return 0 < frame.batch_id - last.batch_id <= most and frame.writer_epoch >= last.writer_epoch


def scan_frames(
    view: Any, base: int, start: int, end: int, salt: int = 0, last: Frame | None = None
) -> Iterator[Frame | Bad]:
    """Yield the valid frame headers, skipping their records, and a Bad range wherever one is missing.

    `last`: the frame before `start`, if it is known.
    """
    at = start
    while at < end:
        item = item_at(view, base, at, end, salt)
        if isinstance(item, Frame):
            yield item
            at, last = item.end, item
            continue
        if item is None:
            refuse_newer(view, base, at, end, salt)
        after = at
        while after < end:
            after = find_next_item(view, base, after + 1, end, salt, last)
            if after < end and isinstance(item_at(view, base, after, end, salt), Frame):
                break
        yield Bad(at, after)
        at = after


def refuse_newer(view: Any, base: int, at: int, end: int, salt: int) -> None:
    """Raise NewerFormatError if a valid frame or record of a newer version lies at this log position."""
    index, version_max = at - base, version_of(salt)
    version = frame_version(view[index : min(index + FRAME_BYTES, end - base)], at, salt)
    if version is None:
        record = record_of_any_version(view, index, at, salt, end - base)
        version = None if record is None else record.version
    if version is not None and version > version_max:
        raise newer_format(f"the commit log at position {at}", version, version_max)


def refuse_newer_records(view: Any, base: int, frame: Frame, salt: int) -> None:
    """Raise NewerFormatError if a record of a valid frame, or its content, is of a newer version.

    Checks only the version bytes, unless one of them is newer.
    """
    at, end, version_max = frame.position + FRAME_BYTES, frame.end, version_of(salt)
    for _ in range(frame.records):
        if at + RECORD_BYTES > end:
            return
        size, packed, kind, version = _SIZE_TO_VERSION.unpack_from(view, at - base + _SIZE_AT)
        if version > version_max:
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


def is_complete(view: Any, base: int, frame: Frame, salt: int = 0) -> bool:
    """Return whether a frame has all its records, without a gap and with the right CRCs."""
    count = 0
    for item in scan_items(view, base, frame.position + FRAME_BYTES, frame.end, salt):
        if not isinstance(item, Record) or not has_valid_delivery(view, base, item):
            return False
        count += 1
    return count == frame.records


def has_valid_delivery(view: Any, base: int, record: Record) -> bool:
    """Return whether the delivery bytes have the CRC that the header names."""
    index = record.position - base
    delivery: bytes = view[index + record.meta_bytes : index + record.size]
    return record.delivery_is(delivery)
