"""What waits outlives its machine: restored from Kafka, trimmed there, kept warm on another one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from backend.kafka.opening import open_kafka
from backend.kafka.options import KafkaOptions
from backend.records import Durability, NewRecord, QueueRef, TopicInfo
from ddmq_client.delays import DelayStatus
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode
from ddmq_common.names import DELAY_TOPIC, WAITING_TOPIC
from tests.service.kafka.cluster_kit import KafkaServer, pulled
from tests.service.kafka.process_kit import options
from tests.support.waits import done, soon, until

pytestmark = pytest.mark.slow  # a real broker is started for it
COUNT, CANCELLED = 40, 10


@pytest.fixture
def terms() -> KafkaOptions:
    return options()


def server(folder: Path, terms: KafkaOptions) -> KafkaServer:
    folder.mkdir()
    return KafkaServer(folder, terms.bootstrap, namespace=terms.namespace, topic_prefix=terms.topic_prefix)


@pytest.fixture
def first(tmp_path: Path, terms: KafkaOptions) -> Iterator[KafkaServer]:
    kafka_server = server(tmp_path / "first", terms)
    kafka_server.start()
    yield kafka_server
    kafka_server.kill()


def test_what_waits_comes_once_from_a_machine_that_had_nothing(
    tmp_path: Path, terms: KafkaOptions, first: KafkaServer
) -> None:
    first.admin("POST", "topics", "orders", body={"queues": 2})
    first.subscribe("billing", "orders")
    with first.producer() as producer:
        early = producer.send("orders", b"early", delay=timedelta(milliseconds=50))
        sent = [
            producer.send("orders", b"%d" % number, delay=timedelta(seconds=10)) for number in range(COUNT)
        ]
        with first.consumer("billing", "orders") as consumer:
            assert pulled(consumer, 1) == [b"early"]
        for one in sent[:CANCELLED]:
            producer.cancel(one)
    first.kill()
    shutil.rmtree(first.data_dir)
    second = server(tmp_path / "second", terms)
    second.start()
    try:
        with second.consumer("billing", "orders") as consumer:
            bodies = pulled(consumer, COUNT - CANCELLED)
            assert sorted(bodies, key=int) == [b"%d" % number for number in range(CANCELLED, COUNT)]
            assert consumer.pull(10) == []
        with second.producer() as producer:
            assert all(producer.cancel(one).cancelled for one in sent[:CANCELLED]), "as told before"
            for one in (early, sent[CANCELLED]):
                assert producer.cancel(one).status is DelayStatus.FIRED
    finally:
        second.kill()


def test_who_is_killed_is_followed_by_a_warm_store(
    tmp_path: Path, terms: KafkaOptions, first: KafkaServer
) -> None:
    first.admin("POST", "topics", "orders", body={"queues": 2})
    first.subscribe("billing", "orders")
    with first.producer() as producer:
        for number in range(COUNT):
            producer.send("orders", b"%d" % number, delay=timedelta(seconds=15))
    second = server(tmp_path / "second", terms)
    second.start()
    try:

        def warm() -> bool:
            """Whether each has a part of the shards, and a standby of each other one."""
            answers = [one.describe_own_shards() for one in (first, second)]
            waits = sum(shard["pending"] for each in answers for shard in each["shards"])
            warm = [standby["warm"] for each in answers for standby in each["standbys"]]
            return waits == COUNT and len(warm) == 4 and all(warm)

        until(warm, "two machines have all, each with the others' shards warm")
        first.kill()
        with second.consumer("billing", "orders") as consumer:
            bodies = pulled(consumer, COUNT)
            assert sorted(bodies, key=int) == [b"%d" % number for number in range(COUNT)]
            assert consumer.pull(10) == []
    finally:
        second.kill()


def test_what_nobody_needs_goes_and_the_last_of_each_key_stays(terms: KafkaOptions) -> None:
    backend = open_kafka(terms, clock=SystemClock())
    try:
        for name in (DELAY_TOPIC, WAITING_TOPIC):
            done(backend.put_topic(TopicInfo(name, 0, 1, Durability.DURABLE), soon()))
        commands, rows = (
            ref for name in (DELAY_TOPIC, WAITING_TOPIC) for ref in backend.topics()[name].refs()
        )

        def put(queue: QueueRef, *values: bytes) -> None:
            records = [
                NewRecord(queue.topic, 0, bytes(16), 1, encode(b"k", value, b"", None), b"k")
                for value in values
            ]
            for result in done(backend.append(records, soon())):
                assert result.error is None

        put(commands, b"1", b"2", b"3")
        backend.trim(commands, 2)
        until(lambda: done(backend.bounds([commands]))[0].min == 2, "what was taken in is gone")
        put(rows, b"waits", b"")
        batch = done(backend.read(rows, 0, 10, 1_000))
        assert [bytes(delivery) for delivery in batch.deliveries] == [
            encode(b"k", value, b"", None) for value in (b"waits", b"")
        ]
    finally:
        backend.close()
