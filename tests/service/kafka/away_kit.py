"""Topics of which one has its only broker away, and clients that go on calling a server meanwhile."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from confluent_kafka.admin import NewTopic

from ddmq.trial.cluster import TrialCluster
from tests.service.kafka.cluster_kit import KafkaServer, Tools, own_cluster, served_while
from tests.support.waits import until

AWAY = 3  # the broker that is killed, of three
PAUSE_S = 0.02  # between two calls of a client


class ClientLoad:
    """Clients that call a server from a thread each, from the beginning of a `with` block to its end."""

    def __init__(self, clients: Sequence[Callable[[], None]]) -> None:
        self.over = threading.Event()
        self._threads = [threading.Thread(target=client) for client in clients]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()


def create_topics(tools: Tools, server: KafkaServer, away: str, healthy: str, **config: str) -> None:
    """Create a topic whose two partitions are on AWAY alone, and one that all brokers have."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    new = [NewTopic(away, 2, replica_assignment=[[AWAY], [AWAY]], config=settings), NewTopic(healthy, 4, 3)]
    for answer in tools.admin.create_topics(new).values():
        answer.result()
    until(lambda: all(server.request("GET", f"/topics/{name}")[0] == 200 for name in (away, healthy)))


def kill_leader(cluster: TrialCluster, tools: Tools, topic: str) -> None:
    """Kill the broker that has the topic, and wait until the cluster knows it."""
    cluster.signal(AWAY, signal.SIGKILL)
    until(
        lambda: tools.admin.list_topics(topic, timeout=5).topics[topic].partitions[0].leader < 0,
        "the cluster knows that the broker is away",
    )


def quantiles_ms(seconds: Sequence[float], shares: Sequence[float] = (0.5, 0.99)) -> list[float]:
    """Return these quantiles of durations, in milliseconds."""
    ordered = sorted(seconds)
    return [ordered[int((len(ordered) - 1) * share)] * 1000 for share in shares]


@contextmanager
def three_brokers(folder: Path) -> Iterator[tuple[TrialCluster, KafkaServer]]:
    """A cluster with a server over it."""
    with own_cluster(folder / "kafka", 3) as cluster:
        server = KafkaServer(folder / "server", cluster.bootstrap)
        with served_while(server):
            yield cluster, server


def print_table(measure: Callable[[TrialCluster, KafkaServer, float], Sequence[str]]) -> None:
    """Print what `measure` returns for --seconds (45) and a server of --tree (this one), and its warnings."""
    options: Mapping[str, str] = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    with tempfile.TemporaryDirectory() as name, own_cluster(Path(name) / "kafka", 3) as cluster:
        server = KafkaServer(Path(name) / "server", cluster.bootstrap)
        if "--tree" in options:
            server.tree = Path(options["--tree"])
        with served_while(server):
            lines = measure(cluster, server, float(options.get("--seconds", "45")))
            print(*lines, sep="\n")
            print("\n".join(line for line in server.log.splitlines() if "warning" in line.lower())[-6_000:])
