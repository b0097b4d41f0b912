"""Producers: what writes the commits of this process and its events, each in a native thread of its own.

One producer is plain (idempotent, no transactions): for progress alone and the events of the coordination
topic. The transactional ones have the ids of this process's lanes (transactions.py), and one has the id of
the namespace. Whoever declares the process dead takes over the ids of all its lanes first.

The plain one never gives up a single record: librdkafka would continue under another epoch and send the
records in flight once more; a release that counts twice could free a queue before its last commits are in. So
it is replaced as a whole when progress is not answered in time, and where events are in flight when the
process's name is given up: a dead connection would also hold events of the new name.

Before the name is changed, the process takes over those old ids again whose last transaction may be committed
or not: so it has ended, one way or the other. The other ids are not taken over: one of them may have to wait
for a partition that has no leader.
"""

from __future__ import annotations

import _thread
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from backend.kafka.clients.admin import RECORD_BYTES_MAX, SystemTopics
from backend.kafka.clients.transactions import (
    LANES_MAX,
    LateRecords,
    OnSlow,
    TransactionThread,
    fence_names,
    init_transactions,
    lane_id,
    namespace_transactional_id,
)
from backend.kafka.clients.writing import (
    Call,
    JobFailed,
    OutcomeKind,
    WriteOutcome,
    next_job,
    produce_records,
    run_job,
)
from backend.kafka.errors import RAISED, cause_of
from backend.kafka.options import KafkaOptions
from backend.kafka.records import ProducerRecord
from ddmq_common.errors import RemoteError

log = logging.getLogger(__name__)
IDLE_S = 0.1
FLUSH_S = 5.0
WARM_S = 2.0
STATISTICS_INTERVAL_MS = 10_000
_UNKNOWN = "progress may be stored or not: "


class Producers:
    """Writes commits and coordination events with Kafka producers in native threads.

    `call` runs a function on the hub; the `then` of each job is called there with its outcome.
    `event_failed(tag, reason)` reports an event of the coordination topic that was not written. `on_free` is
    called when a transactional id is free again, `on_retired` when one is given up. `min_insync`: see
    TransactionThread.
    """

    def __init__(
        self,
        options: KafkaOptions,
        call: Call,
        event_failed: Callable[[object, str], object],
        on_free: Callable[[], object] = lambda: None,
        on_retired: Callable[[], object] = lambda: None,
        min_insync: Callable[[str], int] = lambda topic: 0,
    ) -> None:
        self._options = options
        self._client = options.client_settings()
        topics = SystemTopics.named_by(options)
        self._coordination = topics.coordination
        self._call = call
        self._on_event_failed = event_failed
        self._on_free = on_free
        self._on_retired = on_retired
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._broken = False  # Kafka has given up on the plain one
        self.replaced = 0  # how often the plain producer was, because it failed
        self.statistics = ""  # those of librdkafka, of the plain producer, when last reported
        self._plain = self._create_producer()
        self._name = ""
        self._stop = False
        self._finished = threading.Event()
        self.lanes = [
            TransactionThread(
                call,
                min_insync,
                topics.progress,
                partial(self._on_lane_free, lane),
                partial(self._on_lane_retired, lane),
                self._fence_id,
            )
            for lane in range(LANES_MAX)
        ]
        self._namespace = TransactionThread(call, min_insync, topics.progress, lambda: None)
        self._free = deque(range(LANES_MAX))  # the least recently used first: see write_transaction
        self._reserved: set[int] = set()  # lanes that may not be used: see use_lanes
        self.lanes_in_use = LANES_MAX
        self.retired: set[int] = set()  # lanes of the present name whose ids are never used again
        _thread.start_new_thread(self._run, ())

    # --- called on the hub

    @property
    def free_ids(self) -> int:
        """The number of transactions that can begin now."""
        return len(self._free)

    def use_lanes(self, count: int) -> None:
        """Let new transactions use only the first `count` lanes; those of the others finish."""
        self.lanes_in_use = count
        idle = [*self._free, *sorted(self._reserved)]
        self._free = deque(lane for lane in idle if lane < count)
        self._reserved = {lane for lane in idle if lane >= count}
        self._on_free()

    def write_plain(self, writes: Sequence[ProducerRecord], then: Callable[[WriteOutcome], None]) -> None:
        """Write records without a transaction."""
        self._add_job(lambda: self._write(writes), then)

    def write_transaction(
        self,
        writes: Sequence[ProducerRecord],
        once: bool,
        limit_s: float,
        then: Callable[[WriteOutcome], None],
        on_slow: OnSlow = lambda blocked: None,
        late: LateRecords | None = None,
    ) -> None:
        """Write all records or none, in a transaction that ends within `limit_s`; `late`: see there.

        With `once`, the transaction uses the namespace's transactional id, which must have been taken before;
        else the id of this process that was used least recently: right after a transaction its coordinator
        still writes the markers of its end, and an id that begins the next one has to wait for them.
        """
        limit_s = min(limit_s, self._options.transaction_timeout_ms / 1000)
        if once:
            self._namespace.write(writes, limit_s, partial(self._on_namespace_outcome, then), on_slow, late)
        else:
            self.lanes[self._free.popleft()].write(writes, limit_s, then, on_slow, late)

    def take_namespace_id(self, then: Callable[[WriteOutcome], None]) -> None:
        """Take over the transactional id of the namespace and thereby fence its previous user."""
        self._namespace.run_job(self._ensure_namespace_producer, then)

    def take_new_id(self, name: str, then: Callable[[WriteOutcome], None]) -> None:
        """Take new transactional ids, those of the name; no transaction is in flight.

        When `then` is called, every transaction under the old ones has ended.
        """

        def on_changed(outcome: WriteOutcome) -> None:
            if outcome.error is None:
                self.retired.clear()
            then(outcome)

        self._add_job(lambda: self._change_ids(name), on_changed)

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
        """Send the remaining records and end the threads; return whether that was done within `wait_s`."""
        end = time.monotonic() + wait_s
        self._stop = True
        self._jobs.put(None)
        threads = [*self.lanes, self._namespace]
        for thread in threads:
            thread.close()
        events = [self._finished, *(thread.finished for thread in threads)]
        return all(event.wait(max(0.0, end - time.monotonic())) for event in events)

    def _on_lane_free(self, lane: int) -> None:
        if lane < self.lanes_in_use:
            self._free.append(lane)
        else:
            self._reserved.add(lane)
        self._on_free()

    def _fence_id(self, transactional_id: str) -> None:
        """Let the coordinator abort the open transaction of a retired id; called in a lane's thread."""
        error = fence_names(self._client, [transactional_id])
        log.debug("transactional id %s is fenced: %s", transactional_id, error or "its transaction has ended")

    def _on_lane_retired(self, lane: int) -> None:
        self.retired.add(lane)
        self._on_retired()

    def _on_namespace_outcome(self, then: Callable[[WriteOutcome], None], outcome: WriteOutcome) -> None:
        if outcome.kind not in (OutcomeKind.STORED, OutcomeKind.REFUSED):
            self._namespace.set_producer("", None)
        then(outcome)

    def _add_job(self, act: Callable[[], list[int]], then: Callable[[WriteOutcome], None]) -> None:
        self._jobs.put(lambda: self._call(then, run_job(act)))

    # --- in the thread of the plain producer

    def _run(self) -> None:
        try:
            while not self._stop:
                job = next_job(self._jobs, IDLE_S)
                if self._broken:
                    self._replace_plain("Kafka gave up on the old one")
                if job is not None:
                    job()
                self._poll(self._plain, 0)
            self._plain.flush(FLUSH_S)
        except RAISED as error:
            log.warning("closing: not every record could be sent to Kafka: %s", error)
        finally:
            self._finished.set()

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
            offsets, errors = produce_records(self._plain, writes, self._poll)
        except KafkaException as error:
            self._broken = True
            raise JobFailed(OutcomeKind.UNCERTAIN, RemoteError(_UNKNOWN + cause_of(error).str())) from error
        end = time.monotonic() + self._options.transaction_timeout_ms / 1000 + 1
        while -1 in offsets and not errors and not self._broken and time.monotonic() < end:
            self._poll(self._plain, 0.1)
        if -1 not in offsets:
            return offsets
        reason = next(iter(errors.values())).str() if errors else "no answer"
        self._broken = self._broken or not errors or any(error.fatal() for error in errors.values())
        raise JobFailed(OutcomeKind.UNCERTAIN, RemoteError(_UNKNOWN + reason))

    def _ensure_namespace_producer(self) -> list[int]:
        if self._namespace.producer is None:
            transactional_id = namespace_transactional_id(self._options)
            self._namespace.set_producer(transactional_id, self._init_producer(transactional_id))
        return []

    def _change_ids(self, name: str) -> list[int]:
        if self._name:
            self._init_producers([
                lane.transactional_id for lane in self.lanes if not lane.is_decided
            ])  # fmt: skip
            self._name = ""  # not before: where that fails, it is done again
            for lane in self.lanes:
                lane.set_producer("", None)
            if len(self._plain):
                self._replace_plain("this process switches to another name")
        ids = [lane_id(self._options, name, number) for number in range(LANES_MAX)]
        for lane, transactional_id, producer in zip(self.lanes, ids, self._init_producers(ids), strict=True):
            lane.set_producer(transactional_id, producer)
        self._name = name
        return []

    def _init_producers(self, ids: Sequence[str]) -> list[Producer]:
        """Take over several transactional ids at the same time; return their producers."""
        producers: dict[str, Producer] = {}
        errors: list[JobFailed] = []

        def take_over(transactional_id: str) -> None:
            try:
                producers[transactional_id] = self._init_producer(transactional_id)
            except JobFailed as error:
                errors.append(error)
            except Exception as error:
                errors.append(
                    JobFailed(OutcomeKind.REFUSED, RemoteError(f"it failed, unforeseen: {error!r}"))
                )

        threads = [threading.Thread(target=take_over, args=(each,), daemon=True) for each in ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [producers[each] for each in ids]

    def _init_producer(self, transactional_id: str) -> Producer:
        producer = self._create_producer(transactional_id)
        init_transactions(producer, lambda: self._stop)
        return producer


def _is_fatal(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and bool(error.args[0].fatal())
