"""Producers: the native thread that owns the producers of commits.

One is plain (idempotent, no transactions): for progress alone and the events of the coordination topic. One
is transactional under the name of this process; whoever declares the process dead takes that name over first.
One, made when it is needed, is transactional under one name for the whole namespace (`once`): whoever takes
that fences any process in the middle of the same. `begin`, `produce` and `commit` of a transaction are one
job, so that no other job runs between them.

The plain one never gives up a single record: librdkafka would continue under another epoch and send the
records in flight once more; a release that counts twice could free a queue before its last commits are in. So
it is replaced as a whole when progress is not answered in time, and where events are in flight when the
process's name is given up: a dead connection would also hold events of the new name.

The outcome of a job is one of four: stored, with the offsets; refused, nothing of it is stored; fenced,
nothing is stored and the name is another process's; uncertain. Before the name is changed, the process takes
the old one over once more: so every transaction in flight under it has ended, one way or the other.
"""

from __future__ import annotations

import _thread
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from backend.kafka.clients.admin import RECORD_BYTES_MAX, SystemTopics
from backend.kafka.errors import RAISED, REJECTED_CODES, cause_of
from backend.kafka.options import KafkaOptions
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
Call = Callable[..., object]
IDLE_S = 0.1
FLUSH_S = 5.0
WARM_S = 2.0
CHECK_INTERVAL_S = 1.0  # between two looks at what a transaction waits for
STATISTICS_INTERVAL_MS = 10_000
REQUEST_S = 5.0  # for what a producer does not know of a topic
_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_LATER = (
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._QUEUE_FULL,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
_UNKNOWN = "progress may be stored or not: "


class OutcomeKind(Enum):
    """The kinds of outcomes of a job."""

    STORED = "stored"
    REFUSED = "refused"
    FENCED = "fenced"
    UNCERTAIN = "unknown"


class WriteOutcome(NamedTuple):
    """The outcome of a write job.

    `offsets`: of the records, in their order, if known. `error`: set unless stored.
    """

    kind: OutcomeKind
    offsets: list[int]
    error: DdmqError | None


class _JobFailed(Exception):
    """Raised to end a job with an outcome that is not success."""

    def __init__(self, kind: OutcomeKind, error: DdmqError, offsets: Sequence[int] = ()) -> None:
        super().__init__(str(error))
        self.outcome = WriteOutcome(kind, list(offsets), error)


def to_rejection(error: KafkaError) -> DdmqError:
    """Convert Kafka's error for records that were certainly not stored."""
    code, text = error.code(), f"Kafka refused it: {error.str()} ({error.name()})"
    if code in _GONE:
        return UnknownTopicError(text)
    if code in REJECTED_CODES:
        return CallerError(text)
    if error.retriable() or code in _LATER:
        return TryLaterError(text)
    return StorageError(text)


class Producers:
    """Writes commits and coordination events with Kafka producers in one native thread.

    Jobs run one after the other. `call` runs a function on the hub; the `then` of each job is called there
    with its outcome. `event_failed(tag, reason)` reports an event of the coordination topic that was not
    written.
    """

    def __init__(
        self,
        options: KafkaOptions,
        call: Call,
        event_failed: Callable[[object, str], object],
    ) -> None:
        self._options = options
        self._client = options.client_settings()
        self._coordination = SystemTopics.named_by(options).coordination
        self._call = call
        self._on_event_failed = event_failed
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._broken = False  # Kafka has given up on the plain one
        self.replaced = 0  # how often the plain producer was, because it failed
        self.statistics = ""  # those of librdkafka, of the plain producer, when last reported
        self._plain = self._create_producer()
        self._process_producer: Producer | None = None
        self._name = ""
        self._namespace_producer: Producer | None = None
        self._stop = False
        self._ended = threading.Event()
        _thread.start_new_thread(self._run, ())

    # --- asked from the hub

    def write_plain(self, writes: Sequence[ProducerRecord], then: Callable[[WriteOutcome], None]) -> None:
        """Write records without a transaction."""
        self._add_job(lambda: self._write(writes), then)

    def write_transaction(
        self, writes: Sequence[ProducerRecord], once: bool, then: Callable[[WriteOutcome], None]
    ) -> None:
        """Write all records or none, in a transaction.

        With `once`, the transaction uses the namespace's transactional id, else this process's; that id must
        have been taken before.
        """
        self._add_job(lambda: self._run_transaction(writes, once), then)

    def take_namespace_id(self, then: Callable[[WriteOutcome], None]) -> None:
        """Take over the transactional id of the namespace, which fences its previous user."""
        self._add_job(self._ensure_namespace_producer, then)

    def take_new_id(self, name: str, then: Callable[[WriteOutcome], None]) -> None:
        """Take a new transactional id.

        When `then` is called, every transaction under the old one has ended.
        """
        self._add_job(lambda: self._change_id(name), then)

    def write_event(self, topic: str, value: bytes, tag: object) -> None:
        """Write one coordination event without waiting for its result, after the earlier ones.

        If it is not written, `event_failed` is called with `tag`.
        """

        def on_report(error: KafkaError | None, _: object) -> None:
            if error is not None:
                self._call(self._on_event_failed, tag, error.str())

        try:
            self._plain.produce(topic, value, partition=0, on_delivery=on_report)
        except (BufferError, KafkaException) as error:
            self._broken = self._broken or _is_fatal(error)
            self._call(self._on_event_failed, tag, str(error))

    def close(self, wait_s: float) -> bool:
        """Send the remaining records and end the thread; return whether that was done within `wait_s`."""
        self._stop = True
        self._jobs.put(None)
        return self._ended.wait(wait_s)

    def _add_job(self, act: Callable[[], list[int]], then: Callable[[WriteOutcome], None]) -> None:
        def run() -> None:
            try:
                outcome = WriteOutcome(OutcomeKind.STORED, act(), None)
            except _JobFailed as error:
                outcome = error.outcome
            except Exception as error:
                log.exception("a commit has failed unexpectedly")
                outcome = WriteOutcome(
                    OutcomeKind.UNCERTAIN, [], RemoteError(f"it failed, unforeseen: {error!r}")
                )
            self._call(then, outcome)

        self._jobs.put(run)

    # --- in the thread

    def _run(self) -> None:
        try:
            while not self._stop:
                try:
                    job = self._jobs.get(timeout=IDLE_S)
                except queue.Empty:
                    job = None
                if self._broken:
                    self._replace_plain("Kafka gave up on the old one")
                if job is not None:
                    job()
                self._poll(self._plain, 0)
                for producer in (self._process_producer, self._namespace_producer):
                    if producer is not None:
                        self._poll(producer, 0)
            self._plain.flush(FLUSH_S)
        except RAISED as error:
            log.warning("closing: not every record could be sent to Kafka: %s", error)
        finally:
            self._process_producer = self._namespace_producer = None
            self._ended.set()

    def _replace_plain(self, why: str) -> None:
        """Replace the plain producer; records in the old one are reported as failed before the next job."""
        try:
            new = self._create_producer()
        except KafkaException as error:
            log.error("cannot create a new producer of progress: %s (%s)", error, why)
            time.sleep(IDLE_S)
            return
        log.log(
            logging.WARNING if self._broken else logging.INFO, "replacing the producer of progress: %s", why
        )
        try:
            new.list_topics(self._coordination, WARM_S)  # else its first heartbeat has to wait for that
        except KafkaException as error:
            log.debug("a new producer could not ask for its topic yet: %s", error)
        self.replaced += self._broken
        old, self._plain, self._broken = self._plain, new, False
        self._poll(old, 0)
        old.purge()
        try:
            old.flush(FLUSH_S)
        except RAISED as error:
            log.debug("a producer has failed: %s", error)

    def _poll(self, producer: Producer, wait_s: float) -> None:
        """Let a producer call its callbacks.

        A plain producer that has failed for good is marked as broken.
        """
        try:
            producer.poll(wait_s)
        except RAISED as error:
            log.debug("a producer has failed: %s", error)
            if producer is self._plain:
                self._broken = True
            time.sleep(wait_s)

    def _create_producer(self, transactional: str | None = None) -> Producer:
        config: dict[str, Any] = {
            "linger.ms": 0,
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 50,
            "compression.type": "lz4",
            **self._client,
            "message.max.bytes": RECORD_BYTES_MAX,
            "message.timeout.ms": 0 if transactional is None else self._options.transaction_timeout_ms,
            "enable.idempotence": True,
            "acks": "all",
        }
        if transactional is None:
            config["statistics.interval.ms"], config["stats_cb"] = STATISTICS_INTERVAL_MS, self._on_statistics
        else:
            config["transactional.id"] = transactional
            config["transaction.timeout.ms"] = self._options.transaction_timeout_ms
        return Producer(config)

    def _on_statistics(self, text: str) -> None:
        self.statistics = text

    def _write(self, writes: Sequence[ProducerRecord]) -> list[int]:
        """Write records with the plain producer and return their offsets."""
        try:
            offsets, errors = self._produce_records(self._plain, writes)
        except KafkaException as error:
            self._broken = True
            raise _JobFailed(OutcomeKind.UNCERTAIN, RemoteError(_UNKNOWN + cause_of(error).str())) from error
        end = time.monotonic() + self._options.transaction_timeout_ms / 1000 + 1
        while -1 in offsets and not errors and not self._broken and time.monotonic() < end:
            self._poll(self._plain, 0.1)
        if -1 not in offsets:
            return offsets
        reason = errors[0].str() if errors else "no answer"
        self._broken = self._broken or not errors or any(error.fatal() for error in errors)
        raise _JobFailed(OutcomeKind.UNCERTAIN, RemoteError(_UNKNOWN + reason))

    def _produce_records(
        self, producer: Producer, writes: Sequence[ProducerRecord]
    ) -> tuple[list[int], list[KafkaError]]:
        """Pass records to a producer.

        Return their offsets, filled in as they are reported (-1 until then), and errors.
        """
        offsets = [-1] * len(writes)
        errors: list[KafkaError] = []

        def make_callback(place: int) -> Callable[[KafkaError | None, Any], None]:
            def on_report(error: KafkaError | None, message: Any) -> None:
                if error is None:
                    offsets[place] = message.offset()
                else:
                    errors.append(error)

            return on_report

        refreshed: set[str] = set()
        for place, write in enumerate(writes):
            while True:
                try:
                    producer.produce(
                        write.topic,
                        value=write.value,
                        key=write.key,
                        partition=write.partition,
                        on_delivery=make_callback(place),
                        headers=[*(write.headers or [])],
                    )
                    break
                except BufferError:
                    self._poll(producer, 0.05)
                except KafkaException as error:
                    if error.args[0].code() not in _GONE or write.topic in refreshed:
                        raise
                    refreshed.add(write.topic)  # it has grown since this producer heard of it last
                    producer.list_topics(write.topic, REQUEST_S)
        return offsets, errors

    def _run_transaction(self, writes: Sequence[ProducerRecord], once: bool) -> list[int]:
        producer = self._namespace_producer if once else self._process_producer
        if producer is None:
            text = "Kafka has not given a transactional name yet"
            raise _JobFailed(OutcomeKind.REFUSED, TryLaterError(text))
        try:
            return self._transact_with(producer, writes)
        except _JobFailed as error:
            if once and error.outcome.kind is not OutcomeKind.REFUSED:
                self._namespace_producer = None
            raise

    def _transact_with(self, producer: Producer, writes: Sequence[ProducerRecord]) -> list[int]:
        end = time.monotonic() + self._options.transaction_timeout_ms / 1000
        try:
            producer.begin_transaction()
            offsets, errors = self._produce_records(producer, writes)
            while producer.flush(max(0.0, min(CHECK_INTERVAL_S, end - time.monotonic()))):
                errors += _find_deleted(
                    producer, [w.topic for w, o in zip(writes, offsets, strict=True) if o < 0]
                )
                if errors or time.monotonic() > end:
                    break
        except RAISED as error:
            raise self._abort_transaction(producer, cause_of(error), end) from error
        if errors or -1 in offsets:
            wrong = next(
                (error for error in errors if error.code() in REJECTED_CODES), None
            )  # its fault alone
            cause = wrong or (errors[0] if errors else KafkaError(KafkaError._MSG_TIMED_OUT))
            raise self._abort_transaction(producer, cause, end)
        while True:
            try:
                producer.commit_transaction(max(0.1, end - time.monotonic()))
                return offsets
            except RAISED as error:
                cause = cause_of(error)
                if cause.txn_requires_abort():
                    raise self._abort_transaction(producer, cause, end) from error
                if not cause.retriable() or time.monotonic() > end:
                    unknown = RemoteError(f"a transaction may have been committed or not: {cause.str()}")
                    raise _JobFailed(OutcomeKind.UNCERTAIN, unknown, offsets) from error

    def _abort_transaction(self, producer: Producer, cause: KafkaError, end: float) -> _JobFailed:
        """Abort an uncommitted transaction, and return the exception to raise."""
        if cause.code() in _FENCED or cause.fatal():
            text = f"another process has taken over the transactions of this one: {cause.str()}"
            return _JobFailed(OutcomeKind.FENCED, TryLaterError(text))
        try:
            producer.abort_transaction(max(1.0, end - time.monotonic()))
        except RAISED as error:
            text = f"a transaction could not be aborted: {cause_of(error).str()} (after {cause.str()})"
            return _JobFailed(OutcomeKind.FENCED, TryLaterError(text))
        return _JobFailed(OutcomeKind.REFUSED, to_rejection(cause))

    def _ensure_namespace_producer(self) -> list[int]:
        if self._namespace_producer is None:
            producer = self._create_producer(namespace_transactional_id(self._options))
            self._init_transactions(producer)
            self._namespace_producer = producer
        return []

    def _change_id(self, name: str) -> list[int]:
        if self._process_producer is not None:
            self._init_transactions(
                self._create_producer(process_transactional_id(self._options, self._name))
            )
            self._process_producer = None  # not before: where that fails, it is done again
            if len(self._plain):
                self._replace_plain("this process switches to another name")
        producer = self._create_producer(process_transactional_id(self._options, name))
        self._init_transactions(producer)
        self._process_producer, self._name = producer, name
        return []

    def _init_transactions(self, producer: Producer) -> None:
        while True:
            try:
                return producer.init_transactions(INIT_S)
            except RAISED as error:
                cause = cause_of(error)
                if self._stop or not cause.retriable():
                    raise _JobFailed(OutcomeKind.REFUSED, to_rejection(cause)) from error


def _find_deleted(producer: Producer, topics: Sequence[str]) -> list[KafkaError]:
    """Return an error for each topic that was deleted: librdkafka would wait for it until the time-out."""
    try:
        errors = [
            producer.list_topics(topic, CHECK_INTERVAL_S).topics[topic].error
            for topic in dict.fromkeys(topics)
        ]
    except KafkaException:  # nobody answers: that is waited for
        return []
    return [error for error in errors if error is not None and error.code() in _GONE]


def _is_fatal(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and bool(error.args[0].fatal())


INIT_S = 10.0  # of one attempt


def process_transactional_id(options: KafkaOptions, name: str) -> str:
    """Return the transactional id that the process `name` uses."""
    return options.names.system_topic(f"m.{name}")


def namespace_transactional_id(options: KafkaOptions) -> str:
    """Return the transactional id of exclusive commits, which all processes of a namespace share."""
    return options.names.system_topic("once")


def fence_names(client: Mapping[str, object], names: Sequence[str]) -> str | None:
    """Take over transactional ids in a native thread, so that their users are fenced.

    Return the error text, or None.
    """
    errors: list[str] = []

    def take_over(name: str) -> None:
        config: dict[str, Any] = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 50, **client}
        try:
            Producer({**config, "transactional.id": name}).init_transactions(INIT_S)
        except Exception as error:  # whatever it was: nobody is fenced then
            errors.append(str(error.args[0].str() if isinstance(error, KafkaException) else repr(error)))

    threads = [threading.Thread(target=take_over, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors[0] if errors else None
