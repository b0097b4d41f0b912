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

import sys
import time
from pathlib import Path
from random import Random

from ddmq_common.names import TRANSACTION_DEAD_TOPIC
from tests.crash.kit.boundaries import BoundaryServer
from tests.crash.kit.boundary_process import CHECK, END, GIVE_UP, PREPARE
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.crash.kit.kill_run import COMMANDS, configuration, describe_counts, judged
from tests.crash.kit.load_thread import stopped
from tests.crash.kit.reading import read_on
from tests.crash.kit.server_rounds import ServerRounds
from tests.crash.tx_ledger import Meant, TxLedger
from tests.crash.tx_load import TOPICS, TxClient, TxMember
from tests.scenarios.real_server import write_config

CLIENTS, MEMBERS = 8, 3
END_S = 240.0
QUEUES = 4
CHECK_MS = 400  # after which a group is first asked, and between two checks


class TxRun(ServerRounds):
    """One run."""

    ledger: TxLedger
    boundary_names = {"producer": (PREPARE, END, CHECK, GIVE_UP)}

    def __init__(self, folder: Path, seed: int, print_line: PrintLine) -> None:
        config = configuration(folder / "conf", seed)
        periods = {"check_after_ms": CHECK_MS, "check_interval_ms": CHECK_MS, "shards": 8}
        few = {"outcomes_max": Random(f"{seed}/few").choice([20, 10_000])}
        write_config(folder / "conf", proxy_producer={"transactions": periods | few})
        servers = [BoundaryServer(folder, config, command=command) for command in COMMANDS]
        super().__init__(seed, print_line, servers, TxLedger())
        self.clients = [TxClient(f"client-{n}", seed, self.ledger, self.ports) for n in range(CLIENTS)]
        self.members = [TxMember(f"member-{n}", seed, self.ledger, self.ports) for n in range(MEMBERS)]
        self.workers = [*self.clients, *self.members]

    def prepare(self) -> None:
        for topic in TOPICS:
            self.servers[0].admin("POST", "topics", topic, body={"create": True, "queues": QUEUES})

    def is_proof(self, rounds: int) -> bool:
        return len(self.ledger.transactions) > 5 * rounds

    def numbers(self) -> str:
        self.ledger.counts.prepared = len(self.ledger.transactions)
        return describe_counts(self.ledger.counts)

    # --- the end

    def end(self) -> None:
        stopped(self.clients)
        self._decide()
        stopped(self.members)
        if not self.ledger.violations_count:
            self.ledger.finish(self._stored(TOPICS), self._stored((TRANSACTION_DEAD_TOPIC,)))

    def _decide(self) -> None:
        """Each ends by its client's word; the silent ones when they were asked often enough, or never, where
        none of their messages were stored."""
        last, deadline = self.clients[0], time.monotonic() + END_S
        last.stopping.clear()
        while undecided := self.ledger.undecided():
            assert time.monotonic() < deadline, (
                f"{len(undecided)} are undecided after {END_S:g} s: {undecided[:3]}"
            )
            for transaction, intent in undecided:
                if intent is not Meant.SILENT:
                    last.end(transaction, intent, None)
                else:
                    self._check_state(transaction)
            time.sleep(0.2)  # between two askings of all that are left, within END_S
        last.hang_up()

    def _check_state(self, transaction: str) -> None:
        """How a silent one stands: an end that is none tells."""
        self.clients[0].end(transaction, Meant.SILENT, None)

    def _stored(self, topics: tuple[str, ...]) -> list[bytes]:
        """All that is in the topics."""
        there = [topic for topic in topics if self.servers[0].request("GET", f"/topics/{topic}")[0] == 200]
        if not there:
            return []
        return [bytes(each.body) for _, each in read_on(self.addresses("consumer"), there)]


def run(
    folder: Path, seed: int, rounds: int, print_line: PrintLine = print, *, boundaries: bool = False
) -> int:
    """Report what the run sees, and return the number of broken promises."""
    print_line("the same again: " + replay_command("tx_run", seed=seed, rounds=rounds, boundaries=boundaries))
    return judged(TxRun(folder, seed, print_line), rounds, "each whole, once or never", boundaries=boundaries)


def main() -> int:
    return long_run(__doc__, "tx-run", run, seed=None, rounds=100, boundaries=False)


if __name__ == "__main__":
    sys.exit(main())
