"""Appends: what goes together, what waits, and what each is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from backend.completion import Completion
from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine import appends as module
from backend.kafka.engine.appends import SEND_S, Appends
from backend.kafka.options import KafkaOptions
from backend.records import AppendResult, AppendStatus, Durability, NewRecord
from ddmq_common.clock import SystemClock
from ddmq_common.errors import BoundReachedError
from tests.support.constants import build_options
from tests.support.waits import until

LOST = KafkaError(KafkaError.REQUEST_TIMED_OUT, "nobody answered")
FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "no such sequence", True)
PURGED = KafkaError(-151)  # as librdkafka numbers it: purged in flight
LONG_S = 3_600.0


class Reported:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000


class ReportingProducer:
    """As librdkafka: a report that raises ends the poll, and the others stay."""

    made: list[ReportingProducer]

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.made.append(self)
        self.lots: list[int] = []  # how many each turn brought
        self.sent: list[Callable[..., object]] = []
        self.reports: list[tuple[Callable[..., object], KafkaError | None, int]] = []
        self.next = 0
        self.fails: list[Exception] = []

    def produce(
        self, topic: str, value: bytes, *_: Any, on_delivery: Callable[..., object], **__: Any
    ) -> None:
        self.sent.append(on_delivery)

    def answer(self, error: KafkaError | None = None) -> None:
        """Whatever was sent."""
        self.lots.append(len(self.sent))
        for each in self.sent:
            self.reports.append((each, error, self.next))
            self.next += 1
        self.sent = []

    def poll(self, timeout: float) -> None:
        if self.fails:
            raise self.fails.pop()
        while self.reports:
            report, error, offset = self.reports.pop(0)
            report(error, Reported(offset))

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        if in_flight:
            self.answer(PURGED)

    def flush(self, timeout: float) -> None:
        self.poll(0)


class MovedClock(SystemClock):
    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class FakeTopics:
    def __init__(self) -> None:
        self.topics = {"t": self}
        self.kafka_name, self.durability, self.message_bytes_max = "t", Durability.WRITTEN, 1_000

    def find_topic(self, _: str) -> FakeTopics:
        return self

    def rejection_of(self, _: NewRecord) -> None:
        return None


class House:
    def __init__(self, **terms: int) -> None:
        self.bridge = Bridge()
        self.clock = MovedClock()
        self.seen: list[tuple[str, int, int, int]] = []
        topics: Any = FakeTopics()
        self.appends = Appends(
            build_options(KafkaOptions, **terms), self.bridge, self.clock, topics,
            lambda *found: self.seen.append(found), lambda: None,
        )  # fmt: skip

    @property
    def producer(self) -> ReportingProducer:
        return ReportingProducer.made[-1]

    def append(self, count: int = 1, in_s: float = 30.0, queue_id: int = 0) -> Completion[Any]:
        completion: Completion[list[AppendResult]] = Completion()
        records = [NewRecord("t", queue_id, bytes(16), 1, b"\x28\x01x")] * count
        self.appends.append(records, self.clock.monotonic() + in_s, completion)
        return completion

    def answered(self, lot: int, error: KafkaError | None = None) -> None:
        """Once so many are sent, answer them."""
        until(lambda: len(self.producer.sent) == lot, f"{lot} sent")
        self.producer.answer(error)

    def close(self) -> None:
        self.appends.close()
        self.bridge.close()


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(ReportingProducer, "made", [], raising=False)
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
    assert house.seen[-1] == ("t", 0, 5, 1_000)


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
    until(lambda: len(ReportingProducer.made) == 2, "it is replaced")
    assert statuses_of_next(house) == [AppendStatus.STORED]


def test_a_lost_lot_is_unknown_and_the_next_goes(house: House) -> None:
    lost = house.append(2)
    house.answered(2, LOST)
    assert statuses(lost) == [AppendStatus.UNKNOWN] * 2
    assert statuses_of_next(house) == [AppendStatus.STORED]


def test_what_waits_counts_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportingProducer, "made", [], raising=False)
    monkeypatch.setattr(module, "Producer", ReportingProducer)
    house = House(pending_max=2)
    kept, refused = house.append(2), house.append()
    assert statuses(refused) == [AppendStatus.NOT_STORED]
    assert isinstance(refused.value[0].error, BoundReachedError)
    house.answered(2)
    assert statuses(kept) == [AppendStatus.STORED] * 2
    assert statuses_of_next(house) == [AppendStatus.STORED]
    house.close()


def test_a_close_says_which_were_sent(house: House) -> None:
    sent = house.append()
    until(lambda: len(house.producer.sent) == 1, "sent")
    waiting = house.append()
    house.close()
    assert statuses(sent) == [AppendStatus.UNKNOWN]
    assert statuses(waiting) == [AppendStatus.NOT_STORED]


def test_what_is_not_stored_in_time_is_never_sent_again(house: House) -> None:
    """Were librdkafka to give it up, it would send what else is on its way again, under another epoch."""
    first = house.producer
    assert first.config["message.timeout.ms"] == 0
    old = house.append(in_s=LONG_S)
    until(lambda: len(first.sent) == 1, "sent")
    house.clock.ahead = SEND_S - 1
    later, waiting = house.append(in_s=LONG_S, queue_id=1), house.append(in_s=LONG_S)
    until(lambda: len(first.sent) == 2, "sent to another queue")
    house.appends.check_age()
    assert not old.done
    house.clock.ahead = SEND_S + 1
    house.appends.check_age()
    assert statuses(old) == statuses(later) == [AppendStatus.UNKNOWN]
    assert house.producer is not first
    house.answered(1)
    assert statuses(waiting) == [AppendStatus.STORED]
    assert house.producer.lots == [1], "what was on its way is the client's to send again"


def test_the_new_producer_is_given_its_time(house: House) -> None:
    old = house.append(in_s=LONG_S)
    until(lambda: len(house.producer.sent) == 1, "sent")
    house.clock.ahead = SEND_S + 1
    house.appends.check_age()
    assert statuses(old) == [AppendStatus.UNKNOWN]
    call = house.append(in_s=LONG_S)
    until(lambda: len(house.producer.sent) == 1, "sent with the new one")
    house.clock.ahead += SEND_S - 1
    house.appends.check_age()
    assert not call.done
    house.clock.ahead += 2
    house.appends.check_age()
    assert statuses(call) == [AppendStatus.UNKNOWN]
    assert len(ReportingProducer.made) == 3
