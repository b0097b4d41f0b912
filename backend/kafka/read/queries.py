"""Reads, waits and bounds: what topics.py, readers.py and offsets.py answer together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gevent

from backend.completion import Completion
from backend.kafka.read.offsets import Offsets, Place
from backend.kafka.read.readers import Readers
from backend.kafka.read.streams import KafkaBatch, KafkaPlace
from backend.kafka.topics.info import KafkaTopic
from backend.kafka.topics.known import KafkaTopics
from backend.port import ReadCall, Wait
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus
from ddmq_common.errors import CallerError, DdmqError, DrainingError, UnknownTopicError

_CLOSED = DrainingError("the Kafka engine was closed")


class KafkaQueries:
    """Everything is settled later, on the hub."""

    def __init__(self, topics: KafkaTopics, readers: Readers, offsets: Offsets) -> None:
        self._topics = topics
        self._readers = readers
        self._offsets = offsets
        self._later: Callable[..., Any] = gevent.get_hub().loop.run_callback
        self._closed = False

    def read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """As Backend.read."""
        topic = self._topics.living(call.queue)
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
        topic = self._topics.living(queue)
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
        topic = self._topics.living(queue)
        return None if topic is None else (topic.kafka_name, queue.queue_id)

    def _reached(self, queue: QueueRef, found: Bounds | None) -> Bounds | None:
        """What this process has stored is inside: the end of a transaction shows a little later."""
        if found is None or self._topics.living(queue) is None:
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
