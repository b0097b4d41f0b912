"""The network between Kafka brokers and servers falls apart again and again under load; what came is checked.

    python -m tests.crash.kafka_partitions --seed 7 --rounds 100 --store-once all

Three brokers (replication 3, min.insync 2) and three `ddmq serve`, each in a network namespace of its own.
One more broker has a topic of its own and is away all the time.
Each round cuts links for some seconds and mends them: a broker from the other brokers, or from everybody; a
server from all brokers, or from one; everything into two groups of which one has the majority of the brokers;
or one direction of a link only. Clients always reach every server. Load and promises are those of
kafka_rounds.py. Needs root and `ip` (Debian: apt-get install iproute2); all traffic stays between the
namespaces. The exit code is 1 when a promise was broken, 2 where it cannot run.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ddmq.trial.cluster import Ports
from tests.crash.kafka.cluster import ClusterWithSpareBroker
from tests.crash.kafka.namespaces import Link, Namespaces, why_not
from tests.crash.kafka.run import SERVERS, STORE_ONCE, KafkaRun, judged
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.scenarios.real_server import RealServer, write_config

BROKERS = [f"b{number}" for number in (1, 2, 3)]
SPARE_BROKER = "b4"  # no link of it is cut
DDMQ_NODES = [f"s{number}" for number in range(SERVERS)]
LOAD_S = (2.0, 6.0)  # between two cuts
PARTITION_S = (1.0, 15.0)
PORTS = Ports(9092, 9093)  # each broker has an address of its own


class SpreadCluster(ClusterWithSpareBroker):
    """Brokers in namespaces."""

    def __init__(self, folder: Path, nodes: Namespaces) -> None:
        super().__init__(folder)
        self._nodes = nodes

    def host(self, number: int) -> str:
        return self._nodes.address(f"b{number}")

    def program(self, number: int) -> list[str]:
        return [*self._nodes.before(f"b{number}"), *super().program(number)]


class Partitions(KafkaRun):
    """One run."""

    def __init__(
        self, folder: Path, seed: int, nodes: Namespaces, store_once: str, print_line: PrintLine
    ) -> None:
        self.nodes = nodes
        cluster = SpreadCluster(folder / "kafka", nodes)
        cluster.make([PORTS] * (len(BROKERS) + 1))
        super().__init__(folder, seed, cluster, store_once, print_line)

    def server(self, folder: Path, number: int) -> RealServer:
        open_to_others = {**self.config, "ddmq": {"log_level": "info", "beyond_loopback": True}}
        config = write_config(folder / f"conf-{number}", **open_to_others)
        server = RealServer(folder / f"server-{number}", config)
        server.host, server.before = self.nodes.address(f"s{number}"), self.nodes.before(f"s{number}")
        return server

    def load_s(self) -> float:
        return self.random.uniform(*LOAD_S)

    def round(self) -> str:
        what, links = self.random.choice(
            (self._broker_from_brokers, self._broker_alone, self._server_from_brokers,
             self._server_from_one, self._groups, self._one_way)
        )()  # fmt: skip
        down_s = self.random.uniform(*PARTITION_S)
        self.happens(what, what.split(":")[0])
        self.nodes.disconnect(links)
        time.sleep(down_s)  # how long the fault lasts is part of the story
        self.nodes.mend()
        return f"{what} for {down_s:.1f} s"

    def _broker_from_brokers(self) -> tuple[str, list[Link]]:
        broker = self.random.choice(BROKERS)
        return f"broker from brokers: {broker}", _between([broker], BROKERS)

    def _broker_alone(self) -> tuple[str, list[Link]]:
        broker = self.random.choice(BROKERS)
        return f"broker from everybody: {broker}", _between([broker], [*BROKERS, *DDMQ_NODES])

    def _server_from_brokers(self) -> tuple[str, list[Link]]:
        server = self.random.choice(DDMQ_NODES)
        return f"server from brokers: {server}", _between([server], BROKERS)

    def _server_from_one(self) -> tuple[str, list[Link]]:
        server, broker = self.random.choice(DDMQ_NODES), self.random.choice(BROKERS)
        return f"server from one broker: {server}, {broker}", _between([server], [broker])

    def _groups(self) -> tuple[str, list[Link]]:
        brokers, ddmq_nodes = self.random.sample(BROKERS, 3), self.random.sample(DDMQ_NODES, 3)
        minority = [brokers[0], *ddmq_nodes[: self.random.randrange(1, 3)]]
        majority = [node for node in (*BROKERS, *DDMQ_NODES) if node not in minority]
        return f"two groups: {' '.join(minority)} | {' '.join(majority)}", _between(minority, majority)

    def _one_way(self) -> tuple[str, list[Link]]:
        sender, other = self.random.choice(BROKERS), self.random.choice([*BROKERS, *DDMQ_NODES])
        if sender == other:
            return self._one_way()
        if self.random.random() < 0.5:
            sender, other = other, sender
        return f"one way: {sender} to {other}", [(sender, other)]

    def end(self) -> None:
        self.nodes.mend()
        super().end()


def _between(some: list[str], others: list[str]) -> list[Link]:
    """Both directions of every link between two groups."""
    pairs = [(one, other) for one in some for other in others if one != other]
    return [*pairs, *((other, one) for one, other in pairs)]


def run(
    folder: Path, seed: int, rounds: int, store_once: str = STORE_ONCE[0], print_line: PrintLine = print
) -> list[str]:
    """Report what the run sees, and return the broken promises."""
    options = {"seed": seed, "rounds": rounds, "store-once": store_once}
    print_line("the same again: " + replay_command("kafka_partitions", **options))
    nodes = Namespaces([*BROKERS, SPARE_BROKER, *DDMQ_NODES])
    try:
        return judged(Partitions(folder, seed, nodes, store_once, print_line), rounds)
    finally:
        nodes.close()


def main() -> int:
    if reason := why_not():
        print(f"NO PARTITION IS TESTED: {reason}")
        return 2
    return long_run(__doc__, "kafka-partitions", run, seed=None, rounds=200, store_once=STORE_ONCE)


if __name__ == "__main__":
    sys.exit(main())
