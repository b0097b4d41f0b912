"""Reads, waits and bounds: what topics.py, readers.py and offsets.py answer together.
Where queues begin and end, and where a time lies: asked of the cluster, in bulk.

Calls of one turn of the hub are one question. A partition stands at most once in a request (with one twice,
librdkafka answers wrongly). The end is that of what may be read: behind a transaction that is still open
nothing is readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import gevent
from confluent_kafka import IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from backend.completion import Completion
from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine.readers import Readers
from backend.kafka.engine.streams import KafkaBatch, KafkaPlace
from backend.kafka.errors import is_gone, kafka_error, translated
from backend.kafka.topic_info import KafkaTopic, TopicRegistry
from backend.port import ReadCall, Wait
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DdmqError, DrainingError, UnknownTopicError

_CLOSED = DrainingError("the Kafka engine was closed")


class KafkaQueries:
    """Everything is settled later, on the hub."""

    def __init__(self, topics: TopicRegistry, readers: Readers, offsets: Offsets) -> None:
        self._topics = topics
        self._readers = readers
        self._offsets = offsets
        self._later: Callable[..., Any] = gevent.get_hub().loop.run_callback
        self._closed = False

    def read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """As Backend.read."""
        topic = self._topics.find_queue_topic(call.queue)
        if self._closed:
            self._later(completion.fail, _CLOSED)
        elif topic is None:
            self._later(completion.succeed, KafkaBatch(call.queue, ReadStatus.GONE, (), call.offset))
        elif not topic.info.readable:
            self._later(completion.fail, CallerError(f"topic {call.queue.topic} is not readable"))
        else:
            self._readers.read(_place(call.queue, topic), call, completion)

    def wait(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        """As Backend.wait."""
        topic = self._topics.find_queue_topic(queue)
        if topic is None:
            wait.fail(UnknownTopicError(f"queue {queue} does not exist (any more)"))
            return
        try:
            self._readers.wait(_place(queue, topic), offset, deadline, wait)
        except DdmqError as error:
            wait.fail(error)

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        """As Backend.bounds."""
        done: Completion[list[Bounds | None]] = Completion()
        asked = list(queues)
        places = [self._partition(queue) for queue in asked]
        there = [place for place in places if place is not None]

        def answered(found: Completion[Any]) -> None:
            if found.error is not None:
                done.fail(found.error)
                return
            answer = [None if place is None else found.value[place] for place in places]
            done.succeed([self._reached(queue, each) for queue, each in zip(asked, answer, strict=True)])

        if there or self._closed:
            self._offsets.bounds(there).then(answered)
        else:
            self._later(done.succeed, [None] * len(asked))
        return done

    def _partition(self, queue: QueueRef) -> Place | None:
        topic = self._topics.find_queue_topic(queue)
        return None if topic is None else (topic.kafka_name, queue.queue_id)

    def _reached(self, queue: QueueRef, found: Bounds | None) -> Bounds | None:
        """What this process has stored is inside: the end of a transaction shows a little later."""
        if found is None or self._topics.find_queue_topic(queue) is None:
            return None
        return found._replace(next=max(found.next, self._readers.known_next(queue)))

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        """As Backend.offset_for_time."""
        done: Completion[int] = Completion()
        place = self._partition(queue)
        if place is None and not self._closed:
            error = UnknownTopicError(f"queue {queue} does not exist (any more)")
            self._later(done.fail, error)
            return done

        def next_offset(found: Completion[list[Bounds | None]]) -> None:
            bounds = found.value[0] if found.error is None else None
            if bounds is None:
                done.fail(found.error or UnknownTopicError(f"queue {queue} does not exist any more"))
            else:
                done.succeed(bounds.next)

        def answered(found: Completion[int | None]) -> None:
            if found.error is not None:
                done.fail(found.error)
            elif found.value is None:
                self.bounds([queue]).then(next_offset)
            else:
                done.succeed(found.value)

        self._offsets.for_time(place or ("", 0), wall_ms).then(answered)
        return done

    def close(self) -> None:
        """Fail whoever waits, end the threads."""
        self._closed = True
        self._readers.close()
        self._offsets.close()


def _place(queue: QueueRef, topic: KafkaTopic) -> KafkaPlace:
    return KafkaPlace(queue, topic.kafka_name, topic.topic_id)


ASK_S = 5.0
AGAIN_S = 3.0  # so long partitions without a leader are asked for again
Place = tuple[str, int]  # Kafka's name of a topic, and the partition
Answers = dict[Place, Any]  # an offset, or the error
_SPEC: Any = OffsetSpec
_AGAIN = frozenset(
    (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH,
     KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE)
)  # fmt: skip


class Offsets:
    """Belongs to the hub; the questions go through the admin client's own thread."""

    def __init__(self, admin: AdminClient, bridge: Bridge, clock: Clock) -> None:
        self._admin = admin
        self._bridge = bridge
        self._clock = clock
        self._asked: list[tuple[Sequence[Place], Completion[dict[Place, Bounds | None]]]] = []
        self._pending: set[Completion[Any]] = set()
        self._closed = False

    def bounds(self, places: Sequence[Place]) -> Completion[dict[Place, Bounds | None]]:
        """Of each place; None where there is no such partition."""
        done = self._new()
        self._asked.append((places, done))
        if len(self._asked) == 1:
            self._bridge.call(self._ask_bounds)
        return done

    def for_time(self, place: Place, wall_ms: int) -> Completion[int | None]:
        """The first offset stored at or after `wall_ms`; None when there is none."""
        done = self._new()

        def answered(answers: Answers) -> None:
            found = answers[place]
            if isinstance(found, BaseException):
                self._fail(done, found)
            else:
                self._succeed(done, None if found < 0 else found)

        self._ask({place: _SPEC.for_timestamp(max(wall_ms, 0))}, answered)
        return done

    def _ask_bounds(self) -> None:
        asked, self._asked = self._asked, []
        places = {place for wanted, _ in asked for place in wanted}
        first: Answers = {}

        def ends(answers: Answers) -> None:
            self._give(asked, first, answers)

        def begins(answers: Answers) -> None:
            first.update(answers)
            self._ask(dict.fromkeys(places, _SPEC.latest()), ends)

        self._ask(dict.fromkeys(places, _SPEC.earliest()), begins)

    def _give(self, asked: Iterable[tuple[Sequence[Place], Any]], first: Answers, last: Answers) -> None:
        for places, done in asked:
            found: dict[Place, Bounds | None] = {}
            wrong: BaseException | None = None
            for place in places:
                low, high = first[place], last[place]
                error = next((each for each in (low, high) if isinstance(each, BaseException)), None)
                if error is None:
                    found[place] = Bounds(low, max(low, high))
                elif is_gone(error):
                    found[place] = None
                else:
                    wrong = error
            if wrong is None:
                self._succeed(done, found)
            else:
                self._fail(done, wrong)

    def _ask(self, specs: dict[Place, Any], then: Callable[[Answers], None]) -> None:
        """`then` on the hub with an answer for each place."""
        until = self._clock.monotonic() + AGAIN_S
        answers: Answers = {}

        def settled(got: Answers) -> None:
            answers.update(got)
            again = [place for place, answer in got.items() if _try_again(answer)]
            if again and self._clock.monotonic() < until and not self._closed:
                self._request({place: specs[place] for place in again}, settled)
            else:
                then(answers)

        self._request(specs, settled)

    def _request(self, specs: dict[Place, Any], then: Callable[[Answers], None]) -> None:
        if not specs or self._closed:
            self._bridge.call(then, {})
            return
        asked = {TopicPartition(*place): spec for place, spec in specs.items()}
        futures = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ASK_S
        )
        got: Answers = {}

        def one(place: Place, future: Future[Any]) -> None:
            """In the admin client's thread."""
            error = future.exception()
            got[place] = future.result().offset if error is None else error
            if len(got) == len(futures):
                self._bridge.call(then, got)

        for each, future in futures.items():
            future.add_done_callback(partial(one, (each.topic, each.partition)))

    # --- settling

    def _new(self) -> Completion[Any]:
        done: Completion[Any] = Completion()
        if self._closed:
            done.fail(DrainingError("the Kafka engine was closed"))
        else:
            self._pending.add(done)
        return done

    def _succeed(self, done: Completion[Any], value: Any) -> None:
        self._pending.discard(done)
        if not done.done:
            done.succeed(value)

    def _fail(self, done: Completion[Any], error: BaseException) -> None:
        self._pending.discard(done)
        if not done.done:
            done.fail(translated(error, "offsets"))

    def close(self) -> None:
        """Whoever waits is refused."""
        self._closed = True
        for done in list(self._pending):
            self._fail(done, DrainingError("the Kafka engine was closed"))


def _try_again(answer: Any) -> bool:
    found = kafka_error(answer) if isinstance(answer, BaseException) else None
    return found is not None and found.code() in _AGAIN
