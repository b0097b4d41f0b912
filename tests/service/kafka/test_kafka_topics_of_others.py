"""A topic that another process made just now can be written to, however seldom this one looks for topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.kafka.engine.backend import KafkaBackend
from backend.records import AppendStatus, CommitBatch, Durability, NewRecord, TopicInfo
from ddmq_common.errors import UnknownTopicError
from tests.service.kafka.process_kit import options
from tests.support.kafka import delete_topics
from tests.support.waits import done, soon, until

NEVER_MS = 3_600_000


@pytest.fixture
def two() -> Iterator[tuple[KafkaBackend, KafkaBackend]]:
    terms = options(topics_poll_ms=NEVER_MS)
    backends = [KafkaBackend(terms), KafkaBackend(terms)]
    for one in backends:
        until(lambda one=one: one.health().ready, lambda one=one: one.health().reason)
    yield backends[0], backends[1]
    for one in backends:
        one.close()
    delete_topics(terms.namespace)


def record(topic: str, queue_id: int = 0) -> NewRecord:
    return NewRecord(topic, queue_id, bytes(16), 1, b"body")


def test_appends_and_commits_find_it(two: tuple[KafkaBackend, KafkaBackend]) -> None:
    maker, writer = two
    info = done(maker.put_topic(TopicInfo("appended", 0, 1, Durability.WRITTEN), soon()))
    other = done(maker.put_topic(TopicInfo("committed", 0, 2, Durability.WRITTEN), soon()))
    (first,) = done(writer.append([record("appended")], soon()))
    assert first.status is AppendStatus.STORED, first.error
    (second,) = done(writer.commit(CommitBatch([record("committed", 1)]), soon()))
    assert second.status is AppendStatus.STORED, second.error
    done(maker.put_topic(TopicInfo("appended", info.incarnation, 3, Durability.WRITTEN), soon()))
    (third,) = done(writer.append([record("appended", 2)], soon()))
    assert third.status is AppendStatus.STORED, third.error
    done(maker.put_topic(TopicInfo("committed", other.incarnation, 4, Durability.WRITTEN), soon()))
    (fourth,) = done(writer.commit(CommitBatch([record("committed", 3)]), soon()))
    assert fourth.status is AppendStatus.STORED, fourth.error


def test_who_has_caught_up_knows_it(two: tuple[KafkaBackend, KafkaBackend]) -> None:
    maker, other = two
    done(maker.put_topic(TopicInfo("orders", 0, 1, Durability.WRITTEN), soon()))
    done(other.caught_up())
    assert other.topic("orders") is not None


def test_a_topic_that_does_not_exist_is_rejected(two: tuple[KafkaBackend, KafkaBackend]) -> None:
    _, writer = two
    (result,) = done(writer.append([record("none")], soon()))
    assert result.status is AppendStatus.REFUSED
    assert isinstance(result.error, UnknownTopicError)
    commit = writer.commit(CommitBatch([record("none")]), soon())
    until(lambda: commit.done)
    assert isinstance(commit.error, UnknownTopicError)
