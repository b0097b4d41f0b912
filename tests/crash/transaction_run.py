"""Transactions, while everything is killed with SIGKILL again and again: proxies, the writer, the clients.

    python -m tests.crash.transaction_run --seed 7 --transactions 10000

Two producer proxies and a consumer proxy are processes over one directory; one of them writes, another takes
over when it is killed. Two processes full of transactions (transaction_load.py) share a ledger. Each round
kills one or several of the five. At the end the ledger and the topics must agree to the row: each transaction
that is committed there is in the topics whole and once, and of no other one is anything; no check was asked
more than 15 times. Prints the seed and the command that runs the same again; the exit code is 1 when a
promise was broken.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random

from ddmq_client import Producer
from ddmq_client.ranges import RangeReader
from ddmq_client.sql.statements import opened
from tests.crash.kill_nine import scratch
from tests.crash.once_run import configuration
from tests.crash.transaction_load import GROUP, TOPICS, CrashLedger, Part
from tests.scenarios.real_server import NotReady, RealServer
from tests.support.waits import until

COMMANDS = ("producer", "producer", "consumer")
LOADS = ("one", "two")
LOAD_S = (0.05, 1.0)  # from a start to the next kill
CHECKS_MAX = 15
SETTLED_WITHIN_S = 240.0
BETWEEN_LOOKS_S = 1.5
SHOWN_MAX = 20
CHECKS = {"transactions": {"check_interval_ms": 500}}


def broken_rules(decisions: Mapping[str, str], stored: Iterable[Part], asked: Mapping[str, int]) -> list[str]:
    """What does not agree. `decisions`: by id, what the ledger says; `asked`: how often a check was."""
    found: dict[str, Counter[int]] = {}
    counts: dict[str, int] = {}
    for part in stored:
        found.setdefault(part.transaction, Counter())[part.index] += 1
        counts[part.transaction] = part.count
    broken = []
    for name, parts in found.items():
        if decisions.get(name) != "committed":
            broken.append(f"{name} is {decisions.get(name, 'not in the ledger')}, and {len(parts)} are seen")
        elif set(parts) != set(range(counts[name])):
            broken.append(f"of {name} only {sorted(parts)} of {counts[name]} are seen")
        elif max(parts.values()) > 1:
            broken.append(f"of {name} some are seen twice: {dict(parts)}")
    broken += [f"{name} is committed, and lost" for name in decisions if lost(name, decisions, found)]
    broken += [f"{name} was asked about {times} times" for name, times in asked.items() if times > CHECKS_MAX]
    return broken


def lost(name: str, decisions: Mapping[str, str], found: Mapping[str, object]) -> bool:
    """Committed in the ledger, and nothing of it is seen."""
    return decisions[name] == "committed" and name not in found


class TransactionRun:
    """One run."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._seed = seed
        self._say = say
        self._random = Random(f"{seed}/killer")
        self._ledger = CrashLedger(folder)
        config = configuration(folder / "conf", Random(f"{seed}/conf"))
        (config / "proxy_producer.yaml").write_text(json.dumps(CHECKS))
        self._servers = [RealServer(folder, config, command=command) for command in COMMANDS]
        self._loads: dict[str, subprocess.Popen[bytes]] = {}
        self._kills: Counter[str] = Counter()

    def run(self, transactions: int) -> list[str]:
        """What was broken."""
        try:
            for server in self._servers:
                server.start()
            for topic in TOPICS:
                self._servers[0].admin("POST", "topics", topic, body={"create": True, "queues": 3})
            self._ledger.create()
            for name in LOADS:
                self._begin(name)
            while self._committed() < transactions:
                self._round()
            for load in self._loads.values():
                self._end(load)
            self._settle()
            return broken_rules(self._decisions(), self._stored(), self._asked())
        finally:
            for load in self._loads.values():
                self._end(load)
            for server in self._servers:
                server.kill()

    def _begin(self, name: str) -> None:
        seed = f"{self._seed}/{self._kills.total()}"
        words = [str(self._folder), name, seed, *map(str, self._ports())]
        command = [sys.executable, "-m", "tests.crash.transaction_load", *words]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._loads[name] = subprocess.Popen(command, stderr=log)

    @staticmethod
    def _end(load: subprocess.Popen[bytes]) -> None:
        load.kill()
        load.wait()

    def _ports(self) -> list[int]:
        return [server.ports["producer"] for server in self._servers if "producer" in server.ports]

    def _round(self) -> None:
        time.sleep(self._random.uniform(*LOAD_S))  # load without a fault: its length is the seed's
        victims = self._random.sample([*self._servers, *LOADS], self._random.choice((1, 1, 1, 2, 3)))
        servers = [victim for victim in victims if isinstance(victim, RealServer)]
        for server in servers:
            server.kill()
            self._kills[server.command] += 1
        for name in LOADS:
            if name in victims:
                self._end(self._loads[name])
                self._kills["clients"] += 1
        for server in servers:
            server.start()
        for name in LOADS:
            if name in victims:
                self._begin(name)
        if self._kills.total() % 20 < len(victims):
            self.report("so far")

    def _settle(self) -> None:
        """Somebody of the group answers the rest."""
        places = [f"127.0.0.1:{port}" for port in self._ports()]
        with Producer(places, producer_group=GROUP, check=self._ledger.check, timeout_ms=5_000):
            until(self._none_is_open, "no transaction is open", SETTLED_WITHIN_S)

    def _none_is_open(self) -> bool:
        """At two looks, for a shard may be between two owners."""
        for _ in range(2):
            time.sleep(BETWEEN_LOOKS_S)  # a shard that nobody counts now has its next owner by then
            if self._open():
                return False
        return True

    def _open(self) -> float:
        producers = [server for server in self._servers if "producer" in server.ports]
        return sum(server.metric("ddmq_transactions_open") for server in producers)

    def _rows(self, query: str) -> list[tuple[str, int]]:
        with opened(self._ledger.connect) as database:
            return list(database.execute(query))

    def _committed(self) -> int:
        return len(self._rows("SELECT id, 1 FROM begun"))

    def _decisions(self) -> dict[str, str]:
        return {name: str(how) for name, how in self._rows("SELECT id, decision FROM ddmq_decisions")}

    def _asked(self) -> dict[str, int]:
        return dict(self._rows("SELECT id, COUNT(*) FROM asked GROUP BY id"))

    def _stored(self) -> list[Part]:
        """All that is in the topics."""
        (address,) = [f"127.0.0.1:{s.ports['consumer']}" for s in self._servers if "consumer" in s.ports]
        found: list[Part] = []
        with RangeReader(address, "crash-reader", TOPICS, timeout_ms=60_000) as reader:
            for queue in reader.bounds():
                at = queue.first
                while at < queue.end:
                    read = reader.read(queue.topic, queue.queue, at)
                    found += [Part(*json.loads(each.body)) for each in read.messages]
                    at = read.next_offset
        return found

    def report(self, when: str) -> None:
        """One line."""
        kills = ", ".join(f"{count} {what}" for what, count in sorted(self._kills.items()))
        ends = Counter(self._decisions().values())
        asked = Counter(self._asked().values())
        self._say(
            f"{when}: {dict(ends)}; kills {kills}; transactions by checks asked {dict(sorted(asked.items()))}"
        )


def run(folder: Path, seed: int, transactions: int, say: Callable[[str], None] = print) -> int:
    """The number of broken promises; what was seen is said."""
    say(
        f"seed {seed}; the same again: python -m tests.crash.transaction_run --seed {seed}"
        f" --transactions {transactions}"
    )
    one = TransactionRun(folder, seed, say)
    try:
        broken = one.run(transactions)
    except (NotReady, AssertionError) as error:
        broken = [f"the run broke off: {error}"]
    one.report("end")
    for text in broken[:SHOWN_MAX]:
        say(f"BROKEN: {text}")
    say(f"{len(broken)} promises broken" if broken else "ledger and topics agree: 0 lost, 0 twice, 0 in part")
    return len(broken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--dir", type=Path, help="where the data lies (default: the temporary folder)")
    given = parser.parse_args()
    logging.getLogger("ddmq_client").setLevel(logging.CRITICAL)  # it tells of every failed poll
    with scratch(given.dir) as folder:
        if run(folder, given.seed, given.transactions):
            print(f"kept for inspection: {folder}")
            sys.exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
