"""UnavailableTopics: when a topic is set aside, for how long, and what is said of it."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from backend.kafka.targets import (
    NO_LEADER,
    PAUSE_MAX_S,
    PAUSE_S,
    SURVEYS_MIN,
    TIMED_OUT,
    TOO_FEW_IN_SYNC,
    TOPICS_MAX,
    UNREACHABLE,
    UnavailableTopics,
    sole_leaders,
    why_blocked,
)


class TopicsRig:
    def __init__(self) -> None:
        self.now = 0.0
        self.changes = 0
        self.topics = UnavailableTopics(lambda: self.now)
        self.topics.add_listener(self.change)

    def change(self) -> None:
        self.changes += 1


@pytest.fixture
def rig() -> TopicsRig:
    return TopicsRig()


def test_a_topic_without_a_leader_is_set_aside_until_a_survey_sees_one(
    rig: TopicsRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rig.topics.on_survey({"dead": NO_LEADER})
    assert rig.topics.reason_of("dead") == "", "it may just have been made"
    for _ in range(SURVEYS_MIN + 3):
        rig.topics.on_survey({"dead": NO_LEADER})
    rig.now = 1e6
    assert rig.topics.reason_of("dead") == NO_LEADER
    assert rig.topics.reason_of("live") == ""
    assert rig.topics.count == 1
    assert len(caplog.records) == 1, "it is said once"
    rig.topics.on_survey({})
    assert rig.topics.reason_of("dead") == ""
    assert not rig.topics.is_suspect("dead")
    assert rig.changes == 1


def test_a_topic_that_did_not_answer_is_retried_ever_later_and_alone(rig: TopicsRig) -> None:
    pauses = []
    for _ in range(8):
        rig.topics.on_blocked({"dead": TIMED_OUT})
        began = rig.now
        while rig.topics.reason_of("dead"):
            rig.now += 0.5
        assert rig.topics.is_suspect("dead")
        rig.topics.on_survey({})
        assert rig.topics.is_suspect("dead"), "its metadata do not say that it answers"
        pauses.append(rig.now - began)
    assert pauses[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert max(pauses) == PAUSE_MAX_S
    rig.topics.on_stored(["dead"])
    assert not rig.topics.is_suspect("dead")


def test_a_lost_broker_that_surveys_do_not_know_of_costs_few_transactions(rig: TopicsRig) -> None:
    tries = 0
    for _ in range(70):  # 7 s, in which each survey finds a leader
        if not rig.topics.reason_of("dead"):
            tries += 1
            rig.topics.on_blocked({"dead": TOO_FEW_IN_SYNC})
        rig.topics.on_survey({})
        rig.now += 0.1
    assert tries == 2
    for _ in range(SURVEYS_MIN):
        rig.topics.on_survey({"dead": NO_LEADER})
    rig.topics.on_blocked({"dead": NO_LEADER})
    rig.now += 1e6
    assert rig.topics.reason_of("dead") == NO_LEADER
    rig.topics.on_survey({})
    assert not rig.topics.is_suspect("dead"), "a survey has seen that it was lost, and is back"


def test_a_topic_whose_only_replica_is_on_a_lost_broker_costs_one_transaction(rig: TopicsRig) -> None:
    assert not rig.topics.needs_probe
    rig.topics.on_blocked({"dead": UNREACHABLE})
    rig.now += 1e6
    assert rig.topics.reason_of("dead") == UNREACHABLE
    assert rig.topics.needs_probe
    rig.topics.on_survey({}, has_probed=False)
    assert rig.topics.reason_of("dead") == UNREACHABLE, "the metadata do not say that the broker is lost"
    rig.topics.on_survey({"dead": UNREACHABLE})
    assert rig.topics.reason_of("dead") == UNREACHABLE
    for _ in range(SURVEYS_MIN):
        rig.topics.on_survey({"dead": NO_LEADER})
    assert rig.topics.reason_of("dead") == NO_LEADER, "now the cluster knows it, too"
    rig.topics.on_survey({})
    assert not rig.topics.is_suspect("dead")
    assert not rig.topics.needs_probe


def test_a_survey_that_cannot_reach_the_only_replica_sets_the_topic_aside_at_once(rig: TopicsRig) -> None:
    rig.topics.on_survey({"dead": UNREACHABLE})
    assert rig.topics.reason_of("dead") == UNREACHABLE
    rig.topics.on_survey({})
    assert rig.topics.reason_of("dead") == ""


def test_one_that_is_slow_is_a_suspect_until_it_has_answered(rig: TopicsRig) -> None:
    rig.topics.on_slow(["slow"])
    rig.topics.on_survey({})
    assert rig.topics.is_suspect("slow")
    assert rig.topics.reason_of("slow") == ""
    rig.topics.on_stored(["slow"])
    assert not rig.topics.is_suspect("slow")


def test_suspects_are_bounded(rig: TopicsRig) -> None:
    rig.topics.on_slow(f"t{number}" for number in range(TOPICS_MAX + 5))
    assert sum(rig.topics.is_suspect(f"t{number}") for number in range(TOPICS_MAX + 5)) == TOPICS_MAX


@pytest.mark.parametrize(
    ("leader", "in_sync", "reason"),
    [(1, [1, 2, 3], ""), (1, [1, 2], ""), (1, [1], TOO_FEW_IN_SYNC), (-1, [], NO_LEADER)],
)
def test_the_metadata_of_a_partition_tell_whether_it_accepts_records(
    leader: int, in_sync: list[int], reason: str
) -> None:
    partitions = {0: SimpleNamespace(leader=leader, isrs=in_sync, replicas=[1, 2, 3])}
    assert why_blocked(partitions, [0], 2) == reason
    assert why_blocked(partitions, [1], 2) == "", "another one"


@pytest.mark.parametrize(
    ("leader", "in_sync", "reason"),
    [(4, [4], UNREACHABLE), (4, [4, 1], ""), (1, [1], ""), (1, [1, 4], ""), (-1, [4], NO_LEADER)],
)
def test_a_leader_that_cannot_be_reached_matters_where_no_other_broker_can_lead(
    leader: int, in_sync: list[int], reason: str
) -> None:
    partitions = {0: SimpleNamespace(leader=leader, isrs=in_sync, replicas=in_sync)}
    assert why_blocked(partitions, [0], 1, {4}) == reason
    assert sole_leaders(partitions.values()) == ({leader} if in_sync == [leader] else set())


def test_a_topic_with_one_replica_needs_no_more_than_that_in_sync() -> None:
    partitions = {0: SimpleNamespace(leader=1, isrs=[1], replicas=[1])}
    assert why_blocked(partitions, [0], 2) == "", "the cluster's default is for topics with more"
