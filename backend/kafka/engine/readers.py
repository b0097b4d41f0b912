"""Reads and waits: streams over a few reader threads, shared by all readers of this process.

A read goes to the stream of its queue that covers its offset. If there is none, a stream begins on the first
thread that has few streams and does not read the queue yet. If all threads read the queue, the stream that
was unused for longest moves; while all of them have pending reads, the read waits in a queue. So a queue is
read at as many offsets at once as there are threads, and few streams share a thread, its requests and its
wake-ups. A stream that was unused for IDLE_S ends, and so do the longest unused ones if all windows together
are too large. Everything here is on the hub.

A broker keeps the request of a reader thread until there is data or a time has passed, and until then the
thread cannot request another offset. So this time is short, and idle streams cost many requests. A stream at
the end of its partition that is quiet for QUIET_S therefore moves to one more thread, the quiet reader, whose
requests are kept long. With the first record, or a read that must wait, it moves back. During a move both
threads read the partition, so that no record comes later because of it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from confluent_kafka import KafkaError

from backend.completion import Completion
from backend.kafka.clients.bridge import Bridge
from backend.kafka.clients.reader_thread import (
    FETCH_WAIT_MS,
    QUIET_FETCH_WAIT_MS,
    ReaderThread,
    StreamChunk,
)
from backend.kafka.engine.streams import KafkaBatch, KafkaQueue, ParkedWait, PendingRead, Stream
from backend.kafka.options import KafkaOptions
from backend.port import ReadCall, Wait
from backend.records import QueueRef, ReadBatch, ReadStatus
from ddmq_common.clock import Clock
from ddmq_common.errors import (
    BoundReachedError,
    DrainingError,
    RemoteError,
    StorageError,
    UnknownTopicError,
)
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
READ_S = 10.0  # then a read without an answer fails
IDLE_S = 60.0
CHECK_HIGH_S = 5.0  # so long before it fails, a read learns whether an open transaction is the reason
QUIET_S = 10.0
FOREVER = float("inf")
CHECK_INTERVAL_S = 0.5  # between two checks for idle streams and late reads
STREAMS_PER_READER = 16  # streams of a thread, before the next one is used
_UNKNOWN_TOPIC_CODES = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)


class _QueuedRead(NamedTuple):
    """A read that waits for a free reader thread. `deadline`: when it fails (monotonic seconds)."""

    kafka_queue: KafkaQueue
    call: ReadCall
    completion: Completion[ReadBatch]
    deadline: float


class Readers:
    """Reads and waits of one backend, served from streams on a few reader threads."""

    def __init__(self, options: KafkaOptions, bridge: Bridge, clock: Clock) -> None:
        self._options = options
        self._bridge = bridge
        self._clock = clock
        self._threads: dict[int, ReaderThread] = {}
        self._quiet_reader = options.readers  # the index after those of the others
        self._streams: dict[int, Stream] = {}
        self._moves: dict[int, Stream] = {}  # streams that move, by their new serial
        self._streams_by_queue: dict[QueueRef, list[Stream]] = {}
        self._serials = itertools.count(1)
        self._next_offsets: dict[QueueRef, int] = {}
        # Reads that wait while all threads read their queue.
        self._queued_reads: dict[QueueRef, deque[_QueuedRead]] = {}
        self._deadlines: list[tuple[float, int, Wait]] = []
        self._next_check_at = 0.0
        self._timer = HubTimer(ref=False)
        self._expire_at = FOREVER  # when the timer calls `expire`
        self._closed = False

    def set_next_offset(self, queue: QueueRef, next_offset: int) -> None:
        """Note that the records below `next_offset` exist, so that reads there wait for them."""
        if next_offset > self._next_offsets.get(queue, 0):
            self._next_offsets[queue] = next_offset

    def next_offset(self, queue: QueueRef) -> int:
        """Return the offset after the newest record that is known to exist."""
        return self._next_offsets.get(queue, 0)

    def read(self, kafka_queue: KafkaQueue, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """Read records of a queue from its partition; see Backend.read.

        Settles later with DATA, NONE or OUT_OF_RANGE, or GONE if the topic is deleted meanwhile.
        """
        if self._closed:
            self._bridge.call(completion.fail, DrainingError("the backend is closed"))
            return
        self._start_read(_QueuedRead(kafka_queue, call, completion, self._clock.monotonic() + READ_S))

    def _start_read(self, waiting: _QueuedRead) -> None:
        kafka_queue, call, completion, deadline = waiting
        stream = self._find_stream(kafka_queue, call.offset)
        if stream is None:
            self._queued_reads.setdefault(kafka_queue.queue, deque()).append(waiting)
            return
        batch = stream.answer_read(call, self._next_offsets.get(kafka_queue.queue, 0))
        if batch is None:
            stream.pending_reads.append(PendingRead(call, completion, deadline))
        else:
            self._bridge.call(_settle_read, completion, batch)
        self._pause_or_resume(stream)
        self._wake_quiet(stream)

    def wait(self, kafka_queue: KafkaQueue, offset: int, deadline: float, wait: Wait) -> None:
        """Park a wait for new records; see Backend.wait. Raises BoundReachedError."""
        if self._closed:
            self._bridge.call(wait.fail, DrainingError("the backend is closed"))
            return
        stream = self._find_stream(kafka_queue, offset)
        if stream is None or stream.window.has_record_from(offset):  # a read of it now is queued
            self._bridge.call(_settle_wait, wait)
            return
        if len(self._deadlines) >= self._options.waits_max:
            self._drop_settled()
            if len(self._deadlines) >= self._options.waits_max:
                raise BoundReachedError(f"{self._options.waits_max} waits are open; that is the bound")
        stream.parked_waits.append(ParkedWait(offset, wait))
        stream.window.mark_read(offset)
        self._pause_or_resume(stream)
        heapq.heappush(self._deadlines, (deadline, next(self._serials), wait))
        self._expire_by(deadline)

    def _drop_settled(self) -> None:
        self._deadlines = [one for one in self._deadlines if not one[2].done and not one[2].cancelled]
        heapq.heapify(self._deadlines)

    # --- streams

    def _find_stream(self, kafka_queue: KafkaQueue, offset: int) -> Stream | None:
        """Return the stream that covers this offset, or a new one.

        Returns None if every thread already reads the queue for pending reads.
        """
        here = self._streams_by_queue.setdefault(kafka_queue.queue, [])
        stream = next((one for one in here if one.window.covers_offset(offset)), None)
        if stream is None:
            if len(here) >= self._options.readers:
                free = [one for one in here if not one.pending_reads]
                if not free:
                    return None
                self._end_stream(min(free, key=lambda one: (not one.is_idle, one.used_at)))
            stream = self._begin_stream(kafka_queue, offset)
        stream.used_at = self._clock.monotonic()
        return stream

    def _begin_stream(self, kafka_queue: KafkaQueue, offset: int) -> Stream:
        here = self._streams_by_queue.setdefault(kafka_queue.queue, [])
        reader = self._choose_reader(here)
        stream = Stream(kafka_queue, next(self._serials), reader, offset, self._options.window_bytes)
        self._streams[stream.serial] = stream
        here.append(stream)
        self._expire_by(self._clock.monotonic() + CHECK_INTERVAL_S)
        self._thread_of(reader).begin_stream(
            _partition_of(stream), stream.serial, offset, kafka_queue.topic_id
        )
        return stream

    def _choose_reader(self, here: list[Stream]) -> int:
        """Return a reader that reads none of the streams `here`: the first one with a free slot, if any."""
        used_readers = {one.reader for one in here} | {one.move[0] for one in here if one.move is not None}
        loads = [0] * (self._options.readers + 1)
        for one in self._streams.values():
            loads[one.reader] += 1
            if one.move is not None:
                loads[one.move[0]] += 1
        free = [n for n in range(self._options.readers) if n not in used_readers]
        return next((n for n in free if loads[n] < STREAMS_PER_READER), min(free, key=loads.__getitem__))

    def _thread_of(self, reader: int) -> ReaderThread:
        thread = self._threads.get(reader)
        if thread is None:
            is_quiet = reader == self._quiet_reader
            wait_ms = QUIET_FETCH_WAIT_MS if is_quiet else FETCH_WAIT_MS
            name = "kafka quiet reader" if is_quiet else f"kafka reader {reader + 1}"
            thread = ReaderThread(self._options, self._bridge, self._on_chunks, name, wait_ms)
            self._threads[reader] = thread
        return thread

    # --- moves to the quiet reader and back

    def _begin_move(self, stream: Stream, reader: int) -> None:
        """Begin to read a stream's partition on another reader, too."""
        queue = stream.kafka_queue
        serial = next(self._serials)
        stream.move = (reader, serial)
        self._moves[serial] = stream
        self._thread_of(reader).begin_stream(
            _partition_of(stream), serial, stream.window.next, queue.topic_id
        )

    def _end_move(self, stream: Stream) -> None:
        """Continue on the new reader alone, because its first chunk has come."""
        assert stream.move is not None
        self._thread_of(stream.reader).end_stream(_partition_of(stream), stream.serial)
        del self._streams[stream.serial]
        stream.reader, stream.serial = stream.move
        stream.move = None
        del self._moves[stream.serial]
        self._streams[stream.serial] = stream
        if stream.paused:
            self._thread_of(stream.reader).set_paused(_partition_of(stream), stream.serial, True)

    def _cancel_move(self, stream: Stream) -> None:
        """Stay on the present reader."""
        if stream.move is not None:
            reader, serial = stream.move
            stream.move = None
            del self._moves[serial]
            self._thread_of(reader).end_stream(_partition_of(stream), serial)

    def _wake_quiet(self, stream: Stream) -> None:
        """Move a stream back from the quiet reader if it is not quiet any more."""
        if stream.is_quiet or stream.serial not in self._streams:
            return
        if stream.move is not None and stream.move[0] == self._quiet_reader:
            self._cancel_move(stream)
        elif stream.move is None and stream.reader == self._quiet_reader:
            self._begin_move(stream, self._choose_reader(self._streams_by_queue[stream.kafka_queue.queue]))

    def _move_if_quiet(self, stream: Stream, now: float) -> None:
        """Move a stream to the quiet reader if it has been quiet for QUIET_S."""
        here = self._streams_by_queue[stream.kafka_queue.queue]
        quiet_reader_in_use = any(
            self._quiet_reader in (one.reader, one.move and one.move[0]) for one in here
        )
        if (
            stream.is_quiet
            and stream.move is None
            and not quiet_reader_in_use
            and now - stream.last_chunk_at >= QUIET_S
        ):
            self._begin_move(stream, self._quiet_reader)

    def _end_stream(self, stream: Stream) -> None:
        """End a stream without pending reads; its waits succeed, so that their callers read again."""
        self._cancel_move(stream)
        del self._streams[stream.serial]
        here = self._streams_by_queue[stream.kafka_queue.queue]
        here.remove(stream)
        if not here:
            del self._streams_by_queue[stream.kafka_queue.queue]
        self._thread_of(stream.reader).end_stream(_partition_of(stream), stream.serial)
        parked, stream.parked_waits = stream.parked_waits, []
        for one in parked:
            self._bridge.call(_settle_wait, one.wait)

    def _start_queued_reads(self, queue: QueueRef) -> None:
        """Start queued reads of a queue, as far as a stream is available for them."""
        queued = self._queued_reads.get(queue)
        while queued:
            here = self._streams_by_queue.get(queue, ())
            if len(here) >= self._options.readers and all(one.pending_reads for one in here):
                return
            self._start_read(queued.popleft())
        self._queued_reads.pop(queue, None)

    def _pause_or_resume(self, stream: Stream) -> None:
        """Pause fetching when a stream's window is full; resume it when half was read by callers."""
        window = stream.window
        if stream.paused is not (window.is_full if not stream.paused else not window.is_half_empty):
            stream.paused = not stream.paused
            self._thread_of(stream.reader).set_paused(_partition_of(stream), stream.serial, stream.paused)

    # --- chunks from the threads

    def _on_chunks(self, chunks: list[StreamChunk]) -> None:
        for chunk in chunks:
            stream = self._streams.get(chunk.serial) or self._moves.get(chunk.serial)
            if stream is None:
                continue
            if chunk.serial != stream.serial:
                if chunk.error is not None:
                    self._cancel_move(stream)
                    continue
                self._end_move(stream)
            stream.last_chunk_at = self._clock.monotonic()
            if chunk.records:
                stream.window.add(chunk.records)
            if chunk.end is not None:
                stream.window.set_end(chunk.end)
            if chunk.error is not None:
                self._on_stream_failed(stream, chunk)
            else:
                self._answer_stream(stream)

    def _answer_stream(self, stream: Stream) -> None:
        for wait in stream.take_arrived():
            self._call_guarded(_settle_wait, wait)
        for read, batch in stream.take_answerable(self._next_offsets.get(stream.kafka_queue.queue, 0)):
            self._call_guarded(_settle_read, read.completion, batch)
        if stream.serial in self._streams:
            self._pause_or_resume(stream)
            self._wake_quiet(stream)
        self._start_queued_reads(stream.kafka_queue.queue)

    def _call_guarded(self, settle: Callable[..., object], *args: object) -> None:
        """Call a caller's callback and report any exception, so that other callers are still answered."""
        try:
            settle(*args)
        except Exception as error:
            self._bridge.report_error(settle, error)

    def _on_stream_failed(self, stream: Stream, chunk: StreamChunk) -> None:
        """Fail the reads of a stream that cannot continue; a later read starts a new stream."""
        reads, parked = stream.pending_reads, stream.parked_waits
        stream.pending_reads, stream.parked_waits = [], []
        self._end_stream(stream)
        for one in reads:
            error = self._settle_failed(one, chunk)
            if error is not None and not one.completion.done:
                one.completion.fail(error)
        for waiting in parked:
            at_end = chunk.bounds is not None and waiting.offset > chunk.bounds.next
            other = (
                self._find_stream(stream.kafka_queue, chunk.bounds.next) if at_end and chunk.bounds else None
            )
            if other is not None:
                other.parked_waits.append(waiting)
            else:
                self._call_guarded(_settle_wait, waiting.wait)  # a read that follows gets the error
        self._start_queued_reads(stream.kafka_queue.queue)

    def _settle_failed(self, one: PendingRead, chunk: StreamChunk) -> Exception | None:
        bounds, error = chunk.bounds, chunk.error
        if bounds is not None and not bounds.min <= one.call.offset <= bounds.next:
            batch = KafkaBatch(one.call.queue, ReadStatus.OUT_OF_RANGE, (), one.call.offset, bounds)
            _settle_read(one.completion, batch)
            return None
        if error is not None and error.code() in _UNKNOWN_TOPIC_CODES:
            _settle_read(
                one.completion, KafkaBatch(one.call.queue, ReadStatus.UNKNOWN_QUEUE, (), one.call.offset)
            )
            return None
        if error is not None and not error.retriable() and bounds is None:
            return StorageError(f"{one.call.queue} cannot be read: {error.str()}")
        return RemoteError(
            f"{one.call.queue} could not be read now: {error.str() if error else 'no reason given'}"
        )

    # --- time, and the end

    def expire(self, now: float) -> None:
        """Settle waits past their deadline; periodically end idle streams and fail overdue reads.

        A timer calls this as often as it is needed.
        """
        while self._deadlines and self._deadlines[0][0] <= now:
            wait = heapq.heappop(self._deadlines)[2]
            if not wait.done and not wait.cancelled:
                self._call_guarded(wait.succeed, False)
        if now >= self._next_check_at:
            self._check_streams(now)
        if self._deadlines:
            self._expire_by(self._deadlines[0][0])
        if self._streams:
            self._expire_by(self._next_check_at)

    def _expire_by(self, at: float) -> None:
        """Have `expire` called at a time (monotonic seconds), or up to `sweep_ms` later."""
        if at < self._expire_at and not self._closed:
            self._expire_at = at
            delay = max(self._options.sweep_ms / 1000, at - self._clock.monotonic())
            self._timer.once(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._expire_at = FOREVER
        try:
            self.expire(self._clock.monotonic())
        finally:  # even after an error in a caller's callback
            if self._streams or self._deadlines:
                self._expire_by(self._clock.monotonic() + CHECK_INTERVAL_S)

    def _check_streams(self, now: float) -> None:
        self._next_check_at = now + CHECK_INTERVAL_S
        for stream in list(self._streams.values()):
            self._fail_late(stream, now)
            self._start_queued_reads(stream.kafka_queue.queue)
            if stream.is_idle and stream.used_at + IDLE_S < now:
                self._end_stream(stream)
            else:
                self._move_if_quiet(stream, now)
        for stream in self._find_superfluous():
            self._end_stream(stream)

    def _fail_late(self, stream: Stream, now: float) -> None:
        late = [one for one in stream.pending_reads if one.deadline <= now]
        if late:
            stream.pending_reads = [one for one in stream.pending_reads if one.deadline > now]
            for one in late:
                one.completion.fail(RemoteError(stream.why_unanswered(READ_S)))
        if any(one.deadline - now < CHECK_HIGH_S for one in stream.pending_reads):
            thread = self._threads[stream.reader]
            thread.report_high(_partition_of(stream), stream.serial, self._on_high)

    def _on_high(self, serial: int, high: int) -> None:
        stream = self._streams.get(serial)
        if stream is not None:
            stream.high = high

    def _find_superfluous(self) -> Iterator[Stream]:
        """Yield the streams unused for longest, until the remaining windows together fit the bound."""
        excess_bytes = (
            sum(one.window.bytes for one in self._streams.values()) - self._options.windows_bytes_max
        )
        for stream in sorted(self._streams.values(), key=lambda one: one.used_at):
            if excess_bytes <= 0:
                return
            if stream.is_idle:
                excess_bytes -= stream.window.bytes
                yield stream

    def on_topic_deleted(self, topic: str, incarnation: int) -> None:
        """Answer reads of a deleted topic with UNKNOWN_QUEUE, and fail its waits."""
        for queue in [
            q for q in (*self._streams_by_queue, *self._next_offsets) if q[:2] == (topic, incarnation)
        ]:
            self._next_offsets.pop(queue, None)
            for stream in list(self._streams_by_queue.get(queue, ())):
                reads, parked = stream.pending_reads, stream.parked_waits
                stream.pending_reads, stream.parked_waits = [], []
                self._end_stream(stream)
                for one in (*reads, *self._queued_reads.pop(queue, ())):
                    _settle_read(
                        one.completion, KafkaBatch(queue, ReadStatus.UNKNOWN_QUEUE, (), one.call.offset)
                    )
                for waiting in parked:
                    if not waiting.wait.done and not waiting.wait.cancelled:
                        waiting.wait.fail(UnknownTopicError(f"topic {topic} was deleted"))

    def end_streams(self, error: Exception) -> None:
        """Discard everything that is known of the queues, and fail every read and wait with `error`."""
        self.release_waits(error)
        self._next_offsets.clear()
        completions = [one.completion for queued in self._queued_reads.values() for one in queued]
        self._queued_reads.clear()
        for stream in list(self._streams.values()):
            completions += [one.completion for one in stream.pending_reads]
            stream.pending_reads = []
            self._end_stream(stream)
        for completion in completions:
            if not completion.done:
                completion.fail(error)

    def release_waits(self, error: Exception) -> None:
        """Fail every parked wait with `error`."""
        self._deadlines.clear()
        for stream in self._streams.values():
            parked, stream.parked_waits = stream.parked_waits, []
            for one in parked:
                if not one.wait.done and not one.wait.cancelled:
                    one.wait.fail(error)

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail pending calls and end the threads, waiting at most `timeout_s`."""
        if self._closed:
            return
        self._closed = True
        self._timer.stop()
        reads = [one.completion for waiting in self._queued_reads.values() for one in waiting]
        for stream in self._streams.values():
            reads += [one.completion for one in stream.pending_reads]
        for completion in reads:
            if not completion.done:
                completion.fail(DrainingError("the backend is closed"))
        for stream in self._streams.values():
            for parked in stream.parked_waits:
                if not parked.wait.done and not parked.wait.cancelled:
                    parked.wait.fail(DrainingError("the backend is closed"))
        self._streams.clear()
        self._moves.clear()
        self._streams_by_queue.clear()
        for thread in self._threads.values():
            thread.request_stop()
        for thread in self._threads.values():
            thread.close(timeout_s)


def _partition_of(stream: Stream) -> tuple[str, int]:
    return stream.kafka_queue.kafka_name, stream.kafka_queue.queue.queue_id


def _settle_read(completion: Completion[ReadBatch], batch: KafkaBatch) -> None:
    if not completion.done:
        completion.succeed(batch)


def _settle_wait(wait: Wait) -> None:
    if not wait.done and not wait.cancelled:
        wait.succeed(True)
