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
    """Which messages have been handled. Safe for many threads, each with a connection of its own.

    reader  who handles them, such as the consumer group: several may share a table
    table   its name
    """

    def __init__(self, reader: str, *, table: str = "ddmq_inbox") -> None:
        """Checks its arguments (OptionError)."""
        check_text("reader", reader)
        self._reader = reader
        self._table = table_name(table)

    def create(self, database: Any) -> None:
        """Make the table where it is not there."""
        create(database, [_CREATE.replace("{{table}}", self._table)])

    def first(self, database: Any, message: Message, *, key: str | None = None) -> bool:
        """Note that this message is handled in the SQL transaction that is open there, or begins with it;
        False where it was before: then nothing is to be done.

        `key`: what tells one message from another, where that is not its id: what senders without a
        transaction or an outbox may send twice has two ids. Another SQL transaction that is at the same
        message is waited for (PostgreSQL), or refuses this one (SQLite, when its time-out is over).
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
        """Delete what was handled longer ago, and say how many; a message that comes again later than that is
        handled again. Longer than retries take, and than dead letters are kept, is right: 7 days, say."""
        return forget(database, self._table, "handled_ms", older_than)


def identity_of(message: Message) -> str:
    """Return the id of a message, which it keeps through retries and dead letters; its position, from
    proxies that state no id.
    """
    return message.message_id or f"{message.topic}/{message.queue}/{message.offset}"
