"""Brokers and servers on Kafka are killed and stopped at random moments under load, and what came is checked.

    python -m tests.crash.kafka_rounds --seed 7 --rounds 200 --brokers 3 --store-once all

Three brokers (replication 3, min.insync 2), or one, and three `ddmq serve` with their delay services.
One more broker has a topic of its own and is away all the time.
Clients send plain, ordered, delayed (some cancelled, some repeated) and failing messages all the time and
consume them. Each round ends one process by kill -9, or stops it for some seconds: a broker, a server, or at
times one of each. In the end: nothing acknowledged is lost, no message of a key was given before each earlier
one was done, no delayed message came early, got lost or is stored twice, every cancel was told the truth, and
what failed went through each step of the retry path once. Prints the seed, the counts and the hand-over
times; the exit code is 1 when a promise was broken.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ddmq.trial.cluster import Ports, free_ports
from tests.crash.kafka.cluster import ClusterWithSpareBroker
from tests.crash.kafka.run import READY_S, STORE_ONCE, KafkaRun, judged
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

LOAD_S = (1.0, 6.0)  # before a fault
DOWN_S = (0.2, 6.0)  # after a kill
STOPPED_S = (1.0, 8.0)
# On a busy machine brokers take each other for dead after the 2 s of a trial; Kafka's own default is 9 s. A
# broker may need more than a minute until it knows the others.
BUSY = {
    "broker.session.timeout.ms": "6000",
    "controller.quorum.fetch.timeout.ms": "6000",
    "initial.broker.registration.timeout.ms": "600000",
}
BROKER_SHARE, BOTH_SHARE, STOP_SHARE = 0.35, 0.15, 0.4


class Rounds(KafkaRun):
    """One run."""

    def __init__(self, folder: Path, seed: int, brokers: int, store_once: str, print_line: PrintLine) -> None:
        cluster = ClusterWithSpareBroker(folder / "kafka", BUSY)
        ports = free_ports(2 * (brokers + 1))
        cluster.make([Ports(*pair) for pair in zip(ports[::2], ports[1::2], strict=True)])
        super().__init__(folder, seed, cluster, store_once, print_line)
        self.ready_s: list[float] = []

    def end(self) -> None:
        for server in self.servers:
            self._signal(server, signal.SIGCONT)
        super().end()

    def load_s(self) -> float:
        return self.random.uniform(*LOAD_S)

    def round(self) -> str:
        brokers, servers = [], []
        broker, server = self.random.choice(self.cluster.voters), self.random.choice(self.servers)
        chance = self.random.random()
        if chance < BROKER_SHARE + BOTH_SHARE:
            brokers.append(broker)
        if chance >= BROKER_SHARE:
            servers.append(server)
        stopped = self.random.random() < STOP_SHARE
        down_s = self.random.uniform(*(STOPPED_S if stopped else DOWN_S))
        names = [f"broker {n}" for n in brokers] + [f"server {self.servers.index(s)}" for s in servers]
        what = f"{'stop' if stopped else 'kill'} {' and '.join(names)}"
        self.happens(what, *(f"{'stop' if stopped else 'kill'} {name.partition(' ')[0]}" for name in names))
        for number in brokers:
            self.cluster.signal(number, signal.SIGSTOP if stopped else signal.SIGKILL)
        for each in servers:
            if stopped:
                self._signal(each, signal.SIGSTOP)
            else:
                each.kill()
        time.sleep(down_s)  # how long the fault lasts is part of the story
        began = time.monotonic()
        for number in brokers:
            self._revive(number, stopped)
        for each in servers:
            if stopped:
                self._signal(each, signal.SIGCONT)
            else:
                each.start()
        if not stopped:
            self.ready_s.append(time.monotonic() - began)
        return f"{what} for {down_s:.1f} s, again in {time.monotonic() - began:.1f} s"

    def _revive(self, number: int, stopped: bool) -> None:
        if stopped:
            self.cluster.signal(number, signal.SIGCONT)
        else:
            until(lambda: self.cluster.pid(number) is None, "the broker is gone")
            self.cluster.start([number], READY_S)

    @staticmethod
    def _signal(server: RealServer, what: signal.Signals) -> None:
        if server.process is not None and server.process.poll() is None:
            os.killpg(server.pid, what)

    def report(self) -> None:
        super().report()
        if self.ready_s:
            self.print_line(f"  ready again after a kill: at most {max(self.ready_s):.1f} s")


def run(
    folder: Path,
    seed: int,
    rounds: int,
    brokers: int,
    store_once: str = STORE_ONCE[0],
    print_line: PrintLine = print,
) -> list[str]:
    """Report what the run sees, and return the broken promises."""
    options = {"seed": seed, "rounds": rounds, "brokers": brokers, "store-once": store_once}
    print_line("the same again: " + replay_command("kafka_rounds", **options))
    return judged(Rounds(folder, seed, brokers, store_once, print_line), rounds)


def main() -> int:
    return long_run(
        __doc__, "kafka-rounds", run, seed=None, rounds=200, brokers=(3, 1), store_once=STORE_ONCE
    )


if __name__ == "__main__":
    sys.exit(main())
