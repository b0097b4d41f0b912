"""Transactions of the client library on a real server: seen when they are committed, once, whatever dies."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import (
    Consumer,
    Decision,
    Message,
    NotCommittedError,
    OutgoingMessage,
    Producer,
    SendError,
    TransactionError,
    UndecidedTransaction,
)
from ddmq_client.aio import AsyncProducer
from ddmq_client.sql import DecisionTable, InboxTable, OutboxRelay, OutboxTable
from ddmq_client.sql.statements import open_transaction
from tests.scenarios.real_server import RealServer, running, write_config
from tests.support.delays import wait_for_delays
from tests.support.installations import Installation, installed
from tests.support.lossy_relay import LossyRelay
from tests.support.waits import loop_until, until

pytestmark = pytest.mark.slow
PATIENCE_MS = 60_000
ROLLED_BACK = Decision.ROLLED_BACK
SOON = timedelta(milliseconds=200)
CHECKS = {"transactions": {"check_interval_ms": 500}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("transactions")
    config = write_config(folder / "conf", proxy_producer=CHECKS)
    with installed(engine) as installation, running(folder, config, installation=installation) as started:
        yield started


@pytest.fixture
def relay(server: RealServer) -> Iterator[LossyRelay]:
    installation = LossyRelay(server.ports["producer"])
    yield installation
    installation.close()


def created(server: RealServer, *topics: str) -> None:
    for topic in topics:
        server.admin("POST", "topics", topic, body={"create": True})


def test_consumers_receive_all_messages_of_a_transaction_or_none(
    server: RealServer, topic: str, group: str
) -> None:
    received: list[Message] = []
    other = f"{topic}-2"
    created(server, other)
    address = server.address("consumer")
    with (
        Producer(server.address("producer"), producer_group="g", timeout_ms=PATIENCE_MS) as producer,
        Consumer(address, group, topic, handler=received.append),
    ):
        tx = producer.transaction()
        with pytest.raises(ZeroDivisionError), tx:
            broken(tx.send(topic, b"never"))
        with producer.transaction(reference="order 17") as tx:
            sent = tx.send(topic, b"one", key="k", tags="t", properties={"p": "v"})
            tx.send(other, b"two")
            tx.send(topic, b"three", level=1)
            tx.send_batch([OutgoingMessage(other, str(number)) for number in range(50)])
            assert server.bodies(topic) == server.bodies(other) == []
        first, second, third, *many = tx.results
        assert len(many) == 50
        assert first.message_id == sent.message_id
        assert (first.offset, second.offset, third.offset) == (0, 0, None)
        until(lambda: len(received) == 2)
    assert server.bodies(other) == sorted(["two", *map(str, range(50))])
    one, three = received
    assert (one.body, one.key, one.tags, one.message_id) == (b"one", "k", "t", sent.message_id)
    assert one.properties == {"p": "v", "transaction-reference": "order 17"}
    assert three.body == b"three"


def broken(result: object) -> None:
    raise ZeroDivisionError(result)


def test_due_times_count_from_the_commit(server: RealServer, topic: str, group: str) -> None:
    received: list[Message] = []
    wait_for_delays(server.address("producer"), topic)
    with Producer(server.address("producer"), producer_group="g", timeout_ms=PATIENCE_MS) as producer:
        with producer.transaction() as tx:
            tx.send(topic, b"later", key="k", delay=timedelta(milliseconds=500))
            tx.send(topic, b"past", deliver_at=datetime.now(UTC) - timedelta(days=1))
            tx.send(topic, b"never", delay=timedelta(hours=1))
        later, past, never = tx.results
        assert later.delay_id
        assert past.offset is not None
        assert producer.cancel(never).cancelled
        with Consumer(server.address("consumer"), group, topic, handler=received.append):
            until(lambda: {"later", "past"} <= {message.text() for message in received})
    assert [message.key for message in received if message.text() == "later"] == ["k"]


def test_answers_that_are_lost_change_nothing(
    server: RealServer, topic: str, relay: LossyRelay, engine: str
) -> None:
    """Of prepares, of commits and of rollbacks: each third one, and those of resends, too."""
    created(server, topic)
    relay.every = 3
    with Producer(relay.address, producer_group="g", timeout_ms=PATIENCE_MS) as producer:
        for number in range(40):
            with producer.transaction() as tx:
                tx.send(topic, f"m{number}")
                tx.send(topic, f"n{number}", idempotency_key=None if engine == "kafka" else f"n{number}")
                if number % 4 == 3:
                    tx.rollback()
    assert relay.lost > 20
    committed_numbers = [number for number in range(40) if number % 4 != 3]
    assert server.bodies(topic) == sorted(
        f"{letter}{number}" for number in committed_numbers for letter in "mn"
    )


def test_lost_answers_change_nothing_for_tasks(server: RealServer, topic: str, relay: LossyRelay) -> None:
    created(server, topic)

    async def work(producer: AsyncProducer, number: int) -> None:
        async with producer.transaction() as tx:
            await asyncio.gather(tx.send(topic, f"m{number}"), tx.send(topic, f"n{number}"))

    async def main() -> None:
        async with AsyncProducer(relay.address, producer_group="g", timeout_ms=PATIENCE_MS) as producer:
            relay.every = 4
            await asyncio.gather(*[work(producer, number) for number in range(30)])

    asyncio.run(main())
    assert relay.lost > 10
    assert server.bodies(topic) == sorted(f"{letter}{number}" for number in range(30) for letter in "mn")


def test_an_undecided_transaction_is_decided_by_the_check(server: RealServer, topic: str) -> None:
    created(server, topic)
    decided: dict[str | None, list[Decision]] = {
        "yes": [Decision.COMMITTED],
        "no": [Decision.ROLLED_BACK],
        "late": [Decision.NOT_KNOWN_YET, Decision.COMMITTED],
    }
    checks: list[UndecidedTransaction] = []

    def check(transaction: UndecidedTransaction) -> Decision:
        checks.append(transaction)
        return decided[transaction.reference].pop(0)

    with Producer(
        server.address("producer"), producer_group=topic, check=check, timeout_ms=PATIENCE_MS
    ) as producer:
        for reference in list(decided):
            with producer.transaction(reference=reference, check_after=SOON) as tx:
                tx.send(topic, str(reference), key="k")
                tx.undecided()
        until(lambda: not any(decided.values()))
        until(lambda: server.bodies(topic) == ["late", "yes"])
        until(lambda: producer.check_counts().committed == 2)
        counts = producer.check_counts()
    assert (counts.rolled_back, counts.not_known, counts.unanswered) == (1, 1, 0)
    assert [one.check for one in checks if one.reference == "late"] == [1, 2]
    assert [[message.body for message in one.messages] for one in checks if one.reference == "yes"] == [
        [b"yes"]
    ]


def test_a_check_may_be_a_task(server: RealServer, topic: str) -> None:
    created(server, topic)

    async def check(transaction: UndecidedTransaction) -> Decision:
        await asyncio.sleep(0)
        return Decision.COMMITTED

    async def main() -> None:
        async with AsyncProducer(
            server.address("producer"), producer_group=topic, check=check, timeout_ms=PATIENCE_MS
        ) as producer:
            async with producer.transaction(check_after=SOON) as tx:
                await tx.send(topic, b"x")
                tx.undecided()
            await loop_until(lambda: producer.check_counts().committed == 1)

    asyncio.run(main())
    assert server.bodies(topic) == ["x"]


DYING = """
import os, signal, sqlite3, sys
from datetime import timedelta
from ddmq_client import Producer
from ddmq_client.sql import DecisionTable
from ddmq_client.sql.statements import open_transaction

place, topic, path, where = sys.argv[1:]
with Producer(place, producer_group=topic, timeout_ms=60_000) as producer:
    with producer.transaction(check_after=timedelta(milliseconds=200)) as tx:
        tx.send(topic, where)
        if where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        with open_transaction(lambda: sqlite3.connect(path, timeout=30)) as database:
            DecisionTable().commit(database, tx.id)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_dies_is_answered_for_by_the_next_one(
    server: RealServer, topic: str, tmp_path: Path
) -> None:
    created(server, topic)
    path, decisions = tmp_path / "db", DecisionTable()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=30)

    with open_transaction(connect) as database:
        decisions.create(database)
    for where in ("before", "behind"):
        command = [sys.executable, "-c", DYING, server.address("producer"), topic, str(path), where]
        assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    with Producer(
        server.address("producer"), producer_group=topic, check=decisions.check(connect)
    ) as producer:
        until(lambda: producer.check_counts().committed and producer.check_counts().rolled_back)
    assert server.bodies(topic) == ["behind"]


def test_abandoned_work_cannot_be_committed(server: RealServer, topic: str, tmp_path: Path) -> None:
    """The check is asked while the work is still under way: then it is refused, and nothing is seen."""
    created(server, topic)
    decisions = DecisionTable()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "db", timeout=30)

    with open_transaction(connect) as database:
        decisions.create(database)
    check = decisions.check(connect)
    with Producer(
        server.address("producer"), producer_group=topic, check=check, timeout_ms=PATIENCE_MS
    ) as producer:
        tx = producer.transaction(check_after=SOON)
        tx.send(topic, b"slow")
        until(lambda: producer.check_counts().rolled_back)
        with (
            pytest.raises(NotCommittedError, match="given up by its check"),
            open_transaction(connect) as database,
        ):
            decisions.commit(database, tx.id)
        with pytest.raises(NotCommittedError, match="was rolled back"):
            tx.commit()
    assert server.bodies(topic) == []


def test_topics_and_ledger_agree_while_the_server_is_killed(
    tmp_path: Path, installation: Installation
) -> None:
    """Four threads of transactions, kill -9 of the server again and again. What the ledger says is committed
    is seen in both topics, once; nothing else is."""
    config = write_config(tmp_path / "conf", proxy_producer=CHECKS)
    ledger: dict[str, Decision] = {}  # setdefault is its commit: the first one counts
    stop = threading.Event()

    def check(transaction: UndecidedTransaction) -> Decision:
        assert transaction.reference is not None
        return ledger.setdefault(transaction.reference, Decision.ROLLED_BACK)

    def work(producer: Producer, name: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            reference = f"{name}-{number}"
            tx = producer.transaction(reference=reference, check_after=SOON)
            with suppress(ZeroDivisionError, SendError, TransactionError), tx:
                tx.send("t", reference)
                tx.send("u", reference)
                if number % 5 == 0 or ledger.setdefault(reference, Decision.COMMITTED) is ROLLED_BACK:
                    raise ZeroDivisionError

    with running(tmp_path, config, installation=installation) as server:
        created(server, "t", "u")
        settings: dict[str, Any] = {"producer_group": "g", "check": check, "timeout_ms": 5_000}
        with Producer(server.address("producer"), **settings) as producer:
            threads = [threading.Thread(target=work, args=(producer, name)) for name in range(4)]
            for thread in threads:
                thread.start()
            for more in range(1, 6):
                until(lambda expected_total=more * 40: committed(ledger).total() >= expected_total)
                server.kill()
                server.start()
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_MS / 1000)
            until(lambda: Counter(server.bodies("t")) == committed(ledger))
            until(lambda: Counter(server.bodies("u")) == committed(ledger))


def committed(ledger: dict[str, Decision]) -> Counter[str]:
    """What is to be seen, each once."""
    return Counter(name for name, decision in list(ledger.items()) if decision is Decision.COMMITTED)


def test_an_outbox_and_an_inbox_deliver_exactly_once(
    server: RealServer, topic: str, group: str, relay: LossyRelay, tmp_path: Path
) -> None:
    """Each third answer to the relay is lost, and each delivery of every second message comes twice."""
    outbox, inbox = OutboxTable(), InboxTable(group)

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "db", timeout=30)

    with open_transaction(connect) as database:
        outbox.create(database)
        inbox.create(database)
        database.execute("CREATE TABLE work (number INTEGER)")
        for number in range(60):
            outbox.put(database, topic, str(number), key=f"key-{number % 3}")

    def handle(message: Message) -> None:
        with open_transaction(connect) as database:
            if inbox.first(database, message, key=message.properties["outbox-id"]):
                database.execute("INSERT INTO work VALUES (?)", [int(message.body)])
        if message.attempt == 1 and int(message.body) % 2:
            message.fail()  # behind the commit, as if the acknowledgement had been lost

    address = server.address("consumer")
    relay.every = 3
    with (
        Producer(relay.address, timeout_ms=PATIENCE_MS) as producer,
        OutboxRelay(connect, outbox, producer, poll_ms=10),
        Consumer(address, group, topic, handler=handle) as consumer,
    ):
        until(lambda: consumer.counts().acked == 60)
    assert relay.lost > 5
    with open_transaction(connect) as database:
        numbers = [number for (number,) in database.execute("SELECT number FROM work ORDER BY number")]
    assert numbers == list(range(60))
    stored = in_order(server, topic)
    for key in range(3):
        assert [number for number in stored if number % 3 == key] == list(range(key, 60, 3))


RELAYING = """
import sqlite3, sys
from ddmq_client import Producer
from ddmq_client.sql import OutboxRelay, OutboxTable

place, path = sys.argv[1:]
with Producer(place, timeout_ms=60_000) as producer:
    relay = OutboxRelay(lambda: sqlite3.connect(path, timeout=60), OutboxTable(), producer, poll_ms=10)
    with relay:
        sys.stdin.read()
"""


def test_a_relay_that_is_killed_sends_in_order_and_once(
    server: RealServer, topic: str, tmp_path: Path
) -> None:
    """kill -9 as soon as it has sent something, again and again, while rows are written."""
    created(server, topic)
    outbox = OutboxTable()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "db", timeout=60)

    def left() -> int:
        with open_transaction(connect) as database:
            return int(database.execute("SELECT COUNT(*) FROM ddmq_outbox").fetchone()[0])

    with open_transaction(connect) as database:
        outbox.create(database)
    command = [sys.executable, "-c", RELAYING, server.address("producer"), str(tmp_path / "db")]
    for life in range(6):
        with open_transaction(connect) as database:
            for number in range(life * 50, life * 50 + 50):
                outbox.put(database, topic, str(number), key=f"key-{number % 5}")
        waiting = left()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as relay:
            until(lambda waiting=waiting, life=life: left() < (waiting if life < 5 else 1))
            relay.kill()
    stored = in_order(server, topic)
    assert sorted(stored) == list(range(300))
    for key in range(5):
        assert [number for number in stored if number % 5 == key] == list(range(key, 300, 5))


def in_order(server: RealServer, topic: str) -> list[int]:
    """The bodies of a topic, queue after queue."""
    address: Callable[[dict[str, Any]], tuple[int, int]] = lambda one: (one["queue"], one["offset"])  # noqa: E731
    return [int(one["body"]) for one in sorted(server.messages(topic), key=address)]


@pytest.mark.timeout(630)
def test_the_bank_loses_no_money() -> None:
    """docs/transactions.md's example, in short."""
    command = [sys.executable, "-m", "ddmq.demo.bank", "--transfers", "15", "--kills", "5", "--seed", "3"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no money was made or lost" in result.stdout
    assert "2,000 before, 2,000 after" in result.stdout
