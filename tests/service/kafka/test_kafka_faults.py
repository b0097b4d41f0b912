"""What happens to a cluster under a server: topics made again, messages gone, records too large for it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition

from ddmq.trial.cluster import TrialCluster
from ddmq_client import Message, Producer
from ddmq_client.errors import InvalidMessageError, NotStoredError
from tests.service.kafka.cluster_kit import KafkaServer, Tools, own_cluster, pulled
from tests.support.waits import until

pytestmark = pytest.mark.slow
LIMIT = 20_000
LARGE = random.Random(1).randbytes(30_000)  # compression makes it no smaller


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialCluster]:
    with own_cluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(cluster: TrialCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("server"), cluster.bootstrap)
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def tools(cluster: TrialCluster) -> Tools:
    return Tools(cluster.bootstrap)


@pytest.fixture
def producer(server: KafkaServer) -> Iterator[Producer]:
    with server.producer(attempts_max=1) as producer:
        yield producer


def await_queues(server: KafkaServer, topic: str, queues: int = 1) -> None:
    """Wait until the server knows a topic that others made."""
    until(lambda: server.request("GET", f"/topics/{topic}")[1].get("queues") == queues)


def test_a_record_that_the_cluster_does_not_accept_is_rejected(
    server: KafkaServer, tools: Tools, producer: Producer
) -> None:
    tools.make("small", max_message_bytes=str(LIMIT))
    await_queues(server, "small")
    with pytest.raises(
        InvalidMessageError, match=f"30\\d\\d\\d bytes.*{LIMIT}.*max.message.bytes"
    ) as refused:
        producer.send("small", LARGE)
    assert refused.value.code == 11
    producer.send("small", b"fits")


def test_a_bound_that_was_lowered_costs_no_other_message(
    server: KafkaServer, tools: Tools, producer: Producer
) -> None:
    tools.make("lowered")
    await_queues(server, "lowered")
    producer.send("lowered", LARGE)
    tools.set_topic("lowered", max_message_bytes=str(LIMIT))

    def refused() -> bool:
        try:
            producer.send("lowered", LARGE)
        except NotStoredError as error:
            codes.add(error.code)
        except InvalidMessageError as error:
            return str(LIMIT) in error.text
        return False

    codes: set[int | None] = set()

    until(refused)
    assert codes <= {15}
    for number in range(20):
        producer.send("lowered", b"%d" % number)
    assert [each.value() for each in tools.read("lowered")] == [LARGE, *(b"%d" % n for n in range(20))]
    assert "retiring the" not in server.log
    assert "replacing a producer" not in server.log


def test_a_dead_letter_that_the_cluster_rejects_delays_no_other(
    server: KafkaServer, tools: Tools, producer: Producer
) -> None:
    """Moves share transactions: one that is refused costs the others nothing, and waits until it is taken."""
    producer.send("moves", b"first")
    server.subscribe("movers", "moves", retry_intervals_ms=[-1], retry_steps=0)
    with server.consumer("movers", "moves") as client:
        pulled(client, 1, Message.fail)
        until(lambda: dead_letters(server) == 1)
        [letters] = [name for name in tools.admin.list_topics(timeout=10).topics if "DLQ-25movers" in name]
        tools.set_topic(letters, max_message_bytes=str(LIMIT))
        producer.send("moves", LARGE)
        for number in range(5):
            producer.send("moves", b"%d" % number)
        pulled(client, 6, Message.fail)
        until(lambda: dead_letters(server) == 6)
        assert "under another name" not in server.log, "its producer was not fenced"
        tools.set_topic(letters, max_message_bytes=str(4 << 20))
        until(lambda: dead_letters(server) == 7)


def dead_letters(server: KafkaServer) -> float:
    return server.metric("ddmq_dead_letters_total", group="movers")


def test_a_recreated_topic_is_a_new_incarnation(
    server: KafkaServer, tools: Tools, producer: Producer
) -> None:
    tools.make("again")
    await_queues(server, "again")
    server.subscribe("readers", "again")
    with server.consumer("readers", "again") as client:
        for number in range(5):
            producer.send("again", b"old %d" % number)
        assert len(pulled(client, 5)) == 5
        until(lambda: server.lag("readers") == 0)
        before = server.request("GET", "/topics/again")[1]["incarnation"]
        tools.delete("again")
        tools.make("again", 2)
        await_queues(server, "again", 2)
        assert server.request("GET", "/topics/again")[1]["incarnation"] != before
        for number in range(2):
            producer.send("again", b"new %d" % number, queue=0)
        assert pulled(client, 2) == [b"new 0", b"new 1"]


def test_messages_deleted_by_retention_are_counted_and_reported(
    server: KafkaServer, tools: Tools, producer: Producer
) -> None:
    """As on the file log: it goes on at the oldest that is there."""
    tools.make("kept")
    await_queues(server, "kept")
    server.subscribe("late", "kept")
    with server.consumer("late", "kept") as client:
        producer.send("kept", b"0")
        assert pulled(client, 1) == [b"0"]
        until(lambda: server.lag("late") == 0)
    server.kill()  # what it has read ahead would still be delivered
    tools.send("kept", [(None, b"%d" % number) for number in range(1, 10)])
    [answer] = tools.admin.delete_records([TopicPartition("kept", 0, 6)]).values()
    assert answer.result().low_watermark == 6
    server.start()
    with server.consumer("late", "kept") as client:
        assert pulled(client, 4) == [b"6", b"7", b"8", b"9"]
    assert server.metric("ddmq_skipped_total", group="late", reason="expired") == 5
    until(lambda: "went by retention" in server.log)


def test_markers_of_transactions_are_no_lag_and_no_message(server: KafkaServer, producer: Producer) -> None:
    server.subscribe("firm", "fired")
    producer.send("fired", b"now", level=1)
    with server.consumer("firm", "fired") as client:
        assert pulled(client, 1) == [b"now"]
        assert server.request("GET", "/topics/fired")[1]["messages"] == 2, "the marker takes an offset"
        until(lambda: not client.pull(1, 20) and server.lag("firm") == 0)
    assert server.metric("ddmq_skipped_total", reason="missing") == 0, "an alert says that messages are lost"
