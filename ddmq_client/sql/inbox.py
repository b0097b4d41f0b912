"""InboxTable: a message is handled at most once, by a row in the SQL transaction of the work.

    inbox = InboxTable("billing")

    def handle(message):
        with sqlite3.connect("billing.db") as db:
            if inbox.first(db, message):
                db.execute("UPDATE accounts SET ...")

Delivery is at least once: a message whose acknowledgement was lost comes again, and finds its row.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ddmq_client.core.settings import check_text
from ddmq_client.received import Message
from ddmq_client.sql.statements import create, execute, forget, now_ms, table_name

_CREATE = (
    "CREATE TABLE IF NOT EXISTS {{table}} (reader TEXT NOT NULL, message TEXT NOT NULL,"
    " handled_ms BIGINT NOT NULL, PRIMARY KEY (reader, message))"
)


class InboxTable:
    """A table that records which messages were handled.

    Safe for many threads, each with its own connection.

    reader  who handles them, such as the consumer group: several may share a table
    table   its name
    """

    def __init__(self, reader: str, *, table: str = "ddmq_inbox") -> None:
        """Check the arguments. Raises OptionError."""
        check_text("reader", reader)
        self._reader = reader
        self._table = table_name(table)

    def create(self, database: Any) -> None:
        """Create the table if it does not exist."""
        create(database, [_CREATE.replace("{{table}}", self._table)])

    def first(self, database: Any, message: Message, *, key: str | None = None) -> bool:
        """Record in the SQL transaction that this message is handled; return False if it was handled before.

        The SQL transaction is the open one, or begins with this statement. `key`: identifies the message
        instead of its id: a sender without a transaction or an outbox may send a message twice, with two ids.
        If another SQL transaction is handling the same message, this one waits for it (PostgreSQL) or is
        rejected after its timeout (SQLite).
        """
        inserted = execute(
            database,
            f"INSERT INTO {self._table} (reader, message, handled_ms) VALUES (:reader, :message, :handled)"
            " ON CONFLICT DO NOTHING",
            reader=self._reader,
            message=identity_of(message) if key is None else key,
            handled=now_ms(),
        )
        return inserted.changed == 1

    def forget(self, database: Any, older_than: timedelta) -> int:
        """Delete the rows of messages handled longer ago than `older_than`; return their number.

        A message that is delivered again later than that is handled again. Choose a time longer than retries
        take and dead letters are retained, such as 7 days.
        """
        return forget(database, self._table, "handled_ms", older_than)


def identity_of(message: Message) -> str:
    """Return the id of a message. It stays the same in retries and dead letters.

    For messages from proxies that state no id, return the position.
    """
    return message.message_id or f"{message.topic}/{message.queue}/{message.offset}"
