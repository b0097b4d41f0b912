"""Which topics a look at the cluster asks about, and whose answer is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.completion import Completion, succeeded
from backend.kafka.clients.admin import Cluster, Survey
from backend.kafka.engine import topics as module
from backend.kafka.engine.topics import CHANGED_CHECKS, KafkaTopics
from backend.kafka.errors import LastError
from backend.kafka.options import KafkaOptions, incarnation_of
from backend.kafka.topic_info import ClusterTopic, TopicRegistry
from ddmq_common.clock import ManualClock
from tests.support.waits import until

OPTIONS = KafkaOptions(bootstrap="broker1:9092")
DESCRIBED = ClusterTopic("orders", "id-1", 4, 3, 1_000_000, False)


class PausedCluster:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.last_error = LastError(OPTIONS)
        self.jobs: list[tuple[partial[Any], Callable[..., None]]] = []

    def run_job(self, job: partial[Any], done: Callable[..., None]) -> None:
        self.jobs.append((job, done))

    def answer(self, cluster_id: str, *described: ClusterTopic, topics: int = 1) -> None:
        [(_, done)] = self.jobs
        self.jobs.clear()
        done(Survey({"orders": "orders"}, described, cluster_id, topics), None)

    @property
    def must_probe(self) -> bool:
        """Whether the survey tries to connect to leaders."""
        [(job, _)] = self.jobs
        return cast("bool", job.keywords["must_probe"])

    @property
    def passed_over(self) -> dict[str, int] | None:
        """The topics that need no look where they have so many partitions; None: all are looked at."""
        [(job, _)] = self.jobs
        return cast("dict[str, int] | None", job.keywords["unchanged"])

    def close(self) -> None:
        pass


@pytest.fixture
def cluster() -> PausedCluster:
    return PausedCluster()


@pytest.fixture
def forgotten() -> list[tuple[str, int]]:
    """Whose progress was taken away: a topic's name, and its incarnation."""
    return []


@pytest.fixture
def table() -> TopicRegistry:
    return TopicRegistry(OPTIONS.names)


@pytest.fixture
def topics(
    cluster: PausedCluster, table: TopicRegistry, forgotten: list[tuple[str, int]]
) -> Iterator[KafkaTopics]:
    def forget(name: str, incarnation: int, _: float) -> Completion[None]:
        forgotten.append((name, incarnation))
        return succeeded(None)

    state: Any = SimpleNamespace(topic_infos={}, other_cluster="")
    commits: Any = SimpleNamespace(put_topic_info=lambda *_: succeeded(None), drop_progress=forget)
    topics = KafkaTopics(
        OPTIONS, cast(Cluster, cluster), ManualClock(), table, state, commits,
        lambda _: None, lambda *_: None, lambda reason: setattr(state, "other_cluster", reason),
    )  # fmt: skip
    topics.survey()
    cluster.answer("cluster-1", DESCRIBED)
    yield topics
    topics.close()


def test_answers_of_another_cluster_are_ignored(
    cluster: PausedCluster, topics: KafkaTopics, table: TopicRegistry
) -> None:
    assert topics.reason == ""
    topics.survey()
    cluster.answer("cluster-2", DESCRIBED._replace(topic_id="id-2", partitions=9))
    assert "cluster-2" in topics.reason
    assert "cluster-1" in topics.reason
    assert table.topics["orders"].info.queues == 4
    topics.survey()
    cluster.answer("cluster-1", DESCRIBED)
    assert topics.reason == ""


def test_progress_in_a_recreated_topic_is_forgotten(
    cluster: PausedCluster,
    topics: KafkaTopics,
    forgotten: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in the new one, where a broker that is behind still tells of the old one."""
    monkeypatch.setattr(module, "REPLACED_S", 0.01)
    topics.survey()
    cluster.answer("cluster-1", DESCRIBED._replace(topic_id="id-2"))
    topics.survey()
    cluster.answer("cluster-1", DESCRIBED)
    topics.survey()
    cluster.answer("cluster-1", DESCRIBED._replace(topic_id="id-2"))
    until(lambda: len(forgotten) == 2)
    assert set(forgotten) == {("orders", incarnation_of("id-1"))}


def test_what_others_have_changed_is_looked_at_some_times(
    cluster: PausedCluster, topics: KafkaTopics
) -> None:
    topics.survey()
    assert cluster.passed_over == {"orders": 4}
    cluster.answer("cluster-1")
    topics.on_info_changed("orders")
    for _ in range(CHANGED_CHECKS):
        assert cluster.passed_over == {}
        cluster.answer("cluster-1", DESCRIBED)
        topics.survey()
    assert cluster.passed_over == {"orders": 4}


def test_a_lost_connection_causes_a_survey_that_tries_to_connect(
    cluster: PausedCluster, topics: KafkaTopics, table: TopicRegistry
) -> None:
    topics.on_connection_lost()
    assert cluster.must_probe
    cluster.answer("cluster-1")
    topics.on_connection_lost()
    assert not cluster.jobs, "not with each error of each client"
    topics.survey()
    assert cluster.must_probe, "but with the next survey"
    cluster.answer("cluster-1")
    topics.survey()
    assert not cluster.must_probe
    cluster.answer("cluster-1")
    table.unavailable.on_slow(["orders"])
    topics.survey()
    assert cluster.must_probe, "a topic may be unavailable"


def test_everything_is_looked_at_where_something_is_not_as_it_was(
    cluster: PausedCluster, topics: KafkaTopics
) -> None:
    topics.survey_all()
    assert cluster.passed_over is None
    topics.survey_all()  # while that is asked for: once more, then
    cluster.answer("cluster-1", DESCRIBED)
    topics.survey()
    assert cluster.passed_over is None


def test_a_topic_that_another_process_creates_during_a_survey_is_noticed_by_the_next_one_at_once(
    cluster: PausedCluster, topics: KafkaTopics
) -> None:
    topics.survey()
    topics.on_info_changed("new")
    topics.on_info_changed("newer")
    cluster.answer("cluster-1", DESCRIBED)
    assert len(cluster.jobs) == 1
    cluster.answer("cluster-1", DESCRIBED)
    assert not cluster.jobs


def test_surveys_are_frequent_after_a_change_even_on_a_large_cluster(
    cluster: PausedCluster, topics: KafkaTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may learn of a new topic a little later than the one that created it."""
    intervals: list[float] = []
    timer: Any = SimpleNamespace(once=lambda delay_s, _: intervals.append(delay_s), stop=lambda: None)
    monkeypatch.setattr(topics, "_timer", timer)
    topics.start()
    cluster.answer("cluster-1", DESCRIBED, topics=10_000)
    topics.on_info_changed("new")
    cluster.answer("cluster-1", topics=10_000)
    for _ in range(CHANGED_CHECKS):
        topics.start()
        cluster.answer("cluster-1", topics=10_000)
    assert intervals == [1.0, 1.0, 1.0, 30.0]
