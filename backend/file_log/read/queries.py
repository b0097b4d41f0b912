"""Everything that is asked of the log without changing it. Answers come later, from the hub.

Rules: hot reads are done on the hub, from mapped files; what may touch the disk is done in gevent's
native threads. Only what is visible is ever looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import gevent

from backend.completion import Completion
from backend.file_log.consume_queue import HUB_ENTRIES, Picked, QueueFiles, entries_max, pick, search
from backend.file_log.core.layout import ENTRY_BYTES, ENTRY_ROWS, Record, entry_is_sound, pack_entry
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
NEIGHBOURS = 64  # entries looked at on each side of one that is wrong; before it more if need be
Wanted = Callable[[Row], bool | None]
"""Whether an entry is what is looked for; None: it cannot be told."""


class QueueView(NamedTuple):
    """A queue as it was, for a thread; as in LogQueue."""

    ref: QueueRef
    min: int
    visible: int
    flushed: int
    tail: bytes


class Queries:
    """Reads of one log. `limit()`: the log position readers may read up to."""

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
        self._reader = LogReader(segments, damage.found_in_log, self._look_up, hot_bytes, warm_blocks_max)
        self._later: Any = gevent.get_hub().loop.run_callback

    # --- reading

    def read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """As Backend.read."""
        self._later(self._attempt, call, completion, self._read)

    def _attempt(
        self,
        call: ReadCall,
        completion: Completion[ReadBatch],
        act: Callable[..., FileBatch | None],
        *given: Any,
    ) -> None:
        """Settle with what `act` gives; None: it went to a thread, and settles from there."""
        try:
            answer = act(call, completion, *given)
        except DdmqError as error:
            completion.fail(error)
        except (OSError, ValueError) as error:
            name = f"{call.queue.topic} queue {call.queue.queue_id}"
            completion.fail(StorageError(f"reading {name} failed: {error}"))
        else:
            if answer is not None:
                completion.succeed(answer)

    def _read(self, call: ReadCall, completion: Completion[ReadBatch]) -> FileBatch | None:
        answer = self._outcome(call.queue, call.offset)
        if answer is not None:
            return answer
        queue = self._queue(call.queue)
        entries = self._entries(queue, call.offset, min(entries_max(call), queue.visible - call.offset))
        picked = pick(call, entries)
        if picked.entries or picked.after >= queue.flushed:
            return self._records(call, completion, picked)
        end = min(call.offset + PASSED_MAX, queue.flushed)
        off_hub(
            lambda: search(call, self._files, end),
            lambda found, error: self._attempt(call, completion, self._searched, found, error),
        )
        return None

    def _searched(
        self, call: ReadCall, completion: Completion[ReadBatch], picked: Picked, error: Exception | None
    ) -> FileBatch | None:
        answer = self._outcome(call.queue, call.offset)  # retention went on meanwhile
        if answer is not None:
            return answer
        if error is not None:
            raise error
        return self._records(call, completion, picked)

    def _records(self, call: ReadCall, completion: Completion[ReadBatch], picked: Picked) -> FileBatch | None:
        cold = self._reader.cold(picked.entries, call.bytes_max)
        if not cold:
            return self._batch(call, completion, picked)

        def warmed(_: Any, error: Exception | None) -> None:
            self._attempt(call, completion, self._warmed, picked, error)

        off_hub(self._reader.warm, warmed, cold)
        return None

    def _warmed(
        self, call: ReadCall, completion: Completion[ReadBatch], picked: Picked, error: Exception | None
    ) -> FileBatch | None:
        answer = self._outcome(call.queue, call.offset)
        if answer is not None:
            return answer
        if error is not None:
            raise error
        return self._batch(call, completion, picked)

    def _outcome(self, ref: QueueRef, offset: int) -> FileBatch | None:
        """The answer when there is nothing to read."""
        self._check_open()
        queue = self._state.queue(ref)
        if queue is None:
            return FileBatch(None, ReadStatus.GONE, offset, None)
        if not self._state.topics[ref.topic].info.readable:
            raise CallerError(f"topic {ref.topic} is not readable")
        if offset == queue.visible:
            return FileBatch(None, ReadStatus.NONE, offset, None)
        bounds = self.bounds_of(queue)
        if not bounds.min <= offset < bounds.next:
            return FileBatch(None, ReadStatus.OUT_OF_RANGE, offset, bounds)
        return None

    def _batch(self, call: ReadCall, completion: Completion[ReadBatch], picked: Picked) -> FileBatch | None:
        """At least one record, unless nothing but gaps, or other tags, is left.

        None: all of these are lost, and what follows is read at the next turn, for they may be very many.
        """
        queue = self._queue(call.queue)
        batch = self._reader.batch(call, picked, self._limit())
        if batch.offsets:
            batch.at_end = batch.next_offset >= queue.visible
            return batch
        if batch.next_offset >= queue.visible:
            batch.status = ReadStatus.NONE
        elif call.tags is None:
            self._later(self._attempt, call._replace(offset=batch.next_offset), completion, self._read)
            return None
        return batch

    def _entries(self, queue: LogQueue | QueueView, offset: int, count: int) -> bytes:
        """Entries of visible records; those that the files lost are gaps until they are looked up."""
        flushed = queue.flushed
        if offset >= flushed:
            start = (offset - flushed) * ENTRY_BYTES
            return bytes(queue.tail[start : start + count * ENTRY_BYTES])
        in_files = min(count, flushed - offset)
        found = self._files.read(queue.ref, offset, in_files)
        if len(found) < in_files * ENTRY_BYTES:
            found += bytes(in_files * ENTRY_BYTES - len(found))
        if count > in_files:
            found += queue.tail[: (count - in_files) * ENTRY_BYTES]
        return found

    def _queue(self, ref: QueueRef) -> LogQueue:
        queue = self._state.queue(ref)
        if queue is None:
            raise UnknownTopicError(f"queue {ref} does not exist (any more)")
        return queue

    def _check_open(self) -> None:
        if self.closed:
            raise DrainingError("the log is closed")

    # --- bounds

    def bounds_of(self, queue: LogQueue) -> Bounds:
        """Of one queue; the oldest offset is found anew after segments were deleted."""
        first = self._segments.first_of(queue.ref.topic)
        if queue.min_at < first:
            queue.min = self._first_offset(queue, lambda row: row[0] >= first)
            queue.min_at = first
        return Bounds(queue.min, queue.visible)

    def lowest(self) -> Callable[[], list[tuple[LogQueue, int, int]]]:
        """Of all queues whose oldest offset may have gone with deleted segments: which it is now, and where
        the log starts for them.

        Call it on the hub, and what it gives in a native thread.
        """
        first_of = self._segments.first_of
        views = [
            (queue, QueueView(queue.ref, queue.min, queue.visible, queue.flushed, bytes(queue.tail)), first)
            for queue in self._state.queues()
            if queue.min_at < (first := first_of(queue.ref.topic)) and queue.min < queue.visible
        ]

        def find() -> list[tuple[LogQueue, int, int]]:
            found = []
            for queue, view, first in views:
                with suppress(OSError, DdmqError):  # asked again when somebody reads it
                    lowest = self._first_offset(view, lambda row, first=first: row[0] >= first)  # type: ignore[misc]
                    found.append((queue, lowest, first))
            return found

        return find

    def _first_offset(self, queue: LogQueue | QueueView, wanted: Wanted) -> int:
        """The first offset from min on whose entry is `wanted`, which is monotonous where it can be told."""
        low, high = queue.min, queue.visible
        while low < high:
            middle = (low + high) // 2
            at, found = self._ask_from(queue, middle, high, wanted)
            if found is False:
                low = at + 1
            else:
                high = middle
        return low

    def _ask_from(
        self, queue: LogQueue | QueueView, offset: int, end: int, wanted: Wanted
    ) -> tuple[int, bool | None]:
        """What the first entry from `offset` on says that says anything: gaps and damage do not."""
        while offset < end:
            entries = self._entries(queue, offset, min(NEIGHBOURS, end - offset))
            for at, row in enumerate(ENTRY_ROWS.iter_unpack(entries)):
                if row[1] and entry_is_sound(entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES]):
                    found = wanted(row)
                    if found is not None:
                        return offset + at, found
            offset += len(entries) // ENTRY_BYTES
        return end, None

    def bounds(self, refs: Sequence[QueueRef]) -> list[Bounds | None]:
        """As Backend.bounds."""
        found = [self._state.queue(ref) for ref in refs]
        return [None if queue is None else self.bounds_of(queue) for queue in found]

    def offset_for_time(self, ref: QueueRef, wall_ms: int) -> Callable[[], int]:
        """As Backend.offset_for_time. Call it on the hub, and what it gives in a native thread."""
        queue = self._queue(ref)
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
        """As Backend.find. Call it on the hub, and what it gives in a native thread."""
        topic, key, message_id, count_max = call
        found = self._state.topics.get(topic)
        if found is None:
            raise UnknownTopicError(f"topic {topic} does not exist")
        incarnation = found.info.incarnation
        if key is not None:
            take = self._index.find_key(topic, incarnation, key, count_max) if key else list
        else:
            take = self._index.find_id(topic, incarnation, message_id or b"", count_max)
        return lambda: [stored_record(record, delivery) for record, delivery in take()]

    # --- answering

    def answer(self, act: Callable[[], T], completion: Completion[T]) -> Completion[T]:
        """Settle with what `act` gives, later, on the hub."""

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

    def answer_off_hub(
        self, prepare: Callable[[], Callable[[], T]], completion: Completion[T]
    ) -> Completion[T]:
        """The same; `prepare` runs on the hub and gives what then runs in a native thread."""

        def done(value: Any, error: Exception | None) -> None:
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
            off_hub(act, done)

        self._later(begin)
        return completion

    # --- entries that are wrong

    def _look_up(self, ref: QueueRef, offset: int) -> Row | None:
        """Find a record in the log between its neighbours in the queue, and repair the entry.

        With a sound entry it is where that says or lost, and nothing is looked for: between neighbours there
        may be gigabytes, and this is the hub.
        """
        queue = self._state.queue(ref)
        if queue is None or entry_is_sound(self._entries(queue, offset, 1)):
            return None
        low, high = self._neighbours(queue, offset)
        for segment in self._segments.segments:
            start, end = max(low, segment.start), min(high, segment.end)
            if start >= end:
                continue
            for item in records_of(segment, start, end):
                if is_of(item, ref, item.offset) and item.offset >= offset:
                    if item.offset > offset:
                        return None  # it would have stood before this one
                    self._repair(queue, item)
                    return row_of(item)
        return None

    def _neighbours(self, queue: LogQueue, offset: int) -> tuple[int, int]:
        """Log positions between which the record of `offset` lies."""
        low, high, step, end = self._segments.first_of(queue.ref.topic), self._limit(), NEIGHBOURS, offset
        before: list[int] = []
        while not before and end > queue.min:
            start = max(queue.min, end - step)
            before = self._sound_positions(queue, start, end)
            end, step = start, min(2 * step, HUB_ENTRIES)
        after = self._sound_positions(queue, offset + 1, min(queue.visible, offset + NEIGHBOURS))
        return (before[-1] if before else low), (after[0] if after else high)

    def _sound_positions(self, queue: LogQueue, start: int, end: int) -> list[int]:
        if start >= end:
            return []
        entries = self._entries(queue, start, end - start)
        found = []
        for at, row in enumerate(ENTRY_ROWS.iter_unpack(entries), start):
            record = self._reader.record_at(row[0], self._limit()) if row[1] else None
            if record is not None and is_of(record, queue.ref, at):
                found.append(record.position)
        return found

    def _repair(self, queue: LogQueue, record: Record) -> None:
        self._damage.found(
            "consumequeue", record.position, ENTRY_BYTES, f"entry {record.offset} of {queue.ref}"
        )
        if record.offset < queue.flushed:
            try:
                self._files.write(queue.ref, record.offset, pack_entry(record))
            except OSError:
                return  # it is looked up again next time
