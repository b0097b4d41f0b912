"""Appends to Kafka against a naive model: what counts, what is refused, in which order records go, and once.

Partitions answer, fail or are silent, clients wait long or short, and time passes. Whatever happens, the
records on their way are those that the model counts, each is released once, a queue is refused if and only
if it uses more than its share or does not answer, a record goes to one producer once, the records of a queue
keep their order, and are never in two producers at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from backend.completion import Completion
from backend.kafka.clients.append_producers import AppendProducers, ProducerRole
from backend.kafka.engine import appends as appends_module
from backend.kafka.engine.appends import Appends
from backend.kafka.engine.partitions import REFUSE_S
from backend.kafka.engine.pending_bounds import SHARE_SHIFT
from backend.kafka.options import KafkaOptions
from backend.records import AppendResult, AppendStatus, Durability, NewRecord
from ddmq.in_process.loop import ManualLoop
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.event_loop import use_loop
from tests.examples import examples
from tests.support.constants import build_options
from tests.support.kafka_fakes import PURGED, StoredMessage

pytestmark = pytest.mark.interpreted  # its producers replace a compiled class

QUEUES = 4
RECORDS_MAX, BYTES_MAX = 40, 4_000
FAILED = KafkaError(KafkaError.NOT_ENOUGH_REPLICAS, "too few replicas")


class HandProducer:
    """A producer whose reports come when the test says so."""

    def __init__(self, pool: HandProducers) -> None:
        self._pool = pool
        self.sent: list[tuple[int, int, Callable[..., object]]] = []  # queue, number of the record, report
        self.is_closed = False

    def produce(
        self, topic: str, value: bytes, key: object, queue_id: int, on_delivery: Any, headers: object
    ) -> None:
        assert not self.is_closed
        number = int(value[:10])
        self._pool.produced.append((queue_id, number, self))
        self.sent.append((queue_id, number, on_delivery))

    def on_report(self, append: Any, index: int, error: KafkaError | None, message: Any) -> None:
        offset = -1 if error else message.offset()
        self._pool.reports.append((append, index, error, offset, 1_000))

    def report(self, queue_id: int, count: int, error: KafkaError | None) -> None:
        """The oldest `count` records of a queue."""
        due = [each for each in self.sent if each[0] == queue_id][:count]
        self.sent = [each for each in self.sent if each not in due]
        for _, number, on_delivery in due:
            self._pool.outcomes[number] = error
            on_delivery(error, StoredMessage(number))

    def give_up(self, reason: str) -> None:
        raise AssertionError(reason)

    def end(self) -> None:
        self.is_closed = True
        for queue_id in range(QUEUES):
            self.report(queue_id, len(self.sent), PURGED)
        self._pool.later(self._pool.settle)

    def begin_close(self) -> None:
        self.end()

    def join(self, timeout_s: float) -> None:
        pass


class HandProducers(AppendProducers):
    """The real pool, over producers without threads."""

    current: HandProducers

    def __init__(
        self, settings: object, bridge: HandBridge, clock: Any, settle: Any, on_created: Any, _: Any
    ) -> None:
        self.later, self.settle = bridge.loop.run_callback, settle
        self.produced: list[tuple[int, int, HandProducer]] = []
        self.outcomes: dict[int, KafkaError | None] = {}
        self.all: list[HandProducer] = []
        HandProducers.current = self
        super().__init__({}, bridge, clock, settle, on_created)  # type: ignore[arg-type]

    def _create(self, role: ProducerRole) -> None:
        if role not in self._creating and not self._closed:
            self._creating.add(role)
            self.later(self._on_producer, role, self)

    def _add(self, role: ProducerRole, producer: object) -> None:
        producer_object: Any = HandProducer(self)
        self.all.append(producer_object)
        self._current[role] = producer_object
        self._running.add(producer_object)

    def find_leaders(self, kafka_names: object, then: object) -> None:
        """All have one, as far as is known."""


class HandBridge:
    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        self.loop.run_callback(function, *arguments)


class OneTopic:
    def __init__(self) -> None:
        self.topics = {"t": self}
        self.kafka_name, self.durability, self.message_bytes_max = "t", Durability.WRITTEN, 1_000_000

    def find_topic(self, _: str) -> OneTopic:
        return self

    def rejection_of(self, _: NewRecord) -> None:
        return None


@dataclass
class ModelAppend:
    """One append: its queue, its admitted records by number, with their sizes."""

    queue_id: int
    completion: Completion[list[AppendResult]]
    numbers: list[int]
    admitted: dict[int, int] = field(default_factory=dict)


class PendingMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.numbers = 1_000_000_000  # ten digits each
        self.calls: list[ModelAppend] = []
        topics: Any = OneTopic()
        bridge: Any = HandBridge(self.loop)
        options = build_options(KafkaOptions, pending_max=RECORDS_MAX, pending_bytes_max=BYTES_MAX)
        with (
            use_loop(self.loop),
            patch.object(appends_module, "AppendProducers", HandProducers),
            patch("backend.kafka.clients.append_producers.Producer"),
        ):
            self.appends = Appends(options, bridge, self.clock, topics, lambda *_: None, lambda: None)
        self.pool = HandProducers.current

    # --- what the model says

    def pending_sizes(self, queue_id: int | None = None) -> list[int]:
        """Of the records that count."""
        produced = {number for _, number, _ in self.pool.produced}
        return [
            size
            for call in self.calls
            if queue_id in (None, call.queue_id)
            for number, size in call.admitted.items()
            if number not in self.pool.outcomes and (number in produced or not call.completion.done)
        ]

    @rule(
        queue_id=st.integers(0, QUEUES - 1),
        count=st.integers(1, 6),
        size=st.sampled_from([10, 10, 100, 1_500]),
        in_s=st.sampled_from([0.1, 1.0, 5.0, 100.0]),
    )
    def append(self, queue_id: int, count: int, size: int, in_s: float) -> None:
        pending, of_queue = self.pending_sizes(), self.pending_sizes(queue_id)
        has_share = (
            len(of_queue) <= (RECORDS_MAX - len(pending)) >> SHARE_SHIFT
            and sum(of_queue) <= (BYTES_MAX - sum(pending)) >> SHARE_SHIFT
        )
        is_refused = bool(self.appends.why_refused("t", queue_id))
        records, call = [], ModelAppend(queue_id, Completion(), [])
        for _ in range(count):
            self.numbers += 1
            body = b"%d" % self.numbers + bytes(size - 10)
            records.append(NewRecord("t", queue_id, bytes(16), 1, encode(b"", body, b"", None)))
            call.numbers.append(self.numbers)
        before = self.appends.pending_records_and_bytes[0]
        with use_loop(self.loop):
            self.appends.append(records, self.clock.monotonic() + in_s, call.completion)
        admitted = self.appends.pending_records_and_bytes[0] - before
        call.admitted = dict.fromkeys(call.numbers[:admitted], len(records[0].delivery))
        self.calls.append(call)
        is_full = len(pending) >= RECORDS_MAX or sum(pending) >= BYTES_MAX
        if is_full or not has_share:
            assert admitted == 0
        elif not is_refused:
            assert admitted > 0
            last = admitted - 1  # the bounds are exceeded by one record at most
            assert len(pending) + last < RECORDS_MAX
            assert sum(pending) + last * len(records[0].delivery) < BYTES_MAX

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 9), fails=st.booleans())
    def answer(self, queue_id: int, count: int, fails: bool) -> None:
        for producer in self.pool.all:
            producer.report(queue_id, count, FAILED if fails else None)
        self.loop.run_callback(self.pool.settle)
        self.run(0.0)

    @rule(seconds=st.sampled_from([0.0, 0.0, 0.2, 0.6, REFUSE_S, 6.0, 11.0]))
    def run(self, seconds: float) -> None:
        """Time passes in small steps, as the timer of partitions would ring."""
        end = self.clock.monotonic() + seconds
        with use_loop(self.loop):
            self.loop.run()
            while (ring := self.loop.next_ring()) <= end:
                self.loop.move_to(ring)
            self.loop.move_to(end)

    @invariant()
    def counts_what_the_model_counts(self) -> None:
        sizes = self.pending_sizes()
        assert self.appends.pending_records_and_bytes == (len(sizes), sum(sizes))

    @invariant()
    def each_goes_once_in_order_and_by_one_producer(self) -> None:
        for queue_id in range(QUEUES):
            numbers = [number for queue, number, _ in self.pool.produced if queue == queue_id]
            assert numbers == sorted(set(numbers))
            holding = [
                producer for producer in self.pool.all if any(each[0] == queue_id for each in producer.sent)
            ]
            assert len(holding) <= 1

    @invariant()
    def answers_are_true(self) -> None:
        produced = {number for _, number, _ in self.pool.produced}
        for call in self.calls:
            if not call.completion.done:
                continue
            for number, result in zip(call.numbers, call.completion.value, strict=True):
                outcome = self.pool.outcomes.get(number, PURGED)
                if result.status is AppendStatus.STORED:
                    assert outcome is None
                elif result.status is AppendStatus.NOT_STORED:
                    assert number not in produced or outcome is FAILED
                else:
                    assert result.status is AppendStatus.UNKNOWN
                    assert number in produced

    @invariant()
    def few_producers_exist(self) -> None:
        assert sum(not producer.is_closed for producer in self.pool.all) <= 4

    def teardown(self) -> None:
        """Whatever happened: once everything answers, all queues are open, and nothing counts."""
        if not hasattr(self, "pool"):
            return
        for _ in range(20):
            for queue_id in range(QUEUES):
                self.answer(queue_id, 1_000, fails=False)
        self.run(200.0)
        assert all(call.completion.done for call in self.calls)
        assert self.appends.pending_records_and_bytes == (0, 0)
        for queue_id in range(QUEUES):
            self.append(queue_id, 1, 10, 100.0)
            self.run(0.0)
            self.answer(queue_id, 1, fails=False)
            assert self.calls[-1].completion.value[0].status is AppendStatus.STORED
            assert not self.appends.why_refused("t", queue_id)
        with use_loop(self.loop):
            self.appends.close()


TestPending = PendingMachine.TestCase
TestPending.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
