"""Transactions, while everything is killed with SIGKILL again and again: proxies, the writer, the clients.

    python -m tests.crash.transaction_run --seed 7 --transactions 10000 [--kafka]

Two producer proxies and a consumer proxy are processes over one directory; one of them writes, another takes
over when it is killed. Two processes full of transactions (transaction_load.py) share a ledger. Each round
kills one or several of the five. At the end the ledger and the topics must agree to the row: each transaction
that is committed there is in the topics whole and once, and of no other one is anything; no check was asked
more than 15 times. Prints the seed and the command that runs the same again; the exit code is 1 when a
promise was broken.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from ddmq_client import Producer
from ddmq_client.sql.statements import open_transaction
from tests.crash.kit.boundaries import make_boundary_servers
from tests.crash.kit.boundary_process import CHECK, END, PREPARE
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.crash.kit.kill_run import COMMANDS, configuration, judged
from tests.crash.kit.process_rounds import ProcessRounds
from tests.crash.kit.reading import read_on
from tests.crash.transaction_load import GROUP, TOPICS, CrashLedger, TxMessage
from tests.scenarios.real_server import write_config
from tests.support.installations import Installation, installed
from tests.support.waits import until

CHECKS_MAX = 15
SETTLED_WITHIN_S = 240.0
CHECK_WITHIN_S = 90.0
BETWEEN_LOOKS_S = 1.5
CHECKS = {"transactions": {"check_interval_ms": 500}}


def broken_rules(
    decisions: Mapping[str, str], stored: Iterable[TxMessage], checks: Mapping[str, int]
) -> list[str]:
    """What does not agree. `decisions`: by id, what the ledger says; `checks`: how often each was checked."""
    copies_of: dict[str, Counter[int]] = {}
    counts: dict[str, int] = {}
    for message in stored:
        copies_of.setdefault(message.transaction, Counter())[message.index] += 1
        counts[message.transaction] = message.count
    broken = []
    for name, copies in copies_of.items():
        if decisions.get(name) != "committed":
            broken.append(f"{name} is {decisions.get(name, 'not in the ledger')}, and {len(copies)} are seen")
        elif set(copies) != set(range(counts[name])):
            broken.append(f"of {name} only {sorted(copies)} of {counts[name]} are seen")
        elif max(copies.values()) > 1:
            broken.append(f"of {name} some are seen twice: {dict(copies)}")
    broken += [f"{name} is committed, and lost" for name in decisions if lost(name, decisions, copies_of)]
    broken += [
        f"{name} was asked about {times} times" for name, times in checks.items() if times > CHECKS_MAX
    ]
    return broken


def lost(name: str, decisions: Mapping[str, str], copies_of: Mapping[str, object]) -> bool:
    """Committed in the ledger, and nothing of it is seen."""
    return decisions[name] == "committed" and name not in copies_of


class TransactionRun(ProcessRounds):
    """One run."""

    module = "tests.crash.transaction_load"
    load_s = (0.05, 1.0)
    boundary_names = {"producer": (PREPARE, END, CHECK)}

    def __init__(self, folder: Path, seed: int, print_line: PrintLine, installation: Installation) -> None:
        config = configuration(folder / "conf", seed)
        write_config(folder / "conf", proxy_producer=CHECKS)
        servers = make_boundary_servers(folder, config, COMMANDS, installation)
        super().__init__(folder, seed, print_line, servers)
        self._database = CrashLedger(folder)
        self._broken: list[str] = []

    def prepare(self) -> None:
        for topic in TOPICS:
            self.servers[0].admin("POST", "topics", topic, body={"create": True, "queues": 3})
        self._database.create()

    def words(self, name: str, seed: str) -> list[str]:
        return [str(self.folder), name, seed, *map(str, self.ports())]

    def is_enough(self, length: int) -> bool:
        return self.progress() >= length

    def progress(self) -> int:
        return len(self._rows("SELECT id, 1 FROM begun"))

    def settle(self) -> None:
        """Somebody of the group answers the rest."""
        for load in self.loads.values():
            self.end(load)
        check = self._database.check
        with Producer(self.addresses(), producer_group=GROUP, check=check, timeout_ms=5_000):
            until(self._none_is_open, "no transaction is open", SETTLED_WITHIN_S)
            self._broken = self._find_broken()

    def _find_broken(self) -> list[str]:
        """What is broken, if it stays so: a shard may have no owner yet that counts what is open, and what is
        committed may be behind what a killed process left open in Kafka."""
        deadline = time.monotonic() + CHECK_WITHIN_S
        while True:
            broken = broken_rules(self._decisions(), self._stored(), self._checks())
            if not broken or time.monotonic() >= deadline:
                return broken
            time.sleep(BETWEEN_LOOKS_S)

    def broken(self) -> list[str]:
        return self._broken

    def _none_is_open(self) -> bool:
        """At two looks, for a shard may be between two owners."""
        for _ in range(2):
            time.sleep(BETWEEN_LOOKS_S)  # a shard that nobody counts now has its next owner by then
            if self._open():
                return False
        return True

    def _open(self) -> float:
        producers = [server for server in self.servers if "producer" in server.ports]
        return sum(server.metric("ddmq_transactions_open") for server in producers)

    def _rows(self, query: str) -> list[tuple[str, int]]:
        with open_transaction(self._database.connect) as database:
            return list(database.execute(query))

    def _decisions(self) -> dict[str, str]:
        return {name: str(how) for name, how in self._rows("SELECT id, decision FROM ddmq_decisions")}

    def _checks(self) -> dict[str, int]:
        return dict(self._rows("SELECT id, COUNT(*) FROM asked GROUP BY id"))

    def _stored(self) -> list[TxMessage]:
        """All that is in the topics."""
        return [TxMessage(*json.loads(each.body)) for _, each in read_on(self.addresses("consumer"), TOPICS)]

    def numbers(self) -> str:
        ends = dict(Counter(self._decisions().values()))
        checks = dict(sorted(Counter(self._checks().values()).items()))
        return f"{ends}; transactions by checks asked {checks}"


def run(
    folder: Path, seed: int, transactions: int, print_line: PrintLine = print, *, kafka: bool = False,
    boundaries: bool = False,
) -> int:  # fmt: skip
    """Report what the run sees, and return the number of broken promises."""
    options = {"seed": seed, "transactions": transactions, "kafka": kafka, "boundaries": boundaries}
    print_line("the same again: " + replay_command("transaction_run", **options))
    success_text = "ledger and topics agree: 0 lost, 0 twice, 0 in part"
    with installed("kafka" if kafka else "file_log") as installation:
        return judged(
            TransactionRun(folder, seed, print_line, installation),
            transactions,
            success_text,
            boundaries=boundaries,
        )


def main() -> int:
    flags = {"kafka": False, "boundaries": False}
    return long_run(__doc__, "transaction-run", run, seed=None, transactions=10_000, **flags)


if __name__ == "__main__":
    sys.exit(main())
