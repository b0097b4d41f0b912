"""What fails in a native thread in a way that nobody foresaw costs a moment, not the thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend.kafka.clients.follower import FollowerThread
from backend.kafka.clients.reader_thread import ReaderThread
from backend.kafka.engine.backend import KafkaBackend
from backend.kafka.opening import open_kafka
from backend.records import Durability, NewRecord, ProgressDelta, QueueRef, ReadStatus, TopicInfo
from ddmq_common.clock import SystemClock
from tests.service.kafka.process_kit import TOPICS, ProcessKit, QueueOwner, done, options
from tests.support.waits import soon, until

pytestmark = pytest.mark.slow  # a real broker is started for it


class FailsOnce:
    """A method that raises at its first call."""

    def __init__(self, method: Any) -> None:
        self.method, self.calls = method, 0

    def __get__(self, instance: Any, owner: Any) -> Any:
        def called(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("nobody foresaw it")
            return self.method(instance, *arguments)

        return called


@pytest.fixture
def pair() -> Iterator[tuple[ProcessKit, ProcessKit]]:
    terms = options()
    one, other = ProcessKit(terms, TOPICS), ProcessKit(terms, TOPICS)
    yield one.ready(), other.ready()
    one.close()
    other.close()


def test_following_resumes_where_it_was(
    pair: tuple[ProcessKit, ProcessKit], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    owner = QueueOwner(one)
    until(lambda: len(owner.owned) == 4, "held")
    done(one.commit(settings={"before": b"1"}))
    done(other.state.catch_up())
    failing = FailsOnce(FollowerThread._to_row)
    monkeypatch.setattr(FollowerThread, "_to_row", failing)
    for number in range(4):
        queue = one.queue(number)
        delta = ProgressDelta("g", queue, owner.owned[queue], 0, ((0, 5),))
        done(one.commit(progress=[delta], settings={f"k{number}": b"1"}))
    assert failing.calls > 0
    for kit in pair:
        done(kit.state.catch_up())
        assert len(kit.state.settings) == 5
        assert [kit.state.progress.view(("g", one.queue(n))).committed for n in range(4)] == [5] * 4


@pytest.fixture
def backend() -> Iterator[KafkaBackend]:
    backend = open_kafka(options(), clock=SystemClock())
    yield backend
    backend.close()


def test_reading_resumes_where_it_was(backend: KafkaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    info = done(backend.put_topic(TopicInfo("orders", 0, 1, Durability.WRITTEN), soon()))
    queue = QueueRef("orders", info.incarnation, 0)
    failing = FailsOnce(ReaderThread._poll)
    monkeypatch.setattr(ReaderThread, "_poll", failing)
    done(backend.append([NewRecord("orders", 0, bytes(16), 1, b"\x28\x01x")], soon()))

    def read() -> bool:
        call = backend.read(queue, 0, 10, 1 << 20)
        until(lambda: call.done)
        return call.error is None and call.value.status is ReadStatus.DATA

    assert not read()
    assert failing.calls == 1
    until(read, "the reader began again")
