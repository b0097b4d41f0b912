"""A barrier is settled by what was followed up to its marks, and by nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backend.kafka.clients.bridge import Bridge
from backend.kafka.state import followed as module
from backend.kafka.state.followed import MARK_KEY, Barriers
from ddmq_common.errors import DrainingError, RemoteError
from tests.support.waits import done, until

PARTITIONS = {("progress", 0): 0, ("progress", 1): 0}


class Report:
    """What a producer's report brings."""

    def __init__(self, offset: int) -> None:
        self.offset = lambda: offset

    @staticmethod
    def str() -> str:
        return "Local: Message timed out"


class PausedProducer:
    """Reports what the test has it report, when it is flushed."""

    created: list[PausedProducer]
    refuses: set[int]
    offset = 10
    go_on: threading.Event
    marks: list[list[int]]  # of each flush

    def __init__(self, settings: dict[str, Any]) -> None:
        assert settings["acks"] == "all"
        self.created.append(self)
        self._pending: list[tuple[int, Callable[..., None]]] = []

    def produce(self, topic: str, value: None, key: bytes, partition: int, on_delivery: Any) -> None:
        assert (value, key) == (None, MARK_KEY)
        self._pending.append((partition, on_delivery))

    def flush(self, _: float) -> None:
        assert self.go_on.wait(20)
        pending, self._pending = self._pending, []
        self.marks.append(sorted(partition for partition, _ in pending))
        for partition, report in pending:
            brought = Report(self.offset)
            report(brought if partition in self.refuses else None, brought)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> type[PausedProducer]:
    monkeypatch.setattr(PausedProducer, "created", [], raising=False)
    monkeypatch.setattr(PausedProducer, "refuses", set(), raising=False)
    monkeypatch.setattr(PausedProducer, "marks", [], raising=False)
    monkeypatch.setattr(PausedProducer, "go_on", threading.Event(), raising=False)
    monkeypatch.setattr(module, "Producer", PausedProducer)
    PausedProducer.go_on.set()
    return PausedProducer


@pytest.fixture
def followed() -> dict[tuple[str, int], int]:
    return dict(PARTITIONS)


@pytest.fixture
def barriers(producer: type[PausedProducer], followed: dict[tuple[str, int], int]) -> Iterator[Barriers]:
    bridge = Bridge()
    created = Barriers({}, bridge.call, followed)
    yield created
    created.close()
    bridge.close()


def test_it_waits_for_every_mark(
    barriers: Barriers, producer: type[PausedProducer], followed: dict[tuple[str, int], int]
) -> None:
    barrier = barriers.add()
    until(lambda: producer.created, "the marks are written")
    followed["progress", 0] = followed["progress", 1] = 10
    barriers.advance()
    followed["progress", 0] = 11
    barriers.advance()
    assert not barrier.done
    followed["progress", 1] = 11
    until(lambda: barriers.advance() or barrier.done)
    done(barrier)


def test_a_mark_that_is_not_written_fails_its_barrier_and_the_next_one_uses_a_new_producer(
    barriers: Barriers, producer: type[PausedProducer], followed: dict[tuple[str, int], int]
) -> None:
    producer.refuses.add(1)
    followed.update(dict.fromkeys(followed, 99))
    barrier = barriers.add()
    until(lambda: barrier.done)
    assert isinstance(barrier.error, RemoteError)
    assert "progress [1]" in str(barrier.error)
    producer.refuses.clear()
    done(barriers.add())
    assert len(producer.created) == 2


def test_who_comes_while_marks_are_written_waits_for_the_next(
    barriers: Barriers, producer: type[PausedProducer], followed: dict[tuple[str, int], int]
) -> None:
    producer.go_on.clear()
    first = barriers.add()
    until(lambda: producer.created)
    second = barriers.add()
    followed.update(dict.fromkeys(followed, 11))
    producer.go_on.set()
    done(first)
    done(second)
    assert producer.marks == [[0, 1], [0, 1]]


def test_who_waits_at_the_end_is_refused(barriers: Barriers, producer: type[PausedProducer]) -> None:
    barrier = barriers.add()
    barriers.close()
    assert isinstance(barrier.error, DrainingError)
