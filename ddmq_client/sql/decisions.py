"""DecisionTable: how each transaction of a producer ended, as a row beside the work says.

    decisions = DecisionTable()
    producer = Producer(..., producer_group="bank", check=decisions.check(connect))

    with producer.transaction() as tx:
        tx.send("transfers", body)
        with connect() as db:
            db.execute("UPDATE accounts SET ...")
            decisions.commit(db, tx.id)

A check must not say "rolled back" while the work may still be committed. Here it cannot: it first writes the
row itself, so the work's own row is refused from then on, and its SQL transaction with it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ddmq_client.errors import NotCommittedError, UnknownEndError
from ddmq_client.sql.statements import (
    check_connect,
    create,
    execute,
    forget,
    now_ms,
    open_transaction,
    table_name,
)
from ddmq_client.transactions import Decision, UndecidedTransaction

_CREATE = (
    "CREATE TABLE IF NOT EXISTS {{table}} (id TEXT PRIMARY KEY, decision TEXT NOT NULL,"
    " decided_ms BIGINT NOT NULL)"
)


class DecisionTable:
    """A table that records how transactions ended: one row for each that was committed or checked."""

    def __init__(self, *, table: str = "ddmq_decisions") -> None:
        """Set the table's name. Raises OptionError for a name that would have to be quoted."""
        self._table = table_name(table)

    def create(self, database: Any) -> None:
        """Create the table if it does not exist."""
        create(database, [_CREATE.replace("{{table}}", self._table)])

    def commit(self, database: Any, transaction_id: str) -> None:
        """Record that the transaction commits together with the SQL transaction.

        That is the open one, or begins with this statement. Raises NotCommittedError if a check has already
        recorded a rollback, because the work took too long: roll the SQL transaction back. Raises
        UnknownEndError if the row exists: the work was done before, in a SQL transaction whose commit got no
        answer. Do not repeat it, and let the error leave the transaction's block: the check settles it.
        """
        if self._insert_decision(database, transaction_id, Decision.COMMITTED):
            return
        if self._recorded_decision(database, transaction_id) is Decision.COMMITTED:
            text = f"transaction {transaction_id} is noted as committed already; its work is not done again"
            raise UnknownEndError(text, transaction_id)
        text = f"transaction {transaction_id} was given up by its check before the work was done"
        raise NotCommittedError(text, transaction_id)

    def decide(self, database: Any, transaction_id: str) -> Decision:
        """Return the recorded decision; if there is none, record and return a rollback."""
        if self._insert_decision(database, transaction_id, Decision.ROLLED_BACK):
            return Decision.ROLLED_BACK
        return self._recorded_decision(database, transaction_id)

    def check(self, connect: Callable[[], Any]) -> Callable[[UndecidedTransaction], Decision]:
        """Return a check for a producer; each call of the check uses a new connection from `connect`."""
        check_connect(connect)

        def check(transaction: UndecidedTransaction) -> Decision:
            with open_transaction(connect) as database:
                return self.decide(database, transaction.id)

        return check

    def forget(self, database: Any, older_than: timedelta) -> int:
        """Delete rows older than `older_than`; return their number.

        A proxy repeats a check for a quarter of an hour in all while it is running, so a day is enough.
        """
        return forget(database, self._table, "decided_ms", older_than)

    def _recorded_decision(self, database: Any, transaction_id: str) -> Decision:
        statement = f"SELECT decision FROM {self._table} WHERE id = :id"
        return Decision(execute(database, statement, id=transaction_id).rows[0][0])

    def _insert_decision(self, database: Any, transaction_id: str, decision: Decision) -> bool:
        inserted = execute(
            database,
            f"INSERT INTO {self._table} (id, decision, decided_ms) VALUES (:id, :decision, :decided)"
            " ON CONFLICT DO NOTHING",
            id=transaction_id,
            decision=decision.value,
            decided=now_ms(),
        )
        return inserted.changed == 1
