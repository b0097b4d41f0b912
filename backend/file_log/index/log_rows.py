"""Reading records of the log by position, for the index: to verify candidates, and to index them again.

Everything is read with pread, never from mapped memory: a page fault would hold the interpreter.
Segments may be closed and gone meanwhile; each record names its own position, so that other bytes are
never taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from backend.file_log.core.frame import FRAME_BYTES, Frame
from backend.file_log.core.record import RECORD_BYTES, Record, RecordKind, unpack_record
from backend.file_log.core.scan import walk
from backend.file_log.index.sealing import IndexRow
from backend.file_log.segments import Segment

WINDOW_BYTES = 1 << 20
RECORD_BYTES_MAX = 64 << 20  # a piece that is larger than this is no record
FIRST_READ_BYTES = 4_096

Found = tuple[Record, bytes]  # a record and its delivery bytes


def is_key(record: Record, topic: str, incarnation: int, key: bytes) -> bool:
    """Whether it is a message of that topic and key."""
    return _is_message(record, topic, incarnation) and record.key == key


def is_id(record: Record, topic: str, incarnation: int, message_id: bytes) -> bool:
    """Whether it is the message (or a copy) with that id."""
    return _is_message(record, topic, incarnation) and record.message_id == message_id


def _is_message(record: Record, topic: str, incarnation: int) -> bool:
    return record.kind == RecordKind.MESSAGE and record.incarnation == incarnation and record.topic == topic


def verified(
    candidates: Iterable[int], segments: Sequence[Segment], wanted: Callable[[Record], bool]
) -> Iterator[Found]:
    """Those candidates that are sound records and are wanted. Reads the log: in a native thread."""
    for position in candidates:
        found = read_record(segments, position)
        if found is not None and wanted(found[0]):
            yield found


def read_record(segments: Sequence[Segment], position: int) -> Found | None:
    """The record at a log position with its delivery bytes; None when there is no sound one. Blocking."""
    segment = next((one for one in reversed(segments) if one.start <= position < one.end), None)
    if segment is None:
        return None
    try:
        data = segment.salvage(position, FIRST_READ_BYTES)
        record = unpack_record(data, 0, position, segment.salt)
        size = _size_of(data) if record is None else record.size
        if size > len(data):
            data = segment.salvage(position, min(size, RECORD_BYTES_MAX))
            record = unpack_record(data, 0, position, segment.salt)
    except OSError:
        return None  # deleted meanwhile
    if record is None or len(data) < record.size:
        return None
    delivery = data[record.meta_bytes : record.size]
    return (record, delivery) if record.delivery_is(delivery) else None


def _size_of(data: bytes) -> int:
    return int.from_bytes(data[20:24], "little") if len(data) >= RECORD_BYTES else 0


def rows_of(segments: Sequence[Segment], span: tuple[int, int]) -> Iterator[IndexRow]:
    """What the index keeps of all sound messages in `[start, end)`, one segment's part. Blocking."""
    at, end = span
    segment = next((one for one in segments if one.start <= at < one.end), None)
    if segment is None:
        return
    for item in records_of(segment, at, min(end, segment.end)):
        if item.kind == RecordKind.MESSAGE:
            yield IndexRow(item.position, item.topic, item.key, item.message_id, item.stored_ms)


def records_of(segment: Segment, at: int, end: int) -> Iterator[Record]:
    """All sound records of a segment in `[at, end)`, read in windows. Blocking."""
    size = WINDOW_BYTES
    while at < end:
        data = segment.salvage(at, min(size, end - at))
        if not data:
            return
        after, stop = at, at + len(data)
        for item in walk(data, at, at, stop, segment.salt):
            if isinstance(item, Record):
                after = item.end
                yield item
            elif isinstance(item, Frame):
                after = item.position + FRAME_BYTES
            elif item.end < stop:
                after = item.end  # damaged, and something sound behind it
        if after == at and size < RECORD_BYTES_MAX and stop < end:
            size *= 2  # perhaps a record that is larger than the window
        else:
            at, size = (stop if after == at else after), WINDOW_BYTES
