"""Who writes to a topic that seems not to be there waits for the cluster's word."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from backend.completion import Completion, failed, succeeded
from backend.kafka.engine import missing_topics as module
from backend.kafka.engine.missing_topics import MISSING_CHECKS, MissingTopics
from backend.kafka.engine.topics import KafkaTopics
from backend.kafka.state.followed import KafkaState
from backend.kafka.topic_info import TopicRegistry
from backend.records import NewRecord
from ddmq_common.errors import DrainingError, RemoteError, TryLaterError
from tests.support.waits import until


class PausedTopics:
    """Topics whose surveys the test answers."""

    def __init__(self) -> None:
        self.topics: dict[str, object] = {}
        self.callbacks: list[Callable[[str], object]] = []
        self.survey = self.callbacks.append

    def answer(self, reason: str = "") -> None:
        callbacks, self.callbacks[:] = list(self.callbacks), []
        for callback in callbacks:
            callback(reason)


class MissingTopicsRig:
    """What one doubt is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MISSING_PAUSE_S", 0.001)
        self.topics = PausedTopics()
        self.infos: dict[str, bytes] = {}
        self.barrier: Completion[None] = succeeded(None)
        state = SimpleNamespace(topic_infos=self.infos, catch_up=lambda: self.barrier)
        table, topics = cast(TopicRegistry, self.topics), cast(KafkaTopics, self.topics)
        self.missing_topics = MissingTopics(table, topics, cast(KafkaState, state))
        self.errors: list[Exception | None] = []

    def settle(self) -> None:
        self.missing_topics.confirm_topics(frozenset(["orders"]), self.errors.append)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> MissingTopicsRig:
    return MissingTopicsRig(monkeypatch)


def test_a_topic_that_nobody_knows_of_is_believed_not_to_be_there(rig: MissingTopicsRig) -> None:
    assert rig.missing_topics.find_unknown([NewRecord("orders", 0, bytes(16), 1, b"")]) == {"orders"}
    rig.settle()
    assert rig.errors == []
    rig.topics.answer()
    assert rig.errors == [None]


def test_a_recorded_topic_that_is_not_visible_yet_is_surveyed_repeatedly(rig: MissingTopicsRig) -> None:
    rig.infos["orders"] = b"it was made"
    rig.settle()
    rig.topics.answer()
    assert rig.errors == []
    until(lambda: rig.topics.callbacks)
    rig.topics.topics["orders"] = object()
    rig.topics.answer()
    assert rig.errors == [None]


def test_but_not_for_ever(rig: MissingTopicsRig) -> None:
    rig.infos["orders"] = b"somebody deleted it in Kafka itself"
    rig.settle()
    for _ in range(MISSING_CHECKS):
        until(lambda: rig.topics.callbacks)
        rig.topics.answer()
    assert rig.errors == [None]


def test_catching_up_waits_for_the_topics_of_other_processes(rig: MissingTopicsRig) -> None:
    assert rig.missing_topics.catch_up().done
    rig.infos["orders"] = b"it was made"
    caught_up = rig.missing_topics.catch_up()
    assert not caught_up.done
    rig.topics.topics["orders"] = object()
    rig.topics.answer()
    assert caught_up.result() is None
    assert rig.missing_topics.catch_up().done


def test_a_topic_that_somebody_deleted_in_kafka_is_looked_for_once(rig: MissingTopicsRig) -> None:
    rig.infos["orders"] = b"it was made"
    caught_up = rig.missing_topics.catch_up()
    for _ in range(MISSING_CHECKS):
        until(lambda: rig.topics.callbacks)
        rig.topics.answer()
    assert caught_up.result() is None
    assert rig.missing_topics.catch_up().done
    rig.infos["orders"] = b"it was made again"
    assert not rig.missing_topics.catch_up().done


def test_catching_up_fails_without_a_broker(rig: MissingTopicsRig) -> None:
    rig.infos["orders"] = b"it was made"
    first = rig.missing_topics.catch_up()
    rig.topics.answer("no broker answers")
    rig.barrier = failed(RemoteError("no broker"))
    assert isinstance(first.error, TryLaterError)
    assert isinstance(rig.missing_topics.catch_up().error, RemoteError)


def test_a_cluster_that_does_not_answer_says_nothing_of_a_topic(rig: MissingTopicsRig) -> None:
    rig.settle()
    rig.topics.answer("no broker answers")
    rig.barrier = failed(RemoteError("no broker"))
    rig.settle()
    assert [type(error) for error in rig.errors] == [TryLaterError, TryLaterError]
    assert "topic orders" in str(rig.errors[0])


def test_who_waits_at_the_end_is_refused_once(rig: MissingTopicsRig) -> None:
    rig.settle()
    rig.missing_topics.close()
    rig.topics.answer()
    (error,) = rig.errors
    assert isinstance(error, DrainingError)
