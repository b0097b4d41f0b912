"""Offsets: which partitions librdkafka is asked for."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine.queries import Offsets
from backend.records import Bounds
from ddmq_common.clock import ManualClock
from tests.support.waits import until

LEADERLESS = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))


class FakeAdmin:
    """Answers each request at once, partitions in `missing` with LEADERLESS."""

    def __init__(self) -> None:
        self.requests: list[set[tuple[str, int]]] = []
        self.missing: set[tuple[str, int]] = set()

    def list_offsets(self, requests: Any, **_: Any) -> dict[Any, Future[Any]]:
        self.requests.append({(each.topic, each.partition) for each in requests})
        answers: dict[Any, Future[Any]] = {}
        for each in requests:
            answers[each] = Future()
            if (each.topic, each.partition) in self.missing:
                answers[each].set_exception(LEADERLESS)
            else:
                answers[each].set_result(SimpleNamespace(offset=7))
        return answers


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


def test_a_partition_without_a_leader_is_not_asked_for(admin: FakeAdmin) -> None:
    """For librdkafka might crash."""
    leaderless = {("t", 1)}
    offsets = Offsets(cast("Any", admin), Bridge(), ManualClock(), lambda: leaderless)
    query = offsets.query_bounds([("t", 0), ("t", 1)])
    until(lambda: len(admin.requests) == 1, "the first offsets")
    assert admin.requests == [{("t", 0)}]
    leaderless.clear()
    until(lambda: query.done, "it has a leader again")
    assert query.value == {("t", 0): Bounds(7, 7), ("t", 1): Bounds(7, 7)}
    assert {("t", 1)} in admin.requests


def test_a_partition_that_has_just_lost_its_leader_is_asked_for_again(admin: FakeAdmin) -> None:
    admin.missing = {("t", 0)}
    offsets = Offsets(cast("Any", admin), Bridge(), ManualClock())
    query = offsets.query_bounds([("t", 0)])
    until(lambda: len(admin.requests) >= 2, "a second request")
    assert not query.done
    admin.missing.clear()
    until(lambda: query.done, "it has a leader again")
    assert query.value == {("t", 0): Bounds(7, 7)}
