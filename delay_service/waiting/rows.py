"""Rows of the topic %DELAY-WAITING: of each delay id the last that is known. Pure.

The key is the uuid as hexadecimal text. The value is a letter, then what the store has under the id: `p` a
message that waits, `s` the state of an id that is over; nothing: the id is forgotten. The letters are
followed by the store's own bytes (store/layout.py), so both have one format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backend.records import NewRecord
from ddmq_common.delivery import decode, encode
from ddmq_common.errors import DamagedError
from ddmq_common.names import WAITING_TOPIC
from delay_service.core.commands import DeferredTopics
from delay_service.store.layout import (
    UUID_BYTES,
    decode_pending,
    decode_state,
    encode_pending,
    encode_state,
)
from delay_service.store.port import DelayStore, DueKey, IdKind, IdState, Pending, StoreChanges

WAITS, STATE, FORGOTTEN = b"p", b"s", b""


class WaitingRow(NamedTuple):
    """The row of one delay id in the waiting topic.

    `content`: the waiting message, the id's state, or None if the id is forgotten.
    """

    uuid: bytes
    content: Pending | IdState | None


def value_of(content: Pending | IdState | None) -> bytes:
    """Encode the value of a row. Raises ValueError for a PENDING state, whose row is the message itself."""
    if content is None:
        return FORGOTTEN
    if isinstance(content, Pending):
        return WAITS + encode_pending(content)
    if content.kind is IdKind.PENDING:
        raise ValueError("the row of a message that waits is the message")
    return STATE + encode_state(content)


def record_of(shard: int, uuid: bytes, value: bytes, wall_ms: int) -> NewRecord:
    """Build the record of a row."""
    key = uuid.hex().encode()
    return NewRecord(WAITING_TOPIC, shard, uuid, wall_ms, encode(key, value, b"", None), key)


def read_row(delivery: bytes) -> WaitingRow:
    """Decode a row from its delivery bytes. Raises DamagedError."""
    key, value, _, _ = decode(delivery)
    try:
        uuid = bytes.fromhex(key.decode())
    except ValueError:
        uuid = b""
    if len(uuid) != UUID_BYTES:
        raise DamagedError(f"a row of {WAITING_TOPIC} has the key {key[:40]!r}; wanted: a uuid, 32 digits")
    kind, rest = value[:1], value[1:]
    if kind == FORGOTTEN:
        return WaitingRow(uuid, None)
    if kind == WAITS:
        return WaitingRow(uuid, decode_pending(rest))
    if kind == STATE:
        return WaitingRow(uuid, decode_state(rest))
    raise DamagedError(f"a row of {WAITING_TOPIC} begins with {kind!r}; this program reads p and s")


def values_after(changes: StoreChanges) -> dict[bytes, bytes]:
    """Return the row values of all ids that a batch changes."""
    waiting = {message.uuid: message for message in changes.added}
    values = {}
    for uuid, state in changes.ids.items():
        waits = state is not None and state.kind is IdKind.PENDING
        values[uuid] = value_of(waiting[uuid] if waits else state)
    return values


def values_in(store: DelayStore, uuids: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the row values of these ids from a store; unknown ids are left out."""
    values = {}
    for uuid, state in zip(uuids, store.ids(uuids), strict=True):
        if state is None:
            continue
        content = store.get(DueKey(state.at_ms, state.offset)) if state.kind is IdKind.PENDING else state
        if content is not None:
            values[uuid] = value_of(content)
    return values


def changes_of(rows: Iterable[WaitingRow], store: DelayStore) -> StoreChanges:
    """Return the changes that bring a store in line with these rows. The last row of an id counts."""
    latest = {row.uuid: row.content for row in rows}
    changes, aside = StoreChanges(), DeferredTopics(store)
    for (uuid, content), state in zip(latest.items(), store.ids(list(latest)), strict=True):
        stored = None
        if state is not None and state.kind is IdKind.PENDING:
            stored = store.get(DueKey(state.at_ms, state.offset))
        if stored is not None and stored != content:
            (changes.removed_deferred if aside.has_message(stored) else changes.removed).append(stored)
        if isinstance(content, Pending):
            if stored != content:
                changes.added.append(content)
            changes.ids[uuid] = IdState(IdKind.PENDING, content.due_ms, content.offset)
        else:
            changes.ids[uuid] = content
    return changes
