"""The queries of a log: reads, bounds and lookups, which change nothing. Answers come later, from the hub.

Rules: hot reads run on the hub, from mapped files; operations that may touch the disk run in gevent's native
threads. Only visible records are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import gevent

from backend.completion import Completion
from backend.file_log.consume_queue import (
    HUB_ENTRIES,
    QueueFiles,
    SelectedEntries,
    entries_max,
    search_entries,
    select_entries,
)
from backend.file_log.core.layout import ENTRY_BYTES, ENTRY_ROWS, Record, is_valid_entry, pack_entry
from backend.file_log.damage import LogDamage
from backend.file_log.index.attached import AttachedIndex, records_of
from backend.file_log.read.reader import FileBatch, LogReader, Row, is_of, row_of, stored_record
from backend.file_log.segments import SegmentSet
from backend.file_log.state import LogQueue, LogState
from backend.port import FindCall, ReadCall
from backend.records import PASSED_MAX, Bounds, QueueRef, ReadBatch, ReadStatus, StoredRecord
from ddmq_common.errors import CallerError, DdmqError, DrainingError, StorageError, UnknownTopicError
from ddmq_common.native_threads import off_hub

T = TypeVar("T")
NEIGHBOURS = 64  # entries checked on each side of a damaged one; more before it if needed
Predicate = Callable[[Row], bool | None]
"""Returns whether an entry meets a condition, or None if it cannot be decided."""


class QueueView(NamedTuple):
    """A copy of a LogQueue's fields, for use in a thread."""

    ref: QueueRef
    min: int
    visible: int
    flushed: int
    tail: bytes


class Queries:
    """Reads records of one log by offset, time, id or key, and the bounds of its queues, without changing the
    log.

    `limit()` returns the log position up to which readers may read.
    """

    def __init__(
        self,
        state: LogState,
        segments: SegmentSet,
        files: QueueFiles,
        index: AttachedIndex,
        damage: LogDamage,
        limit: Callable[[], int],
        hot_bytes: int,
        warm_blocks_max: int,
    ) -> None:
        self.closed = False
        self._state = state
        self._segments = segments
        self._files = files
        self._index = index
        self._damage = damage
        self._limit = limit
        self._reader = LogReader(
            segments, damage.report_in_log, self._search_record, hot_bytes, warm_blocks_max
        )
        self._later: Any = gevent.get_hub().loop.run_callback

    # --- reading

    def read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """Read records of a queue; see Backend.read."""
        self._later(self._try_read, call, completion, self._read)

    def _try_read(
        self,
        call: ReadCall,
        completion: Completion[ReadBatch],
        act: Callable[..., FileBatch | None],
        *arguments: Any,
    ) -> None:
        """Settle the completion with the result of `act`, unless that is None: a thread then settles it."""
        try:
            answer = act(call, completion, *arguments)
        except DdmqError as error:
            completion.fail(error)
        except (OSError, ValueError) as read_error:
            name = f"{call.queue.topic} queue {call.queue.queue_id}"
            completion.fail(StorageError(f"reading {name} failed: {read_error}"))
        else:
            if answer is not None:
                completion.succeed(answer)

    def _read(self, call: ReadCall, completion: Completion[ReadBatch]) -> FileBatch | None:
        answer = self._answer_without_records(call.queue, call.offset)
        if answer is not None:
            return answer
        queue = self._require_queue(call.queue)
        entries = self._read_entries(queue, call.offset, min(entries_max(call), queue.visible - call.offset))
        picked = select_entries(call, entries)
        if picked.entries or picked.after >= queue.flushed:
            return self._load_records(call, completion, picked)
        end = min(call.offset + PASSED_MAX, queue.flushed)
        off_hub(
            lambda: search_entries(call, self._files, end),
            lambda outcome, error: self._try_read(call, completion, self._read_searched, outcome, error),
        )
        return None

    def _read_searched(
        self,
        call: ReadCall,
        completion: Completion[ReadBatch],
        picked: SelectedEntries,
        error: Exception | None,
    ) -> FileBatch | None:
        answer = self._answer_without_records(
            call.queue, call.offset
        )  # retention may have deleted records meanwhile
        if answer is not None:
            return answer
        if error is not None:
            raise error
        return self._load_records(call, completion, picked)

    def _load_records(
        self, call: ReadCall, completion: Completion[ReadBatch], picked: SelectedEntries
    ) -> FileBatch | None:
        cold = self._reader.list_cold(picked.entries, call.bytes_max)
        if not cold:
            return self._read_batch(call, completion, picked)

        def on_warmed(_: Any, error: Exception | None) -> None:
            self._try_read(call, completion, self._read_warmed, picked, error)

        off_hub(self._reader.load_ranges, on_warmed, cold)
        return None

    def _read_warmed(
        self,
        call: ReadCall,
        completion: Completion[ReadBatch],
        picked: SelectedEntries,
        error: Exception | None,
    ) -> FileBatch | None:
        answer = self._answer_without_records(call.queue, call.offset)
        if answer is not None:
            return answer
        if error is not None:
            raise error
        return self._read_batch(call, completion, picked)

    def _answer_without_records(self, ref: QueueRef, offset: int) -> FileBatch | None:
        """Return the answer to a read at an offset that has no record; None if it has one."""
        self._check_open()
        queue = self._state.queue(ref)
        if queue is None:
            return FileBatch(None, ReadStatus.UNKNOWN_QUEUE, offset, None)
        if not self._state.topics[ref.topic].info.readable:
            raise CallerError(f"topic {ref.topic} is not readable")
        if offset == queue.visible:
            return FileBatch(None, ReadStatus.NONE, offset, None)
        bounds = self.bounds_of(queue)
        if not bounds.min <= offset < bounds.next:
            return FileBatch(None, ReadStatus.OUT_OF_RANGE, offset, bounds)
        return None

    def _read_batch(
        self, call: ReadCall, completion: Completion[ReadBatch], picked: SelectedEntries
    ) -> FileBatch | None:
        """Read a batch with at least one record, unless only gaps and other tags remain.

        Returns None if all selected records are lost; the read then continues in the next turn of the hub,
        because many more may be lost.
        """
        queue = self._require_queue(call.queue)
        batch = self._reader.read_batch(call, picked, self._limit())
        if batch.offsets:
            batch.at_end = batch.next_offset >= queue.visible
            return batch
        if batch.next_offset >= queue.visible:
            batch.status = ReadStatus.NONE
        elif call.tags is None:
            self._later(self._try_read, call._replace(offset=batch.next_offset), completion, self._read)
            return None
        return batch

    def _read_entries(self, queue: LogQueue | QueueView, offset: int, count: int) -> bytes:
        """Return the entries of visible records, with zeros for those that the files lost."""
        flushed = queue.flushed
        if offset >= flushed:
            start = (offset - flushed) * ENTRY_BYTES
            return bytes(queue.tail[start : start + count * ENTRY_BYTES])
        in_files = min(count, flushed - offset)
        entries = self._files.read(queue.ref, offset, in_files)
        if len(entries) < in_files * ENTRY_BYTES:
            entries += bytes(in_files * ENTRY_BYTES - len(entries))
        if count > in_files:
            entries += queue.tail[: (count - in_files) * ENTRY_BYTES]
        return entries

    def _require_queue(self, ref: QueueRef) -> LogQueue:
        queue = self._state.queue(ref)
        if queue is None:
            raise UnknownTopicError(f"queue {ref} does not exist (any more)")
        return queue

    def _check_open(self) -> None:
        if self.closed:
            raise DrainingError("the log is closed")

    # --- bounds

    def bounds_of(self, queue: LogQueue) -> Bounds:
        """Return the bounds of a queue; after segments were deleted, search its oldest offset again."""
        first = self._segments.first_of(queue.ref.topic)
        if queue.min_at < first:
            queue.min = self._first_offset(queue, lambda row: row[0] >= first)
            queue.min_at = first
        return Bounds(queue.min, queue.visible)

    def find_lowest(self) -> Callable[[], list[tuple[LogQueue, int, int]]]:
        """Return a call that finds (queue, oldest offset, log start) after segments were deleted.

        It covers the queues whose oldest offset may have changed. Call this on the hub, and the result in a
        native thread.
        """
        first_of = self._segments.first_of
        views = [
            (queue, QueueView(queue.ref, queue.min, queue.visible, queue.flushed, bytes(queue.tail)), first)
            for queue in self._state.queues()
            if queue.min_at < (first := first_of(queue.ref.topic)) and queue.min < queue.visible
        ]

        def find() -> list[tuple[LogQueue, int, int]]:
            bounds = []
            for queue, view, first in views:
                with suppress(OSError, DdmqError):  # the next read tries again
                    lowest = self._first_offset(view, lambda row, first=first: row[0] >= first)  # type: ignore[misc]
                    bounds.append((queue, lowest, first))
            return bounds

        return find

    def _first_offset(self, queue: LogQueue | QueueView, predicate: Predicate) -> int:
        """Return the first offset whose entry meets `predicate`, by a binary search.

        `predicate` must be monotonous, except where it cannot decide.
        """
        low, high = queue.min, queue.visible
        while low < high:
            middle = (low + high) // 2
            at, answer = self._decide_from(queue, middle, high, predicate)
            if answer is False:
                low = at + 1
            else:
                high = middle
        return low

    def _decide_from(
        self, queue: LogQueue | QueueView, offset: int, end: int, predicate: Predicate
    ) -> tuple[int, bool | None]:
        """Return the offset and result of the first entry from `offset` on that `predicate` can decide.

        Gaps and damaged entries decide nothing.
        """
        while offset < end:
            entries = self._read_entries(queue, offset, min(NEIGHBOURS, end - offset))
            for at, row in enumerate(ENTRY_ROWS.iter_unpack(entries)):
                if row[1] and is_valid_entry(entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES]):
                    answer = predicate(row)
                    if answer is not None:
                        return offset + at, answer
            offset += len(entries) // ENTRY_BYTES
        return end, None

    def bounds(self, refs: Sequence[QueueRef]) -> list[Bounds | None]:
        """Return the bounds of queues; see Backend.bounds."""
        queues = [self._state.queue(ref) for ref in refs]
        return [None if queue is None else self.bounds_of(queue) for queue in queues]

    def offset_for_time(self, ref: QueueRef, wall_ms: int) -> Callable[[], int]:
        """Return a call that does the work of Backend.offset_for_time.

        Call this on the hub, and the result in a native thread.
        """
        queue = self._require_queue(ref)
        low = self.bounds_of(queue).min
        view = QueueView(ref, low, queue.visible, queue.flushed, bytes(queue.tail))

        def is_late_enough(row: Row) -> bool | None:
            record = self._reader.record_at(row[0])
            if record is not None:
                return record.stored_ms >= wall_ms
            return False if row[0] < self._segments.first_of(ref.topic) else None

        return lambda: self._first_offset(view, is_late_enough)

    # --- finding

    def find(self, call: FindCall) -> Callable[[], list[StoredRecord]]:
        """Return a call that does the work of Backend.find.

        Call this on the hub, the result in a native thread.
        """
        topic, key, message_id, count_max = call
        state = self._state.topics.get(topic)
        if state is None:
            raise UnknownTopicError(f"topic {topic} does not exist")
        incarnation = state.info.incarnation
        if key is not None:
            take = self._index.find_key(topic, incarnation, key, count_max) if key else list
        else:
            take = self._index.find_id(topic, incarnation, message_id or b"", count_max)
        return lambda: [stored_record(record, delivery) for record, delivery in take()]

    # --- answering

    def settle_on_hub(self, act: Callable[[], T], completion: Completion[T]) -> Completion[T]:
        """Settle the completion with the result of `act`, later, on the hub."""

        def run() -> None:
            try:
                self._check_open()
                value = act()
            except DdmqError as error:
                completion.fail(error)
            else:
                completion.succeed(value)

        self._later(run)
        return completion

    def settle_off_hub(
        self, prepare: Callable[[], Callable[[], T]], completion: Completion[T]
    ) -> Completion[T]:
        """Settle the completion from a native thread; `prepare` runs on the hub and returns the call for
        it.
        """

        def settle_completion(value: Any, error: Exception | None) -> None:
            if error is None:
                completion.succeed(value)
            elif isinstance(error, DdmqError):
                completion.fail(error)
            else:
                completion.fail(StorageError(f"reading the log failed: {error}"))

        def begin() -> None:
            try:
                self._check_open()
                act = prepare()
            except DdmqError as error:
                completion.fail(error)
                return
            off_hub(act, settle_completion)

        self._later(begin)
        return completion

    # --- damaged entries

    def _search_record(self, ref: QueueRef, offset: int) -> Row | None:
        """Search a record in the log between its neighbours in the queue, and repair its entry.

        Returns None at once if the entry is valid: the record is lost then, and a search between neighbours
        may read gigabytes on the hub.
        """
        queue = self._state.queue(ref)
        if queue is None or is_valid_entry(self._read_entries(queue, offset, 1)):
            return None
        low, high = self._find_neighbours(queue, offset)
        for segment in self._segments.segments:
            start, end = max(low, segment.start), min(high, segment.end)
            if start >= end:
                continue
            for item in records_of(segment, start, end):
                if is_of(item, ref, item.offset) and item.offset >= offset:
                    if item.offset > offset:
                        return None  # it would have come before this one
                    self._repair_entry(queue, item)
                    return row_of(item)
        return None

    def _find_neighbours(self, queue: LogQueue, offset: int) -> tuple[int, int]:
        """Return the log positions between which the record of `offset` lies."""
        low, high, step, end = self._segments.first_of(queue.ref.topic), self._limit(), NEIGHBOURS, offset
        before: list[int] = []
        while not before and end > queue.min:
            start = max(queue.min, end - step)
            before = self._valid_positions(queue, start, end)
            end, step = start, min(2 * step, HUB_ENTRIES)
        after = self._valid_positions(queue, offset + 1, min(queue.visible, offset + NEIGHBOURS))
        return (before[-1] if before else low), (after[0] if after else high)

    def _valid_positions(self, queue: LogQueue, start: int, end: int) -> list[int]:
        if start >= end:
            return []
        entries = self._read_entries(queue, start, end - start)
        positions = []
        for at, row in enumerate(ENTRY_ROWS.iter_unpack(entries), start):
            record = self._reader.record_at(row[0], self._limit()) if row[1] else None
            if record is not None and is_of(record, queue.ref, at):
                positions.append(record.position)
        return positions

    def _repair_entry(self, queue: LogQueue, record: Record) -> None:
        self._damage.report_range(
            "consumequeue", record.position, ENTRY_BYTES, f"entry {record.offset} of {queue.ref}"
        )
        if record.offset < queue.flushed:
            try:
                self._files.write(queue.ref, record.offset, pack_entry(record))
            except OSError:
                return  # the next read looks it up again
