"""Appends with a librdkafka that never reports, or only what is purged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from backend.completion import Completion
from backend.kafka import appends as module
from backend.kafka.appends import SEND_S, Appends
from backend.kafka.bridge import Bridge
from backend.kafka.options import KafkaOptions
from backend.records import AppendResult, AppendStatus, NewRecord
from ddmq_common.clock import SystemClock
from tests.support.waits import until

PURGED = KafkaError(-151)  # as librdkafka numbers it: purged in flight
RECORD = NewRecord("orders", 0, bytes(16), 1, b"body")


class SilentProducer:
    """Reports what is purged, and nothing else."""

    made: list[SilentProducer]

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.waiting: list[Callable[..., object]] = []
        self.purged: list[Callable[..., object]] = []
        self.made.append(self)

    def produce(self, *_: object, on_delivery: Callable[..., object], headers: object) -> None:
        self.waiting.append(on_delivery)

    def poll(self, timeout: float) -> None:
        purged, self.purged = self.purged, []
        for report in purged:
            report(PURGED, None)

    def purge(self, **_: bool) -> None:
        self.purged, self.waiting = self.waiting, []

    def flush(self, timeout: float) -> None:
        self.poll(timeout)


class MovedClock(SystemClock):
    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def appends(monkeypatch: pytest.MonkeyPatch, clock: MovedClock) -> Iterator[Appends]:
    monkeypatch.setattr(SilentProducer, "made", [], raising=False)
    monkeypatch.setattr(module, "Producer", SilentProducer)
    monkeypatch.setattr(module, "encode", lambda record: (None, record.delivery, []))
    topic = SimpleNamespace(kafka_name="orders", message_bytes_max=100)
    topics: Any = SimpleNamespace(
        topics={"orders": topic}, refusal=lambda record: None, find=lambda name: topic
    )
    bridge = Bridge()
    made = Appends(KafkaOptions(), bridge, clock, topics, lambda *seen: None)
    yield made
    made.close()
    bridge.close()


def appended(appends: Appends, clock: MovedClock) -> Completion[list[AppendResult]]:
    completion: Completion[list[AppendResult]] = Completion()
    appends.append([RECORD], clock.monotonic() + 3_600, completion)
    return completion


def test_what_is_not_stored_in_time_is_never_sent_again(appends: Appends, clock: MovedClock) -> None:
    """Were librdkafka to give it up, it would send what else is on its way again, under another epoch."""
    (first,) = SilentProducer.made
    assert first.config["message.timeout.ms"] == 0
    call = appended(appends, clock)
    clock.ahead = SEND_S - 1
    later = appended(appends, clock)
    appends.look_for_old()
    assert not call.done
    clock.ahead = SEND_S + 1
    appends.look_for_old()
    until(lambda: call.done and later.done, "both are answered")
    for each in (call, later):
        assert each.value[0].status is AppendStatus.UNKNOWN
    assert not first.waiting
    _, second = SilentProducer.made
    assert not second.waiting, "the client decides what is sent again"


def test_the_new_one_is_given_its_time(appends: Appends, clock: MovedClock) -> None:
    old = appended(appends, clock)
    clock.ahead = SEND_S + 1
    appends.look_for_old()
    until(lambda: old.done, "replaced, and what the old one had is settled")
    call = appended(appends, clock)
    clock.ahead += SEND_S - 1
    appends.look_for_old()
    assert not call.done
    clock.ahead += 2
    appends.look_for_old()
    until(lambda: call.done, "its time is over, too")
    assert len(SilentProducer.made) == 3
