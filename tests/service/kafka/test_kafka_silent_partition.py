"""A partition without a leader is sent large messages: what sends to the other topics of the proxy notice.

`python -m tests.service.kafka.test_kafka_silent_partition --seconds 45 [--tree DIR]` prints the table.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from ddmq.trial.cluster import TrialCluster
from ddmq_client.errors import ClientError, NotStoredError
from tests.service.kafka.cluster_kit import KafkaServer, Tools, bodies, own_cluster
from tests.support.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
SILENT, HEALTHY, AWAY = "silent", "healthy", 3
LARGE = bytes(1_000_000)
LARGE_CLIENTS, SMALL_CLIENTS = 16, 3
PAUSE_S = 0.02
TIMEOUT_MS = 2_000


class SendLoad:
    """Clients that send to one topic, each message once, until they are stopped."""

    def __init__(self, server: KafkaServer, topic: str, clients: int, size: int, pause_s: float) -> None:
        self._server, self._topic, self._size, self._pause_s = server, topic, size, pause_s
        self._over = threading.Event()
        self.stored: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.texts: Counter[str] = Counter()
        self.took_s: list[float] = []
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(clients)]

    def __enter__(self) -> SendLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _send(self, client: int) -> None:
        count = 0
        with self._server.producer(attempts_max=1) as producer:
            while not self._over.wait(self._pause_s):
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
        took = sorted(self.took_s)
        p50, p99 = (took[int((len(took) - 1) * share)] * 1000 for share in (0.5, 0.99))
        return (
            f"{name}: {len(took)} sends, {len(self.stored)} stored, p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
            f"{self.texts.total()} not stored, of these {self.texts.most_common(4)}"
        )


def prepare(cluster: TrialCluster, server: KafkaServer) -> None:
    """Make a topic whose two partitions have one replica each, and kill the broker that has both."""
    tools = Tools(cluster.bootstrap)
    config = {"max.message.bytes": "3000000"}
    new = [NewTopic(SILENT, 2, replica_assignment=[[AWAY], [AWAY]], config=config), NewTopic(HEALTHY, 4, 3)]
    for answer in tools.admin.create_topics(new).values():
        answer.result()
    until(lambda: all(server.ask("GET", f"/topics/{name}")[0] == 200 for name in (SILENT, HEALTHY)))
    with server.producer() as producer:
        producer.send(HEALTHY, b"before")
    cluster.signal(AWAY, signal.SIGKILL)
    until(
        lambda: tools.admin.list_topics(SILENT, timeout=5).topics[SILENT].partitions[0].leader < 0,
        "the cluster knows that the broker is away",
    )
    with server.producer() as producer:  # the leaders of the healthy topic have moved
        for queue in range(4):
            producer.send(HEALTHY, b"moved", queue=queue)


@pytest.mark.timeout(300)
def test_sends_to_a_partition_without_a_leader_cost_other_topics_no_send(tmp_path: Path) -> None:
    with own_cluster(tmp_path / "kafka", 3) as cluster:
        server = KafkaServer(tmp_path / "server", cluster.bootstrap)
        server.start()
        try:
            prepare(cluster, server)
            with (
                SendLoad(server, HEALTHY, SMALL_CLIENTS, 0, PAUSE_S) as small,
                SendLoad(server, SILENT, LARGE_CLIENTS, len(LARGE), PAUSE_S) as large,
            ):
                time.sleep(35)  # so long that what is in flight is purged
                until(lambda: "no leader" in server.ask("GET", "/health")[1]["reason"] or "silent/" in
                      server.ask("GET", "/health")[1]["reason"])  # fmt: skip
            said = f"{small.line('healthy')}\n{large.line('silent')}"
            assert not small.texts, said
            assert len(small.stored) > 300, said
            assert not large.stored, said
            assert any("has no leader" in text for text in large.texts), said
            assert "retiring the shared producer" in server.log
            cluster.start()
            with server.producer(attempts_max=1) as producer:
                until(lambda: is_stored_in_all(producer), "the queues are open again")
            kept = [body.rstrip(b"\0") for body in bodies(cluster, SILENT)]
            assert not large.refused & set(kept), "a refused message is not stored"
        finally:
            server.kill()


def is_stored_in_all(producer: object) -> bool:
    try:
        for queue in range(2):
            producer.send(SILENT, b"after", queue=queue, timeout_ms=TIMEOUT_MS)  # type: ignore[attr-defined]
    except ClientError:
        return False
    return True


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 45.0
    with tempfile.TemporaryDirectory() as folder, own_cluster(Path(folder) / "kafka", 3) as cluster:
        server = KafkaServer(Path(folder) / "server", cluster.bootstrap)
        if "--tree" in sys.argv:
            server.tree = Path(sys.argv[sys.argv.index("--tree") + 1])
        server.start()
        try:
            prepare(cluster, server)
            with SendLoad(server, HEALTHY, SMALL_CLIENTS, 0, PAUSE_S) as small:
                with SendLoad(server, SILENT, LARGE_CLIENTS, len(LARGE), PAUSE_S) as large:
                    time.sleep(seconds)
                time.sleep(10)
            print(small.line("healthy"), large.line("silent"), sep="\n")
            print("\n".join(line for line in server.log.splitlines() if "warning" in line.lower())[-4000:])
        finally:
            server.kill()


if __name__ == "__main__":
    main()
