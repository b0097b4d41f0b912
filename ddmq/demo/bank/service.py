"""One bank: it sends money to the other one and books what comes from there. It may be killed at any moment.

    python -m ddmq.demo.bank.service paris tokyo FOLDER TRANSFERS PRODUCER CONSUMER

Its ledger is an SQLite file. Money that leaves is taken from an account and sent as a message in one
transaction: either both happen or neither. Money that comes is booked once, by an inbox row, however often it
is delivered.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from ddmq_client import Consumer, Message, Producer, SendError, TransactionError
from ddmq_client.sql import DecisionTable, InboxTable

ACCOUNTS, BALANCE = 10, 100
SENT_MAX = 40  # of one transfer
DECISIONS = DecisionTable()
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER CHECK (balance >= 0))",
    "CREATE TABLE IF NOT EXISTS sent (transfer TEXT PRIMARY KEY, amount INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS received (transfer TEXT PRIMARY KEY, amount INTEGER NOT NULL)",
)


class NotEnoughError(Exception):
    """The account holds less money than is to be sent."""


class Bank:
    """One of the demo's two bank services. Each has accounts in a database of its own, and transfers money to
    its `peer`."""

    def __init__(self, name: str, peer: str, folder: Path) -> None:
        self.name = name
        self.peer = peer
        self._path = folder / f"{name}.db"
        self._inbox = InboxTable(name)

    def connect(self) -> sqlite3.Connection:
        """Return a connection to the ledger."""
        return sqlite3.connect(self._path, timeout=30)

    @contextmanager
    def ledger(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection with an open SQL transaction: committed at the end of the block, rolled back by
        an exception."""
        with closing(self.connect()) as opened, opened:
            yield opened

    def create(self) -> None:
        """Create the ledger with its accounts, if they do not exist."""
        with self.ledger() as ledger:
            for statement in SCHEMA:
                ledger.execute(statement)
            DECISIONS.create(ledger)
            self._inbox.create(ledger)
            for number in range(ACCOUNTS):
                new = (f"{self.name}-{number}", BALANCE)
                ledger.execute("INSERT INTO accounts VALUES (?, ?) ON CONFLICT DO NOTHING", new)

    def transfer(self, producer: Producer, account: str, amount: int) -> None:
        """Take money from an account and send it to the other bank: both happen or neither."""
        name = uuid.uuid4().hex
        with producer.transaction(reference=name, check_after=timedelta(seconds=2)) as tx:
            body = json.dumps(
                {"transfer": name, "to": f"{self.peer}-{random.randrange(ACCOUNTS)}", "amount": amount}
            )
            tx.send(f"to-{self.peer}", body, key=name)
            with self.ledger() as ledger:
                debit = ledger.execute(
                    "UPDATE accounts SET balance = balance - ? WHERE name = ? AND balance >= ?",
                    (amount, account, amount),
                )
                if debit.rowcount == 0:
                    raise NotEnoughError(account)
                ledger.execute("INSERT INTO sent VALUES (?, ?)", (name, amount))
                DECISIONS.commit(ledger, tx.id)

    def book(self, message: Message) -> None:
        """Book the money of a message from the other bank on an account, only once even if the message is
        delivered again."""
        transfer = json.loads(message.body)
        with self.ledger() as ledger:
            if not self._inbox.first(ledger, message):
                return
            there = (transfer["amount"], transfer["to"])
            ledger.execute("UPDATE accounts SET balance = balance + ? WHERE name = ?", there)
            ledger.execute("INSERT INTO received VALUES (?, ?)", (transfer["transfer"], transfer["amount"]))

    def sent(self) -> int:
        """Count the transfers that were sent."""
        with self.ledger() as ledger:
            (count,) = ledger.execute("SELECT COUNT(*) FROM sent").fetchone()
            return int(count)

    def run(self, transfers: int, producer_proxy: str, consumer_proxy: str) -> None:
        """Send transfers until the ledger has `transfers` of them, including those of earlier processes; book
        incoming money until SIGTERM."""
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        check = DECISIONS.check(self.connect)
        with (
            Producer(producer_proxy, producer_group=self.name, check=check) as producer,
            Consumer(consumer_proxy, self.name, f"to-{self.name}", handler=self.book),
        ):
            while not stop.is_set() and self.sent() < transfers:
                account = f"{self.name}-{random.randrange(ACCOUNTS)}"
                # NotEnoughError: rolled back. The others: not begun, or the check settles it.
                with suppress(NotEnoughError, SendError, TransactionError):
                    self.transfer(producer, account, random.randint(1, SENT_MAX))
            stop.wait()


def main(arguments: list[str]) -> None:
    """Run one bank with the arguments of its command line."""
    name, peer, folder, transfers, producer_proxy, consumer_proxy = arguments
    bank = Bank(name, peer, Path(folder))
    bank.create()
    bank.run(int(transfers), producer_proxy, consumer_proxy)


if __name__ == "__main__":
    main(sys.argv[1:])
