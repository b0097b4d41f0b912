"""Appends: what goes together, what waits, and what each is answered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from backend.completion import Completion
from backend.kafka.clients import append_producers as module
from backend.kafka.clients.append_producers import DRAIN_S, LEADER_TOPICS_MAX
from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine.appends import Appends
from backend.kafka.engine.partitions import LEADERS_INTERVAL_S, REFUSE_S, RETIRE_S
from backend.kafka.options import KafkaOptions
from backend.kafka.topic_info import KafkaTopic
from backend.records import AppendResult, AppendStatus, Durability, NewRecord, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode as encode_delivery
from ddmq_common.errors import BoundReachedError, TryLaterError
from tests.support.constants import build_options
from tests.support.kafka_fakes import PURGED, StoredMessage
from tests.support.waits import until

LOST = KafkaError(KafkaError.REQUEST_TIMED_OUT, "nobody answered")
FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "no such sequence", True)
LONG_S = 3_600.0


class FakePartition:
    def __init__(self, number: int, leader: int) -> None:
        self.id, self.leader = number, leader


class FakeMetadata:
    """Of the topic t."""

    def __init__(self, leaders: dict[int, int]) -> None:
        self.topics = {"t": self}
        self.error = None
        self.partitions = {number: FakePartition(number, leader) for number, leader in leaders.items()}


class ReportingProducer:
    """As librdkafka: a report that raises ends the poll, and the others stay."""

    created: list[ReportingProducer]
    leaders: ClassVar[dict[int, int]] = {0: 1, 1: 2, 2: 3}

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.created.append(self)
        self.lots: list[int] = []  # how many each turn brought
        self.sent: list[Callable[..., object]] = []
        self.queues: list[int] = []  # of `sent`
        self.purges = 0
        self.reports: list[tuple[Callable[..., object], KafkaError | None, int]] = []
        self.next = 0
        self.fails: list[Exception] = []

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        queue_id: int,
        on_delivery: Callable[..., object],
        **_: Any,
    ) -> None:
        self.sent.append(on_delivery)
        self.queues.append(queue_id)

    def list_topics(self, topic: str, timeout: float) -> FakeMetadata:
        return FakeMetadata(self.leaders)

    def answer(self, error: KafkaError | None = None) -> None:
        """Whatever was sent."""
        self.lots.append(len(self.sent))
        for each in self.sent:
            self.reports.append((each, error, self.next))
            self.next += 1
        self.sent, self.queues = [], []

    def answer_queue(self, queue_id: int, error: KafkaError | None = None) -> None:
        """Whatever was sent to one queue."""
        sent, self.sent = self.sent, []
        queues, self.queues = self.queues, []
        for report, queue in zip(sent, queues, strict=True):
            if queue == queue_id:
                self.reports.append((report, error, self.next))
                self.next += 1
            else:
                self.sent.append(report)
                self.queues.append(queue)

    def poll(self, timeout: float) -> int:
        if self.fails:
            raise self.fails.pop()
        count = len(self.reports)
        while self.reports:
            report, error, offset = self.reports.pop(0)
            report(error, StoredMessage(offset))
        return count

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        self.purges += 1
        if in_flight:
            self.answer(PURGED)

    def flush(self, timeout: float) -> int:
        self.poll(0)
        return 0


class MovedClock(SystemClock):
    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class FakeTopics:
    def __init__(self) -> None:
        self.topics = {"t": KafkaTopic(TopicInfo("t", 1, 4), "t", Durability.WRITTEN, 1_000, bytes(16))}

    def find_topic(self, _: str) -> KafkaTopic:
        return self.topics["t"]

    def rejection_of(self, _: NewRecord) -> None:
        return None


class House:
    def __init__(self, **terms: int) -> None:
        self.bridge = Bridge()
        self.clock = MovedClock()
        self.stored_ends: list[tuple[str, int, int, int]] = []
        topics: Any = FakeTopics()
        self.appends = Appends(
            build_options(KafkaOptions, **terms), self.bridge, self.clock, topics,
            lambda *end: self.stored_ends.append(end), lambda: None,
        )  # fmt: skip

    @property
    def producer(self) -> ReportingProducer:
        return ReportingProducer.created[-1]

    def append(self, count: int = 1, in_s: float = 30.0, queue_id: int = 0, size: int = 1) -> Completion[Any]:
        completion: Completion[list[AppendResult]] = Completion()
        records = [
            NewRecord("t", queue_id, bytes(16), 1, encode_delivery(b"", bytes(size), b"", None))
        ] * count
        self.appends.append(records, self.clock.monotonic() + in_s, completion)
        return completion

    def answered(self, lot: int, error: KafkaError | None = None) -> None:
        """Once so many are sent, answer them."""
        until(lambda: len(self.producer.sent) == lot, f"{lot} sent")
        self.producer.answer(error)

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and look at the partitions as the timer does."""
        self.clock.ahead += seconds
        self.appends.check_partitions()

    def silence(self, queue_id: int = 0) -> Completion[Any]:
        """An append that is in flight and not answered for so long that its queue is refused."""
        stuck = self.append(in_s=LONG_S, queue_id=queue_id)
        until(lambda: queue_id in self.producer.queues, "sent")
        self.pass_time(REFUSE_S)
        return stuck

    def quarantine(self, queue_id: int = 0) -> None:
        """Let a queue be silent until what is in flight is purged."""
        stuck = self.silence(queue_id)
        created = len(ReportingProducer.created)
        self.pass_time(RETIRE_S)
        until(lambda: len(ReportingProducer.created) == created + 1, "there is a new one")
        until(lambda: self.appends.producers.has_retired, "the old one is retired")
        self.pass_time(DRAIN_S)
        assert statuses(stuck) == [AppendStatus.UNKNOWN]

    def close(self) -> None:
        self.appends.close()
        self.bridge.close()


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(ReportingProducer, "created", [], raising=False)
    monkeypatch.setattr(module, "Producer", ReportingProducer)
    monkeypatch.setattr(module, "POLL_S", 0.001)
    house = House()
    yield house
    house.close()


def statuses(completion: Completion[Any]) -> list[AppendStatus]:
    until(lambda: completion.done, "answered")
    return [each.status for each in completion.value]


def test_what_comes_while_some_are_under_way_goes_together_after_them(house: House) -> None:
    first = house.append(2)
    until(lambda: len(house.producer.sent) == 2, "sent")
    later = [house.append() for _ in range(3)]
    house.answered(2)
    house.answered(3)
    assert statuses(first) == [AppendStatus.STORED] * 2
    assert [statuses(each) for each in later] == [[AppendStatus.STORED]] * 3
    assert [result.offset for each in [first, *later] for result in each.value] == [0, 1, 2, 3, 4]
    assert house.producer.lots == [2, 3]
    assert house.stored_ends[-1] == ("t", 0, 5, 1_000)


def test_what_waits_behind_others_past_its_deadline_was_certainly_not_stored(house: House) -> None:
    sent = house.append(in_s=0.05)
    until(lambda: len(house.producer.sent) == 1, "sent")
    waiting = house.append(in_s=0.05)
    assert statuses(sent) == [AppendStatus.UNKNOWN]
    assert statuses(waiting) == [AppendStatus.NOT_STORED]
    house.answered(1)
    assert statuses_of_next(house) == [AppendStatus.STORED]
    assert house.producer.lots == [1, 1]  # what was given up is not sent later


def statuses_of_next(house: House) -> list[AppendStatus]:
    following = house.append()
    house.answered(1)
    return statuses(following)


def test_an_answer_that_nobody_foresaw_costs_nobody_the_others(house: House) -> None:
    house.producer.fails.append(RuntimeError("nobody foresaw it"))
    until(lambda: not house.producer.fails, "the thread has met it")
    failing = house.append()
    failing.then(lambda _: 1 // 0)
    other = house.append()
    house.answered(2)
    assert statuses(other) == [AppendStatus.STORED]
    assert statuses_of_next(house) == [AppendStatus.STORED]


def test_after_a_fatal_error_there_is_a_new_producer(house: House) -> None:
    """It comes out of the call that serves reports, and nothing else tells of it."""
    house.producer.fails.append(KafkaException(FATAL))
    until(lambda: len(ReportingProducer.created) == 2, "it is replaced")
    assert statuses_of_next(house) == [AppendStatus.STORED]
    assert house.appends.producer_replacements == 1


def test_a_lost_lot_is_unknown_and_the_next_goes(house: House) -> None:
    lost = house.append(2)
    house.answered(2, LOST)
    assert statuses(lost) == [AppendStatus.UNKNOWN] * 2
    assert statuses_of_next(house) == [AppendStatus.STORED]


def test_what_waits_counts_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportingProducer, "created", [], raising=False)
    monkeypatch.setattr(module, "Producer", ReportingProducer)
    house = House(pending_max=2)
    accepted, refused = house.append(2), house.append(queue_id=1)
    assert statuses(refused) == [AppendStatus.NOT_STORED]
    assert isinstance(refused.value[0].error, BoundReachedError)
    house.answered(2)
    assert statuses(accepted) == [AppendStatus.STORED] * 2
    assert statuses_of_next(house) == [AppendStatus.STORED]
    house.close()


def test_a_queue_has_a_share_of_the_bound_and_others_have_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportingProducer, "created", [], raising=False)
    monkeypatch.setattr(module, "Producer", ReportingProducer)
    house = House(pending_bytes_max=80_000)
    accepted = [house.append(size=1_000)]
    until(lambda: len(house.producer.sent) == 1, "sent")
    accepted += [house.append(size=1_000) for _ in range(8)]
    refused = house.append(size=1_000)
    assert statuses(refused) == [AppendStatus.NOT_STORED]
    assert isinstance(refused.value[0].error, BoundReachedError)
    text = str(refused.value[0].error)
    assert re.match(r"queue 0 of topic t: 9 records, 90\d\d bytes are on their way to Kafka; ", text), text
    assert re.search(r"0\.125 of what is free, now \d+ records, 88\d\d bytes; ", text), text
    assert re.search(r"Kafka has not answered what was sent to it for 0\.\d s$", text), text
    other = house.append(size=1_000, queue_id=1)
    until(lambda: len(house.producer.sent) == 2, "sent")
    house.producer.answer()
    house.answered(8)
    assert [statuses(each) for each in [*accepted, other]] == [[AppendStatus.STORED]] * 10
    assert house.appends.refused_by_share == 1
    assert statuses_of_next(house) == [AppendStatus.STORED]
    house.close()


def test_an_append_that_a_queue_may_begin_is_accepted_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportingProducer, "created", [], raising=False)
    monkeypatch.setattr(module, "Producer", ReportingProducer)
    house = House(pending_bytes_max=80_000)
    batch = house.append(30, size=1_000)
    house.answered(30)
    assert statuses(batch) == [AppendStatus.STORED] * 30
    house.close()


def test_a_close_says_which_were_sent(house: House) -> None:
    sent = house.append()
    until(lambda: len(house.producer.sent) == 1, "sent")
    waiting = house.append()
    house.close()
    assert statuses(sent) == [AppendStatus.UNKNOWN]
    assert statuses(waiting) == [AppendStatus.NOT_STORED]


def test_what_waits_past_its_deadline_counts_no_longer(house: House) -> None:
    sent = house.append(in_s=LONG_S)
    until(lambda: len(house.producer.sent) == 1, "sent")
    counted = house.appends.pending_records_and_bytes
    waiting = [house.append(in_s=0.01 * number) for number in range(1, 6)]
    assert house.appends.pending_records_and_bytes[0] == 6
    assert [statuses(each) for each in waiting] == [[AppendStatus.NOT_STORED]] * 5
    assert house.appends.pending_records_and_bytes == counted, "although nothing was answered"
    house.answered(1)
    assert statuses(sent) == [AppendStatus.STORED]
    assert house.appends.pending_records_and_bytes == (0, 0)


def test_a_queue_that_does_not_answer_is_refused_until_it_does(house: House) -> None:
    stuck = house.silence()
    assert "1 queues: t/0" in house.appends.health_reason()
    refused = house.append(2)
    assert statuses(refused) == [AppendStatus.NOT_STORED] * 2
    error = refused.value[0].error
    assert type(error) is TryLaterError
    assert re.search(
        r"queue 0 of topic t takes no records now: Kafka has not answered .* for \d\.\d s", str(error)
    )
    other = house.append(queue_id=1)
    until(lambda: len(house.producer.sent) == 2, "another queue is not refused")
    house.producer.answer()
    assert statuses(stuck) == statuses(other) == [AppendStatus.STORED]
    assert statuses_of_next(house) == [AppendStatus.STORED]
    assert house.appends.health_reason() == ""
    assert house.appends.refused_silent == 2


def test_a_lot_that_is_answered_bit_by_bit_is_not_silent(house: House) -> None:
    first, second = house.append(in_s=LONG_S), house.append(in_s=LONG_S)
    until(lambda: len(house.producer.sent) == 2, "sent")
    house.pass_time(REFUSE_S - 0.5)
    late = house.producer.sent.pop()
    house.producer.answer()
    assert statuses(first) == [AppendStatus.STORED]
    house.pass_time(REFUSE_S - 0.5)
    waiting = house.append()
    house.producer.sent.append(late)
    house.producer.answer()
    assert statuses(second) == [AppendStatus.STORED]
    house.answered(1)
    assert statuses(waiting) == [AppendStatus.STORED]


def test_a_queue_without_a_leader_is_refused_with_that_reason(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReportingProducer, "leaders", {0: -1, 1: 3})
    house.silence()
    house.pass_time(LEADERS_INTERVAL_S)

    def is_named() -> bool:
        refused = house.append()
        statuses(refused)
        return "its partition has no leader in Kafka" in str(refused.value[0].error)

    until(is_named)


def test_many_topics_without_leaders_are_checked_round_robin(house: House) -> None:
    names = [f"t{number}" for number in range(LEADER_TOPICS_MAX + 4)]
    searched: list[str] = []
    house.producer.list_topics = lambda name, _: searched.append(name) or FakeMetadata({})  # type: ignore
    for _ in range(2):
        before, answers = len(searched), []
        house.appends.producers.find_leaders(names, answers.append)
        until(lambda: answers, "looked at")  # noqa: B023
        assert len(searched) - before <= LEADER_TOPICS_MAX
    assert len(set(searched)) > 1


def test_a_silent_queue_costs_other_queues_nothing(house: House) -> None:
    """The producer is retired: what others have in flight is answered there, what is new goes elsewhere."""
    old = house.producer
    stuck = house.silence()
    house.clock.ahead += RETIRE_S - REFUSE_S
    in_flight = house.append(in_s=LONG_S, queue_id=1)
    until(lambda: old.queues == [0, 1], "sent")
    behind = house.append(in_s=LONG_S, queue_id=1)
    house.appends.check_partitions()
    until(lambda: len(ReportingProducer.created) == 2, "there is a new one")
    until(lambda: house.appends.producers.has_retired, "the old one is retired")
    other = house.append(in_s=LONG_S, queue_id=2)
    until(lambda: house.producer.queues == [2], "by the new one")
    assert old.queues == [0, 1], "behind what is in flight nothing goes, as long as that is not answered"
    old.answer_queue(1)
    assert statuses(in_flight) == [AppendStatus.STORED]
    until(lambda: house.producer.queues == [2, 1], "now it goes, by the new one")
    house.producer.answer()
    assert statuses(other) == statuses(behind) == [AppendStatus.STORED]
    house.pass_time(DRAIN_S - 1)
    assert not stuck.done
    assert not old.purges
    house.pass_time(1)
    assert statuses(stuck) == [AppendStatus.UNKNOWN]
    assert old.purges == 1
    assert len(ReportingProducer.created) == 2
    assert house.appends.quarantined_count == 1
    assert house.appends.producer_replacements == 1


def test_a_silent_queue_that_answers_a_retired_producer_is_as_before(house: House) -> None:
    old = house.producer
    stuck = house.silence()
    house.pass_time(RETIRE_S)
    until(lambda: house.appends.producers.has_retired, "the old one is retired")
    old.answer()
    assert statuses(stuck) == [AppendStatus.STORED]
    assert statuses_of_next(house) == [AppendStatus.STORED]
    house.pass_time(0)
    until(lambda: old.purges == 1, "nothing is left in it")
    assert not house.appends.producers.has_retired
    assert house.appends.quarantined_count == 0


def test_a_queue_in_quarantine_is_tried_one_by_one_by_another_producer(house: House) -> None:
    house.quarantine()
    shared = house.producer
    probe, second = house.append(2, in_s=LONG_S), house.append()
    assert statuses(second) == [AppendStatus.NOT_STORED], "one append at a time"
    until(lambda: len(ReportingProducer.created) == 3, "there is one for the quarantine")
    until(lambda: len(house.producer.sent) == 1, "one record of two")
    assert statuses_by(house, shared, queue_id=1) == [AppendStatus.STORED]
    quarantine = house.producer
    quarantine.answer()
    until(lambda: len(shared.sent) == 1, "the rest goes by the shared one")
    shared.answer()
    assert statuses(probe) == [AppendStatus.STORED] * 2
    house.pass_time(0)
    until(lambda: quarantine.purges == 1, "the quarantine ends when it is empty")
    assert statuses_by(house, shared) == [AppendStatus.STORED]


def test_only_the_producer_of_the_quarantine_is_replaced_for_a_queue_in_it(house: House) -> None:
    house.quarantine()
    shared = house.producer
    for created in (3, 4):
        probe = house.append(in_s=LONG_S)
        until(lambda: len(ReportingProducer.created) >= created, "one for the quarantine")  # noqa: B023
        until(lambda: house.producer.queues == [0], "sent there")
        house.pass_time(RETIRE_S)
        until(lambda: house.appends.producers.has_retired, "retired")
        house.pass_time(DRAIN_S)
        assert statuses(probe) == [AppendStatus.UNKNOWN]
        assert statuses_by(house, shared, queue_id=1) == [AppendStatus.STORED]
    assert not shared.purges


def test_a_queue_in_quarantine_without_a_leader_gets_no_probe(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.quarantine()
    monkeypatch.setattr(ReportingProducer, "leaders", {0: -1})
    house.pass_time(LEADERS_INTERVAL_S)
    until(lambda: "no leader" in house.appends.why_refused("t", 0), "its leader is looked for")
    assert statuses(house.append()) == [AppendStatus.NOT_STORED]
    monkeypatch.setattr(ReportingProducer, "leaders", {0: 2})
    house.pass_time(LEADERS_INTERVAL_S)
    until(lambda: "no leader" not in house.appends.why_refused("t", 0), "it has one again")
    created = len(ReportingProducer.created)
    probe = house.append()
    until(lambda: len(ReportingProducer.created) == created + 1, "one for the quarantine")
    house.answered(1)
    assert statuses(probe) == [AppendStatus.STORED]


def test_a_process_that_stood_still_purges_nothing_that_is_answered_then(house: House) -> None:
    old = house.producer
    calls = [house.append(in_s=LONG_S, queue_id=number) for number in range(3)]
    until(lambda: len(old.sent) == 3, "sent")
    house.pass_time(10 * RETIRE_S)
    until(lambda: house.appends.producers.has_retired, "retired")
    house.appends.check_partitions()
    old.answer()
    assert [statuses(each) for each in calls] == [[AppendStatus.STORED]] * 3


def test_librdkafka_never_gives_up_a_record_by_itself(house: House) -> None:
    """It would send what else is on its way again, under another epoch."""
    assert house.producer.config["message.timeout.ms"] == 0


def statuses_by(house: House, producer: ReportingProducer, queue_id: int = 0) -> list[AppendStatus]:
    """Of an append that this producer sends."""
    completion = house.append(queue_id=queue_id)
    until(lambda: len(producer.sent) == 1, "sent")
    producer.answer()
    return statuses(completion)
