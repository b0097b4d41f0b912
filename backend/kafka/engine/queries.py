"""KafkaQueries: reads, waits, bounds and offsets for a time, answered by the readers and the cluster.

Bounds of queues and offsets for a time are queried from the cluster, in bulk: the calls of one iteration of
the hub are one query. A partition occurs at most once in a request, because librdkafka answers a duplicate
wrongly. The end is that of the readable records: nothing after a transaction that is still open can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import gevent
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from backend.completion import Completion
from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine.readers import Readers
from backend.kafka.engine.streams import KafkaBatch, KafkaQueue
from backend.kafka.errors import is_unknown_topic, kafka_error, to_ddmq_error
from backend.kafka.topic_info import KafkaTopic, TopicRegistry
from backend.port import ReadCall, Wait
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DdmqError, DrainingError, UnknownTopicError
from ddmq_common.hub_timer import HubTimer

_CLOSED = DrainingError("the Kafka engine was closed")


class KafkaQueries:
    """Answers reads, waits and queries for bounds and times; every call is settled later, on the hub."""

    def __init__(self, topics: TopicRegistry, readers: Readers, offsets: Offsets) -> None:
        self._topics = topics
        self._readers = readers
        self._offsets = offsets
        self._later: Callable[..., Any] = gevent.get_hub().loop.run_callback
        self._closed = False

    def read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """Read records of a queue; see Backend.read."""
        topic = self._topics.find_queue_topic(call.queue)
        if self._closed:
            self._later(completion.fail, _CLOSED)
        elif topic is None:
            self._later(completion.succeed, KafkaBatch(call.queue, ReadStatus.UNKNOWN_QUEUE, (), call.offset))
        elif not topic.info.readable:
            self._later(completion.fail, CallerError(f"topic {call.queue.topic} is not readable"))
        else:
            self._readers.read(_to_kafka_queue(call.queue, topic), call, completion)

    def wait(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        """Park a wait for new records; see Backend.wait."""
        topic = self._topics.find_queue_topic(queue)
        if topic is None:
            wait.fail(UnknownTopicError(f"queue {queue} does not exist (any more)"))
            return
        try:
            self._readers.wait(_to_kafka_queue(queue, topic), offset, deadline, wait)
        except DdmqError as error:
            wait.fail(error)

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        """Return the bounds of queues; see Backend.bounds."""
        completion: Completion[list[Bounds | None]] = Completion()
        queues = list(queues)
        partitions = [self._find_partition(queue) for queue in queues]
        there = [partition for partition in partitions if partition is not None]

        def on_answer(query: Completion[Any]) -> None:
            if query.error is not None:
                completion.fail(query.error)
                return
            answer = [None if partition is None else query.value[partition] for partition in partitions]
            completion.succeed(
                [self._include_stored(queue, each) for queue, each in zip(queues, answer, strict=True)]
            )

        if there or self._closed:
            self._offsets.query_bounds(there).then(on_answer)
        else:
            self._later(completion.succeed, [None] * len(queues))
        return completion

    def _find_partition(self, queue: QueueRef) -> Partition | None:
        topic = self._topics.find_queue_topic(queue)
        return None if topic is None else (topic.kafka_name, queue.queue_id)

    def _include_stored(self, queue: QueueRef, bounds: Bounds | None) -> Bounds | None:
        """Extend bounds over records that this process has stored but the broker may not report yet."""
        if bounds is None or self._topics.find_queue_topic(queue) is None:
            return None
        return bounds._replace(next=max(bounds.next, self._readers.next_offset(queue)))

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        """Find the first offset stored at or after a time; see Backend.offset_for_time."""
        completion: Completion[int] = Completion()
        partition = self._find_partition(queue)
        if partition is None and not self._closed:
            error = UnknownTopicError(f"queue {queue} does not exist (any more)")
            self._later(completion.fail, error)
            return completion

        def next_offset(completed: Completion[list[Bounds | None]]) -> None:
            bounds = completed.value[0] if completed.error is None else None
            if bounds is None:
                completion.fail(
                    completed.error or UnknownTopicError(f"queue {queue} does not exist any more")
                )
            else:
                completion.succeed(bounds.next)

        def on_answer(completed: Completion[int | None]) -> None:
            if completed.error is not None:
                completion.fail(completed.error)
            elif completed.value is None:
                self.bounds([queue]).then(next_offset)
            else:
                completion.succeed(completed.value)

        self._offsets.query_offset_for_time(partition or ("", 0), wall_ms).then(on_answer)
        return completion

    def close(self) -> None:
        """Fail pending calls and end the reader threads."""
        self._closed = True
        self._readers.close()
        self._offsets.close()


def _to_kafka_queue(queue: QueueRef, topic: KafkaTopic) -> KafkaQueue:
    return KafkaQueue(queue, topic.kafka_name, topic.topic_id)


REQUEST_S = 5.0
RETRY_S = 3.0  # so long partitions without a leader are asked for again
RETRY_PAUSE_S = 0.1
Partition = tuple[str, int]  # Kafka's name of a topic, and the partition
Answers = dict[Partition, Any]  # an offset, or the error
_SPEC: Any = OffsetSpec
_RETRIED_CODES = frozenset(
    (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH,
     KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE)
)  # fmt: skip
_NO_LEADER = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))


class Offsets:
    """Queries the bounds of partitions, and offsets for times, through the admin client's own thread.

    Its methods must be called on the hub. `leaderless` returns the partitions that have no leader now: they
    are not asked for. If librdkafka's metadata change while it handles `list_offsets` for a partition without
    a leader, two of its threads end the same request, and the process crashes (librdkafka 2.16.0:
    rd_kafka_topic_partition_list_query_leaders_async). For the same reason retries are not made at once.
    """

    def __init__(
        self,
        admin: AdminClient,
        bridge: Bridge,
        clock: Clock,
        leaderless: Callable[[], Container[Partition]] = tuple,
    ) -> None:
        self._admin = admin
        self._leaderless = leaderless
        self._bridge = bridge
        self._clock = clock
        self._pending_bounds: list[
            tuple[Sequence[Partition], Completion[dict[Partition, Bounds | None]]]
        ] = []
        self._pending: set[Completion[Any]] = set()
        self._closed = False

    def query_bounds(self, partitions: Sequence[Partition]) -> Completion[dict[Partition, Bounds | None]]:
        """Return the bounds of each partition; None for one that does not exist."""
        completion = self._new_completion()
        self._pending_bounds.append((partitions, completion))
        if len(self._pending_bounds) == 1:
            self._bridge.call(self._query_pending_bounds)
        return completion

    def query_offset_for_time(self, partition: Partition, wall_ms: int) -> Completion[int | None]:
        """Return the first offset stored at or after `wall_ms` (epoch milliseconds).

        None if there is none.
        """
        completion = self._new_completion()

        def on_answer(answers: Answers) -> None:
            offset = answers[partition]
            if isinstance(offset, BaseException):
                self._fail(completion, offset)
            else:
                self._succeed(completion, None if offset < 0 else offset)

        self._query_offsets({partition: _SPEC.for_timestamp(max(wall_ms, 0))}, on_answer)
        return completion

    def _query_pending_bounds(self) -> None:
        queries, self._pending_bounds = self._pending_bounds, []
        partitions = {partition for requested, _ in queries for partition in requested}
        first: Answers = {}

        def ends(answers: Answers) -> None:
            self._settle_bounds(queries, first, answers)

        def begins(answers: Answers) -> None:
            first.update(answers)
            self._query_offsets(dict.fromkeys(partitions, _SPEC.latest()), ends)

        self._query_offsets(dict.fromkeys(partitions, _SPEC.earliest()), begins)

    def _settle_bounds(
        self, queries: Iterable[tuple[Sequence[Partition], Any]], first: Answers, last: Answers
    ) -> None:
        for partitions, completion in queries:
            bounds: dict[Partition, Bounds | None] = {}
            failure: BaseException | None = None
            for partition in partitions:
                low, high = first[partition], last[partition]
                error = next((each for each in (low, high) if isinstance(each, BaseException)), None)
                if error is None:
                    bounds[partition] = Bounds(low, max(low, high))
                elif is_unknown_topic(error):
                    bounds[partition] = None
                else:
                    failure = error
            if failure is None:
                self._succeed(completion, bounds)
            else:
                self._fail(completion, failure)

    def _query_offsets(self, specs: dict[Partition, Any], then: Callable[[Answers], None]) -> None:
        """Query the offsets of several partitions, and call `then` on the hub with all answers."""
        until = self._clock.monotonic() + RETRY_S
        answers: Answers = {}

        def settled(got: Answers) -> None:
            answers.update(got)
            retries = [partition for partition, answer in got.items() if _should_retry(answer)]
            if retries and self._clock.monotonic() < until and not self._closed:
                retried = {partition: specs[partition] for partition in retries}
                HubTimer(ref=False).once(RETRY_PAUSE_S, lambda: self._send_request(retried, settled))
            else:
                then(answers)

        self._send_request(specs, settled)

    def _send_request(self, specs: dict[Partition, Any], then: Callable[[Answers], None]) -> None:
        leaderless = self._leaderless()
        got: Answers = {partition: _NO_LEADER for partition in specs if partition in leaderless}
        requests = {TopicPartition(*each): spec for each, spec in specs.items() if each not in got}
        if not requests or self._closed:
            self._bridge.call(then, got)
            return
        futures = self._admin.list_offsets(
            requests, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=REQUEST_S
        )

        def on_answer(partition: Partition, future: Future[Any]) -> None:
            """Collect one answer, in the admin client's thread."""
            error = future.exception()
            got[partition] = future.result().offset if error is None else error
            if len(got) == len(specs):
                self._bridge.call(then, got)

        for each, future in futures.items():
            future.add_done_callback(partial(on_answer, (each.topic, each.partition)))

    # --- settling

    def _new_completion(self) -> Completion[Any]:
        completion: Completion[Any] = Completion()
        if self._closed:
            completion.fail(DrainingError("the Kafka engine was closed"))
        else:
            self._pending.add(completion)
        return completion

    def _succeed(self, completion: Completion[Any], value: Any) -> None:
        self._pending.discard(completion)
        if not completion.done:
            completion.succeed(value)

    def _fail(self, completion: Completion[Any], error: BaseException) -> None:
        self._pending.discard(completion)
        if not completion.done:
            completion.fail(to_ddmq_error(error, "offsets"))

    def close(self) -> None:
        """Fail every pending query."""
        self._closed = True
        for completion in list(self._pending):
            self._fail(completion, DrainingError("the Kafka engine was closed"))


def _should_retry(answer: Any) -> bool:
    error = kafka_error(answer) if isinstance(answer, BaseException) else None
    return error is not None and error.code() in _RETRIED_CODES
