"""A topic that the engine cannot commit to now: its due messages are set aside, those of others fire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend.completion import Completion
from backend.records import CommitBatch
from ddmq_common.errors import TopicUnavailableError
from ddmq_common.names import LEVELS_GROUP, dlq_topic
from delay_service.config import DelayConfig
from tests.service.delay.delay_rig import DelayRig
from tests.service.delay.levels_rig import LevelsRig

REASON = "a partition has no leader"


class Away:
    """Stands before a backend: commits to the topics in `away` fail. `known`: the engine says so itself."""

    def __init__(self, backend: Any) -> None:
        self.away: set[str] = set()
        self.is_reported = True
        self.refused: list[set[str]] = []  # the topics of each commit that failed
        self._commit = backend.commit
        backend.commit, backend.why_unavailable = self.commit, self.why_unavailable

    def why_unavailable(self, topic: str) -> str:
        return REASON if self.is_reported and topic in self.away else ""

    def commit(self, batch: CommitBatch, deadline: float, into: Any = None) -> Completion[Any]:
        topics = {record.topic for record in batch.records}
        if topics & self.away:
            self.refused.append(topics)
            answer: Completion[Any] = Completion() if into is None else into
            answer.fail(TopicUnavailableError(dict.fromkeys(topics & self.away, REASON)))
            return answer
        result: Completion[Any] = self._commit(batch, deadline, into)
        return result


@pytest.fixture
def delay() -> Iterator[DelayRig]:
    rig = DelayRig(DelayConfig(shards=1))
    for topic in ("orders", "dead"):
        rig.make(topic)
    yield rig
    rig.close()


def fill(rig: DelayRig, first: int, seconds: float) -> None:
    """Two messages for each topic, due at the same time."""
    due = rig.clock.wall_ms() + round(seconds * 1_000)
    for number in range(first, first + 4):
        rig.add(number, due, topic="dead" if number % 2 else "orders")
    rig.settle()


@pytest.mark.parametrize("is_reported", [True, False])
def test_the_others_fire_at_once_and_its_own_when_it_is_back(delay: DelayRig, is_reported: bool) -> None:
    away = Away(delay.backend)
    away.away, away.is_reported = {"dead"}, is_reported
    fill(delay, 0, 1)
    delay.advance(1)
    assert delay.bodies() == [b"0", b"2"], "in the same turn"
    assert delay.bodies("dead") == []
    assert len(away.refused) == (0 if is_reported else 1)
    [shard] = delay.service.shards.values()
    assert shard.context is not None
    assert shard.context.set_aside.reasons == {"dead": REASON}
    assert shard.epoch == shard.context.epoch, "nothing is given up"
    assert delay.value("ddmq_delay_aside_total") == 2
    assert delay.service.health().ready
    away.away = set()
    for _ in range(3):
        delay.advance(1)
    assert delay.bodies("dead") == [b"1", b"3"]
    assert shard.context.set_aside.reasons == {}


def test_an_unavailable_topic_is_tried_separately_and_delays_no_other(delay: DelayRig) -> None:
    """The engine does not know that it is away still: only a commit shows it."""
    away = Away(delay.backend)
    away.away, away.is_reported = {"dead"}, False
    fill(delay, 0, 1)
    delay.advance(1)
    for first in range(10, 60, 10):
        fill(delay, first, 1)
        delay.advance(1)
        assert delay.bodies()[-2:] == [b"%d" % first, b"%d" % (first + 2)]
    assert away.refused[0] == {"orders", "dead"}
    assert len(away.refused) > 1
    assert all(topics == {"dead"} for topics in away.refused[1:]), "never again together with others"
    away.away = set()
    for _ in range(6):
        delay.advance(1)
    assert sorted(delay.bodies("dead"), key=int)[:4] == [b"1", b"3", b"11", b"13"]
    assert len(delay.bodies("dead")) == 12


def test_a_level_does_not_wait_for_it_and_makes_no_dead_letters_of_its_messages() -> None:
    rig = LevelsRig()
    try:
        for topic in ("orders", "dead"):
            rig.make(topic)
        away = Away(rig.backend)
        away.away = {"dead"}
        rig.send(1, [b"1"], "dead")
        rig.send(1, [b"2"])
        rig.advance(1)
        assert len(rig.stored()) == 1
        for _ in range(30):
            rig.advance(10)
        assert rig.stored(dlq_topic(LEVELS_GROUP)) == []
        assert rig.value("ddmq_levels_put_off_total") <= 12, "ever later"
        away.away = set()
        for _ in range(12):
            rig.advance(10)
        assert len(rig.stored("dead")) == 1
    finally:
        rig.close()
