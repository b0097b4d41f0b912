"""A partition without a leader is sent large messages: what sends to the other topics of the proxy notice.

`python -m tests.service.kafka.test_kafka_silent_partition --seconds 45 [--tree DIR]` prints the table.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ddmq.trial.cluster import TrialCluster
from ddmq_client.errors import ClientError, NotStoredError
from tests.service.kafka.away_kit import (
    PAUSE_S,
    ClientLoad,
    create_topics,
    kill_leader,
    print_table,
    quantiles_ms,
    three_brokers,
)
from tests.service.kafka.cluster_kit import KafkaServer, Tools, bodies
from tests.support.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
SILENT, HEALTHY = "silent", "healthy"
LARGE = bytes(1_000_000)
LARGE_CLIENTS, SMALL_CLIENTS = 16, 3
PURGED_S = 90.0  # the shared producer is retired after 20 s, and its records are purged 10 s later
TIMEOUT_MS = 2_000


class SendLoad(ClientLoad):
    """Clients that send to one topic, each message once, until they are stopped."""

    def __init__(self, server: KafkaServer, topic: str, clients: int, size: int = 0) -> None:
        super().__init__([partial(self._send, number) for number in range(clients)])
        self._server, self._topic, self._size = server, topic, size
        self.stored: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.texts: Counter[str] = Counter()
        self.took_s: list[float] = []

    def _send(self, client: int) -> None:
        count = 0
        with self._server.producer(attempts_max=1) as producer:
            while not self.over.wait(PAUSE_S):
                count += 1
                body = b"%d %d" % (client, count) + bytes(self._size)
                began = time.monotonic()
                try:
                    producer.send(self._topic, body, timeout_ms=TIMEOUT_MS)
                except NotStoredError as error:
                    self.refused.add(body[:20].rstrip(b"\0"))
                    self.texts[f"{error.code}: {error.text}"[:300]] += 1
                except ClientError as error:
                    self.texts[repr(error)[:100]] += 1
                else:
                    self.stored.add(body[:20].rstrip(b"\0"))
                self.took_s.append(time.monotonic() - began)

    def line(self, name: str) -> str:
        p50, p99 = quantiles_ms(self.took_s)
        return (
            f"{name}: {len(self.took_s)} sends, {len(self.stored)} stored, p50 {p50:.0f} ms, "
            f"p99 {p99:.0f} ms, {self.texts.total()} not stored, of these {self.texts.most_common(4)}"
        )


def prepare(cluster: TrialCluster, server: KafkaServer) -> None:
    """Make a topic whose two partitions have one replica each, and kill the broker that has both."""
    tools = Tools(cluster.bootstrap)
    create_topics(tools, server, SILENT, HEALTHY, max_message_bytes="3000000")
    with server.producer() as producer:
        producer.send(HEALTHY, b"before")
    kill_leader(cluster, tools, SILENT)
    with server.producer() as producer:  # the leaders of the healthy topic have moved
        for queue in range(4):
            producer.send(HEALTHY, b"moved", queue=queue)


@contextmanager
def both_loads(server: KafkaServer) -> Iterator[tuple[SendLoad, SendLoad]]:
    with (
        SendLoad(server, HEALTHY, SMALL_CLIENTS) as small,
        SendLoad(server, SILENT, LARGE_CLIENTS, len(LARGE)) as large,
    ):
        yield small, large


@pytest.mark.timeout(300)
def test_sends_to_a_partition_without_a_leader_cost_other_topics_no_send(tmp_path: Path) -> None:
    with three_brokers(tmp_path) as (cluster, server):
        prepare(cluster, server)
        with both_loads(server) as (small, large):
            until(lambda: "silent/" in server.request("GET", "/health")[1]["reason"])
            until(lambda: "giving up the records" in server.log, "what is in flight is purged", PURGED_S)
            stored = len(small.stored)
            until(lambda: len(small.stored) > stored + 100, "the healthy topic goes on after that")
        report = f"{small.line('healthy')}\n{large.line('silent')}"
        assert not small.texts, report
        assert len(small.stored) > 300, report
        assert not large.stored, report
        assert any("has no leader" in text for text in large.texts), report
        assert "retiring the shared producer" in server.log
        cluster.start()
        with server.producer(attempts_max=1) as producer:
            until(lambda: is_stored_in_all(producer), "the queues are open again")
        stored_bodies = [body.rstrip(b"\0") for body in bodies(cluster, SILENT)]
        assert not large.refused & set(stored_bodies), "a refused message is not stored"


def is_stored_in_all(producer: object) -> bool:
    try:
        for queue in range(2):
            producer.send(SILENT, b"after", queue=queue, timeout_ms=TIMEOUT_MS)  # type: ignore[attr-defined]
    except ClientError:
        return False
    return True


def measure(cluster: TrialCluster, server: KafkaServer, seconds: float) -> list[str]:
    """The table, of both loads for so long."""
    prepare(cluster, server)
    with both_loads(server) as (small, large):
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() >= end, "the time is over", 2 * seconds)
    return [small.line("healthy"), large.line("silent")]


if __name__ == "__main__":
    print_table(measure)
