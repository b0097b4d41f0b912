"""Reads and waits: streams over a few reader threads, shared by everybody who reads here.

A read goes to the stream of its queue that covers its offset. Where there is none, one begins on the first
thread that is not well used and does not read the queue yet; where all do, the one that was used the longest
ago moves, or, while all of them are read from, the read waits for its turn. So a queue is read at as many
places at once as there are threads, and few streams share a thread, its requests and its wake-ups. A stream
that nobody has used for IDLE_S ends, and so do the longest unused ones where all windows together are too
large. Everything here is on the hub.
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
from backend.kafka.clients.reader_thread import ReaderThread, StreamPart
from backend.kafka.engine.streams import Asked, KafkaBatch, KafkaPlace, Parked, Stream
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

log = logging.getLogger(__name__)
READ_S = 10.0  # then a read that has heard nothing fails
IDLE_S = 60.0
LOOK_S = 0.5  # between two looks for what is idle or late
WELL_USED = 16  # streams of a thread, before the next one is used
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


class _Turn(NamedTuple):
    """A read that waits for its turn. `deadline`: monotonic seconds, when it is given up."""

    place: KafkaPlace
    call: ReadCall
    completion: Completion[ReadBatch]
    deadline: float


class Readers:
    """All reads of one backend."""

    def __init__(self, options: KafkaOptions, bridge: Bridge, clock: Clock) -> None:
        self._options = options
        self._bridge = bridge
        self._clock = clock
        self._threads: list[ReaderThread] = []
        self._streams: dict[int, Stream] = {}
        self._of_queue: dict[QueueRef, list[Stream]] = {}
        self._serials = itertools.count(1)
        self._seen: dict[QueueRef, int] = {}
        self._turns: dict[QueueRef, deque[_Turn]] = {}  # reads that wait while all threads read the queue
        self._deadlines: list[tuple[float, int, Wait]] = []
        self._look_at = 0.0
        self._closed = False

    def seen(self, queue: QueueRef, next_offset: int) -> None:
        """There is a record below `next_offset`: who reads up to there waits for it."""
        if next_offset > self._seen.get(queue, 0):
            self._seen[queue] = next_offset

    def known_next(self, queue: QueueRef) -> int:
        """Behind the newest record that is known to be there."""
        return self._seen.get(queue, 0)

    def read(self, place: KafkaPlace, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """Settles, never at once, with DATA, NONE or OUT_OF_RANGE; GONE when the topic goes meanwhile."""
        if self._closed:
            self._bridge.call(completion.fail, DrainingError("the backend is closed"))
            return
        self._read(_Turn(place, call, completion, self._clock.monotonic() + READ_S))

    def _read(self, waiting: _Turn) -> None:
        place, call, completion, deadline = waiting
        stream = self._stream(place, call.offset)
        if stream is None:
            self._turns.setdefault(place.queue, deque()).append(waiting)
            return
        batch = stream.answer(call, self._seen.get(place.queue, 0))
        if batch is None:
            stream.asked.append(Asked(call, completion, deadline))
        else:
            self._bridge.call(_settle, completion, batch)
        self._breathe(stream)

    def wait(self, place: KafkaPlace, offset: int, deadline: float, wait: Wait) -> None:
        """As Backend.wait. Raises BoundReachedError."""
        if self._closed:
            self._bridge.call(wait.fail, DrainingError("the backend is closed"))
            return
        stream = self._stream(place, offset)
        if stream is None or stream.window.has(offset):  # who reads it now has its turn among those who read
            self._bridge.call(_arrived, wait)
            return
        if len(self._deadlines) >= self._options.waits_max:
            self._forget_settled()
            if len(self._deadlines) >= self._options.waits_max:
                raise BoundReachedError(f"{self._options.waits_max} waits are open; that is the bound")
        stream.parked.append(Parked(offset, wait))
        stream.window.taken(offset)
        self._breathe(stream)
        heapq.heappush(self._deadlines, (deadline, next(self._serials), wait))

    def _forget_settled(self) -> None:
        self._deadlines = [one for one in self._deadlines if not one[2].done and not one[2].cancelled]
        heapq.heapify(self._deadlines)

    # --- streams

    def _stream(self, place: KafkaPlace, offset: int) -> Stream | None:
        """The stream to read this offset by; None while every thread reads the queue for somebody."""
        here = self._of_queue.setdefault(place.queue, [])
        found = next((one for one in here if one.window.covers(offset)), None)
        if found is None:
            if len(here) >= self._options.readers:
                free = [one for one in here if not one.asked]
                if not free:
                    return None
                self._end(min(free, key=lambda one: (not one.idle, one.used_at)))
            found = self._begin(place, offset)
        found.used_at = self._clock.monotonic()
        return found

    def _begin(self, place: KafkaPlace, offset: int) -> Stream:
        taken = {one.reader for one in self._of_queue.setdefault(place.queue, [])}
        loads = [0] * self._options.readers
        for one in self._streams.values():
            loads[one.reader] += 1
        free = [n for n in range(self._options.readers) if n not in taken]
        reader = next((n for n in free if loads[n] < WELL_USED), min(free, key=loads.__getitem__))
        while len(self._threads) <= reader:
            name = f"kafka reader {len(self._threads) + 1}"
            self._threads.append(ReaderThread(self._options, self._bridge, self._heard, name))
        stream = Stream(place, next(self._serials), reader, offset, self._options.window_bytes)
        self._streams[stream.serial] = stream
        self._of_queue[place.queue].append(stream)
        self._threads[reader].begin(_partition(stream), stream.serial, offset, place.topic_id)
        return stream

    def _end(self, stream: Stream) -> None:
        """Close a stream that nobody reads from; who waits there reads anew, and waits elsewhere."""
        del self._streams[stream.serial]
        here = self._of_queue[stream.place.queue]
        here.remove(stream)
        if not here:
            del self._of_queue[stream.place.queue]
        self._threads[stream.reader].end(_partition(stream), stream.serial)
        parked, stream.parked = stream.parked, []
        for one in parked:
            self._bridge.call(_arrived, one.wait)

    def _next_turn(self, queue: QueueRef) -> None:
        """Read what has waited, as far as there is a stream for it now."""
        turns = self._turns.get(queue)
        while turns:
            here = self._of_queue.get(queue, ())
            if len(here) >= self._options.readers and all(one.asked for one in here):
                return
            self._read(turns.popleft())
        self._turns.pop(queue, None)

    def _breathe(self, stream: Stream) -> None:
        """Fetch no more of what is full; go on where it was taken."""
        window = stream.window
        if stream.paused is not (window.full if not stream.paused else not window.roomy):
            stream.paused = not stream.paused
            self._threads[stream.reader].pause(_partition(stream), stream.serial, stream.paused)

    # --- what the threads bring

    def _heard(self, parts: list[StreamPart]) -> None:
        for part in parts:
            stream = self._streams.get(part.serial)
            if stream is None:
                continue
            if part.records:
                stream.window.add(part.records)
            if part.ended is not None:
                stream.window.ended(part.ended)
            if part.error is not None:
                self._failed(stream, part)
            else:
                self._answer(stream)

    def _answer(self, stream: Stream) -> None:
        for wait in stream.arrived():
            self._guard(_arrived, wait)
        for asked, batch in stream.answerable(self._seen.get(stream.place.queue, 0)):
            self._guard(_settle, asked.completion, batch)
        if stream.serial in self._streams:
            self._breathe(stream)
        self._next_turn(stream.place.queue)

    def _guard(self, settle: Callable[..., object], *args: object) -> None:
        """What a callback does wrong costs nobody else the answer."""
        try:
            settle(*args)
        except Exception as error:
            self._bridge.failed(settle, error)

    def _failed(self, stream: Stream, part: StreamPart) -> None:
        """The stream cannot go on: everybody there hears why, and the next one begins anew."""
        asked, parked = stream.asked, stream.parked
        stream.asked, stream.parked = [], []
        self._end(stream)
        for one in asked:
            error = self._settle_failed(one, part)
            if error is not None and not one.completion.done:
                one.completion.fail(error)
        for waiting in parked:
            at_end = part.bounds is not None and waiting.offset > part.bounds.next
            other = self._stream(stream.place, part.bounds.next) if at_end and part.bounds else None
            if other is not None:
                other.parked.append(waiting)
            else:
                self._guard(_arrived, waiting.wait)  # whoever reads now hears what is wrong
        self._next_turn(stream.place.queue)

    def _settle_failed(self, one: Asked, part: StreamPart) -> Exception | None:
        bounds, error = part.bounds, part.error
        if bounds is not None and not bounds.min <= one.call.offset <= bounds.next:
            batch = KafkaBatch(one.call.queue, ReadStatus.OUT_OF_RANGE, (), one.call.offset, bounds)
            _settle(one.completion, batch)
            return None
        if error is not None and error.code() in _GONE:
            _settle(one.completion, KafkaBatch(one.call.queue, ReadStatus.GONE, (), one.call.offset))
            return None
        if error is not None and not error.retriable() and bounds is None:
            return StorageError(f"{one.call.queue} cannot be read: {error.str()}")
        return RemoteError(
            f"{one.call.queue} could not be read now: {error.str() if error else 'no reason given'}"
        )

    # --- time, and the end

    def sweep(self, now: float) -> None:
        """Settle waits whose deadline has passed; now and then end what is idle, fail what is late."""
        while self._deadlines and self._deadlines[0][0] <= now:
            wait = heapq.heappop(self._deadlines)[2]
            if not wait.done and not wait.cancelled:
                self._guard(wait.succeed, False)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for stream in list(self._streams.values()):
            self._fail_late(stream, now)
            self._next_turn(stream.place.queue)
            if stream.idle and stream.used_at + IDLE_S < now:
                self._end(stream)
        for stream in self._too_much():
            self._end(stream)

    def _fail_late(self, stream: Stream, now: float) -> None:
        late = [one for one in stream.asked if one.deadline <= now]
        if late:
            stream.asked = [one for one in stream.asked if one.deadline > now]
            for one in late:
                one.completion.fail(
                    RemoteError(f"no broker has answered a read of {one.call.queue} in {READ_S:g} s")
                )

    def _too_much(self) -> Iterator[Stream]:
        """The longest unused streams, until all windows together are small enough."""
        left = sum(one.window.bytes for one in self._streams.values()) - self._options.windows_bytes_max
        for stream in sorted(self._streams.values(), key=lambda one: one.used_at):
            if left <= 0:
                return
            if stream.idle:
                left -= stream.window.bytes
                yield stream

    def gone(self, topic: str, incarnation: int) -> None:
        """The topic was deleted: reads answer GONE, waits fail."""
        for queue in [q for q in (*self._of_queue, *self._seen) if q[:2] == (topic, incarnation)]:
            self._seen.pop(queue, None)
            for stream in list(self._of_queue.get(queue, ())):
                asked, parked = stream.asked, stream.parked
                stream.asked, stream.parked = [], []
                self._end(stream)
                for one in (*asked, *self._turns.pop(queue, ())):
                    _settle(one.completion, KafkaBatch(queue, ReadStatus.GONE, (), one.call.offset))
                for waiting in parked:
                    if not waiting.wait.done and not waiting.wait.cancelled:
                        waiting.wait.fail(UnknownTopicError(f"topic {topic} was deleted"))

    def release_waits(self, error: Exception) -> None:
        """Fail everybody who is parked."""
        self._deadlines.clear()
        for stream in self._streams.values():
            parked, stream.parked = stream.parked, []
            for one in parked:
                if not one.wait.done and not one.wait.cancelled:
                    one.wait.fail(error)

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail whoever waits, end the threads."""
        if self._closed:
            return
        self._closed = True
        reads = [one.completion for waiting in self._turns.values() for one in waiting]
        for stream in self._streams.values():
            reads += [one.completion for one in stream.asked]
        for completion in reads:
            if not completion.done:
                completion.fail(DrainingError("the backend is closed"))
        for stream in self._streams.values():
            for parked in stream.parked:
                if not parked.wait.done and not parked.wait.cancelled:
                    parked.wait.fail(DrainingError("the backend is closed"))
        self._streams.clear()
        self._of_queue.clear()
        for thread in self._threads:
            thread.ask_to_end()
        for thread in self._threads:
            thread.close(timeout_s)


def _partition(stream: Stream) -> tuple[str, int]:
    return stream.place.kafka_name, stream.place.queue.queue_id


def _settle(completion: Completion[ReadBatch], batch: KafkaBatch) -> None:
    if not completion.done:
        completion.succeed(batch)


def _arrived(wait: Wait) -> None:
    if not wait.done and not wait.cancelled:
        wait.succeed(True)
