"""Appends: one idempotent producer for all, called from the hub; one native thread waits for its reports.

`produce` only puts a record into librdkafka's own queue, so the hub may call it; records of one partition
keep the order of the calls. The records that one turn of the hub brings for a partition go together, and
records that come while those are in flight go together after them. (librdkafka would do the same, but spin
meanwhile: it allows five unreported messages of a partition, not requests, before it sends the next, and
polls all the time.)

A delivery report names one record of an append. An append is answered when each of its records is, or at its
deadline: the outcome of a record that was sent and is not reported then is unknown.

librdkafka takes the interpreter's lock again for each report, and a thread that shares it with a busy hub
waits each time. So the thread takes only the first report (its callback raises: librdkafka keeps the others
for the next poll) and the hub, once woken, takes the others.

A producer is replaced when Kafka gave up on it (a fatal error), and when a record has waited for SEND_S:
librdkafka must not give up a single record itself. To close the gap it would continue under another epoch,
and send the records in flight once more, whether they are stored or not. Records in flight in the producer
that is replaced are purged, and their outcome is unknown.
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
from backend.kafka.errors import RAISED, SEEN_IN_TOPIC, cause_of, to_failed_result, to_undelivered_result
from backend.kafka.options import APPEND_SETTINGS, KafkaOptions
from backend.kafka.records import encode
from backend.kafka.topic_info import TopicRegistry
from backend.records import AppendResult, AppendStatus, Durability, NewRecord
from ddmq_common.clock import NEVER, Clock
from ddmq_common.errors import BoundReachedError, CallerError, DrainingError, RemoteError, TryLaterError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
OnStored = Callable[[str, int, int, int], None]  # topic, queue number, offset behind the record, its time
Queue = tuple[str, int]
_Report = tuple["_Append", int, Any, int, int]
BATCH_RECORDS_MAX = 10_000  # records of one partition that go together
SEND_S = 30.0  # no record is tried for longer
CHECK_INTERVAL_S = 1.0  # while a record has been tried for that long
POLL_S = 0.1
CLOSE_S = 5.0
REQUEST_MS = 10_000  # a request that was not answered is sent again, as it was
_NO_ANSWER = to_failed_result(RemoteError("Kafka has not answered"), AppendStatus.UNKNOWN)
_LATE = RemoteError("no answer of Kafka by the deadline; what was sent may be stored or not")
_NOT_SENT = to_failed_result(
    TryLaterError("Kafka has not answered what was sent to this queue before; it was not sent"),
    AppendStatus.NOT_STORED,
)
_CLOSED = DrainingError("the Kafka engine was closed")


class _Partition:
    """The appends to one partition: its records in flight, since when, and the records that wait."""

    __slots__ = ("in_flight", "since", "waiting")

    def __init__(self) -> None:
        self.in_flight = 0
        self.since = 0.0
        self.waiting: deque[tuple[_Append, int]] = deque()


class _Append:
    """One unanswered append. `results` has None for each record that was sent and is not reported yet."""

    __slots__ = ("completion", "deadline", "records", "results", "unanswered")

    def __init__(
        self, completion: Completion[list[AppendResult]], records: list[NewRecord], deadline: float
    ) -> None:
        self.completion = completion
        self.records = records
        self.deadline = deadline
        self.unanswered = len(records)
        self.results: list[AppendResult | None] = [_NOT_SENT] * len(records)

    def settle(self, missing: AppendResult | None = None) -> None:
        """Answer the append, with `missing` as the result of each record that has none."""
        if not self.completion.done:
            self.completion.succeed([result or missing or _NO_ANSWER for result in self.results])


class Appends:
    """The appends of one process. All methods except `_on_report` must be called on the hub.

    `on_stored` is called before an append is answered. `recheck_topics` is called when an error suggests that
    a topic has changed.
    """

    def __init__(
        self,
        options: KafkaOptions,
        bridge: Bridge,
        clock: Clock,
        topics: TopicRegistry,
        on_stored: OnStored,
        recheck_topics: Callable[[], object],
    ) -> None:
        self._options = options
        self._bridge = bridge
        self._clock = clock
        self._topics = topics
        self._on_stored = on_stored
        self._recheck_topics = recheck_topics
        self._reports: deque[_Report] = deque()
        self._partitions: dict[Queue, _Partition] = {}
        self._ready: dict[Queue, _Partition] = {}  # nothing is in flight, and records wait
        self._later: Callable[..., object] = gevent.get_hub().loop.run_callback
        self._unanswered: dict[_Append, None] = {}
        self._bytes = 0
        self._records = 0
        self._next_deadline = NEVER
        self._timer, self._age_timer = HubTimer(ref=False), HubTimer(ref=False)
        self._waiters: list[tuple[dict[_Append, None], Callable[[], None]]] = []
        self._closed = False
        settings = options.client_settings(
            client_id="ddmq-producer",
            queue_buffering_max_messages=options.pending_max,
            queue_buffering_max_kbytes=max(1, options.pending_bytes_max >> 10),
        )
        self._producer = ReportingProducer(settings, bridge, clock, self._settle_reported)
        self.add_topic = self._producer.add_topic

    # --- on the hub

    def append(
        self, records: Sequence[NewRecord], deadline: float, completion: Completion[list[AppendResult]]
    ) -> None:
        """Append records; see Backend.append."""
        append = _Append(completion, list(records), deadline)
        for index, record in enumerate(append.records):
            result = self._enqueue_record(append, index, record)
            if result is not None:
                append.results[index] = result
                append.unanswered -= 1
        if append.unanswered == 0:
            self._bridge.call(append.settle)
            return
        self._unanswered[append] = None
        if deadline < self._next_deadline:
            self._next_deadline = deadline
            self._timer.once(deadline - self._clock.monotonic(), self._expire_appends)

    def _enqueue_record(self, append: _Append, index: int, record: NewRecord) -> AppendResult | None:
        """Queue one record for its partition, or return the result with which it is rejected."""
        if self._records >= self._options.pending_max or self._bytes >= self._options.pending_bytes_max:
            return self._bound_reached()
        self._records += 1
        self._bytes += len(record.delivery)
        queue = (record.topic, record.queue_id)
        partition = self._partitions.get(queue)
        if partition is None:
            partition = self._partitions[queue] = _Partition()
        partition.waiting.append((append, index))
        if not partition.in_flight:
            self._mark_ready(queue, partition)
        return None

    def _mark_ready(self, queue: Queue, partition: _Partition) -> None:
        if not self._ready:
            self._later(self._send)
        self._ready[queue] = partition

    def _send(self) -> None:
        """Pass the waiting records to the producer, for every partition that has none in flight."""
        ready, self._ready = self._ready, {}
        now = self._clock.monotonic()
        if not self._age_timer.active:
            self._age_timer.once(SEND_S, self.check_age)
        for queue, partition in ready.items():
            waiting, partition.since = partition.waiting, now
            while waiting and partition.in_flight < BATCH_RECORDS_MAX:
                append, index = waiting.popleft()
                record = append.records[index]
                result = (
                    self._produce_record(append, index, record) if append in self._unanswered else _NOT_SENT
                )
                if result is None:
                    append.results[index] = None
                    partition.in_flight += 1
                else:
                    self._release_capacity(record)
                    self._set_result(append, index, result)
            if not partition.in_flight:
                self._partitions.pop(queue, None)

    def _produce_record(self, append: _Append, index: int, record: NewRecord) -> AppendResult | None:
        """Pass one record to the producer, or return the result with which it failed."""
        error = self._topics.rejection_of(record)
        if error is not None:
            return to_failed_result(error)
        try:
            key, value, headers = encode(record)
            self._producer.produce(
                self._topics.topics[record.topic].kafka_name, value, key, record.queue_id,
                on_delivery=partial(self._on_report, append, index), headers=headers,  # type: ignore[arg-type]
            )  # fmt: skip
        except BufferError:
            return self._bound_reached()
        except CallerError as rejection:
            return to_failed_result(rejection)
        except KafkaException as failure:
            cause = failure.args[0]
            if cause.fatal():
                self._producer.give_up(str(cause))
            result = self._to_result(record, cause)
            return result if result.status is AppendStatus.REFUSED else to_failed_result(
                result.error or RemoteError(str(cause)), AppendStatus.NOT_STORED
            )  # fmt: skip
        return None

    def _release_capacity(self, record: NewRecord) -> None:
        self._records -= 1
        self._bytes -= len(record.delivery)

    def _set_result(self, append: _Append, index: int, result: AppendResult) -> None:
        append.results[index] = result
        append.unanswered -= 1
        if append.unanswered == 0 and append in self._unanswered:
            self._answer_append(append, None)

    def _bound_reached(self) -> AppendResult:
        error = BoundReachedError(
            f"{self._records} records, {self._bytes} bytes are on their way to Kafka; that is the bound"
        )
        return to_failed_result(error, AppendStatus.NOT_STORED)

    def _to_result(self, record: NewRecord, error: KafkaError) -> AppendResult:
        topic = self._topics.find_topic(record.topic)
        size_max = 0 if topic is None else topic.message_bytes_max
        return to_undelivered_result(error, record.topic, len(record.delivery), size_max)

    def _settle_reported(self) -> None:
        """Answer the appends whose records were all reported."""
        topics, reports = self._topics.topics, self._reports
        complete: list[_Append] = []
        ends: dict[Queue, int] = {}
        newest_ms = 0
        for _ in range(len(reports)):
            append, index, error, offset, stored_ms = reports.popleft()
            record = append.records[index]
            self._release_capacity(record)
            queue = (record.topic, record.queue_id)
            self._on_record_reported(queue)
            topic = topics.get(record.topic)
            if error is not None:
                result = self._to_result(record, error)
                if error.code() in SEEN_IN_TOPIC:
                    self._recheck_topics()
            else:
                durability = Durability.WRITTEN if topic is None else topic.durability  # None: deleted since
                result = AppendResult(AppendStatus.STORED, offset, durability, None)
                ends[queue] = offset + 1
                newest_ms = stored_ms
            append.results[index] = result
            append.unanswered -= 1
            if append.unanswered == 0:
                complete.append(append)
        for (name, queue_id), end in ends.items():  # before any caller is notified, and reads there
            self._on_stored(name, queue_id, end, newest_ms)
        for append in complete:
            if append in self._unanswered:
                self._answer_append(append, None)

    def _on_record_reported(self, queue: Queue) -> None:
        partition = self._partitions[queue]
        partition.in_flight -= 1
        if not partition.in_flight:
            if partition.waiting:
                self._mark_ready(queue, partition)
            else:
                del self._partitions[queue]

    def _answer_append(self, append: _Append, missing: AppendResult | None) -> None:
        del self._unanswered[append]
        try:
            append.settle(missing)
        except Exception as error:  # a bug of its caller does not keep others from being answered
            self._bridge.report_error(append.settle, error)
        if self._waiters:
            self._notify_waiters(append)

    def _expire_appends(self) -> None:
        """Answer the appends past their deadline; later reports of their records are ignored."""
        now = self._clock.monotonic()
        for append in [append for append in self._unanswered if append.deadline <= now]:
            self._answer_append(append, to_failed_result(_LATE, AppendStatus.UNKNOWN))
        self._next_deadline = min((append.deadline for append in self._unanswered), default=NEVER)
        if self._next_deadline < NEVER:
            self._timer.once(self._next_deadline - now, self._expire_appends)

    def check_age(self) -> None:
        """Replace the producer if it has tried to send a record for longer than SEND_S; called by a timer."""
        starts = (partition.since for partition in self._partitions.values() if partition.in_flight)
        since = min(starts, default=NEVER)
        now = self._clock.monotonic()
        if since == NEVER:
            return
        if now - since < SEND_S:
            self._age_timer.once(since + SEND_S - now, self.check_age)
            return
        if since >= self._producer.created_at:  # else it is being purged
            self._producer.give_up(f"a record is not stored after {SEND_S:g} s")
        self._age_timer.once(CHECK_INTERVAL_S, self.check_age)

    def when_answered(self, queues: Collection[Queue] | None, then: Callable[[], None]) -> None:
        """Call `then` once the earlier appends to these queues are answered; None means all queues."""
        unanswered = {
            append: None
            for append in self._unanswered
            if queues is None or any((record.topic, record.queue_id) in queues for record in append.records)
        }
        if unanswered:
            self._waiters.append((unanswered, then))
        else:
            then()

    def _notify_waiters(self, append: _Append) -> None:
        ready = []
        for unanswered, then in self._waiters:
            unanswered.pop(append, None)
            if not unanswered:
                ready.append(then)
        if ready:
            self._waiters = [(unanswered, then) for unanswered, then in self._waiters if unanswered]
            for then in ready:
                self._bridge.call(then)

    @property
    def pending(self) -> tuple[int, int]:
        """The records and bytes on their way to the brokers."""
        return self._records, self._bytes

    @property
    def replaced(self) -> int:
        """How often the producer was replaced."""
        return self._producer.replaced

    # --- in the native thread

    def _on_report(self, append: _Append, index: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._reports.append((append, index, None, message.offset(), message.timestamp()[1]))
        else:
            self._reports.append((append, index, error, -1, 0))
        self._producer.end_report()

    # --- on the hub

    def close(self) -> None:
        """Send the records that are already under way to brokers, drop the rest, and answer all appends.

        The time that this takes is bounded.
        """
        if self._closed:
            return
        self._closed = True
        self._producer.close()
        self._timer.stop()
        self._age_timer.stop()
        for append in list(self._unanswered):
            self._answer_append(append, to_failed_result(_CLOSED, AppendStatus.UNKNOWN))


class _FirstReport(Exception):
    """Ends the thread's `poll`, so that the hub handles the remaining reports."""


def _ignore_error(_: KafkaError) -> None:
    """Ignore errors about unreachable brokers, because the survey of the topics reports them once."""


class ReportingProducer:
    """A producer that the hub calls, with a native thread that waits for its delivery reports.

    `settle` is called on the hub after reports were handled. The callback of each report ends with
    `end_report`. `created_at`: when the current producer was created (monotonic seconds).
    """

    def __init__(
        self, settings: Mapping[str, object], bridge: Bridge, clock: Clock, settle: Callable[[], None]
    ) -> None:
        self._settings = {
            "socket.timeout.ms": REQUEST_MS,
            **settings,
            **APPEND_SETTINGS,
            "error_cb": _ignore_error,
        }
        self._bridge = bridge
        self._clock = clock
        self._settle = settle
        self._hub_takes_reports = False  # now; or, once closed, no one waits for them
        self._has_unsettled = False
        self._hub_done = allocate_lock()
        self._hub_done.acquire()
        self._closed = False
        self._failure = ""  # of the present producer
        self.replaced = 0  # how often it was
        self.created_at = clock.monotonic()
        self._producer = Producer(self._settings)
        self.produce = self._producer.produce
        self._thread = threading.Thread(target=self._serve_reports, name="kafka-producer", daemon=True)
        self._thread.start()

    def add_topic(self, kafka_name: str) -> None:
        """Make the producer fetch a topic's metadata; blocks, so call it in a native thread."""
        try:
            self._producer.list_topics(kafka_name, 5)
        except KafkaException as error:
            log.warning("topic %s: the producer could not ask for it: %s", kafka_name, error)

    def give_up(self, reason: str) -> None:
        """Request that the producer be replaced by a new one soon."""
        self._failure = reason

    def close(self) -> None:
        """Send the records that are already under way to brokers, drop the rest, and settle all.

        The time that this takes is bounded.
        """
        self._closed = self._hub_takes_reports = True
        if self._hub_done.locked():
            self._hub_done.release()
        self._thread.join(CLOSE_S + POLL_S)
        self._settle()

    def _take_reports(self) -> None:
        """Handle all reports after the first, on the hub, then let the thread wait for the next one."""
        if self._closed:
            return
        self._hub_takes_reports = True
        try:
            self._poll(0)
            self._has_unsettled = False
            self._settle()
        finally:
            self._hub_takes_reports = False
            self._hub_done.release()

    # --- in the native thread

    def end_report(self) -> None:
        """End a report's callback; in the thread, raise _FirstReport so that the hub handles the rest."""
        self._has_unsettled = True
        if not self._hub_takes_reports:
            raise _FirstReport

    def _serve_reports(self) -> None:
        while not self._closed:
            try:
                self._await_reports()
                if self._failure:
                    self._replace()
            except Exception:  # whatever it was: callers must be answered
                log.exception("serving Kafka's reports has failed, continuing")
                time.sleep(POLL_S)
        self._producer.purge(in_queue=True, in_flight=False)
        self._producer.flush(CLOSE_S)

    def _await_reports(self) -> None:
        """Wait until there is a report and the hub has handled all that follow it."""
        try:
            self._poll(POLL_S)
        except _FirstReport:
            pass
        finally:
            if self._has_unsettled and not self._closed:
                self._bridge.call(self._take_reports)
                self._hub_done.acquire()

    def _poll(self, timeout_s: float) -> None:
        """Call `poll`; record a fatal error, after which the producer sends nothing (see errors.cause_of)."""
        try:
            self._producer.poll(timeout_s)
        except RAISED as error:
            cause = cause_of(error)
            if not cause.fatal():
                raise
            self._failure = str(cause)

    def _replace(self) -> None:
        new, self.created_at = Producer(self._settings), self._clock.monotonic()
        old, self._producer = self._producer, new
        self.produce = new.produce
        log.error("replacing the producer: %s", self._failure)
        self.replaced += 1
        self._failure = ""
        self._hub_takes_reports = True
        try:
            old.purge()
            old.flush(CLOSE_S)
        finally:
            self._hub_takes_reports = False
            self._has_unsettled = False
            self._bridge.call(self._settle)
