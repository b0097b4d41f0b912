"""Appends: idempotent producers for all, called from the hub; native threads wait for their reports.

`produce` only puts a record into librdkafka's own queue, so the hub may call it; records of one partition
keep the order of the calls. The records that one turn of the hub brings for a partition go together, and
records that come while those are in flight go together after them. (librdkafka would do the same, but spin
meanwhile: it allows five unreported messages of a partition, not requests, before it sends the next, and
polls all the time.) So a partition has records in one producer at a time.

A delivery report names one record of an append. An append is answered when each of its records is, or at
its deadline: the outcome of a record that was sent and is not reported then is unknown. A record that was not
sent by then is dropped, and counts no longer.

librdkafka takes the interpreter's lock again for each report, and a thread that shares it with a busy hub
waits each time. So the thread takes only the first report (its callback raises: librdkafka keeps the others
for the next poll) and the hub, once woken, takes the others.

librdkafka must not give up a single record itself. To close the gap it would continue under another epoch,
and send the records in flight once more, whether they are stored or not. So partitions that do not answer are
refused, and get rid of what is in flight with their whole producer: see partitions.py. The outcome of purged
records is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException

from backend.completion import Completion
from backend.kafka.clients.append_producers import AppendProducers, ProducerRole, ReportingProducer
from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine.partitions import (
    CHECK_INTERVAL_S,
    Partition,
    PartitionState,
    PartitionWatch,
    Queue,
)
from backend.kafka.engine.pending_bounds import SHARE, PendingBounds
from backend.kafka.errors import PURGED_CODES, REFRESH_TOPIC_CODES, to_failed_result, to_undelivered_result
from backend.kafka.options import KafkaOptions
from backend.kafka.records import encode
from backend.kafka.topic_info import TopicRegistry
from backend.records import AppendResult, AppendStatus, Durability, NewRecord
from ddmq_common.clock import NEVER, Clock
from ddmq_common.errors import BoundReachedError, CallerError, DrainingError, RemoteError, TryLaterError
from ddmq_common.event_loop import current_loop
from ddmq_common.hub_timer import HubTimer

OnStored = Callable[[str, int, int, int], None]  # topic, queue number, offset behind the record, its time
BATCH_RECORDS_MAX = 10_000  # records of one partition that go together
PROBE_RECORDS = 1  # the same of a partition in quarantine
_NO_ANSWER = to_failed_result(RemoteError("Kafka has not answered"), AppendStatus.UNKNOWN)
_LATE = RemoteError("no answer of Kafka by the deadline; what was sent may be stored or not")
_NOT_SENT = to_failed_result(
    TryLaterError("Kafka has not answered what was sent to this queue before; it was not sent"),
    AppendStatus.NOT_STORED,
)
_CLOSED = DrainingError("the Kafka engine was closed")
_DROPPED = NewRecord("", 0, bytes(16), 0, b"")  # in place of a record that was not sent by the deadline


class _Append:
    """A call of `append` that has not been answered.

    `results` has None for each record that was sent and is not reported yet.
    """

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
    """Sends the appends of one process to Kafka, and answers them. All methods must be called on the hub.

    `on_stored` is called before an append is answered. `recheck_topics` is called when an error suggests that
    a topic has changed, `on_connection_lost` when a broker cannot be reached.
    """

    def __init__(
        self,
        options: KafkaOptions,
        bridge: Bridge,
        clock: Clock,
        topics: TopicRegistry,
        on_stored: OnStored,
        recheck_topics: Callable[[], object],
        on_connection_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self._options = options
        self._bridge = bridge
        self._clock = clock
        self._topics = topics
        self._on_stored = on_stored
        self._recheck_topics = recheck_topics
        self._partitions: dict[Queue, Partition] = {}
        self._ready: dict[Queue, Partition] = {}  # nothing is in flight, and records wait
        self._later: Callable[..., object] = current_loop().run_callback
        self._unanswered: dict[_Append, None] = {}
        self._bounds = PendingBounds(options.pending_max, options.pending_bytes_max)
        self._append_count = 0
        self._next_deadline = NEVER
        self._timer, self._check_timer = HubTimer(ref=False), HubTimer(ref=False)
        self._waiters: list[tuple[dict[_Append, None], Callable[[], None]]] = []
        self._closed = False
        settings = options.client_settings(
            client_id="ddmq-producer",
            queue_buffering_max_messages=options.pending_max,
            queue_buffering_max_kbytes=max(1, options.pending_bytes_max >> 10),
        )
        self.producers = AppendProducers(
            settings, bridge, clock, self._settle_reported, self._on_producer_created, on_connection_lost
        )
        self._reports = self.producers.reports
        self._watch = PartitionWatch(self._partitions, self.producers, clock, self._find_kafka_name)
        self.add_topic = self.producers.add_topic
        self.refused_by_share = self.refused_silent = 0  # records

    def health_reason(self) -> str:
        """Return a line that lists the queues for which Kafka does not answer; "" if there are none."""
        return self._watch.health_reason()

    def why_refused(self, topic: str, queue_id: int) -> str:
        """Return why a queue takes no records now; "" if it does."""
        partition = self._watch.not_answering.get((topic, queue_id))
        return "" if partition is None else partition.why_silent(self._clock.monotonic())

    @property
    def pending_records_and_bytes(self) -> tuple[int, int]:
        """The records on their way to the brokers, and their bytes."""
        return self._bounds.records, self._bounds.bytes

    @property
    def quarantined_count(self) -> int:
        """The number of times that a partition was quarantined."""
        return self._watch.quarantine_count

    def _find_kafka_name(self, name: str) -> str | None:
        topic = self._topics.topics.get(name)
        return None if topic is None else topic.kafka_name

    # --- on the hub

    def append(
        self, records: Sequence[NewRecord], deadline: float, completion: Completion[list[AppendResult]]
    ) -> None:
        """Append records; see Backend.append."""
        append = _Append(completion, list(records), deadline)
        self._append_count += 1
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
        bounds = self._bounds
        if bounds.records >= bounds.records_max or bounds.bytes >= bounds.bytes_max:
            return self._bound_reached()
        queue = (record.topic, record.queue_id)
        partition = self._partitions.get(queue)
        if partition is None:
            partition = self._partitions[queue] = Partition()
        if partition.admitted != self._append_count:  # the first record of this append in the queue decides
            if partition.state and not partition.admits_probe:
                self.refused_silent += 1
                return self._reject_silent(queue, partition)
            if not bounds.has_share(partition):
                self.refused_by_share += 1
                return self._reject_share(queue, partition)
            partition.admitted = self._append_count
        bounds.take_record(partition, len(record.delivery))
        partition.waiting.append((append, index))
        if not partition.in_flight:
            self._mark_ready(queue, partition)
        return None

    def _reject_silent(self, queue: Queue, partition: Partition) -> AppendResult:
        why = partition.why_silent(self._clock.monotonic())
        text = f"queue {queue[1]} of topic {queue[0]} takes no records now: {why}"
        return to_failed_result(TryLaterError(text), AppendStatus.NOT_STORED)

    def _reject_share(self, queue: Queue, partition: Partition) -> AppendResult:
        error = BoundReachedError(
            f"queue {queue[1]} of topic {queue[0]}: {partition.pending_records} records, "
            f"{partition.pending_bytes} bytes are on their way to Kafka; allowed for one queue: {SHARE:g} of "
            f"what is free, now {self._bounds.share_records} records, {self._bounds.share_bytes} bytes; "
            + partition.why_silent(self._clock.monotonic())
        )
        return to_failed_result(error, AppendStatus.NOT_STORED)

    def _mark_ready(self, queue: Queue, partition: Partition) -> None:
        if not self._ready:
            self._later(self._send)
        self._ready[queue] = partition

    def _send(self) -> None:
        """Pass the waiting records to a producer, for every partition that has none in flight."""
        ready, self._ready = self._ready, {}
        now = self._clock.monotonic()
        if not self._check_timer.active and not self._closed:
            self._check_timer.once(CHECK_INTERVAL_S, self.check_partitions)
        for queue, partition in ready.items():
            if partition.in_flight:  # sent meanwhile, by a caller that was answered
                continue
            is_quarantined = partition.state is PartitionState.QUARANTINED
            producer = self.producers.find_producer(
                ProducerRole.QUARANTINE if is_quarantined else ProducerRole.SHARED
            )
            if producer is None:  # see _on_producer_created
                continue
            partition.since, partition.producer = now, producer
            self._send_waiting(partition, producer, PROBE_RECORDS if is_quarantined else BATCH_RECORDS_MAX)
            if not partition.in_flight and not is_quarantined:
                self._partitions.pop(queue, None)

    def _send_waiting(self, partition: Partition, producer: ReportingProducer, records_max: int) -> None:
        waiting = partition.waiting
        while waiting and partition.in_flight < records_max:
            append, index = waiting.popleft()
            if append not in self._unanswered:  # its deadline has passed: see _drop_waiting
                partition.expired -= 1
                continue
            record = append.records[index]
            result = self._produce_record(producer, append, index, record)
            if result is None:
                append.results[index] = None
                partition.in_flight += 1
            else:
                self._bounds.release_record(partition, len(record.delivery))
                self._set_result(append, index, result)

    def _on_producer_created(self) -> None:
        """Send the appends that waited for a producer."""
        for queue, partition in self._partitions.items():
            if partition.waiting and not partition.in_flight:
                self._mark_ready(queue, partition)

    def _produce_record(
        self, producer: ReportingProducer, append: _Append, index: int, record: NewRecord
    ) -> AppendResult | None:
        """Pass one record to a producer, or return the result with which it failed."""
        error = self._topics.rejection_of(record)
        if error is not None:
            return to_failed_result(error)
        try:
            key, value, headers = encode(record)
            producer.produce(
                self._topics.topics[record.topic].kafka_name, value, key, record.queue_id,
                on_delivery=partial(producer.on_report, append, index), headers=headers,  # type: ignore[arg-type]
            )  # fmt: skip
        except BufferError:
            return self._bound_reached()
        except CallerError as rejection:
            return to_failed_result(rejection)
        except KafkaException as failure:
            cause = failure.args[0]
            if cause.fatal():
                producer.give_up(str(cause))
            result = self._to_result(record, cause)
            return result if result.status is AppendStatus.REFUSED else to_failed_result(
                result.error or RemoteError(str(cause)), AppendStatus.NOT_STORED
            )  # fmt: skip
        return None

    def _set_result(self, append: _Append, index: int, result: AppendResult) -> None:
        append.results[index] = result
        append.unanswered -= 1
        if append.unanswered == 0 and append in self._unanswered:
            self._answer_append(append, None)

    def _bound_reached(self) -> AppendResult:
        bounds = self._bounds
        error = BoundReachedError(
            f"{bounds.records} records, {bounds.bytes} bytes are on their way to Kafka; that is the bound"
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
        newest_ms, now = 0, self._clock.monotonic()
        for _ in range(len(reports)):
            append, index, error, offset, stored_ms = reports.popleft()
            record = append.records[index]
            queue = (record.topic, record.queue_id)
            partition = self._partitions[queue]
            self._bounds.release_record(partition, len(record.delivery))
            partition.since = now
            if partition.state:
                self._watch.on_answer(
                    queue, partition, purged=error is not None and error.code() in PURGED_CODES
                )
            partition.in_flight -= 1
            if not partition.in_flight:
                self._on_all_reported(queue, partition)
            topic = topics.get(record.topic)
            if error is not None:
                result = self._to_result(record, error)
                if error.code() in REFRESH_TOPIC_CODES:
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

    def _on_all_reported(self, queue: Queue, partition: Partition) -> None:
        if partition.waiting:
            self._mark_ready(queue, partition)
        elif partition.state is not PartitionState.QUARANTINED:
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
        late = [append for append in self._unanswered if append.deadline <= now]
        for append in late:
            self._answer_append(append, to_failed_result(_LATE, AppendStatus.UNKNOWN))
        self._drop_waiting(late)
        self._next_deadline = min((append.deadline for append in self._unanswered), default=NEVER)
        if self._next_deadline < NEVER:
            self._timer.once(self._next_deadline - now, self._expire_appends)

    def _drop_waiting(self, answered: list[_Append]) -> None:
        """Drop the records of answered appends that were not passed to a producer; they count no longer."""
        partitions: dict[Partition, None] = {}
        for append in answered:
            for index, result in enumerate(append.results):
                if result is not _NOT_SENT:
                    continue
                record = append.records[index]
                partition = self._partitions[record.topic, record.queue_id]
                self._bounds.release_record(partition, len(record.delivery))
                append.records[index] = _DROPPED
                partition.expired += 1
                partitions[partition] = None
        for partition in partitions:
            if partition.expired * 2 > len(partition.waiting):
                partition.waiting = deque(each for each in partition.waiting if each[0] in self._unanswered)
                partition.expired = 0

    def check_partitions(self) -> None:
        """Find partitions that do not answer; called by a timer while there are any."""
        self._watch.check()
        if self._partitions or self.producers.needs_check:
            self._check_timer.once(CHECK_INTERVAL_S, self.check_partitions)

    def when_answered(self, queues: Collection[Queue] | None, then: Callable[[], None]) -> None:
        """Call `then` once the earlier appends to these queues are answered; None means all queues."""
        if queues is not None and not any(queue in self._partitions for queue in queues):
            then()
            return
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
    def producer_replacements(self) -> int:
        """The number of times that a producer was replaced."""
        return self.producers.replaced

    def close(self) -> None:
        """Send the records that are already under way to brokers, drop the rest, and answer all appends.

        The time that this takes is bounded.
        """
        if self._closed:
            return
        self._closed = True
        self.producers.close()
        self._timer.stop()
        self._check_timer.stop()
        unanswered = list(self._unanswered)
        for append in unanswered:
            self._answer_append(append, to_failed_result(_CLOSED, AppendStatus.UNKNOWN))
        self._drop_waiting(unanswered)
