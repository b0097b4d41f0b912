"""Brokers and servers on Kafka are killed and stopped at random moments under load, and what came is checked.

    python -m tests.crash.kafka_rounds --seed 7 --rounds 200 --brokers 3

Three brokers (replication 3, min.insync 2), or one, and three `ddmq serve` with their delay services.
Clients send plain, ordered and delayed messages all the time and consume them. Each round ends one process
by kill -9, or stops it for some seconds: a broker, a server, or at times one of each. In the end: nothing
acknowledged is lost, no message of a key was given before each earlier one was done, no delayed message
came early, got lost or is stored twice. Prints the seed, the counts and the hand-over times; the exit code
is 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, KafkaError, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer

from ddmq.trial.cluster import Ports, TrialCluster, free_ports
from tests.crash.kafka_rounds_load import (
    GROUPS,
    QUEUES,
    TOPICS,
    Account,
    Sender,
    Stored,
    consumer,
)
from tests.scenarios.real_server import NotReady, RealServer, write_config
from tests.support.waits import until

SERVERS = 3
LOAD_S = (1.0, 6.0)  # before a fault
DOWN_S = (0.2, 6.0)  # after a kill
STOPPED_S = (1.0, 8.0)
BROKER_SHARE, BOTH_SHARE, STOP_SHARE = 0.35, 0.15, 0.4
DRAIN_S = 180.0
READ_S = 30.0
STEADY_S = 8.0  # more than the longest delay: what was of unknown outcome has come by then
FOREVER = {"max_timeout_redeliveries": -1, "ack_timeout_ms": 5_000, "start": "first"}
SETTINGS = {
    "any": {**FOREVER, "retry_intervals_ms": [100, -1]},
    "in-order": {**FOREVER, "order_key": "KEY", "order_scope": "topic", "ordered_deliveries_max": -1},
}


class Rounds:
    """One run."""

    def __init__(self, folder: Path, seed: int, brokers: int, say: Callable[[str], None]) -> None:
        self.random = Random(f"{seed}/faults")
        self.seed, self.say = seed, say
        self.cluster = TrialCluster(folder / "kafka")
        self.cluster.make([Ports(*free_ports(2)) for _ in range(brokers)])
        tree = {"engine": "kafka", "kafka": {"bootstrap": self.cluster.bootstrap}}
        self.servers = []
        for number in range(SERVERS):
            config = write_config(folder / f"conf-{number}", backend=tree, ddmq={"log_level": "info"})
            self.servers.append(RealServer(folder / f"server-{number}", config))
        self.account = Account()
        self.done: Counter[str] = Counter()
        self.times: list[tuple[str, int]] = []  # what happened, when (epoch ms)
        self.ready_s: list[float] = []

    def run(self, rounds: int) -> list[str]:
        """What was broken."""
        try:
            self.cluster.start()
            for server in self.servers:
                server.start()
            self._prepare()
            return self._under_load(rounds)
        finally:
            for server in self.servers:
                self._signal(server, signal.SIGCONT)
                server.kill()
            for number in self.cluster.brokers:
                self.cluster.signal(number, signal.SIGKILL)

    def _prepare(self) -> None:
        for topic in TOPICS:
            self._post(f"/topics/{topic}", {"create": True, "queues": QUEUES})
        for group, topics in GROUPS.items():
            self._post(f"/groups/{group}", {"topics": topics, **SETTINGS[group]})

    def _post(self, target: str, body: dict[str, object]) -> None:
        """Until it is taken: a cluster that has just begun may ask for it again."""
        answer: object = None

        def taken() -> bool:
            nonlocal answer
            status, answer = self.servers[0].ask("POST", target, body)
            return status == 200

        until(taken, lambda: f"{target}: {answer}")

    def _addresses(self, part: str) -> str:
        return ",".join(f"127.0.0.1:{server.ports[part]}" for server in self.servers)

    def _under_load(self, rounds: int) -> list[str]:
        producers, consumers = self._addresses("producer"), self._addresses("consumer")
        senders = [
            Sender(f"{t}-{n}", t, self.seed, producers, self.account) for t in TOPICS for n in range(2)
        ]
        clients = [
            consumer(group, n, self.seed, consumers, self.account) for group in GROUPS for n in range(2)
        ]
        for each in (*senders, *clients):
            each.start()
        for number in range(1, rounds + 1):
            time.sleep(self.random.uniform(*LOAD_S))  # load without a fault: its length is the seed's
            self._look()
            self.say(f"round {number}: {self._round()}")
        time.sleep(LOAD_S[1])  # load after the last fault
        self._look()
        for sender in senders:
            sender.over.set()
        for sender in senders:
            sender.join(60)
            if sender.failure is not None:
                raise sender.failure
        stored = self._drained()
        for client in clients:
            client.stop()
        return self.account.judge(stored)

    # --- faults

    def _look(self) -> None:
        """A server that has ended by itself is a fault; it is started again."""
        for number, server in enumerate(self.servers):
            if server.process is not None and server.process.poll() is not None:
                last = server.log.splitlines()[-1:]
                self.account.faults.append(f"ENDED: server {number} ended by itself: {last}")
                server.start()

    def _round(self) -> str:
        brokers, servers = [], []
        broker, server = self.random.choice(self.cluster.brokers), self.random.choice(self.servers)
        chance = self.random.random()
        if chance < BROKER_SHARE + BOTH_SHARE:
            brokers.append(broker)
        if chance >= BROKER_SHARE:
            servers.append(server)
        stopped = self.random.random() < STOP_SHARE
        down_s = self.random.uniform(*(STOPPED_S if stopped else DOWN_S))
        names = [f"broker {n}" for n in brokers] + [f"server {self.servers.index(s)}" for s in servers]
        what = f"{'stop' if stopped else 'kill'} {' and '.join(names)}"
        self.done.update(f"{'stop' if stopped else 'kill'} {name.partition(' ')[0]}" for name in names)
        self.times.append((what, time.time_ns() // 1_000_000))
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
            self._again(number, stopped)
        for each in servers:
            if stopped:
                self._signal(each, signal.SIGCONT)
            else:
                each.start()
        if not stopped:
            self.ready_s.append(time.monotonic() - began)
        return f"{what} for {down_s:.1f} s, again in {time.monotonic() - began:.1f} s"

    def _again(self, number: int, stopped: bool) -> None:
        if stopped:
            self.cluster.signal(number, signal.SIGCONT)
        else:
            until(lambda: self.cluster.pid(number) is None, "the broker is gone")
            self.cluster.start([number])

    @staticmethod
    def _signal(server: RealServer, what: signal.Signals) -> None:
        if server.process is not None and server.process.poll() is None:
            os.killpg(server.pid, what)

    # --- the end

    def _drained(self) -> list[Stored]:
        """Everything that is stored, when all of it is done, or the patience is over."""
        began = time.monotonic()
        stored = self._read()
        while time.monotonic() < began + DRAIN_S:
            left = self.account.unfinished(stored)
            if not left and time.monotonic() > began + STEADY_S:
                break
            time.sleep(2)  # between two readings of everything, within DRAIN_S
            stored = self._read()
        self.say(f"drained in {time.monotonic() - began:.0f} s, {len(self.account.unfinished(stored))} left")
        return stored

    def _read(self) -> list[Stored]:
        """What any consumer of Kafka finds in the topics, up to the last committed record."""
        client = KafkaConsumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "the-truth",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        open_queues = {(topic, queue) for topic in TOPICS for queue in range(QUEUES)}
        client.assign([TopicPartition(*queue, OFFSET_BEGINNING) for queue in sorted(open_queues)])
        found: list[Stored] = []
        end = time.monotonic() + READ_S
        try:
            while open_queues and time.monotonic() < end:
                for each in client.consume(500, 0.2):
                    topic, queue = each.topic(), each.partition()
                    error = each.error()
                    if error is None:
                        kind, at_ms = each.timestamp()
                        assert kind == TIMESTAMP_LOG_APPEND_TIME, "the topic has the producer's times"
                        place = topic, queue, each.offset()
                        found.append(Stored(place, each.value() or b"", each.key() or b"", at_ms))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_queues.discard((topic, queue))
        finally:
            client.close()
        return found

    def report(self) -> None:
        """For people."""
        account = self.account
        self.say(f"faults: {dict(self.done)}; sent: {dict(sorted(account.sent.items()))}")
        self.say(
            f"given {len(account.given)}, done {len(account.ended)}, failed {account.fails.total()} times, "
            f"given again after it was done {account.again} (the latest {account.last_again_s:.1f} s after)"
        )
        for place, (what, at_ms) in enumerate(self.times):
            until_ms = self.times[place + 1][1] if place + 1 < len(self.times) else at_ms + 60_000
            took = account.handed_over_s(at_ms, until_ms)
            self.say(f"  {what}: every queue went on after {'?' if took is None else f'{took:.1f}'} s")
        if self.ready_s:
            self.say(f"  ready again after a kill: at most {max(self.ready_s):.1f} s")


def run(folder: Path, seed: int, rounds: int, brokers: int, say: Callable[[str], None] = print) -> list[str]:
    """The broken promises; what was seen is said."""
    say(f"seed {seed}; the same again: python -m tests.crash.kafka_rounds{_flags(seed, rounds, brokers)}")
    running = Rounds(folder, seed, brokers, say)
    try:
        broken = running.run(rounds)
    except (NotReady, AssertionError) as error:
        broken = [f"the run broke off: {error}"]
    running.report()
    for text in broken[:40]:
        say(f"BROKEN: {text}")
    say(f"{len(broken)} broken" if broken else "0 lost, 0 out of order, 0 early, 0 twice")
    return broken


def _flags(seed: int, rounds: int, brokers: int) -> str:
    return f" --seed {seed} --rounds {rounds} --brokers {brokers}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument(
        "--dir", type=Path, help="where the data lies (default: the system's temporary folder)"
    )
    given = parser.parse_args()
    logging.getLogger("ddmq_client").setLevel(logging.CRITICAL)  # it tells of every failed handler
    folder = Path(tempfile.mkdtemp(prefix="kafka-rounds-", dir=given.dir))
    say = lambda text: print(time.strftime("%H:%M:%S"), text, flush=True)  # noqa: E731
    broken = run(folder, given.seed, given.rounds, given.brokers, say)
    if broken:
        print(f"kept for inspection: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
