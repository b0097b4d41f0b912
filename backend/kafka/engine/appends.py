"""Appends: one idempotent producer for all, called from the hub; one native thread waits for its reports.

`produce` only puts into librdkafka's own line, so the hub may call it; records of one partition keep the
order of the calls. What one turn of the hub brings for a partition goes together, and what comes while that
is under way goes together after it. (librdkafka would do the same, but spin meanwhile: it allows five
unreported messages of a partition, not requests, before it sends the next, and looks all the time.)

A delivery report is a place in an append. An append is answered when each of its records is, or at its
deadline: what was sent and is not reported then is unknown.

A producer with a record that has waited for SEND_S is replaced: librdkafka must not give a single record up
itself. To close the gap it would go on under another epoch, and send what is on its way once more, whether it
is stored or not. What was on its way in the one that is replaced is purged, and unknown.

A producer that the hub calls, and one native thread that waits for its reports.

librdkafka takes the interpreter's lock anew for each report, and a thread that shares it with a busy hub
waits each time. So the thread takes the first report alone (its callback raises: librdkafka keeps the others
for the next poll) and the hub, once woken, the others.

A producer that Kafka (a fatal error) or its owner gave up on is replaced by a new one; what the old one has
is purged, and reported as that.
"""

from __future__ import annotations

import logging
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import gevent
from confluent_kafka import KafkaError, KafkaException, Producer

from backend.completion import Completion
from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine.topics import KafkaTopics
from backend.kafka.errors import RAISED, SEEN_IN_TOPIC, cause_of, refused, undelivered
from backend.kafka.options import APPENDING, KafkaOptions
from backend.kafka.records import encode
from backend.records import AppendResult, AppendStatus, Durability, NewRecord
from ddmq_common.clock import NEVER, Clock
from ddmq_common.errors import BoundReachedError, CallerError, DrainingError, RemoteError, TryLaterError
from ddmq_common.hub_timer import HubTimer

Seen = Callable[[str, int, int, int], None]  # topic, queue number, offset behind what was stored, its time
Queue = tuple[str, int]
_Report = tuple["_Append", int, Any, int, int]
TOGETHER_MAX = 10_000  # records of one partition that go together
SEND_S = 30.0  # no record is tried for longer
LOOK_S = 1.0  # between two looks while one has been tried for that long
_NO_ANSWER = refused(RemoteError("Kafka has not answered"), AppendStatus.UNKNOWN)
_LATE = RemoteError("no answer of Kafka by the deadline; what was sent may be stored or not")
_NOT_SENT = refused(
    TryLaterError("Kafka has not answered what was sent to this queue before; it was not sent"),
    AppendStatus.NOT_STORED,
)
_CLOSED = DrainingError("the Kafka engine was closed")


class _Way:
    """To one partition: how many records are under way, since when, and what goes after them."""

    __slots__ = ("flying", "since", "waiting")

    def __init__(self) -> None:
        self.flying = 0
        self.since = 0.0
        self.waiting: deque[tuple[_Append, int]] = deque()


class _Append:
    """One append under way. `results`: None of what was sent."""

    __slots__ = ("completion", "deadline", "left", "records", "results")

    def __init__(
        self, completion: Completion[list[AppendResult]], records: list[NewRecord], deadline: float
    ) -> None:
        self.completion = completion
        self.records = records
        self.deadline = deadline
        self.left = len(records)
        self.results: list[AppendResult | None] = [_NOT_SENT] * len(records)

    def settle(self, otherwise: AppendResult | None = None) -> None:
        """Answer, with `otherwise` for what has no result."""
        if not self.completion.done:
            self.completion.succeed([result or otherwise or _NO_ANSWER for result in self.results])


class Appends:
    """Belongs to the hub, but for what the thread does. `seen` is told where queues end at least."""

    def __init__(
        self, options: KafkaOptions, bridge: Bridge, clock: Clock, topics: KafkaTopics, seen: Seen
    ) -> None:
        self._options = options
        self._bridge = bridge
        self._clock = clock
        self._topics = topics
        self._seen = seen
        self._reports: deque[_Report] = deque()
        self._ways: dict[Queue, _Way] = {}
        self._ready: dict[Queue, _Way] = {}  # nothing is under way, and there is something to send
        self._later: Callable[..., object] = gevent.get_hub().loop.run_callback
        self._under_way: dict[_Append, None] = {}
        self._bytes = 0
        self._records = 0
        self._next_deadline = NEVER
        self._timer, self._age = HubTimer(ref=False), HubTimer(ref=False)
        self._idle: list[tuple[dict[_Append, None], Callable[[], None]]] = []
        self._closed = False
        settings = options.client(
            client_id="ddmq-producer",
            queue_buffering_max_messages=options.pending_max,
            queue_buffering_max_kbytes=max(1, options.pending_bytes_max >> 10),
        )
        self._producer = ReportingProducer(settings, bridge, clock, self._settle_reported)
        self.touch = self._producer.touch

    # --- on the hub

    def append(
        self, records: Sequence[NewRecord], deadline: float, completion: Completion[list[AppendResult]]
    ) -> None:
        """As Backend.append."""
        taken = list(records)
        append = _Append(completion, taken, deadline)
        for index, record in enumerate(taken):
            result = self._take(append, index, record)
            if result is not None:
                append.results[index] = result
                append.left -= 1
        if append.left == 0:
            self._bridge.call(append.settle)
            return
        self._under_way[append] = None
        if deadline < self._next_deadline:
            self._next_deadline = deadline
            self._timer.once(deadline - self._clock.monotonic(), self._sweep)

    def _take(self, append: _Append, index: int, record: NewRecord) -> AppendResult | None:
        """Have one record wait for its turn, or say why not."""
        if self._records >= self._options.pending_max or self._bytes >= self._options.pending_bytes_max:
            return self._full()
        self._records += 1
        self._bytes += len(record.delivery)
        queue = (record.topic, record.queue_id)
        way = self._ways.get(queue)
        if way is None:
            way = self._ways[queue] = _Way()
        way.waiting.append((append, index))
        if not way.flying:
            self._make_ready(queue, way)
        return None

    def _make_ready(self, queue: Queue, way: _Way) -> None:
        if not self._ready:
            self._later(self._send)
        self._ready[queue] = way

    def _send(self) -> None:
        """Give the producer what waits where nothing is under way."""
        ready, self._ready = self._ready, {}
        now = self._clock.monotonic()
        if not self._age.active:
            self._age.once(SEND_S, self.look_for_old)
        for queue, way in ready.items():
            waiting, way.since = way.waiting, now
            while waiting and way.flying < TOGETHER_MAX:
                append, index = waiting.popleft()
                record = append.records[index]
                result = self._produce(append, index, record) if append in self._under_way else _NOT_SENT
                if result is None:
                    append.results[index] = None
                    way.flying += 1
                else:
                    self._has_left(record)
                    self._have(append, index, result)
            if not way.flying:
                self._ways.pop(queue, None)

    def _produce(self, append: _Append, index: int, record: NewRecord) -> AppendResult | None:
        """Give one record to the producer, or say why not."""
        error = self._topics.refusal(record)
        if error is not None:
            return refused(error)
        try:
            key, value, headers = encode(record)
            self._producer.produce(
                self._topics.topics[record.topic].kafka_name, value, key, record.queue_id,
                on_delivery=partial(self._reported, append, index), headers=headers,  # type: ignore[arg-type]
            )  # fmt: skip
        except BufferError:
            return self._full()
        except CallerError as wrong:
            return refused(wrong)
        except KafkaException as failed:
            found = failed.args[0]
            if found.fatal():
                self._producer.give_up(str(found))
            result = self._failed(record, found)
            return result if result.status is AppendStatus.REFUSED else refused(
                result.error or RemoteError(str(found)), AppendStatus.NOT_STORED
            )  # fmt: skip
        return None

    def _has_left(self, record: NewRecord) -> None:
        self._records -= 1
        self._bytes -= len(record.delivery)

    def _have(self, append: _Append, index: int, result: AppendResult) -> None:
        """The result of one record."""
        append.results[index] = result
        append.left -= 1
        if append.left == 0 and append in self._under_way:
            self._over(append, None)

    def _full(self) -> AppendResult:
        error = BoundReachedError(
            f"{self._records} records, {self._bytes} bytes are on their way to Kafka; that is the bound"
        )
        return refused(error, AppendStatus.NOT_STORED)

    def _failed(self, record: NewRecord, error: KafkaError) -> AppendResult:
        found = self._topics.find(record.topic)
        size_max = 0 if found is None else found.message_bytes_max
        return undelivered(error, record.topic, len(record.delivery), size_max)

    def _settle_reported(self) -> None:
        topics, reports = self._topics.topics, self._reports
        finished: list[_Append] = []
        ends: dict[Queue, int] = {}
        newest_ms = 0
        for _ in range(len(reports)):
            append, index, error, offset, stored_ms = reports.popleft()
            record = append.records[index]
            self._has_left(record)
            queue = (record.topic, record.queue_id)
            self._has_landed(queue)
            topic = topics.get(record.topic)
            if error is not None:
                result = self._failed(record, error)
                if error.code() in SEEN_IN_TOPIC:
                    self._topics.look_at_all()
            else:
                reached = Durability.WRITTEN if topic is None else topic.durability  # None: deleted meanwhile
                result = AppendResult(AppendStatus.STORED, offset, reached, None)
                ends[queue] = offset + 1
                newest_ms = stored_ms
            append.results[index] = result
            append.left -= 1
            if append.left == 0:
                finished.append(append)
        for (name, queue_id), end in ends.items():  # before anybody hears of it, and reads there
            self._seen(name, queue_id, end, newest_ms)
        for append in finished:
            if append in self._under_way:
                self._over(append, None)

    def _has_landed(self, queue: Queue) -> None:
        way = self._ways[queue]
        way.flying -= 1
        if not way.flying:
            if way.waiting:
                self._make_ready(queue, way)
            else:
                del self._ways[queue]

    def _over(self, append: _Append, otherwise: AppendResult | None) -> None:
        del self._under_way[append]
        try:
            append.settle(otherwise)
        except Exception as error:  # a bug of its caller's: it costs nobody else the answer
            self._bridge.failed(append.settle, error)
        if self._idle:
            self._look_idle(append)

    def _sweep(self) -> None:
        """Answer what is past its deadline; what is reported later is forgotten."""
        now = self._clock.monotonic()
        for append in [each for each in self._under_way if each.deadline <= now]:
            self._over(append, refused(_LATE, AppendStatus.UNKNOWN))
        self._next_deadline = min((each.deadline for each in self._under_way), default=NEVER)
        if self._next_deadline < NEVER:
            self._timer.once(self._next_deadline - now, self._sweep)

    def look_for_old(self) -> None:
        """Have the producer replaced when it has tried to send a record for too long."""
        since = min((way.since for way in self._ways.values() if way.flying), default=NEVER)
        now = self._clock.monotonic()
        if since == NEVER:
            return
        if now - since < SEND_S:
            self._age.once(since + SEND_S - now, self.look_for_old)
            return
        if since >= self._producer.made_at:  # else it is being purged
            self._producer.give_up(f"a record is not stored after {SEND_S:g} s")
        self._age.once(LOOK_S, self.look_for_old)

    def quiet(self, queues: Collection[Queue] | None, then: Callable[[], None]) -> None:
        """Call `then` once the appends to these queues that were called before are answered; None: all."""
        waited = {
            append: None
            for append in self._under_way
            if queues is None or any((each.topic, each.queue_id) in queues for each in append.records)
        }
        if waited:
            self._idle.append((waited, then))
        else:
            then()

    def _look_idle(self, append: _Append) -> None:
        ready = []
        for waited, then in self._idle:
            waited.pop(append, None)
            if not waited:
                ready.append(then)
        if ready:
            self._idle = [(waited, then) for waited, then in self._idle if waited]
            for then in ready:
                self._bridge.call(then)

    # --- in the native thread

    def _reported(self, append: _Append, index: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._reports.append((append, index, None, message.offset(), message.timestamp()[1]))
        else:
            self._reports.append((append, index, error, -1, 0))
        self._producer.has_report()

    # --- on the hub

    def close(self) -> None:
        """Send what the brokers have begun with, forget the rest, and settle everybody; bounded."""
        if self._closed:
            return
        self._closed = True
        self._producer.close()
        self._timer.stop()
        self._age.stop()
        for append in list(self._under_way):
            self._over(append, refused(_CLOSED, AppendStatus.UNKNOWN))


log = logging.getLogger(__name__)
POLL_S = 0.1
CLOSE_S = 5.0
REQUEST_MS = 10_000  # a request that was not answered is sent again, as what it was


class _FirstReport(Exception):
    """Ends the thread's `poll`: there are reports, and the hub takes them."""


def _unheard(_: KafkaError) -> None:
    """That brokers are away the topics' survey says, once."""


class ReportingProducer:
    """`settle` is called on the hub when reports have come. A report's callback ends with `has_report`.

    `made_at`: when the present one was, by the monotonic clock.
    """

    def __init__(
        self, settings: Mapping[str, object], bridge: Bridge, clock: Clock, settle: Callable[[], None]
    ) -> None:
        self._settings = {"socket.timeout.ms": REQUEST_MS, **settings, **APPENDING, "error_cb": _unheard}
        self._bridge = bridge
        self._clock = clock
        self._settle = settle
        self._hub_takes = False  # reports, now; or nobody waits for them any more
        self._unsettled = False
        self._taken = allocate_lock()
        self._taken.acquire()
        self._closed = False
        self._wrong = ""  # with the present one
        self.made_at = clock.monotonic()
        self._producer = Producer(self._settings)
        self.produce = self._producer.produce
        self._thread = threading.Thread(target=self._serve, name="kafka-producer", daemon=True)
        self._thread.start()

    def touch(self, kafka_name: str) -> None:
        """Have the producer know a topic, and where its partitions are; in a native thread, it may wait."""
        try:
            self._producer.list_topics(kafka_name, 5)
        except KafkaException as error:
            log.warning("topic %s: the producer could not ask for it: %s", kafka_name, error)

    def give_up(self, reason: str) -> None:
        """Have it replaced by a new one, soon."""
        self._wrong = reason

    def close(self) -> None:
        """Send what the brokers have begun with, forget the rest, and settle it; bounded."""
        self._closed = self._hub_takes = True
        if self._taken.locked():
            self._taken.release()
        self._thread.join(CLOSE_S + POLL_S)
        self._settle()

    def _take_reports(self) -> None:
        """On the hub. The thread has the first report: take the others, and have it wait for the next."""
        if self._closed:
            return
        self._hub_takes = True
        try:
            self._poll(0)
            self._unsettled = False
            self._settle()
        finally:
            self._hub_takes = False
            self._taken.release()

    # --- in the native thread

    def has_report(self) -> None:
        """At the end of a report's callback."""
        self._unsettled = True
        if not self._hub_takes:
            raise _FirstReport

    def _serve(self) -> None:
        while not self._closed:
            try:
                self._await_reports()
                if self._wrong:
                    self._replace()
            except Exception:  # whatever it was: who waits must be answered
                log.exception("serving Kafka's reports has failed; it goes on")
                time.sleep(POLL_S)
        self._producer.purge(in_queue=True, in_flight=False)
        self._producer.flush(CLOSE_S)

    def _await_reports(self) -> None:
        """Until there are reports, and the hub has taken them."""
        try:
            self._poll(POLL_S)
        except _FirstReport:
            pass
        finally:
            if self._unsettled and not self._closed:
                self._bridge.call(self._take_reports)
                self._taken.acquire()

    def _poll(self, timeout_s: float) -> None:
        """A fatal error, after which the producer sends nothing, comes out here (faults.cause_of)."""
        try:
            self._producer.poll(timeout_s)
        except RAISED as error:
            found = cause_of(error)
            if not found.fatal():
                raise
            self._wrong = str(found)

    def _replace(self) -> None:
        made, self.made_at = Producer(self._settings), self._clock.monotonic()
        old, self._producer = self._producer, made
        self.produce = made.produce
        log.error("Kafka gave up on the producer: %s; there is a new one", self._wrong)
        self._wrong = ""
        self._hub_takes = True
        try:
            old.purge()
            old.flush(CLOSE_S)
        finally:
            self._hub_takes = False
            self._unsettled = False
            self._bridge.call(self._settle)
