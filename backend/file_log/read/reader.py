"""Reads records from the files alone, in the writer's process and in the member processes.

Rules:
* No byte at or past the log position `limit` is touched: invisible records may not exist.
* A record is served if its header agrees with its consume-queue entry and the record has the CRC that the
  header names. A damaged entry is searched again in the log; a damaged record is left out, counted and copied
  to `damaged/` once.
* Old records are first loaded into the page cache by a native thread (`list_cold`), so that no page fault
  stops the hub. Then whole batches are read from mapped files, after `view` has checked that every page can
  be read: an unreadable page would end the process. The records in such a page are lost, like other damage.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import google_crc32c

from backend.file_log.consume_queue import SelectedEntries
from backend.file_log.core.layout import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_ROWS,
    FRONT,
    MESSAGE_ID_AT,
    NO_ID,
    RAW_ENTRIES,
    RECORD_BYTES,
    REST,
    STORED_MS,
    STORED_MS_AT,
    VOUCH,
    VOUCH_AT,
    Record,
    RecordKind,
    system_finder,
    unpack_record,
)
from backend.file_log.segments import Segment, SegmentSet
from backend.file_log.storage import PAGE_BYTES
from backend.port import ReadCall
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus, ShortRecord, StoredRecord
from ddmq_common.errors import DamagedError

BLOCK_BYTES = 1 << 20
FIRST_READ_BYTES = 4_096  # most records' meta parts are in it
SIZE_AT = 20  # index of the length in a record
CHECKED_FROM = FRONT.size  # the bytes of a record from here on are under its CRCs
Row = tuple[int, int, int, int, int]  # an entry: position, length, tag hash, due, flags | delivery start
Columns = tuple[tuple[int, ...], ...]  # the fields of many entries, by field
Damaged = Callable[[int, int, str], None]  # log position, length, description


class FileBatch(ReadBatch):
    """Records of one queue as slices of mapped segments."""

    def __init__(
        self,
        reader: LogReader | None,
        status: ReadStatus,
        next_offset: int,
        bounds: Bounds | None,
    ) -> None:
        self._reader = reader
        self._ids: list[bytes] | None = None
        self.status = status
        self.offsets: Sequence[int] = ()
        self.positions: Sequence[int] = ()
        self.flags: Sequence[int] = ()
        self.tag_hashes: Sequence[int] = ()
        self.deliveries: Sequence[bytes] = ()
        self.next_offset = next_offset
        self.bounds = bounds

    def fill_columns(
        self, offsets: Sequence[int], rows: Columns, deliveries: list[bytes], ids: list[bytes] | None = None
    ) -> None:
        """Set the columns; `ids`: the message ids, if the call requested them."""
        self._ids = ids
        self.positions, _, self.tag_hashes, _, packed = rows
        self.offsets, self.deliveries = offsets, deliveries
        self.flags = [number & 255 for number in packed]

    def record(self, index: int) -> StoredRecord:
        """Return the complete record. Raises DamagedError if it was damaged or deleted since the read."""
        if self._reader is None:
            raise IndexError(index)
        record = self._reader.record_at(self.positions[index])
        if record is None:
            raise DamagedError(f"the record at log position {self.positions[index]} cannot be read any more")
        return stored_record(record, self.deliveries[index])

    def carried(self, name: str) -> list[ShortRecord]:
        """Return all records in the short form. The read has checked them, so this checks nothing."""
        return [] if self._reader is None else self._reader.carried(self, name)

    def message_ids(self) -> list[bytes]:
        if self._ids is not None:
            return self._ids
        return [] if self._reader is None else self._reader.message_ids_at(self.positions)

    def stored_ms(self, index: int) -> int:
        return 0 if self._reader is None else self._reader.stored_ms_at(self.positions[index])


def stored_record(record: Record, delivery: bytes) -> StoredRecord:
    """Convert a record of the log to a record of the port."""
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


class RecordRange(NamedTuple):
    """A range of a segment, by log position."""

    segment: Segment
    start: int
    size: int


def _end_of_page(segment: Segment, view: mmap.mmap, position: int) -> int:
    """Return the log position at the end of the page that holds the byte before `position`, or at the end of
    the mapped file."""
    pages = -((segment.start - position) // PAGE_BYTES)
    return segment.start + min(pages * PAGE_BYTES, len(view))


class LogReader:
    """Reads the records of consume-queue entries. `lookup(ref, offset)` searches the log for an entry."""

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
        self._cached_from = (
            segments.last.end if segments.segments else 0
        )  # older bytes have not been read yet

    def read_batch(self, call: ReadCall, picked: SelectedEntries, limit: int) -> FileBatch:
        """Read the records of the selected entries: at least one, then until `call.bytes_max`."""
        columns: Columns = tuple(zip(*ENTRY_ROWS.iter_unpack(picked.entries), strict=True))
        batch = FileBatch(self, ReadStatus.DATA, picked.after, None)
        if columns and not self._fill_fast(call, picked, columns, limit, batch):
            return self._read_slow(call, picked, columns, limit)
        return batch

    def _fill_fast(
        self, call: ReadCall, picked: SelectedEntries, columns: Columns, limit: int, batch: FileBatch
    ) -> bool:
        """Fill the batch on the hot path of reading; False if the entries need the slow path.

        The records must be valid, lie in one segment and fit into `call.bytes_max`.
        """
        positions, sizes, _, _, packed = columns
        first, last = positions[0], positions[-1]
        end = last + sizes[-1]
        segment = self.segments.locate(first)
        if (
            segment is None
            or min(positions) != first
            or max(positions) != last
            or end > min(segment.end, limit)
            or sum(sizes) > call.bytes_max
        ):
            return False
        try:
            view, base = segment.view(first, end), segment.start
        except OSError:
            return False  # a page cannot be read; the slow path finds its records
        unpack, crc, salt = VOUCH.unpack_from, google_crc32c.extend, segment.salt
        deliveries: list[bytes] = []
        add = deliveries.append
        raw = RAW_ENTRIES.iter_unpack(picked.entries)
        rows = zip(picked.offsets, positions, sizes, packed, raw, strict=True)
        for offset, position, size, flags, (fields,) in rows:
            index = position - base
            stored_crc, repeated, at = unpack(view, index + VOUCH_AT)
            if repeated != fields or at != offset:
                return False
            covered = view[index + CHECKED_FROM : index + size]
            if crc(salt, covered) != stored_crc:
                return False
            add(covered[(flags >> 8) - CHECKED_FROM :])
        batch.fill_columns(
            picked.offsets, columns, deliveries, ids_in(view, base, positions) if call.ids else None
        )
        return True

    def _read_slow(self, call: ReadCall, picked: SelectedEntries, columns: Columns, limit: int) -> FileBatch:
        """Read a batch on the slow path: across segments, up to a bound, or with damage."""
        rows: list[Row] = list(zip(*columns, strict=True))
        offsets: list[int] = []
        served: list[Row] = []
        deliveries: list[bytes] = []
        remaining_bytes, after = call.bytes_max, picked.after
        for at, row in zip(picked.offsets, rows, strict=True):
            checked = self._read_checked(at, row, limit) or self._read_repaired(call.queue, at, row, limit)
            if checked is None or (call.tags is not None and checked[0][2] not in call.tags):
                continue
            remaining_bytes -= len(checked[1])
            if remaining_bytes < 0 and deliveries:
                after = at
                break
            offsets.append(at)
            served.append(checked[0])
            deliveries.append(checked[1])
        batch = FileBatch(self, ReadStatus.DATA, after, None)
        if served:
            batch.fill_columns(offsets, tuple(zip(*served, strict=True)), deliveries)
        return batch

    def _read_checked(self, offset: int, row: Row, limit: int) -> tuple[Row, bytes] | None:
        """Return the record if entry, header and delivery bytes agree, else None."""
        position, size, _, _, packed = row
        segment = self.segments.locate(position)
        if segment is None or position + size > min(segment.end, limit) or size < VOUCH_AT + VOUCH.size:
            return None
        try:
            view, index = segment.view(position, position + size), position - segment.start
        except OSError:
            return None
        stored_crc, repeated, at = VOUCH.unpack_from(view, index + VOUCH_AT)
        covered = view[index + CHECKED_FROM : index + size]
        if (
            repeated != ENTRY.pack(*row)
            or at != offset
            or google_crc32c.extend(segment.salt, covered) != stored_crc
        ):
            return None
        return row, covered[(packed >> 8) - CHECKED_FROM :]

    def _read_repaired(self, ref: QueueRef, offset: int, row: Row, limit: int) -> tuple[Row, bytes] | None:
        """Return the record of a damaged entry, or None if the record itself is damaged."""
        record = self.record_at(row[0], limit) if row[1] else None
        if record is None or not is_of(record, ref, offset):
            entry = self._lookup(ref, offset)
            record = None if entry is None else self.record_at(entry[0], limit)
            if record is None or not is_of(record, ref, offset):
                self._damaged(row[0], row[1], f"offset {offset} of {ref.topic} queue {ref.queue_id}")
                return None
        delivery = self.delivery_of(record)
        return None if delivery is None else (row_of(record), delivery)

    def record_at(self, position: int, limit: int | None = None) -> Record | None:
        """Return the record at a log position, or None if there is none or its meta part is damaged."""
        segment = self.segments.locate(position)
        if segment is None:
            return None
        end = segment.end if limit is None else min(segment.end, limit)
        data = segment.salvage(position, min(FIRST_READ_BYTES, end - position))
        record = unpack_record(data, 0, position, segment.salt)
        size = int.from_bytes(data[SIZE_AT : SIZE_AT + 4], "little")
        if record is None and len(data) < size <= end - position:
            record = unpack_record(segment.salvage(position, size), 0, position, segment.salt)
        return record if record is not None and record.end <= end else None

    def stored_ms_at(self, position: int) -> int:
        """Return the store time of a recently read record by its log position; 0 if its segment was
        deleted."""
        segment = self.segments.locate(position)
        if segment is None:
            return 0
        data = segment.salvage(position + STORED_MS_AT, STORED_MS.size)
        stored_ms: int = STORED_MS.unpack(data)[0] if len(data) == STORED_MS.size else 0
        return stored_ms

    def message_ids_at(self, positions: Sequence[int]) -> list[bytes]:
        """Return the message ids of recently read records, by their log positions in ascending order.

        The id is b"" if the record's segment was deleted or cannot be read.
        """
        if not positions:
            return []
        first, last = positions[0], positions[-1]
        segment = self.segments.locate(first)
        if segment is None or last + RECORD_BYTES > segment.end:
            halves = len(positions) // 2
            if not halves:
                return [b""]
            return self.message_ids_at(positions[:halves]) + self.message_ids_at(positions[halves:])
        try:
            view = segment.view(first, last + RECORD_BYTES)
        except (DamagedError, OSError, ValueError):
            return [b""] * len(positions)
        return ids_in(view, segment.start, positions)

    def carried(self, batch: FileBatch, name: str) -> list[ShortRecord]:
        """Return the records of a batch as ShortRecords; their `value` is the system property `name`.

        Only the necessary fields are decoded. Records that were deleted since the read, or cannot be read,
        are left out.
        """
        records: list[ShortRecord] = []
        find, unpack, locate = system_finder(name), REST.unpack_from, self.segments.locate
        view: mmap.mmap | None = None  # of `segment`; its pages `[first, last)` are checked
        segment: Segment | None = None
        first = last = 0
        for position, offset, flags, delivery in zip(
            batch.positions, batch.offsets, batch.flags, batch.deliveries, strict=True
        ):
            if segment is None or not segment.start <= position < segment.end:
                segment, view = locate(position), None
                if segment is None:
                    continue
            index = position - segment.start
            try:
                if view is None or not first <= position <= last - RECORD_BYTES:
                    view = segment.view(position, position + RECORD_BYTES)
                    first, last = position, _end_of_page(segment, view, position + RECORD_BYTES)
                fields = unpack(view, index + FRONT.size)
                start, end = RECORD_BYTES + fields[14] + fields[11], fields[4] >> 8
                if position + end > last:
                    view = segment.view(position, position + end)
                    first, last = position, _end_of_page(segment, view, position + end)
                value = find(view[index + start : index + end])
            except (DamagedError, OSError, ValueError):
                view = None
                continue
            records.append(ShortRecord(offset, fields[8], fields[7], flags, value, delivery))
        return records

    def delivery_of(self, record: Record) -> bytes | None:
        """Return the delivery bytes of a record; None, after reporting it, if they are damaged."""
        segment = self.segments.locate(record.position)
        if segment is None:
            return None
        delivery = segment.salvage(record.position + record.meta_bytes, record.size - record.meta_bytes)
        if not record.delivery_is(delivery):
            self._damaged(record.position, record.size, f"offset {record.offset} of {record.topic}")
            return None
        return delivery

    # --- records that may not be in the page cache

    def list_cold(self, entries: bytes, bytes_max: int) -> list[RecordRange]:
        """Return the ranges of the log that `entries` need and that may not be cached; [] for hot ones."""
        hot = max(self.segments.last.end - self._hot_bytes, self._cached_from)
        if not entries or hot <= 0 or ENTRY_ROWS.unpack_from(entries, len(entries) - ENTRY_BYTES)[0] >= hot:
            return []
        ranges: list[RecordRange] = []
        remaining_bytes = bytes_max
        for position, size, _, _, _ in ENTRY_ROWS.iter_unpack(entries):
            if position < hot and not self._is_warm(position, position + size):
                segment = self.segments.locate(position)
                if segment is not None and segment.end >= position + size:
                    ranges.append(RecordRange(segment, position, size))
            remaining_bytes -= size
            if remaining_bytes < 0:
                break
        return ranges

    def _is_warm(self, start: int, end: int) -> bool:
        blocks = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        return all(block in self._warm for block in blocks)

    def load_ranges(self, ranges: list[RecordRange]) -> None:
        """Load ranges into the page cache, as whole blocks if they lie close together. Blocking."""
        blocks = dict.fromkeys(
            block
            for log_range in ranges
            for block in range(
                log_range.start // BLOCK_BYTES, -(-(log_range.start + log_range.size) // BLOCK_BYTES)
            )
        )
        if len(blocks) > max(4, len(ranges) // 16):
            for log_range in ranges:
                log_range.segment.salvage(log_range.start, log_range.size)
            return
        for block in blocks:
            segment = self.segments.locate(max(block * BLOCK_BYTES, ranges[0].segment.start))
            if segment is not None:
                segment.salvage(max(block * BLOCK_BYTES, segment.start), BLOCK_BYTES)
                self._warm[block] = None
        while len(self._warm) > self._warm_max:
            self._warm.popitem(last=False)


def ids_in(view: mmap.mmap, base: int, positions: Sequence[int]) -> list[bytes]:
    """Return the message ids of records in a mapped segment that starts at `base`; their pages are
    readable.
    """
    start = MESSAGE_ID_AT - base
    end = start + len(NO_ID)
    return [view[position + start : position + end] for position in positions]


def is_of(record: Record, ref: QueueRef, offset: int) -> bool:
    """Return whether the record is the message at this offset of this queue."""
    return (
        record.offset == offset
        and record.kind == RecordKind.MESSAGE
        and record.queue_id == ref.queue_id
        and record.incarnation == ref.incarnation
        and record.topic == ref.topic
    )


def row_of(record: Record) -> Row:
    """Return the consume-queue entry of a record."""
    return (record.position, record.size, record.tag_hash, record.due_ms, record.packed)
