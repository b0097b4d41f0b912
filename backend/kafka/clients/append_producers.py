"""The producers of appends: the shared one, one for partitions in quarantine, and those that are retired.

Because of partitions that do not answer, a producer is retired: it gets no more records, what is in flight to
other partitions is answered there, and DRAIN_S later the rest is purged; the outcome of that is unknown. A
producer on which Kafka gave up (a fatal error) is purged at once, for it sends nothing any more. While a new
one is created, in a native thread, records wait.

At most four exist, because a retired one ends before its successor can be retired (DRAIN_S is shorter than
partitions.RETIRE_S).
"""

from __future__ import annotations

import logging
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from backend.kafka.clients.bridge import Bridge
from backend.kafka.errors import RAISED, cause_of, closed_producer_error
from backend.kafka.options import APPEND_SETTINGS
from ddmq_common.clock import Clock

log = logging.getLogger(__name__)
POLL_S = 0.1
CLOSE_S = 5.0
DRAIN_S = 10.0  # that a retired producer has to be answered
REQUEST_MS = 10_000  # a request that was not answered is sent again, as it was
LEADERS_S = 2.0  # of one request for the leaders of a topic's partitions
LEADER_TOPICS_MAX = 16  # topics in one search for leaders; the others are next
Report = tuple[Any, int, Any, int, int]  # the append, which record of it, an error, the offset, the time


class ProducerRole(Enum):
    """Which partitions a producer is for."""

    SHARED = "shared"
    QUARANTINE = "quarantine"


class _FirstReport(Exception):
    """Ends the thread's `poll`, so that the hub handles the remaining reports."""


class ReportingProducer:
    """A producer that the hub calls, with a native thread that waits for its delivery reports.

    Reports are added to `reports`; `settle` is called on the hub after that. `on_failed(producer, reason)` is
    called on the hub after a fatal error, and `on_finished(producer)` after `end` or such an error, when all
    records were reported.
    """

    def __init__(
        self,
        producer: Producer,
        reports: deque[Report],
        bridge: Bridge,
        settle: Callable[[], None],
        on_failed: Callable[[ReportingProducer, str], None],
        on_finished: Callable[[ReportingProducer], None],
    ) -> None:
        self._producer: Producer | None = producer
        self._reports = reports
        self._bridge = bridge
        self._settle = settle
        self._on_failed = on_failed
        self._on_finished = on_finished
        self.produce = producer.produce
        self._hub_takes_reports = False  # now; or, once closed, no one waits for them
        self._has_unsettled = False
        self._hub_done = allocate_lock()
        self._hub_done.acquire()
        self._closed = self._is_ending = False
        self._failure = ""
        self._reporting_thread = threading.Thread(target=self._run, name="kafka-producer", daemon=True)
        self._reporting_thread.start()

    def list_topics(self, kafka_name: str, timeout_s: float) -> Any:
        """Fetch a topic's metadata; blocks, so call it in a native thread. Raises KafkaException."""
        producer = self._producer
        if producer is None:
            raise closed_producer_error()
        return producer.list_topics(kafka_name, timeout_s)

    def give_up(self, reason: str) -> None:
        """Note a fatal error: `on_failed` is called soon."""
        self._failure = reason

    def end(self) -> None:
        """Purge the records in flight, report them, and end the thread, soon."""
        self._is_ending = True

    def begin_close(self) -> None:
        """Start to send the records that are already under way to brokers, and to drop the rest."""
        self._closed = self._hub_takes_reports = True
        if self._hub_done.locked():
            self._hub_done.release()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._reporting_thread.join(timeout_s)

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
            if not self._closed:
                self._hub_takes_reports = False
                self._hub_done.release()

    # --- in the native thread, or on the hub while that waits

    def on_report(self, append: Any, index: int, error: KafkaError | None, message: Any) -> None:
        """Keep a record's report; in the thread, raise _FirstReport so that the hub handles the rest."""
        if error is None:
            self._reports.append((append, index, None, message.offset(), message.timestamp()[1]))
        else:
            self._reports.append((append, index, error, -1, 0))
        self._has_unsettled = True
        if not self._hub_takes_reports:
            raise _FirstReport

    def _poll(self, timeout_s: float) -> None:
        """Call `poll`; record a fatal error, after which the producer sends nothing (see errors.cause_of)."""
        assert self._producer is not None
        try:
            self._producer.poll(timeout_s)
        except RAISED as error:
            cause = cause_of(error)
            if not cause.fatal():
                raise
            self._failure = str(cause)

    # --- in the native thread

    def _run(self) -> None:
        while not (self._closed or self._is_ending or self._failure):
            try:
                self._await_reports()
            except Exception:  # whatever it was: callers must be answered
                log.exception("serving Kafka's reports has failed, continuing")
                time.sleep(POLL_S)
        if self._failure and not self._closed:
            self._bridge.call(self._on_failed, self, self._failure)
        self._end_producer()

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

    def _end_producer(self) -> None:
        """Report what is left, and drop the producer: to destroy it on the hub would block that."""
        assert self._producer is not None
        self._hub_takes_reports = True
        try:
            self._producer.purge(in_queue=True, in_flight=not self._closed)
            self._producer.flush(CLOSE_S)
        except RAISED as error:
            log.debug("a producer has failed: %s", error)
        finally:
            self.produce = _refuse_record
            self._producer = None
            self._bridge.call(self._on_finished, self)


def _refuse_record(*_: object, **__: object) -> None:
    raise closed_producer_error()


class AppendProducers:
    """The Kafka producers through which one process appends. All methods must be called on the hub.

    `settle` is called after reports were added to `reports`; `on_created` when a producer that was missing is
    there; `on_connection_lost` when a broker cannot be reached. `replaced`: how often a producer was retired
    or failed.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        bridge: Bridge,
        clock: Clock,
        settle: Callable[[], None],
        on_created: Callable[[], None],
        on_connection_lost: Callable[[], object] = lambda: None,
    ) -> None:
        def on_error(error: KafkaError) -> None:
            if error.code() == KafkaError._TRANSPORT:
                bridge.call(on_connection_lost)

        self._settings: dict[str, Any] = {
            "socket.timeout.ms": REQUEST_MS,
            **settings,
            **APPEND_SETTINGS,
            "error_cb": on_error,
        }
        self._bridge = bridge
        self._clock = clock
        self._settle = settle
        self._on_created = on_created
        self.reports: deque[Report] = deque()
        self._running: set[ReportingProducer] = set()  # threads
        self._retired: dict[ReportingProducer, float] = {}  # since when
        self._creating: set[ProducerRole] = set()
        self._next_leaders = 0
        self.replaced = 0
        self._finds_leaders = self._closed = False
        self._current: dict[ProducerRole, ReportingProducer] = {}
        self._add(ProducerRole.SHARED, Producer(self._settings))

    def find_producer(self, role: ProducerRole) -> ReportingProducer | None:
        """Return the producer of a role. If there is none now, create it; `on_created` is called then."""
        producer = self._current.get(role)
        if producer is None:
            self._create(role)
        return producer

    def add_topic(self, kafka_name: str) -> None:
        """Make the shared producer fetch a topic's metadata; blocks, so call it in a native thread."""
        producer = self._current.get(ProducerRole.SHARED)
        try:
            if producer is not None:
                producer.list_topics(kafka_name, 5)
        except KafkaException as error:
            log.warning("topic %s: the producer could not ask for it: %s", kafka_name, error)

    def retire_producer(self, producer: ReportingProducer, reason: str) -> None:
        """Let a new producer take the place of this one, unless that was requested before.

        This one stays until the new one exists.
        """
        for role, current in self._current.items():
            if current is producer and role not in self._creating:
                log.warning("retiring the %s producer of appends: %s", role.value, reason)
                self._create(role)

    def check(self, now: float, in_use: set[ReportingProducer], is_quarantine_used: bool) -> None:
        """End the retired producers that have nothing in flight, or had DRAIN_S; called periodically.

        `in_use` have records in flight.
        """
        quarantine = self._current.get(ProducerRole.QUARANTINE)
        if quarantine is not None and not is_quarantine_used and quarantine not in in_use:
            del self._current[ProducerRole.QUARANTINE]
            quarantine.end()
        for producer, since in list(self._retired.items()):
            if producer not in in_use or now - since >= DRAIN_S:
                if producer in in_use:
                    log.warning(
                        "giving up the records that a retired producer has in flight after %g s: they may be"
                        " stored or not", DRAIN_S,
                    )  # fmt: skip
                del self._retired[producer]
                producer.end()

    @property
    def has_retired(self) -> bool:
        """Whether a retired producer has not ended yet."""
        return bool(self._retired)

    @property
    def needs_check(self) -> bool:
        """Whether `check` has something to do later."""
        return bool(self._retired or self._creating or ProducerRole.QUARANTINE in self._current)

    def find_leaders(
        self, kafka_names: Sequence[str], then: Callable[[Mapping[str, frozenset[int]]], None]
    ) -> None:
        """Find which partitions of topics have a leader, as Kafka says; only some topics, if there are many.

        Nothing is done while the last call is not answered. `then` is called with those topics of which that
        is known.
        """
        producer = self._current.get(ProducerRole.SHARED)
        if self._finds_leaders or producer is None:
            return
        self._finds_leaders = True
        start = self._next_leaders % len(kafka_names) if len(kafka_names) > LEADER_TOPICS_MAX else 0
        names = [*kafka_names[start:], *kafka_names[:start]][:LEADER_TOPICS_MAX]
        self._next_leaders = start + len(names)

        def on_leaders(leaders: Mapping[str, frozenset[int]]) -> None:
            self._finds_leaders = False
            then(leaders)

        def run() -> None:
            leaders: dict[str, frozenset[int]] = {}
            try:
                for name in names:
                    metadata = producer.list_topics(name, LEADERS_S).topics[name]
                    if metadata.error is None:
                        partitions = metadata.partitions.values()
                        leaders[name] = frozenset(
                            partition.id for partition in partitions if partition.leader >= 0
                        )
            except Exception as error:  # the reason is then another one
                log.debug("the leaders of partitions are not known: %s", error)
            self._bridge.call(on_leaders, leaders)

        threading.Thread(target=run, name="kafka-leaders", daemon=True).start()

    def _create(self, role: ProducerRole) -> None:
        if role in self._creating or self._closed:
            return
        self._creating.add(role)

        def run() -> None:
            producer: Producer | None = None
            try:
                producer = Producer(self._settings)
            except KafkaException as error:
                log.error("cannot create a new producer of appends: %s", error)
            self._bridge.call(self._on_producer, role, producer)

        threading.Thread(target=run, name="kafka-new-producer", daemon=True).start()

    def _on_producer(self, role: ProducerRole, producer: Producer | None) -> None:
        self._creating.discard(role)
        if producer is None or self._closed:
            return
        old = self._current.get(role)
        if old is not None:
            self._retired[old] = self._clock.monotonic()
            self.replaced += 1
        self._add(role, producer)
        self._on_created()

    def _add(self, role: ProducerRole, producer: Producer) -> None:
        reporting = ReportingProducer(
            producer, self.reports, self._bridge, self._settle, self._on_failed, self._on_finished
        )
        self._current[role] = reporting
        self._running.add(reporting)

    def _on_failed(self, producer: ReportingProducer, reason: str) -> None:
        log.error("replacing a producer: %s", reason)
        self._retired.pop(producer, None)
        for role, current in list(self._current.items()):
            if current is producer:
                del self._current[role]
                self.replaced += 1
                self._create(role)

    def _on_finished(self, producer: ReportingProducer) -> None:
        self._running.discard(producer)
        self._settle()

    def close(self) -> None:
        """Send the records that are already under way to brokers, drop the rest, and settle all.

        The time that this takes is bounded.
        """
        self._closed = True
        for producer in self._running:
            producer.begin_close()
        end = time.monotonic() + CLOSE_S + POLL_S
        for producer in self._running:
            producer.join(max(0.0, end - time.monotonic()))
        self._settle()
