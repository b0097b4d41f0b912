"""Which names a new topic may have, and what remains of a topic that Kafka refuses to create."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.completion import Completion, succeeded
from backend.kafka.clients.admin import Cluster
from backend.kafka.engine import topics as module
from backend.kafka.engine.topics import NOT_CREATED, KafkaTopics
from backend.kafka.errors import LastError
from backend.kafka.options import KafkaOptions, Names
from backend.kafka.topic_info import ClusterTopic, TopicRegistry, encode_info
from backend.records import TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.errors import CallerError

DEADLINE = 1e6


class TopicCreationKit:
    """Topics over a cluster that is a set of names, and whose jobs run at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *patterns: str) -> None:
        self.kafka_names: set[str] = set()
        self.infos: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.last_error = LastError(KafkaOptions())
        admin: Any = SimpleNamespace(
            list_names=lambda _: frozenset(self.kafka_names),
            describe_topics=lambda _, names: [name for name in names if name in self.kafka_names],
            create_topic=self.create_topic,
        )
        monkeypatch.setattr(module, "topic_admin", admin)
        state: Any = SimpleNamespace(
            topic_infos=self.infos, catch_up=lambda: succeeded(None), other_cluster=""
        )
        commits: Any = SimpleNamespace(put_topic_info=self.put_topic_info)
        options = KafkaOptions(topics=patterns, topic_prefix="ours.")
        self.topics = KafkaTopics(
            options, cast(Cluster, self), ManualClock(), TopicRegistry(options.names), state, commits,
            lambda _: None, lambda *_: None, lambda _: None,
        )  # fmt: skip

    def run_job(self, job: Callable[[Any], Any], done: Callable[..., object]) -> None:
        try:
            result = job(None)
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def create_topic(self, _: object, options: KafkaOptions, name: str, info: TopicInfo) -> ClusterTopic:
        if self.error is not None:
            raise self.error
        self.kafka_names.add(name)
        return ClusterTopic(name, f"id of {name}", info.queues, 1, 1_000_000, False)

    def put_topic_info(self, name: str, value: bytes | None, _: float) -> Completion[None]:
        if value is None:
            self.infos.pop(name, None)
        else:
            self.infos[name] = value
        return succeeded(None)

    def create(self, name: str) -> None:
        """Create a topic; raises the reason why it is not created."""
        answer: Completion[TopicInfo] = Completion()
        self.topics.put(TopicInfo(name, 0, 1), DEADLINE, answer, None)
        answer.result()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("patterns", [("*",), ()])
@pytest.mark.parametrize(
    ("existing", "name"),
    [
        ("a%2Ecoordination", "a%2Esettings"),
        ("a%2Eprogress", "a%2Ecoordination"),
        ("coordination", "settings"),  # with the prefix: an installation whose root is `ours`
    ],
)
def test_no_topic_is_created_whose_name_makes_another_a_system_topic(
    monkeypatch: pytest.MonkeyPatch, patterns: tuple[str, ...], existing: str, name: str
) -> None:
    kit = TopicCreationKit(monkeypatch, *patterns)
    kit.create(existing)
    with pytest.raises(CallerError, match="a system topic of the installation"):
        kit.create(name)
    assert kit.kafka_names == {Names("ddmq", "ours.").to_kafka(existing)}
    assert set(kit.infos) == {existing}


@pytest.mark.parametrize("patterns", [("*",), ()])
@pytest.mark.parametrize("name", ["b%2Esettings", "b%2Ex%2E-25DELAY", "b%2Enew%2Ecoordination"])
def test_an_installation_that_started_after_the_last_survey_is_respected(
    monkeypatch: pytest.MonkeyPatch, patterns: tuple[str, ...], name: str
) -> None:
    kit = TopicCreationKit(monkeypatch, *patterns)
    kit.kafka_names |= {"ours.b.coordination", "ours.b.settings", "ours.b.progress", "ours.b.new.progress"}
    before = set(kit.kafka_names)
    with pytest.raises(CallerError, match=r"a system topic of the installation ours\.b"):
        kit.create(name)
    assert kit.kafka_names == before
    assert not kit.infos


def test_nothing_is_recorded_of_a_topic_that_kafka_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise another program's topic with that name would be visible later."""
    kit = TopicCreationKit(monkeypatch)
    kit.error = CallerError("Kafka says no")
    with pytest.raises(CallerError, match="Kafka says no"):
        kit.create("orders")
    assert not kit.infos
    kit.infos["orders"] = encode_info(TopicInfo("orders", NOT_CREATED, 1))  # of a process that was killed
    with pytest.raises(CallerError, match="Kafka says no"):
        kit.create("orders")
    assert not kit.infos
    kit.error = None
    kit.create("orders")
    assert set(kit.infos) == {"orders"}
    assert kit.kafka_names == {"ours.orders"}
