"""OutboxTable: messages written in the SQL transaction of the work, for a relay to send.

    outbox = OutboxTable()

    with sqlite3.connect("shop.db") as db:
        db.execute("INSERT INTO orders ...")
        outbox.put(db, "orders", b"order 17", key="order-17")

Committed messages are sent, once; those of a rolled-back transaction never are. Writing a message calls no
proxy, so the application works while no proxy is reachable. `OutboxRelay` sends the messages.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from ddmq_client.core.selectors import hash_of
from ddmq_client.errors import InvalidMessageError, OptionError
from ddmq_client.idl.codes import Code
from ddmq_client.outgoing import OutgoingMessage, ShardKey, with_level
from ddmq_client.sql.statements import create, execute, now_ms, table_name

OUTBOX_ID = "outbox-id"  # property of the messages that a relay sends
REJECTION_CHARS_MAX = 500
_CREATE = (
    "CREATE TABLE IF NOT EXISTS {{table}} (id {serial}, name TEXT NOT NULL UNIQUE, topic TEXT NOT NULL,"
    " body {bytes} NOT NULL, fields TEXT NOT NULL, chain TEXT NOT NULL, written_ms BIGINT NOT NULL,"
    " refused TEXT)"
)


class OutboxRow(NamedTuple):
    """One message that waits in the table."""

    row: int
    name: str
    chain: str  # messages with the same one are sent in order
    message: OutgoingMessage
    error: str = ""  # why the row cannot be decoded: `put` did not write it


class OutboxTable:
    """A table of messages that wait for a relay. Safe for many threads, each with its own connection."""

    def __init__(self, *, table: str = "ddmq_outbox") -> None:
        """Set the table's name. Raises OptionError for a name that would have to be quoted."""
        self._table = table_name(table)

    def create(self, database: Any) -> None:
        """Create the table if it does not exist."""
        create(database, [_CREATE.replace("{{table}}", self._table)])

    def put(
        self,
        database: Any,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        shard_key: ShardKey | None = None,
        queue: int | None = None,
        level: int | None = None,
    ) -> str:
        """Write a message in the SQL transaction that is open, or begins with this statement.

        Return the message's name. Consumers see the name as property `outbox-id`. Arguments: see
        OutgoingMessage; level: a delay level. Messages of one topic keep their order if they have the same
        `shard_key`, or without one the same `key`; so do those that have neither, and those with the same
        `queue`.
        """
        if not isinstance(body, bytes | str) or not body:
            raise InvalidMessageError(
                f"body={body!r}; allowed: bytes or text, not empty", Code.ILLEGAL_MESSAGE
            )
        if shard_key is None and key:
            shard_key = key
        name = uuid4().hex
        fields = {
            "key": key,
            "tags": tags,
            "properties": dict(with_level(properties, level) or {}),
            "shard": None if shard_key is None else hash_of(shard_key),
            "queue": queue,
        }
        where = f"queue {queue}" if queue is not None else f"shard {fields['shard']}"
        execute(
            database,
            f"INSERT INTO {self._table} (name, topic, body, fields, chain, written_ms)"
            " VALUES (:name, :topic, :body, :fields, :chain, :written)",
            name=name,
            topic=topic,
            body=body.encode() if isinstance(body, str) else body,
            fields=_encode_fields(fields),
            chain=f"{topic} {where}",
            written=now_ms(),
        )
        return name

    def waiting(self, database: Any, count_max: int, bytes_max: int, after: int = 0) -> list[OutboxRow]:
        """Return the oldest rows to send: up to `count_max`, until their bodies reach `bytes_max`.

        With `after`, only rows after that row are returned, and only from chains without a row up to it.
        """
        waits = "refused IS NULL AND id > :after"
        if after:
            waits += (
                f" AND chain NOT IN (SELECT chain FROM {self._table} WHERE refused IS NULL AND id <= :after)"
            )
        selected = execute(
            database,
            "SELECT id, name, chain, topic, body, fields FROM"
            " (SELECT *, SUM(LENGTH(body)) OVER (ORDER BY id) - LENGTH(body) AS ahead FROM"
            f" (SELECT * FROM {self._table} WHERE {waits} ORDER BY id LIMIT :count)"
            " AS old) AS summed WHERE ahead < :bytes ORDER BY id",
            after=after,
            count=count_max,
            bytes=bytes_max,
        )
        return [_read_row(*row) for row in selected.rows]

    def sent(self, database: Any, rows: Collection[int]) -> None:
        """Delete rows whose messages are stored."""
        for row in rows:
            execute(database, f"DELETE FROM {self._table} WHERE id = :id", id=row)

    def refuse(self, database: Any, row: int, reason: str) -> None:
        """Mark a row whose message will never be accepted: it stays in the table and is not sent."""
        statement = f"UPDATE {self._table} SET refused = :reason WHERE id = :id"
        execute(database, statement, reason=reason[:REJECTION_CHARS_MAX] or "refused", id=row)

    def refused(self, database: Any) -> Sequence[tuple[str, str, str]]:
        """Return (name, topic, reason) of the messages that proxies rejected permanently."""
        statement = f"SELECT name, topic, refused FROM {self._table} WHERE refused IS NOT NULL ORDER BY id"
        return [(name, topic, reason) for name, topic, reason in execute(database, statement).rows]

    def send_again(self, database: Any, name: str) -> bool:
        """Make a rejected message wait for sending again; return False if there is none of this name."""
        statement = f"UPDATE {self._table} SET refused = NULL WHERE name = :name AND refused IS NOT NULL"
        return execute(database, statement, name=name).changed == 1

    def drop(self, database: Any, name: str) -> bool:
        """Delete a rejected message; return False if there is none of this name."""
        statement = f"DELETE FROM {self._table} WHERE name = :name AND refused IS NOT NULL"
        return execute(database, statement, name=name).changed == 1


def _encode_fields(fields: Mapping[str, object]) -> str:
    try:
        return json.dumps(fields)
    except TypeError as error:
        raise OptionError(f"a message with {fields!r}: {error}; allowed: text and numbers") from error


def _read_row(row: int, name: str, chain: str, topic: str, body: bytes, fields: str) -> OutboxRow:
    try:
        return OutboxRow(row, name, chain, _decode_message(topic, body, fields, name))
    except (ValueError, TypeError, KeyError) as error:
        what = f"fields {fields[:200]!r} of the row are none of an outbox's: {error!r}"
        return OutboxRow(row, name, chain, OutgoingMessage(topic, b""), what)


def _decode_message(topic: str, body: bytes, fields: str, name: str) -> OutgoingMessage:
    stored = json.loads(fields)
    properties = {**stored["properties"], OUTBOX_ID: name}
    return OutgoingMessage(
        topic, bytes(body), stored["key"], stored["tags"], properties, stored["shard"], stored["queue"], name
    )
