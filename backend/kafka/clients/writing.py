"""Shared by all producers of commits: the outcome of a job, its errors, and passing records to librdkafka.

The outcome of a job is one of four: stored, with the offsets; refused, nothing of it is stored; fenced,
nothing is stored and the name is another process's; uncertain.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from backend.kafka.errors import REJECTED_CODES
from backend.kafka.records import ProducerRecord
from ddmq_common.errors import (
    CallerError,
    DdmqError,
    RemoteError,
    StorageError,
    TryLaterError,
    UnknownTopicError,
)

log = logging.getLogger(__name__)
Job = Callable[[], object]
Call = Callable[..., object]  # run this on the hub, from any thread
MARK_KEY = b"barrier"  # of a record without a value, which followers skip
REQUEST_S = 5.0  # for what a producer does not know of a topic
UNKNOWN_TOPIC_CODES = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
LATER_CODES = (
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._QUEUE_FULL,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


def next_job(jobs: queue.SimpleQueue[Job | None], timeout_s: float) -> Job | None:
    """Return the next job of a thread; None if there is none in time, or to wake the thread."""
    try:
        return jobs.get(timeout=timeout_s)
    except queue.Empty:
        return None


class OutcomeKind(Enum):
    """The kinds of results of a write to Kafka: stored, rejected, fenced by a newer producer, or unknown."""

    STORED = "stored"
    REFUSED = "refused"
    FENCED = "fenced"
    UNCERTAIN = "unknown"


class WriteOutcome(NamedTuple):
    """The result of one write job: whether its records were stored, at which offsets, and why not.

    `offsets`: of the records, in their order, if known. `error`: set unless stored. `blocked`: topics, by
    their names in Kafka, with partitions that did not take their records, and the reasons.
    """

    kind: OutcomeKind
    offsets: list[int]
    error: DdmqError | None
    blocked: dict[str, str] = {}


class JobFailed(Exception):
    """Ends a write job whose records were not stored, or not certainly."""

    def __init__(
        self,
        kind: OutcomeKind,
        error: DdmqError,
        offsets: Sequence[int] = (),
        blocked: dict[str, str] | None = None,
    ) -> None:
        super().__init__(str(error))
        self.outcome = WriteOutcome(kind, list(offsets), error, blocked or {})


def run_job(act: Callable[[], list[int]]) -> WriteOutcome:
    """Run a job in the calling thread, and return its outcome."""
    try:
        return WriteOutcome(OutcomeKind.STORED, act(), None)
    except JobFailed as error:
        return error.outcome
    except Exception as error:
        log.exception("a commit has failed unexpectedly")
        return WriteOutcome(OutcomeKind.UNCERTAIN, [], RemoteError(f"it failed, unforeseen: {error!r}"))


def to_rejection(error: KafkaError) -> DdmqError:
    """Convert Kafka's error for records that were certainly not stored."""
    code, text = error.code(), f"Kafka refused it: {error.str()} ({error.name()})"
    if code in UNKNOWN_TOPIC_CODES:
        return UnknownTopicError(text)
    if code in REJECTED_CODES:
        return CallerError(text)
    if error.retriable() or code in LATER_CODES:
        return TryLaterError(text)
    return StorageError(text)


def produce_records(
    producer: Producer, writes: Sequence[ProducerRecord], poll: Callable[[Producer, float], None]
) -> tuple[list[int], dict[int, KafkaError]]:
    """Pass records to a producer.

    Return their offsets, filled in as they are reported (-1 until then), and errors by position. `poll` lets
    the producer call its callbacks.
    """
    offsets = [-1] * len(writes)
    errors: dict[int, KafkaError] = {}

    def make_callback(position: int) -> Callable[[KafkaError | None, Any], None]:
        def on_report(error: KafkaError | None, message: Any) -> None:
            if error is None:
                offsets[position] = message.offset()
            else:
                errors[position] = error

        return on_report

    refreshed: set[str] = set()
    for position, write in enumerate(writes):
        while True:
            try:
                producer.produce(
                    write.topic,
                    value=write.value,
                    key=write.key,
                    partition=write.partition,
                    on_delivery=make_callback(position),
                    headers=[*(write.headers or [])],
                )
                break
            except BufferError:
                poll(producer, 0.05)
            except KafkaException as error:
                if error.args[0].code() not in UNKNOWN_TOPIC_CODES or write.topic in refreshed:
                    raise
                refreshed.add(write.topic)  # it has grown since this producer's last metadata
                producer.list_topics(write.topic, REQUEST_S)
    return offsets, errors
