"""Installations that share a cluster see all of their own topics, and no system topic of another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from backend.kafka.clients.admin import SystemTopics
from backend.kafka.engine.backend import KafkaBackend
from backend.kafka.options import KafkaOptions
from backend.records import AppendStatus, Durability, NewRecord, TopicInfo
from ddmq_common.errors import CallerError
from tests.service.kafka.process_kit import options
from tests.support.kafka import broker, delete_topics
from tests.support.waits import done, soon, until


@contextmanager
def opened(terms: KafkaOptions) -> Iterator[KafkaBackend]:
    backend = KafkaBackend(terms)
    try:
        until(lambda: backend.health().ready, lambda: backend.health().reason)
        yield backend
    finally:
        backend.close()


@pytest.fixture
def admin() -> AdminClient:
    return AdminClient({"bootstrap.servers": broker()})


def record(topic: str) -> NewRecord:
    return NewRecord(topic, 0, bytes(16), 1, b"body")


def in_ddmq(kafka_name: str) -> str:
    return kafka_name.replace(".", "%2E")


@pytest.mark.parametrize("patterns", [(), ("bills*",)])
def test_topics_that_were_created_here_stay_visible_whatever_the_patterns(
    admin: AdminClient, patterns: tuple[str, ...]
) -> None:
    terms = options(topics=patterns)
    foreign = f"{terms.topic_prefix}clicks"
    [creation] = admin.create_topics([NewTopic(foreign, 1)]).values()
    creation.result(30)
    with opened(terms) as first, opened(terms) as second:
        done(first.put_topic(TopicInfo("orders", 0, 1, Durability.WRITTEN), soon()))
        with pytest.raises(CallerError, match=r"created by another program, and `topics` in backend\.yaml"):
            done(first.put_topic(TopicInfo("clicks", 0, 1), soon()))
        done(second.caught_up())
        for backend in (first, second):
            done(backend.caught_up())
            assert set(backend.topics()) == {"orders"}
        [result] = done(second.append([record("orders")], soon()))
        assert result.status is AppendStatus.STORED, result.error
    with opened(terms) as restarted:
        assert set(restarted.topics()) == {"orders"}
        done(restarted.delete_topic("orders", soon()))
        assert not restarted.topics()
        done(restarted.put_topic(TopicInfo("orders", 0, 2, Durability.WRITTEN), soon()))
        assert [info.queues for info in restarted.topics().values()] == [2]
    delete_topics(terms.namespace)


def test_system_topics_of_another_installation_cannot_be_read_written_or_created() -> None:
    """Even by an installation without a prefix that admits every topic of the cluster."""
    own = options()
    theirs = options()
    everything = KafkaOptions(own.bootstrap, namespace=own.namespace)
    with ExitStack() as stack:
        other = stack.enter_context(opened(theirs))
        backend = stack.enter_context(opened(everything))
        done(other.put_topic(TopicInfo("orders", 0, 1, Durability.WRITTEN), soon()))
        done(other.put_topic(TopicInfo("%DELAY", 0, 1, Durability.WRITTEN), soon()))
        orders = in_ddmq(theirs.names.to_kafka("orders"))
        until(lambda: backend.topic(orders) is not None, "an ordinary topic of theirs is visible")
        visible = set(backend.topics())
        system = [*SystemTopics.named_by(theirs), theirs.names.to_kafka("%DELAY")]
        for name in map(in_ddmq, system):
            assert name not in visible
            [result] = done(backend.append([record(name)], soon()))
            assert result.status is not AppendStatus.STORED
            with pytest.raises(
                CallerError, match=f"a system topic of the installation {theirs.topic_prefix}"
            ):
                done(backend.put_topic(TopicInfo(name, 0, 1), soon()))
    delete_topics(own.namespace)
    delete_topics(theirs.namespace)
