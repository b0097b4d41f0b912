"""The bank's story: start a server and two services, kill all of them again and again, count the money.

Proven is what the two ledgers say in the end, when everything has settled: what left one bank has come to the
other, transfer by transfer and each once, and the sum of all accounts is what it was.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click

from ddmq.cli.admin_client import AdminClient
from ddmq.cli.values import Folder
from ddmq.demo.bank.service import ACCOUNTS, BALANCE, Bank
from ddmq.demo.server import DemoServer, Narrator, Typed

NAMES = ("paris", "tokyo")
KILL_EVERY_S = (0.3, 1.5)
SETTLED_WITHIN_S = 240.0
POLL_INTERVAL_S = 0.2
NARRATOR = Narrator(verbose=True)
CHECKS = "transactions:\n  check_interval_ms: 2000\n"  # so that nobody has to wait for a minute


@click.command()
@click.option("--transfers", default=200, show_default=True, help="Transfers that each bank sends.")
@click.option("--kills", default=20, show_default=True, help="How often a process is killed, at least.")
@click.option("--seed", type=int, help="Seed of the kills (default: random).")
@click.option(
    "--folder",
    type=Folder(path_type=Path),
    help="Keep all files in this folder (default: none are kept).",
)
def bank(transfers: int, kills: int, seed: int | None, folder: Path | None) -> None:
    """Money moves between two banks by transactional messages, while every process is killed at random."""
    seed = random.randrange(1_000_000) if seed is None else seed
    NARRATOR.print_step(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="ddmq-bank-") as scratch:
        story = BankStory(folder or Path(scratch), transfers, kills, random.Random(seed))
        if not story.run():
            raise SystemExit(1)


class BankStory:
    """The steps of the bank demo, and its output."""

    def __init__(self, folder: Path, transfers: int, kills: int, chance: random.Random) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._transfers = transfers
        self._kills = kills
        self._chance = chance
        self._server = DemoServer(folder / "data", proxy_producer=CHECKS)
        self._typed = Typed(NARRATOR)
        self._banks = {
            name: Bank(name, peer, folder) for name, peer in zip(NAMES, reversed(NAMES), strict=True)
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: Counter[str] = Counter()

    def run(self) -> bool:
        """Run all steps. Returns True if everything was proven."""
        NARRATOR.print_step(f"ready after {self._server.start():.2f} s")
        self._typed.use_server(self._server.addresses)
        try:
            for name in NAMES:
                self._typed(f"topic create to-{name}")
                self._typed(f"group create {name} --topic to-{name} --start first")
            NARRATOR.print_step(
                f"each bank has {ACCOUNTS} accounts with {BALANCE} each and sends {self._transfers} transfers"
            )
            for name, one in self._banks.items():
                one.create()
                self._begin(name)
            self._kill_all_the_time()
            settled = self._wait_until(self._is_settled, SETTLED_WITHIN_S)
            self._typed("lag")
            self._typed("tx list")
            return self._check_balances() and settled
        finally:
            for service in self._running.values():
                service.kill()
                service.wait()
            self._server.stop()

    def _begin(self, name: str) -> None:
        addresses = [str(self._server.addresses[component]) for component in ("producer", "consumer")]
        arguments = [name, self._banks[name].peer, str(self._folder), str(self._transfers), *addresses]
        command = [sys.executable, "-P", "-m", "ddmq.demo.bank.service", *arguments]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, stderr=log)

    def _kill_all_the_time(self) -> None:
        """Kill and restart random processes until the planned number is reached and all transfers are
        sent."""
        victims = [*NAMES, "server"]
        while self._killed.total() < self._kills or not self._all_sent():
            time.sleep(self._chance.uniform(*KILL_EVERY_S))
            victim = self._chance.choice(victims)
            self._killed[victim] += 1
            if victim == "server":
                self._server.kill()
                self._server.start()
            else:
                self._running[victim].kill()
                self._running[victim].wait()
                self._begin(victim)
        NARRATOR.print_step(
            f"kill -9: {', '.join(f'{count} times {name}' for name, count in sorted(self._killed.items()))}"
        )

    def _all_sent(self) -> bool:
        return all(one.sent() >= self._transfers for one in self._banks.values())

    def _is_settled(self) -> bool:
        """Return whether every sent transfer was received and every transaction is decided."""
        answer = AdminClient(self._server.addresses["admin"]).get("transactions")
        if answer["open"] or not answer["whole"]:
            return False
        return all(
            self._transfers_in(one.name, "sent") == self._received_transfers(one)
            for one in self._banks.values()
        )

    def _received_transfers(self, bank: Bank) -> dict[str, int]:
        return self._transfers_in(bank.peer, "received")

    def _transfers_in(self, name: str, table: str) -> dict[str, int]:
        return dict(self._query_bank(name, f"SELECT transfer, amount FROM {table}"))

    def _query_bank(self, name: str, query: str) -> list[tuple[str, int]]:
        with self._banks[name].ledger() as ledger:
            return ledger.execute(query).fetchall()

    @staticmethod
    def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_INTERVAL_S)
        return True

    def _check_balances(self) -> bool:
        before = len(NAMES) * ACCOUNTS * BALANCE
        after = sum(
            balance
            for name in NAMES
            for _, balance in self._query_bank(name, "SELECT name, balance FROM accounts")
        )
        proven = before == after
        facts = {}
        for one in self._banks.values():
            sent, received = self._transfers_in(one.name, "sent"), self._received_transfers(one)
            proven = proven and sent == received
            facts[f"{one.name} to {one.peer}"] = (
                f"{len(sent):,} transfers of {sum(sent.values()):,} left, "
                f"{len(received):,} of {sum(received.values()):,} came"
            )
        abandoned = sum(
            count
            for name in NAMES
            for _, count in self._query_bank(
                name,
                "SELECT decision, COUNT(*) FROM ddmq_decisions WHERE decision = 'rolled back' GROUP BY 1",
            )
        )
        facts["given up"] = f"{abandoned:,} transactions whose service was killed before its ledger's commit"
        NARRATOR.print_facts({**facts, "money": f"{before:,} before, {after:,} after"})
        NARRATOR.print_step("no money was made or lost" if proven else "NOT PROVEN: see above")
        return proven
