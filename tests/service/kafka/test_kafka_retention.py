"""Nothing in a topic of delayed messages goes by age or size, whatever the cluster or somebody else says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from backend.kafka.clients.admin import UNLIMITED
from backend.kafka.engine.backend import KafkaBackend
from backend.kafka.opening import open_kafka
from backend.kafka.options import KafkaOptions
from backend.records import Durability, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.names import DELAY_TOPIC, SCHEDULE_TOPIC
from tests.service.kafka.process_kit import options
from tests.support.waits import done, soon, until

pytestmark = pytest.mark.slow  # a real broker is started for it


@pytest.fixture
def terms() -> KafkaOptions:
    return options(retention_ms=60_000, topics_poll_ms=100)


@pytest.fixture
def backend(terms: KafkaOptions) -> Iterator[KafkaBackend]:
    backend = open_kafka(terms, clock=SystemClock())
    yield backend
    backend.close()


class Watched:
    """A topic's settings as Kafka has them, and as somebody sets them."""

    def __init__(self, terms: KafkaOptions, topic: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": terms.bootstrap})
        self._name = terms.names.to_kafka(topic)

    def has_unlimited_settings(self) -> bool:
        """Whether nothing goes by age or size."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._name)
        [answer] = self._admin.describe_configs([resource]).values()
        settings = answer.result()
        return all(settings[name].value == value for name, value in UNLIMITED.items())

    def set(self, name: str, value: str) -> None:
        """As kafka-configs does."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._name, incremental_configs=[entry])
        [answer] = self._admin.incremental_alter_configs([resource]).values()
        answer.result()


def put(backend: KafkaBackend, name: str) -> None:
    done(backend.put_topic(TopicInfo(name, 0, 1, Durability.DURABLE), soon()))


@pytest.mark.parametrize("name", [DELAY_TOPIC, SCHEDULE_TOPIC])
def test_delayed_messages_are_retained(backend: KafkaBackend, terms: KafkaOptions, name: str) -> None:
    put(backend, name)
    topic = Watched(terms, name)
    assert topic.has_unlimited_settings()
    topic.set("retention.ms", "1000")
    until(topic.has_unlimited_settings, "set back")
    topic.set("cleanup.policy", "compact")
    until(topic.has_unlimited_settings, "set back")


def test_a_topic_of_clients_has_what_is_configured(backend: KafkaBackend, terms: KafkaOptions) -> None:
    put(backend, "orders")
    assert not Watched(terms, "orders").has_unlimited_settings()
