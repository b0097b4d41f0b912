"""Transactions, while the servers that decide them are killed with SIGKILL again and again.

    python -m tests.crash.tx_run --seed 7 --rounds 100

Two producer proxies and a consumer proxy are processes of their own over one directory; one of them writes,
and another takes over when it is killed. Each round kills one of them, or several, now and then while they
start. Clients prepare, commit, roll back, leave transactions undecided, and members of their group answer
checks (tx_load.py); the rules are in tx_ledger.py. At the end what is undecided is ended by its client's
word, or by the time, and the topics are read. Prints the seed and the command that runs the same again; the
exit code is 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from ddmq_client.ranges import RangeReader
from ddmq_common.names import TRANSACTION_DEAD_TOPIC
from tests.crash.kill_nine import START_KILL_S, START_KILL_SHARE, scratch
from tests.crash.once_run import LOAD_S, configuration
from tests.crash.tx_ledger import Meant, TxLedger
from tests.crash.tx_load import TOPICS, TxClient, TxMember, TxWorker
from tests.scenarios.real_server import NotReady, RealServer, write_config

CLIENTS, MEMBERS = 8, 3
COMMANDS = ("producer", "producer", "consumer")
END_S = 240.0
REPORT_EVERY = 10
QUEUES = 4
CHECK_MS = 400  # after which a group is first asked, and between two checks


class TxRun:
    """One run."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.random = Random(f"{seed}/killer")
        self.say = say
        self.ledger = TxLedger()
        config = configuration(folder / "conf", Random(f"{seed}/conf"))
        periods = {"check_after_ms": CHECK_MS, "check_interval_ms": CHECK_MS, "shards": 8}
        few = {"outcomes_max": Random(f"{seed}/few").choice([20, 10_000])}
        write_config(folder / "conf", proxy_producer={"transactions": periods | few})
        self.servers = [RealServer(folder, config, command=command) for command in COMMANDS]
        self.kills = {"serving": 0, "starting": 0}
        self.clients = [TxClient(f"client-{n}", seed, self.ledger, self._ports) for n in range(CLIENTS)]
        self.members = [TxMember(f"member-{n}", seed, self.ledger, self._ports) for n in range(MEMBERS)]
        self.workers: list[TxWorker] = [*self.clients, *self.members]

    def _ports(self) -> list[int]:
        return [server.ports["producer"] for server in self.servers if "producer" in server.ports]

    def run(self, rounds: int) -> int:
        """Number of violations."""
        try:
            for server in self.servers:
                server.start()
            for topic in TOPICS:
                self.servers[0].admin("POST", "topics", topic, body={"create": True, "queues": QUEUES})
            for worker in self.workers:
                worker.start()
            for number in range(1, rounds + 1):
                self._round(number)
                if self.ledger.violations_count or any(worker.failure for worker in self.workers):
                    break
            self._end()
            assert len(self.ledger.known) > 5 * rounds, "too little was done to prove a thing"
        finally:
            for server in self.servers:
                server.kill()
        return self.ledger.violations_count

    def _round(self, number: int) -> None:
        self.workers[0].stopping.wait(self.random.uniform(*LOAD_S))
        victims = self.random.sample(self.servers, self.random.choice((1, 1, 1, 2, 3)))
        self._kill(victims, "serving")
        if self.random.random() < START_KILL_SHARE:
            for server in victims:
                server.launch()
            self.workers[0].stopping.wait(self.random.uniform(*START_KILL_S))
            self._kill(victims, "starting")
        for server in victims:
            server.start()
        if number % REPORT_EVERY == 0:
            self.report(f"round {number}")

    def _kill(self, victims: list[RealServer], when: str) -> None:
        for server in victims:
            server.kill()
            self.kills[when] += 1

    # --- the end

    def _end(self) -> None:
        for client in self.clients:
            client.stop()
        for client in self.clients:
            client.join()
        self._decide()
        for worker in self.members:
            worker.stop()
        for worker in self.members:
            worker.join()
        if self.ledger.violations_count:
            return
        read = self._stored(TOPICS), self._stored((TRANSACTION_DEAD_TOPIC,))
        self.ledger.finish(*read)

    def _decide(self) -> None:
        """Each ends by its client's word; the silent ones when they were asked often enough, or never, where
        none of their messages were stored."""
        last, deadline = self.clients[0], time.monotonic() + END_S
        last.stopping.clear()
        while left := self.ledger.undecided():
            assert time.monotonic() < deadline, f"{len(left)} are undecided after {END_S:g} s: {left[:3]}"
            for transaction, meant in left:
                if meant is not Meant.SILENT:
                    last.end(transaction, meant, None)
                else:
                    self._look_at(transaction)
            time.sleep(0.2)  # between two askings of all that are left, within END_S
        last.hang_up()

    def _look_at(self, transaction: str) -> None:
        """How a silent one stands: an end that is none tells."""
        self.clients[0].end(transaction, Meant.SILENT, None)

    def _stored(self, topics: tuple[str, ...]) -> list[bytes]:
        """All that is in the topics."""
        (address,) = [f"127.0.0.1:{s.ports['consumer']}" for s in self.servers if "consumer" in s.ports]
        found: list[bytes] = []
        there = [topic for topic in topics if self.servers[0].ask("GET", f"/topics/{topic}")[0] == 200]
        if not there:
            return found
        with RangeReader(address, "tx-reader", there, timeout_ms=int(END_S * 1_000)) as reader:
            for queue in reader.bounds():
                at = queue.first
                while at < queue.end:
                    read = reader.read(queue.topic, queue.queue, at)
                    found += [bytes(each.body) for each in read.messages]
                    at = read.next_offset
        return found

    def report(self, when: str) -> None:
        """One line."""
        counts = dataclasses.asdict(self.ledger.counts)
        counts["prepared"] = len(self.ledger.known)
        said = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
        kills = ", ".join(f"{count} {what}" for what, count in self.kills.items())
        self.say(f"{when}: kills {kills}; {said}")


def run(folder: Path, seed: int, rounds: int, say: Callable[[str], None] = print) -> int:
    """The number of broken promises; what was seen is said."""
    logging.getLogger("ddmq_client").setLevel(logging.CRITICAL)
    say(f"seed {seed}; the same again: python -m tests.crash.tx_run --seed {seed} --rounds {rounds}")
    one = TxRun(folder, seed, say)
    try:
        broken = one.run(rounds)
    except (NotReady, AssertionError) as error:
        one.ledger.violated(f"the run broke off: {error}")
        broken = one.ledger.violations_count
    one.report("end")
    for text in one.ledger.violations:
        say(f"BROKEN: {text}")
    say(f"{broken} promises broken" if broken else "each whole, once or never")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--dir", type=Path, help="where the data lies (default: the temporary folder)")
    given = parser.parse_args()
    with scratch(given.dir) as folder:
        if run(folder, given.seed, given.rounds):
            print(f"kept for inspection: {folder}")
            sys.exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
