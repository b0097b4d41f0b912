"""Inbox and decisions: one row beside the work, on every kind of database and connection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from ddmq_client import (
    Decision,
    InvalidMessageError,
    Message,
    NotCommittedError,
    OptionError,
    UndecidedTransaction,
    UnknownEndError,
)
from ddmq_client.received import DeliveryContext, NothingToSettle, Origin
from ddmq_client.sql import DecisionTable, InboxTable, OutboxTable
from ddmq_client.sql.statements import execute, open_transaction

Connect = Callable[[], Any]
NAME = "0" * 32


def message(message_id: str | None = "a" * 32, offset: int = 3) -> Message:
    received = Message()
    received.message_id, received.offset = message_id, offset
    received.delivery = DeliveryContext(Origin("g", "t", "q0"), 0.0, None, NothingToSettle())
    return received


def undecided(name: str = NAME) -> UndecidedTransaction:
    return UndecidedTransaction(name, [], None, 1, 0)


@pytest.fixture
def inbox(connect: Connect) -> InboxTable:
    table = InboxTable("billing")
    with open_transaction(connect) as database:
        table.create(database)
        table.create(database)
    return table


@pytest.fixture
def decisions(connect: Connect) -> DecisionTable:
    table = DecisionTable()
    with open_transaction(connect) as database:
        table.create(database)
        table.create(database)
    return table


def test_a_message_is_handled_once(connect: Connect, inbox: InboxTable) -> None:
    for is_first in (True, False, False):
        with open_transaction(connect) as database:
            assert inbox.first(database, message()) is is_first
    with open_transaction(connect) as database:
        assert inbox.first(database, message("b" * 32))
        assert InboxTable("another").first(database, message())
        assert not inbox.first(database, message("b" * 32)), "also within one SQL transaction"


def test_what_was_not_committed_was_not_handled(connect: Connect, inbox: InboxTable) -> None:
    with pytest.raises(ZeroDivisionError), open_transaction(connect) as database:
        raise_behind(inbox.first(database, message()))
    with open_transaction(connect) as database:
        assert inbox.first(database, message())


def raise_behind(first: bool) -> None:
    assert first
    raise ZeroDivisionError


def test_what_tells_messages_apart(connect: Connect, inbox: InboxTable) -> None:
    with open_transaction(connect) as database:
        assert inbox.first(database, message(None, 3))
        assert not inbox.first(database, message(None, 3))
        assert inbox.first(database, message(None, 4))
        assert inbox.first(database, message("a" * 32), key="order-17")
        assert not inbox.first(database, message("b" * 32), key="order-17")


def test_what_was_handled_long_ago_is_forgotten(connect: Connect, inbox: InboxTable) -> None:
    with open_transaction(connect) as database:
        assert inbox.first(database, message())
        execute(database, "UPDATE ddmq_inbox SET handled_ms = handled_ms - 100000")
        assert inbox.first(database, message("b" * 32))
        assert inbox.forget(database, timedelta(seconds=90)) == 1
        assert inbox.first(database, message())
        assert not inbox.first(database, message("b" * 32))
        with pytest.raises(OptionError, match="older_than"):
            inbox.forget(database, timedelta(seconds=-1))


def test_of_two_at_a_time_one_is_first(connect: Connect, inbox: InboxTable) -> None:
    """The second waits until the first has committed."""
    answers: list[bool] = []
    began = threading.Event()

    def second() -> None:
        began.set()
        with open_transaction(connect) as database:
            answers.append(inbox.first(database, message()))

    with open_transaction(connect) as database:
        assert inbox.first(database, message())
        thread = threading.Thread(target=second)
        thread.start()
        assert began.wait(60)
        assert answers == []
    thread.join(60)
    assert answers == [False]


def test_a_decision_is_a_row_beside_the_work(connect: Connect, decisions: DecisionTable) -> None:
    check = decisions.check(connect)
    with open_transaction(connect) as database:
        decisions.commit(database, NAME)
    assert check(undecided()) is Decision.COMMITTED
    assert check(undecided("1" * 32)) is Decision.ROLLED_BACK
    for _ in range(2):
        assert check(undecided()) is Decision.COMMITTED


def test_what_a_check_gave_up_cannot_be_committed(connect: Connect, decisions: DecisionTable) -> None:
    assert decisions.check(connect)(undecided()) is Decision.ROLLED_BACK
    with (
        pytest.raises(NotCommittedError, match="was given up by its check"),
        open_transaction(connect) as database,
    ):
        decisions.commit(database, NAME)
    assert decisions.check(connect)(undecided()) is Decision.ROLLED_BACK


def test_a_check_waits_for_work_that_is_about_to_be_committed(
    connect: Connect, decisions: DecisionTable
) -> None:
    answers: list[Decision] = []
    with open_transaction(connect) as database:
        decisions.commit(database, NAME)
        thread = threading.Thread(target=lambda: answers.append(decisions.check(connect)(undecided())))
        thread.start()
        assert answers == []
    thread.join(60)
    assert answers == [Decision.COMMITTED]


def test_committed_work_is_not_reported_as_abandoned(connect: Connect, decisions: DecisionTable) -> None:
    """Who tries again what brought no answer must not roll back the messages of work that is done."""
    with open_transaction(connect) as database:
        decisions.commit(database, NAME)
    with (
        pytest.raises(UnknownEndError, match="committed already") as raised,
        open_transaction(connect) as database,
    ):
        decisions.commit(database, NAME)
    assert raised.value.transaction_id == NAME
    assert decisions.check(connect)(undecided()) is Decision.COMMITTED


def test_old_decisions_are_forgotten(connect: Connect, decisions: DecisionTable) -> None:
    with open_transaction(connect) as database:
        decisions.commit(database, NAME)
        assert decisions.forget(database, timedelta(days=1)) == 0
        execute(database, "UPDATE ddmq_decisions SET decided_ms = decided_ms - 100000000")
        assert decisions.forget(database, timedelta(days=1)) == 1


@pytest.mark.slow
def test_a_session_of_asyncio_runs_it(dsn: str) -> None:
    inbox = InboxTable("r", table="of_asyncio")

    async def main() -> list[bool]:
        engine = create_async_engine(
            "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(dsn)
        )
        firsts = []
        async with AsyncSession(engine) as session:
            await session.run_sync(inbox.create)
            for _ in range(2):
                firsts.append(await session.run_sync(lambda inner: inbox.first(inner, message())))
            await session.commit()
        await engine.dispose()
        return firsts

    assert asyncio.run(main()) == [True, False]


@pytest.mark.parametrize("name", ["", "a b", "x;", "a.b.c", "1x", 'a"', "x" * 64, None])
@pytest.mark.parametrize("table", [DecisionTable, OutboxTable, lambda table: InboxTable("r", table=table)])
def test_names_that_would_have_to_be_quoted_are_rejected(table: Any, name: Any) -> None:
    with pytest.raises(OptionError, match="table="):
        table(table=name)


def test_arguments_are_checked() -> None:
    with pytest.raises(OptionError, match="reader"):
        InboxTable("")
    with pytest.raises(OptionError, match="allowed: a DB-API"):
        InboxTable("r").first(object(), message())
    with pytest.raises(OptionError, match="a database of builtins; allowed: sqlite, postgresql"):
        InboxTable("r").create(object())
    with sqlite3.connect(":memory:") as database, pytest.raises(InvalidMessageError, match="body"):
        OutboxTable().put(database, "t", b"")
    with sqlite3.connect(":memory:") as database, pytest.raises(OptionError, match="JSON serializable"):
        OutboxTable().put(database, "t", b"x", tags=object())  # type: ignore[arg-type]
