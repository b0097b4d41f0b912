"""Producers with a librdkafka that gives up on a producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from backend.kafka.commit import producers as module
from backend.kafka.commit.plan import KafkaWrite
from backend.kafka.commit.producers import OutcomeKind, Producers, WriteOutcome
from backend.kafka.options import KafkaOptions
from tests.support.waits import until

FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "no such sequence", True)


class FakeProducer:
    """Delivers at `poll`; one that is `dead` fails what it has, and refuses more."""

    made: list[FakeProducer]

    def __init__(self, config: dict[str, Any]) -> None:
        self.waiting: list[Callable[..., object]] = []
        self.values: list[bytes] = []
        self.dead = False
        self.made.append(self)

    def produce(self, topic: str, value: bytes, on_delivery: Callable[..., object], **_: Any) -> None:
        if self.dead:
            raise KafkaException(FATAL)
        self.values.append(value)
        self.waiting.append(on_delivery)

    def poll(self, timeout: float) -> None:
        waiting, self.waiting = self.waiting, []
        for report in waiting:
            report(FATAL if self.dead else None, self)

    def offset(self) -> int:
        return 7

    def purge(self) -> None:
        self.dead = True

    def flush(self, timeout: float) -> None:
        self.poll(0)


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(FakeProducer, "made", [], raising=False)
    monkeypatch.setattr(module, "Producer", FakeProducer)
    return []


@pytest.fixture
def producers(failed: list[object]) -> Any:
    made = Producers(
        KafkaOptions(), lambda function, *args: function(*args), lambda tag, reason: failed.append(tag)
    )
    yield made
    assert made.close(5)


def test_after_an_event_that_is_refused_for_good_there_is_another_one(
    producers: Producers, failed: list[object]
) -> None:
    FakeProducer.made[0].dead = True
    producers.event("coordination", b"beat", "name")
    assert failed == ["name"]
    until(lambda: len(FakeProducer.made) == 2, "another one")
    until(lambda: not producers._broken)
    producers.event("coordination", b"beat", "other")
    assert FakeProducer.made[1].values == [b"beat"]
    assert failed == ["name"]


def test_progress_that_is_refused_for_good_is_unknown_and_the_next_is_written(producers: Producers) -> None:
    FakeProducer.made[0].dead = True
    outcomes: list[WriteOutcome] = []
    for _ in range(2):
        producers.write([KafkaWrite("progress", 0, b"k", b"v")], outcomes.append)
    until(lambda: len(outcomes) == 2)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNKNOWN, OutcomeKind.STORED]
    assert outcomes[1].offsets == [7]
