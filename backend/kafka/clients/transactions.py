"""TransactionThread: one transactional id with the native thread that writes its transactions.

A process has several ids, its lanes, so that one transaction does not wait for another: lane 0 of the process
NAME is `NAMESPACE.m.NAME`, lane N is `NAMESPACE.m.NAME.N`. One more thread has the id `NAMESPACE.once`, which
all processes share: whoever takes that fences any process in the middle of the same.

`begin`, `produce` and `commit` of a transaction are one job of the thread. While it waits for its records it
looks each CHECK_INTERVAL_S for partitions that cannot take them: of a deleted topic,
without a leader that can be reached, or with too few replicas in sync. Then it is aborted; the others are
only reported, after SLOW_S.

An aborted transaction stays open at its coordinator until each of its partitions has the marker of its end.
Until then the id can begin nothing, and nobody can take it over. (A partition with too few replicas in sync
takes no marker, for as long as that lasts.) So after an abort of that kind the thread writes and aborts a
mark, and is free when that has succeeded. If that takes more than RETIRE_S, the id is retired: its producer
is dropped, so this process never uses the id again, and states that; then it need not be taken over either.
If librdkafka cannot abort, because it waits for a lost broker, the id is retired at once, and taken over by
a producer that is dropped, too: by that the coordinator aborts the transaction. This undoes no fence, because
nothing is ever written with the new epoch. The same applies to a committed transaction: if no partition
takes a record of the next one, the thread also looks for partitions of the committed one that cannot take the
marker, and aborts because of them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from backend.kafka.clients.reachability import find_unreachable
from backend.kafka.clients.writing import (
    MARK_KEY,
    UNKNOWN_TOPIC_CODES,
    Call,
    JobFailed,
    OutcomeKind,
    WriteOutcome,
    next_job,
    produce_records,
    run_job,
    to_rejection,
)
from backend.kafka.errors import RAISED, REJECTED_CODES, cause_of
from backend.kafka.options import KafkaOptions
from backend.kafka.records import ProducerRecord
from backend.kafka.targets import TIMED_OUT, TOO_FEW_IN_SYNC, why_blocked
from ddmq_common.errors import RemoteError, TryLaterError

log = logging.getLogger(__name__)
OnSlow = Callable[[Mapping[str, str]], object]
LateRecords = Callable[[Sequence[int]], Sequence[ProducerRecord]]  # from the offsets of the records before
LANES_MAX = 6  # transactional ids of one process; `lanes` of a Joined event names those in use
INIT_S = 10.0  # of one attempt to take an id
IDLE_S = 1.0
SLOW_S = 1.0
CHECK_INTERVAL_S = 0.5
METADATA_S = 1.0  # of one request for the partitions of a topic
ABORT_S = 0.7  # of the first try to abort, where a partition takes no record
DECIDE_S = 2.0  # of a transaction's time are for its end, so that its outcome is certain by then
PROBE_S, PROBE_PAUSE_S = 2.0, 0.5
RETIRE_S = 4.0
_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_TOO_FEW = (KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def lane_id(options: KafkaOptions, name: str, lane: int) -> str:
    """Return the transactional id of a lane of the process `name`."""
    return options.names.system_topic(f"m.{name}" + (f".{lane}" if lane else ""))


def namespace_transactional_id(options: KafkaOptions) -> str:
    """Return the transactional id for exclusive commits. All processes of a namespace share it."""
    return options.names.system_topic("once")


def init_transactions(producer: Producer, is_stopped: Callable[[], bool]) -> None:
    """Take over the producer's transactional id: open transactions of it end, and its former user is fenced.

    Retries what Kafka says is temporary, for as long as that takes. Raises JobFailed.
    """
    while True:
        try:
            return producer.init_transactions(INIT_S)
        except RAISED as error:
            cause = cause_of(error)
            if is_stopped() or not cause.retriable():
                raise JobFailed(OutcomeKind.REFUSED, to_rejection(cause)) from error


class TransactionThread:
    """One transactional id and its thread.

    `min_insync(topic)`: how many replicas of a topic must be in sync, 0 if that is unknown. `probe_topic`: of
    the system; followers skip marks in it. `on_free`: called on the hub when the thread can write the next
    transaction. `on_retired`: the id is not used again before the thread is given another one; None: it is
    tried for ever. `fence_id` takes over a retired id, in the thread.
    """

    def __init__(
        self,
        call: Call,
        min_insync: Callable[[str], int],
        probe_topic: str,
        on_free: Callable[[], object],
        on_retired: Callable[[], object] | None = None,
        fence_id: Callable[[str], object] = lambda transactional_id: None,
    ) -> None:
        self._call = call
        self._fence_id = fence_id
        self._min_insync = min_insync
        self._probe_topic = probe_topic
        self._on_free = on_free
        self._on_retired = on_retired
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.transactional_id = ""
        self.producer: Producer | None = None
        self._has_timed_out = False  # the last transaction waited in vain for records
        self._last_targets: Sequence[ProducerRecord] = ()  # empty ones, of the last committed transaction
        self.is_blocked = False  # its last transaction is decided, but it can begin no other
        self.is_decided = True  # no transaction of the id can be committed any more
        self._must_abort = False  # a transaction is open that could not be aborted yet
        self._stop = False
        self.finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-transactions", daemon=True)
        self._thread.start()

    # --- called from other threads

    def set_producer(self, transactional_id: str, producer: Producer | None) -> None:
        """Give the thread an id, with its initialized producer. Not while a transaction is in flight."""
        with self._lock:
            self.transactional_id, self.producer = transactional_id, producer
            self.is_blocked = self._must_abort = False
            self.is_decided = True
            self._last_targets = ()

    def run_job(self, act: Callable[[], list[int]], then: Callable[[WriteOutcome], None]) -> None:
        """Run `act` in the thread, then `then` on the hub with its outcome."""
        self._jobs.put(lambda: self._call(then, run_job(act)))

    def write(
        self,
        writes: Sequence[ProducerRecord],
        limit_s: float,
        then: Callable[[WriteOutcome], None],
        on_slow: OnSlow = lambda blocked: None,
        late: LateRecords | None = None,
    ) -> None:
        """Write all records or none, in one transaction, within `limit_s`.

        `late` returns more records, which state the offsets of the first; it is called in the thread.
        `on_slow` is called on the hub with the topics whose records were not taken after SLOW_S. `on_free`
        follows after `then`.
        """

        def run() -> None:
            self._has_timed_out = self.is_decided = False
            outcome = run_job(lambda: self.write_now(writes, limit_s, on_slow, late))
            # Before the hub knows the outcome: then it may take new ids, and must not wait for this one.
            self.is_blocked = self._has_timed_out and outcome.kind is OutcomeKind.REFUSED
            self.is_decided = outcome.kind in (OutcomeKind.STORED, OutcomeKind.REFUSED)
            self._call(then, outcome)
            try:
                if self.is_blocked:
                    self._await_usable()
            finally:
                self._call(self._on_free)

        self._jobs.put(run)

    def close(self) -> None:
        """End the thread after the job that it runs."""
        self._stop = True
        self._jobs.put(None)

    # --- in the thread

    def _run(self) -> None:
        try:
            while not self._stop:
                job = next_job(self._jobs, IDLE_S)
                if job is not None:
                    self._run_safely(job)
                elif self.producer is not None:
                    _poll(self.producer, 0)
        finally:
            self.producer = None
            self.finished.set()

    def _run_safely(self, job: Callable[[], object]) -> None:
        try:
            job()
        except Exception:  # an error of ours must not end the thread
            log.exception("a job of the transactions has failed, continuing")
            time.sleep(IDLE_S)

    def write_now(
        self,
        writes: Sequence[ProducerRecord],
        limit_s: float,
        on_slow: OnSlow = lambda blocked: None,
        late: LateRecords | None = None,
    ) -> list[int]:
        """Write a transaction in the calling thread and return the offsets. Raises JobFailed."""
        producer = self.producer
        if producer is None:
            text = "Kafka has not given a transactional name yet"
            raise JobFailed(OutcomeKind.REFUSED, TryLaterError(text))
        end = time.monotonic() + limit_s
        try:
            producer.begin_transaction()
        except RAISED as error:
            raise self._abort_transaction(producer, cause_of(error), end) from error
        offsets = self._write_part(producer, writes, end, on_slow)
        if late is not None:
            offsets += self._write_part(producer, late(offsets), end, on_slow)
        partitions = {(write.topic, write.partition) for write in writes}
        targets = [ProducerRecord(topic, partition, None, None) for topic, partition in partitions]
        return self._commit(producer, offsets, end, targets)

    def _write_part(
        self, producer: Producer, writes: Sequence[ProducerRecord], end: float, on_slow: OnSlow
    ) -> list[int]:
        """Write records of an open transaction and return their offsets; abort it if that fails."""
        try:
            offsets, errors = produce_records(producer, writes, _poll)
            blocked = self._await_reports(producer, writes, offsets, errors, end, on_slow)
        except RAISED as error:
            raise self._abort_transaction(producer, cause_of(error), end) from error
        if errors or -1 in offsets:
            rejections = [error for error in errors.values() if error.code() in REJECTED_CODES]  # its fault
            cause = next(iter((*rejections, *errors.values())), KafkaError(KafkaError._MSG_TIMED_OUT))
            if cause.code() in _TOO_FEW or cause.code() == KafkaError._MSG_TIMED_OUT:
                self._has_timed_out = True
            blocked |= {
                writes[position].topic: TOO_FEW_IN_SYNC
                for position, error in errors.items()
                if error.code() in _TOO_FEW
            }
            raise self._abort_transaction(producer, cause, end, {} if rejections else blocked)
        return offsets

    def _await_reports(
        self,
        producer: Producer,
        writes: Sequence[ProducerRecord],
        offsets: list[int],
        errors: dict[int, KafkaError],
        end: float,
        on_slow: OnSlow,
    ) -> dict[str, str]:
        """Wait until all records are reported, or some never will be; return the topics of the latter."""
        slow_at = time.monotonic() + SLOW_S
        flush_end = max(end - DECIDE_S, time.monotonic() + min(SLOW_S, end - time.monotonic()))
        while producer.flush(max(0.0, min(CHECK_INTERVAL_S, flush_end - time.monotonic()))):
            missing = [write for write, offset in zip(writes, offsets, strict=True) if offset < 0]
            deletions, blocked = self._check_targets(producer, missing)
            errors.update({len(writes) + number: error for number, error in enumerate(deletions)})
            if deletions or blocked:
                self._has_timed_out = bool(blocked)
                return blocked
            # Where nothing was taken it may be the coordinator that does not answer, or cannot end the last
            # transaction.
            is_partly_written = len(missing) < len(writes)
            if not is_partly_written:
                _, blocked = self._check_targets(producer, self._last_targets)
                if blocked:
                    self._has_timed_out = True
                    return blocked
            slow = dict.fromkeys((write.topic for write in missing), TIMED_OUT) if is_partly_written else {}
            if errors or time.monotonic() >= flush_end:
                self._has_timed_out = True
                return slow
            if time.monotonic() >= slow_at:
                self._call(on_slow, slow)
        return {}

    def _check_targets(
        self, producer: Producer, missing: Sequence[ProducerRecord]
    ) -> tuple[list[KafkaError], dict[str, str]]:
        """Return errors for topics that were deleted, for which librdkafka would wait until the time-out, and
        the topics of records whose partitions cannot take them now, with the reasons."""
        deletions: list[KafkaError] = []
        blocked: dict[str, str] = {}
        by_topic: dict[str, set[int]] = {}
        for write in missing:
            by_topic.setdefault(write.topic, set()).add(write.partition)
        try:
            for topic, numbers in by_topic.items():
                cluster = producer.list_topics(topic, METADATA_S)
                metadata = cluster.topics[topic]
                if metadata.error is not None and metadata.error.code() in UNKNOWN_TOPIC_CODES:
                    deletions.append(metadata.error)
                    continue
                partitions = metadata.partitions
                waiting = [partitions[number] for number in numbers if number in partitions]
                unreachable = find_unreachable(cluster.brokers, waiting)
                reason = why_blocked(partitions, numbers, self._min_insync(topic), unreachable)
                if reason:
                    blocked[topic] = reason
        except KafkaException:  # no broker answers: that is waited for
            return [], {}
        return deletions, blocked

    def _commit(
        self, producer: Producer, offsets: list[int], end: float, targets: Sequence[ProducerRecord]
    ) -> list[int]:
        while True:
            try:
                producer.commit_transaction(max(0.1, end - time.monotonic()))
                self._last_targets = targets
                return offsets
            except RAISED as error:
                cause = cause_of(error)
                if cause.txn_requires_abort():
                    raise self._abort_transaction(producer, cause, end) from error
                if not cause.retriable() or time.monotonic() > end:
                    unknown = RemoteError(f"a transaction may have been committed or not: {cause.str()}")
                    raise JobFailed(OutcomeKind.UNCERTAIN, unknown, offsets) from error

    def _abort_transaction(
        self, producer: Producer, cause: KafkaError, end: float, blocked: dict[str, str] | None = None
    ) -> JobFailed:
        """Abort an uncommitted transaction, and return the exception to raise."""
        if cause.code() in _FENCED or cause.fatal():
            text = f"another process has taken over the transactions of this one: {cause.str()}"
            return JobFailed(OutcomeKind.FENCED, TryLaterError(text))
        try:
            producer.abort_transaction(ABORT_S if blocked else max(DECIDE_S, end - time.monotonic()))
        except RAISED as error:
            failure = cause_of(error)
            if failure.code() in _FENCED or failure.fatal():
                text = f"a transaction could not be aborted: {failure.str()} (after {cause.str()})"
                return JobFailed(OutcomeKind.FENCED, TryLaterError(text))
            self._must_abort = self._has_timed_out = True  # it can only be aborted from now on
        return JobFailed(OutcomeKind.REFUSED, to_rejection(cause), (), blocked)

    # --- an id whose last transaction was aborted and may still be open at the coordinator

    def _await_usable(self) -> None:
        """Write and abort a mark until that succeeds, or the thread was given another id.

        The id is not taken again with `init_transactions`: that would undo a fence.
        """
        with self._lock:
            transactional_id, producer = self.transactional_id, self.producer
        retire_at = time.monotonic() + RETIRE_S
        while producer is not None and not self._stop and self.transactional_id == transactional_id:
            if self._on_retired is not None and self._must_abort:
                self._retire_id(transactional_id)
                return
            if self._can_begin(producer):
                break
            if self._on_retired is not None and time.monotonic() >= retire_at:
                self._retire_id(transactional_id)
                return
            time.sleep(PROBE_PAUSE_S)
        with self._lock:
            if self.transactional_id == transactional_id:
                self.is_blocked = False

    def _can_begin(self, producer: Producer) -> bool:
        try:
            if self._must_abort:
                producer.abort_transaction(DECIDE_S)
            producer.begin_transaction()
            self._must_abort = True
            producer.produce(self._probe_topic, value=None, key=MARK_KEY, partition=0)
            is_written = producer.flush(PROBE_S) == 0
            producer.abort_transaction(DECIDE_S)
            self._must_abort = False
        except RAISED as error:
            cause = cause_of(error)
            log.debug("transactional id %s cannot be used yet: %s", self.transactional_id, cause.str())
            return cause.code() in _FENCED or cause.fatal()  # the next transaction reports it
        return is_written

    def _retire_id(self, transactional_id: str) -> None:
        """Drop the producer, and wait until the thread is given another id."""
        assert self._on_retired is not None
        with self._lock:
            if self.transactional_id != transactional_id:
                return
            self.producer = None
            is_open, self._must_abort = self._must_abort, False
        log.warning("transactional id %s is given up: its last transaction does not end", transactional_id)
        self._call(self._on_retired)
        if is_open:  # else readers of its other partitions would wait until it times out
            self._fence_id(transactional_id)
        while not self._stop and self.transactional_id == transactional_id:
            time.sleep(PROBE_PAUSE_S)


def _poll(producer: Producer, wait_s: float) -> None:
    """Let a transactional producer call its callbacks; its errors are found by the next call of it."""
    try:
        producer.poll(wait_s)
    except RAISED as error:
        log.debug("a producer has failed: %s", error)
        time.sleep(wait_s)


def fence_names(client: Mapping[str, object], names: Sequence[str]) -> str | None:
    """Take over transactional ids in a native thread, so that their users are fenced.

    Return the error text, or None.
    """
    errors: deque[str] = deque()

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
