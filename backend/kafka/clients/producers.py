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
from backend.kafka.errors import RAISED, WRONG, cause_of
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
LOOK_S = 1.0  # between two looks at what a transaction waits for
ASK_S = 5.0  # for what a producer does not know of a topic
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
    """What became of a job."""

    STORED = "stored"
    REFUSED = "refused"
    FENCED = "fenced"
    UNKNOWN = "unknown"


class WriteOutcome(NamedTuple):
    """`offsets`: of the records, in their order, where they are known. `error`: unless stored."""

    kind: OutcomeKind
    offsets: list[int]
    error: DdmqError | None


class _Unsettled(Exception):
    """A job ends with this outcome."""

    def __init__(self, kind: OutcomeKind, error: DdmqError, offsets: Sequence[int] = ()) -> None:
        super().__init__(str(error))
        self.outcome = WriteOutcome(kind, list(offsets), error)


def translated(error: KafkaError) -> DdmqError:
    """Kafka's error as ours, for what was certainly not stored."""
    code, text = error.code(), f"Kafka refused it: {error.str()} ({error.name()})"
    if code in _GONE:
        return UnknownTopicError(text)
    if code in WRONG:
        return CallerError(text)
    if error.retriable() or code in _LATER:
        return TryLaterError(text)
    return StorageError(text)


class Producers:
    """Jobs are done one after the other; `then` of each is called on the hub. `call`: runs it there.

    `event_failed`: an event of the coordination topic was not written; with its tag.
    """

    def __init__(
        self,
        options: KafkaOptions,
        call: Call,
        event_failed: Callable[[object, str], object],
    ) -> None:
        self._options = options
        self._client = options.client()
        self._coordination = SystemTopics.of(options).coordination
        self._call = call
        self._event_failed = event_failed
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._broken = False  # Kafka has given up on the plain one
        self._plain = self._producer()
        self._own: Producer | None = None
        self._name = ""
        self._once: Producer | None = None
        self._stop = False
        self._ended = threading.Event()
        _thread.start_new_thread(self._run, ())

    # --- asked from the hub

    def write(self, writes: Sequence[ProducerRecord], then: Callable[[WriteOutcome], None]) -> None:
        """Without a transaction."""
        self._job(lambda: self._write(writes), then)

    def transact(
        self, writes: Sequence[ProducerRecord], once: bool, then: Callable[[WriteOutcome], None]
    ) -> None:
        """All or nothing, under the own name or under that of the namespace, which was taken before."""
        self._job(lambda: self._transact(writes, once), then)

    def take_once(self, then: Callable[[WriteOutcome], None]) -> None:
        """Have the name of the namespace."""
        self._job(self._take_once, then)

    def rename(self, name: str, then: Callable[[WriteOutcome], None]) -> None:
        """Another name of its own; what was under way under the old one is over when that is answered."""
        self._job(lambda: self._rename(name), then)

    def event(self, topic: str, value: bytes, tag: object) -> None:
        """Write one event, now and after those before it."""

        def reported(error: KafkaError | None, _: object) -> None:
            if error is not None:
                self._call(self._event_failed, tag, error.str())

        try:
            self._plain.produce(topic, value, partition=0, on_delivery=reported)
        except (BufferError, KafkaException) as error:
            self._broken = self._broken or _is_fatal(error)
            self._call(self._event_failed, tag, str(error))

    def close(self, wait_s: float) -> bool:
        """Send what is left, and end; whether that was done in time."""
        self._stop = True
        self._jobs.put(None)
        return self._ended.wait(wait_s)

    def _job(self, act: Callable[[], list[int]], then: Callable[[WriteOutcome], None]) -> None:
        def run() -> None:
            try:
                outcome = WriteOutcome(OutcomeKind.STORED, act(), None)
            except _Unsettled as error:
                outcome = error.outcome
            except Exception as error:
                log.exception("a commit has failed in a way that is not foreseen")
                outcome = WriteOutcome(
                    OutcomeKind.UNKNOWN, [], RemoteError(f"it failed, unforeseen: {error!r}")
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
                self._serve(self._plain, 0)
                for producer in (self._own, self._once):
                    if producer is not None:
                        self._serve(producer, 0)
            self._plain.flush(FLUSH_S)
        except RAISED as error:
            log.warning("at the end not everything could be sent to Kafka: %s", error)
        finally:
            self._own = self._once = None
            self._ended.set()

    def _replace_plain(self, why: str) -> None:
        """Have another one; what the old one had is reported as failed before anything else is done."""
        try:
            new = self._producer()
        except KafkaException as error:
            log.error("there is no new producer of progress: %s (%s)", error, why)
            time.sleep(IDLE_S)
            return
        log.log(logging.WARNING if self._broken else logging.INFO, "a new producer of progress: %s", why)
        try:
            new.list_topics(self._coordination, WARM_S)  # else its first heartbeat has to wait for that
        except KafkaException as error:
            log.debug("a new producer could not ask for its topic yet: %s", error)
        old, self._plain, self._broken = self._plain, new, False
        self._serve(old, 0)
        old.purge()
        try:
            old.flush(FLUSH_S)
        except RAISED as error:
            log.debug("a producer has failed: %s", error)

    def _serve(self, producer: Producer, wait_s: float) -> None:
        """Let it report. A transactional one that has failed for good says so at its next job, too."""
        try:
            producer.poll(wait_s)
        except RAISED as error:
            log.debug("a producer has failed: %s", error)
            if producer is self._plain:
                self._broken = True
            time.sleep(wait_s)

    def _producer(self, transactional: str | None = None) -> Producer:
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
        if transactional is not None:
            config["transactional.id"] = transactional
            config["transaction.timeout.ms"] = self._options.transaction_timeout_ms
        return Producer(config)

    def _write(self, writes: Sequence[ProducerRecord]) -> list[int]:
        """Plain."""
        try:
            offsets, errors = self._produce(self._plain, writes)
        except KafkaException as error:
            self._broken = True
            raise _Unsettled(OutcomeKind.UNKNOWN, RemoteError(_UNKNOWN + cause_of(error).str())) from error
        end = time.monotonic() + self._options.transaction_timeout_ms / 1000 + 1
        while -1 in offsets and not errors and not self._broken and time.monotonic() < end:
            self._serve(self._plain, 0.1)
        if -1 not in offsets:
            return offsets
        reason = errors[0].str() if errors else "no answer"
        self._broken = self._broken or not errors or any(error.fatal() for error in errors)
        raise _Unsettled(OutcomeKind.UNKNOWN, RemoteError(_UNKNOWN + reason))

    def _produce(
        self, producer: Producer, writes: Sequence[ProducerRecord]
    ) -> tuple[list[int], list[KafkaError]]:
        """Hand them over; offsets are filled in as they are answered, -1 until then."""
        offsets = [-1] * len(writes)
        errors: list[KafkaError] = []

        def report(place: int) -> Callable[[KafkaError | None, Any], None]:
            def reported(error: KafkaError | None, message: Any) -> None:
                if error is None:
                    offsets[place] = message.offset()
                else:
                    errors.append(error)

            return reported

        asked: set[str] = set()
        for place, write in enumerate(writes):
            while True:
                try:
                    producer.produce(
                        write.topic,
                        value=write.value,
                        key=write.key,
                        partition=write.partition,
                        on_delivery=report(place),
                        headers=[*(write.headers or [])],
                    )
                    break
                except BufferError:
                    self._serve(producer, 0.05)
                except KafkaException as error:
                    if error.args[0].code() not in _GONE or write.topic in asked:
                        raise
                    asked.add(write.topic)  # it has grown since this producer heard of it last
                    producer.list_topics(write.topic, ASK_S)
        return offsets, errors

    def _transact(self, writes: Sequence[ProducerRecord], once: bool) -> list[int]:
        producer = self._once if once else self._own
        if producer is None:
            text = "Kafka has not given a transactional name yet"
            raise _Unsettled(OutcomeKind.REFUSED, TryLaterError(text))
        try:
            return self._transacted(producer, writes)
        except _Unsettled as error:
            if once and error.outcome.kind is not OutcomeKind.REFUSED:
                self._once = None
            raise

    def _transacted(self, producer: Producer, writes: Sequence[ProducerRecord]) -> list[int]:
        end = time.monotonic() + self._options.transaction_timeout_ms / 1000
        try:
            producer.begin_transaction()
            offsets, errors = self._produce(producer, writes)
            while producer.flush(max(0.0, min(LOOK_S, end - time.monotonic()))):
                errors += _gone(producer, [w.topic for w, o in zip(writes, offsets, strict=True) if o < 0])
                if errors or time.monotonic() > end:
                    break
        except RAISED as error:
            raise self._aborted(producer, cause_of(error), end) from error
        if errors or -1 in offsets:
            wrong = next((error for error in errors if error.code() in WRONG), None)  # its fault alone
            cause = wrong or (errors[0] if errors else KafkaError(KafkaError._MSG_TIMED_OUT))
            raise self._aborted(producer, cause, end)
        while True:
            try:
                producer.commit_transaction(max(0.1, end - time.monotonic()))
                return offsets
            except RAISED as error:
                cause = cause_of(error)
                if cause.txn_requires_abort():
                    raise self._aborted(producer, cause, end) from error
                if not cause.retriable() or time.monotonic() > end:
                    unknown = RemoteError(f"a transaction may have been committed or not: {cause.str()}")
                    raise _Unsettled(OutcomeKind.UNKNOWN, unknown, offsets) from error

    def _aborted(self, producer: Producer, cause: KafkaError, end: float) -> _Unsettled:
        """Abort what was not committed yet; what to raise then."""
        if cause.code() in _FENCED or cause.fatal():
            text = f"another process has taken over the transactions of this one: {cause.str()}"
            return _Unsettled(OutcomeKind.FENCED, TryLaterError(text))
        try:
            producer.abort_transaction(max(1.0, end - time.monotonic()))
        except RAISED as error:
            text = f"a transaction could not be aborted: {cause_of(error).str()} (after {cause.str()})"
            return _Unsettled(OutcomeKind.FENCED, TryLaterError(text))
        return _Unsettled(OutcomeKind.REFUSED, translated(cause))

    def _take_once(self) -> list[int]:
        if self._once is None:
            producer = self._producer(once_name(self._options))
            self._init(producer)
            self._once = producer
        return []

    def _rename(self, name: str) -> list[int]:
        if self._own is not None:
            self._init(self._producer(own_name(self._options, self._name)))
            self._own = None  # not before: where that fails, it is done again
            if len(self._plain):
                self._replace_plain("this process goes on under another name")
        producer = self._producer(own_name(self._options, name))
        self._init(producer)
        self._own, self._name = producer, name
        return []

    def _init(self, producer: Producer) -> None:
        while True:
            try:
                return producer.init_transactions(INIT_S)
            except RAISED as error:
                cause = cause_of(error)
                if self._stop or not cause.retriable():
                    raise _Unsettled(OutcomeKind.REFUSED, translated(cause)) from error


def _gone(producer: Producer, topics: Sequence[str]) -> list[KafkaError]:
    """Those that are not there any more: librdkafka would wait for them, and everybody with it."""
    try:
        found = [producer.list_topics(topic, LOOK_S).topics[topic].error for topic in dict.fromkeys(topics)]
    except KafkaException:  # nobody answers: that is waited for
        return []
    return [error for error in found if error is not None and error.code() in _GONE]


def _is_fatal(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and bool(error.args[0].fatal())


INIT_S = 10.0  # of one attempt


def own_name(options: KafkaOptions, name: str) -> str:
    """The transactional id of a process."""
    return options.names.system(f"m.{name}")


def once_name(options: KafkaOptions) -> str:
    """The transactional id of what is done once in a namespace."""
    return options.names.system("once")


def fence(client: Mapping[str, object], names: Sequence[str]) -> str | None:
    """Take transactional ids over, in a native thread; why it could not be done."""
    errors: list[str] = []

    def take(name: str) -> None:
        config: dict[str, Any] = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 50, **client}
        try:
            Producer({**config, "transactional.id": name}).init_transactions(INIT_S)
        except Exception as error:  # whatever it was: nobody is fenced then
            errors.append(str(error.args[0].str() if isinstance(error, KafkaException) else repr(error)))

    threads = [threading.Thread(target=take, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors[0] if errors else None
