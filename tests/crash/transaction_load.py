"""A process full of transactions, which may be killed at any moment: one of those of transaction_run.py.

    python -m tests.crash.transaction_load FOLDER NAME SEED PORT PORT

Its threads begin transactions of one to four messages to several topics. The local work is a row of the
ledger that all these processes share; some are rolled back, some left to the check on either side of the
local commit.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

from ddmq_client import Decision, Producer, SendError, TransactionError, UndecidedTransaction
from ddmq_client.sql import DecisionTable
from ddmq_client.sql.statements import open_transaction

TOPICS = ("tx-a", "tx-b", "tx-c")
GROUP = "crash"
THREADS = 4
MESSAGES_MAX = 4
CHECK_AFTER = timedelta(milliseconds=300)
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS asked (id TEXT, number INTEGER)",
    "CREATE TABLE IF NOT EXISTS begun (id TEXT PRIMARY KEY)",
)


class TxMessage(NamedTuple):
    """What the body of a message says: it is this one of so many of its transaction."""

    transaction: str
    index: int
    count: int


class AbandonedError(Exception):
    """A transaction is rolled back."""


class CrashLedger:
    """The application's database: what was committed, and what checks were asked."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.db"
        self.decisions = DecisionTable()

    def connect(self) -> sqlite3.Connection:
        """Durable over the death of processes; that of the machine is not asked for."""
        connection = sqlite3.connect(self._path, timeout=60)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def create(self) -> None:
        """Make its tables."""
        with open_transaction(self.connect) as database:
            database.execute("PRAGMA journal_mode = WAL")
            self.decisions.create(database)
            for statement in SCHEMA:
                database.execute(statement)

    def check(self, transaction: UndecidedTransaction) -> Decision:
        """What the ledger says; that it was asked is written down."""
        with open_transaction(self.connect) as database:
            database.execute("INSERT INTO asked VALUES (?, ?)", (transaction.id, transaction.check))
            return self.decisions.decide(database, transaction.id)


class TransactionLoad:
    """One process."""

    def __init__(self, ledger: CrashLedger, producer: Producer) -> None:
        self._ledger = ledger
        self._producer = producer

    def run(self, random: Random) -> None:
        """One thread: one transaction after the other, for ever."""
        while True:
            with suppress(AbandonedError, SendError, TransactionError):
                self._one(random)

    def _one(self, random: Random) -> None:
        count, fate = random.randint(1, MESSAGES_MAX), random.random()
        with self._producer.transaction(check_after=CHECK_AFTER) as tx:
            for index in range(count):
                body = json.dumps(TxMessage(tx.id, index, count))
                tx.send(random.choice(TOPICS), body, key=tx.id)
            if fate < 0.1:
                raise AbandonedError
            if fate < 0.15:
                tx.undecided()
                return
            with open_transaction(self._ledger.connect) as database:
                database.execute("INSERT INTO begun VALUES (?)", (tx.id,))
                self._ledger.decisions.commit(database, tx.id)
            if fate < 0.25:
                tx.undecided()


def main(folder: str, name: str, seed: str, *ports: str) -> None:
    """Until it is killed."""
    ledger = CrashLedger(Path(folder))
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with Producer(addresses, producer_group=GROUP, check=ledger.check, timeout_ms=5_000) as producer:
        load = TransactionLoad(ledger, producer)
        threads = [
            threading.Thread(target=load.run, args=(Random(f"{seed}/{name}/{number}"),))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
