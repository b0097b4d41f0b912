"""Reading records over the files alone: for the writer's process, and for those beside it.

Rules:
* Nothing at or past the log position `limit` is touched: what readers may not see may not be there.
* A record is served when its header says what its consume-queue entry says, and its delivery bytes have
  the CRC that the header names. An entry that disagrees is looked up again in the log; a record that is
  damaged is left out, counted and copied aside once.
* What is old is brought into the page cache in a native thread first (`cold`), so that no page fault
  stops the hub; after that all is read from mapped files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import google_crc32c

from backend.file_log.core.record import (
    ENTRY_BYTES,
    ENTRY_ROWS,
    VOUCH,
    VOUCH_AT,
    Kind,
    Record,
    unpack_record,
)
from backend.file_log.segments import Segment, SegmentSet
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus, StoredRecord
from ddmq_common.errors import DamagedError

BLOCK_BYTES = 1 << 20
Row = tuple[int, int, int, int, int]  # an entry: position, length, tag hash, due, flags | delivery start
Damaged = Callable[[int, int, str], None]  # log position, length, what


class FileBatch(ReadBatch):
    """Records of one queue as slices of mapped segments."""

    __slots__ = ("_reader", "_ref", "_rows")

    def __init__(
        self,
        reader: LogReader | None,
        ref: QueueRef,
        status: ReadStatus,
        next_offset: int,
        bounds: Bounds | None,
    ) -> None:
        self._reader = reader
        self._ref = ref
        self._rows: list[Row] = []
        self.status = status
        self.offsets: list[int] = []
        self.positions: Sequence[int] = ()
        self.flags: Sequence[int] = ()
        self.tag_hashes: Sequence[int] = ()
        self.deliveries: list[bytes] = []
        self.next_offset = next_offset
        self.bounds = bounds

    def fill(self, offsets: list[int], rows: list[Row], deliveries: list[bytes]) -> None:
        """Set the columns."""
        self._rows = rows
        self.offsets, self.deliveries = offsets, deliveries
        if rows:
            self.positions, _, self.tag_hashes, _, packed = zip(*rows, strict=True)
            self.flags = [number & 255 for number in packed]

    def record(self, index: int) -> StoredRecord:
        """In full. Raises DamagedError when it was damaged, or deleted, since."""
        if self._reader is None:
            raise IndexError(index)
        found = self._reader.record_at(self._rows[index][0])
        if found is None:
            raise DamagedError(f"the record at log position {self._rows[index][0]} cannot be read any more")
        return stored_record(found, self.deliveries[index])


def stored_record(record: Record, delivery: bytes) -> StoredRecord:
    """What the port calls a record."""
    return StoredRecord(
        record.topic,
        record.queue_id,
        record.offset,
        record.position,
        record.message_id,
        record.born_ms,
        record.stored_ms,
        record.flags,
        record.due_ms,
        delivery,
        record.system,
    )


class Span(NamedTuple):
    """Part of a segment, by log position."""

    segment: Segment
    start: int
    size: int


class LogReader:
    """Reads what consume-queue entries point to. `lookup(ref, offset)` finds an entry in the log itself."""

    def __init__(
        self,
        segments: SegmentSet,
        damaged: Damaged,
        lookup: Callable[[QueueRef, int], Row | None],
        hot_bytes: int,
        warm_blocks_max: int,
    ) -> None:
        self.segments = segments
        self._damaged = damaged
        self._lookup = lookup
        self._hot_bytes = hot_bytes
        self._warm: OrderedDict[int, None] = OrderedDict()
        self._warm_max = warm_blocks_max

    def batch(self, ref: QueueRef, offset: int, entries: bytes, bytes_max: int, limit: int) -> FileBatch:
        """The records of `entries`, which start at `offset`: at least one, then until `bytes_max`.

        The hot path of reading, about 0.7 µs a record: one loop with local names.
        """
        segments, unpack, crc = self.segments, VOUCH.unpack_from, google_crc32c.value
        start = end = base = left = 0
        view: Any = b""
        offsets: list[int] = []
        rows: list[Row] = []
        deliveries: list[bytes] = []
        left = bytes_max
        at = offset - 1
        for row in ENTRY_ROWS.iter_unpack(entries):
            at += 1
            position, size, _, _, packed = row
            if not start <= position < end:
                segment = segments.locate(position)
                start = end = 0
                if segment is not None:
                    start, end, base = segment.start, min(segment.end, limit), segment.start
                    view = segment.view(end)
            if start <= position and position + size <= end and size > packed >> 8:
                place = position - base
                head = unpack(view, place + VOUCH_AT)
                if head[1:6] == row and head[6] == at:
                    delivery = view[place + (packed >> 8) : place + size]
                    if crc(delivery) == head[0]:
                        left -= len(delivery)
                        if left < 0 and deliveries:
                            break
                        offsets.append(at)
                        rows.append(row)
                        deliveries.append(delivery)
                        continue
            found = self._second_look(ref, at, row, limit)
            if found is not None:
                left -= len(found[1])
                if left < 0 and deliveries:
                    break
                offsets.append(at)
                rows.append(found[0])
                deliveries.append(found[1])
        else:
            at += 1
        batch = FileBatch(self, ref, ReadStatus.DATA, at, None)
        batch.fill(offsets, rows, deliveries)
        return batch

    def _second_look(self, ref: QueueRef, offset: int, row: Row, limit: int) -> tuple[Row, bytes] | None:
        """Entry and record disagree: find out which of them is wrong."""
        record = self.record_at(row[0], limit) if row[1] else None
        if record is None or not is_of(record, ref, offset):
            found = self._lookup(ref, offset)
            record = None if found is None else self.record_at(found[0], limit)
            if record is None or not is_of(record, ref, offset):
                self._damaged(row[0], row[1], f"offset {offset} of {ref.topic} queue {ref.queue_id}")
                return None
        delivery = self.delivery_of(record)
        return None if delivery is None else (row_of(record), delivery)

    def record_at(self, position: int, limit: int | None = None) -> Record | None:
        """The record at a log position; None when there is none, or its meta part is damaged."""
        segment = self.segments.locate(position)
        if segment is None:
            return None
        end = segment.end if limit is None else min(segment.end, limit)
        if position + VOUCH.size > end:
            return None
        record = unpack_record(segment.view(end), position - segment.start, position)
        return record if record is not None and record.end <= end else None

    def delivery_of(self, record: Record) -> bytes | None:
        """Its delivery bytes; None, and counted, when they are damaged."""
        segment = self.segments.locate(record.position)
        if segment is None:
            return None
        place = record.position - segment.start
        delivery: bytes = segment.view(record.end)[place + record.meta_bytes : place + record.size]
        if google_crc32c.value(delivery) != record.delivery_crc:
            self._damaged(record.position, record.size, f"offset {record.offset} of {record.topic}")
            return None
        return delivery

    # --- what may not be in the page cache

    def cold(self, entries: bytes, bytes_max: int) -> list[Span]:
        """The parts of the log that `entries` need and that may not be cached; [] for hot ones."""
        hot = self.segments.last.end - self._hot_bytes
        if not entries or hot <= 0 or ENTRY_ROWS.unpack_from(entries, len(entries) - ENTRY_BYTES)[0] >= hot:
            return []
        spans: list[Span] = []
        left = bytes_max
        for position, size, _, _, _ in ENTRY_ROWS.iter_unpack(entries):
            if position < hot and not self._is_warm(position, position + size):
                segment = self.segments.locate(position)
                if segment is not None and segment.end >= position + size:
                    spans.append(Span(segment, position, size))
            left -= size
            if left < 0:
                break
        return spans

    def _is_warm(self, start: int, end: int) -> bool:
        blocks = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        return all(block in self._warm for block in blocks)

    def warm(self, spans: list[Span]) -> None:
        """Bring them into the page cache, whole blocks where they lie close together. Blocking."""
        blocks = dict.fromkeys(
            block
            for span in spans
            for block in range(span.start // BLOCK_BYTES, -(-(span.start + span.size) // BLOCK_BYTES))
        )
        if len(blocks) > max(4, len(spans) // 16):
            for span in spans:
                span.segment.pread(span.start, span.size)
            return
        for block in blocks:
            segment = self.segments.locate(max(block * BLOCK_BYTES, spans[0].segment.start))
            if segment is not None:
                segment.pread(max(block * BLOCK_BYTES, segment.start), BLOCK_BYTES)
                self._warm[block] = None
        while len(self._warm) > self._warm_max:
            self._warm.popitem(last=False)


def is_of(record: Record, ref: QueueRef, offset: int) -> bool:
    """Whether the record is the message at this offset of this queue."""
    return (
        record.offset == offset
        and record.kind == Kind.MESSAGE
        and record.queue_id == ref.queue_id
        and record.incarnation == ref.incarnation
        and record.topic == ref.topic
    )


def row_of(record: Record) -> Row:
    """Its consume-queue entry."""
    return (record.position, record.size, record.tag_hash, record.due_ms, record.packed)
