"""What a producer proxy counts, moved by real calls: latency by topic, refusals, connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.records import TopicInfo
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.metric import Metric
from proxy_producer.config import RateLimit
from tests.interop.apache_client import Message
from tests.service.producer.producer_client import Client
from tests.service.producer.producer_server import ProducerServer
from tests.service.proxy_server import PATIENCE_S

TOPICS = tuple(TopicInfo(name, 0, 2) for name in ("orders", "mails", "slow"))


@pytest.fixture
def server() -> Iterator[ProducerServer]:
    server = ProducerServer(
        TOPICS,
        topic_rates={"slow": RateLimit(messages_per_s=1, burst_ms=1000)},
        defer_ms_max=0,
        auto_create_topics=False,
    )
    yield server
    server.stop()


@pytest.fixture
def client(server: ProducerServer) -> Iterator[Client]:
    with Client(server.port) as client:
        yield client


def latencies(server: ProducerServer, topic: str) -> int:
    """How many values of the send latency there are."""
    return server.do(lambda: sum(server.metrics.histogram(catalogue.SEND_LATENCY, topic).counts))


def cell(server: ProducerServer, metric: Metric, *labels: str) -> float:
    return server.do(lambda: server.metrics.cell(metric, *labels).value)


def test_each_stored_send_is_observed_under_its_topic(server: ProducerServer, client: Client) -> None:
    for topic in ("orders", "orders", "mails"):
        assert client.send(topic=topic).code == 0
    assert (latencies(server, "orders"), latencies(server, "mails")) == (2, 1)
    total = server.do(lambda: server.metrics.histogram(catalogue.SEND_LATENCY, "orders").total)
    assert 0 < total < 2 * PATIENCE_S * 1e6
    assert client.send(topic="orders", body=b"").code == 11
    assert latencies(server, "orders") == 2


def test_a_batch_is_observed_once_for_each_topic_in_it(server: ProducerServer, client: Client) -> None:
    messages = [Message(topic=topic, body=b"x") for topic in ("orders", "mails", "orders", "orders")]
    assert client.call("sendBatchSync", messages=messages).code == 0
    assert (latencies(server, "orders"), latencies(server, "mails")) == (1, 1)
    assert cell(server, catalogue.SENDS, "orders", "0") == 3


def test_what_a_limit_rejects_is_counted_by_its_reason(server: ProducerServer, client: Client) -> None:
    codes = [client.send(topic="slow").code for _ in range(4)]
    refused = codes.count(15)
    assert (codes[0], refused) == (0, 3)
    assert cell(server, catalogue.SEND_REFUSED, "rate") == refused
    assert cell(server, catalogue.SENDS, "slow", "15") == refused


def test_connections_are_counted_while_they_are_open(server: ProducerServer, client: Client) -> None:
    assert client.send(topic="orders").code == 0
    service = "ProducerService"
    assert cell(server, catalogue.RPC_CONNECTIONS, service) == 1
    with Client(server.port) as other:
        assert other.send(topic="orders").code == 0
        assert cell(server, catalogue.RPC_CONNECTIONS, service) == 2


def test_topics_that_do_not_exist_make_no_labels(server: ProducerServer, client: Client) -> None:
    assert client.send(topic="orders").code == 0

    def labels() -> set[str]:
        families = [*server.metrics.numbers(), *server.metrics.histograms()]
        return {label for _, cells in families for values in cells for label in values}

    for number in range(100):
        assert client.send(topic=f"invented-{number}").code == 13
        client.call("sendBatch", messages=[Message(topic=f"invented-{number}", body=b"x")], timeout=5_000)
    assert not [name for name in server.do(labels) if "invented" in name]
    assert cell(server, catalogue.SENDS, "-", "13") == 200
