"""Half records, op records and dead records of transactions (docs/formats-transactions.md). Pure.

A half record is the message's own record, as its consumers will get it, in another topic; one system property
says where it goes. An op record has the transaction's id as its message id, so that it can be looked up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import msgspec

from backend import internal_topics as dead
from backend.records import AppendResult, FirstStored, NewRecord
from ddmq_client.idl.codes import TransactionOutcome
from ddmq_common.delays.command import DelayCommand
from ddmq_common.delivery import encode, key_and_tags, value_of
from ddmq_common.errors import DamagedError
from ddmq_common.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_DEAD_TOPIC
from ddmq_common.send_identity import IDENTITY, is_key, parse_key, sequence_name
from proxy_producer.transactions.core.transaction import HalfVerdict

TRANSACTION = "transaction"  # system property of a half record
KEY = "transaction-key"  # the same: the IDENTITY of a message with a key, which the engine is not to know
DEAD_GROUP = dead.PREFIX + "producer-group"
_ID = re.compile(rb"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}\Z")


def parse_id(text: bytes) -> bytes | None:
    """Parse a transaction id to its 16 bytes; None if it is not a version-7 UUID in 32 hexadecimal digits."""
    lower = text.lower()
    return bytes.fromhex(lower.decode()) if _ID.match(lower) else None


def began_ms(transaction: bytes) -> int:
    """Return the creation time in a transaction's id: epoch milliseconds by the client's clock."""
    return int.from_bytes(transaction[:6], "big")


def shard_of(transaction: bytes, shards: int) -> int:
    """Return the transaction's shard: its queue number in the half topic and in the op topic."""
    return crc32(transaction) % shards


class HalfMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The system property of a half record: its transaction, and the destination of its message.

    `id`: 32 digits. `queue`: the queue of `topic` that was chosen at the prepare. `level`: the delay level,
    or `command`: the delay command, due `wait_ms` after the commit if that is not negative. `check_after_ms`:
    the time until the group is first asked; negative: the proxy's default. `sender`: the identity that
    prepared it, "" without rights.
    """

    id: str
    group: str
    topic: str
    queue: int
    level: int = 0
    command: DelayCommand | None = None
    wait_ms: int = -1
    check_after_ms: int = -1
    sender: str = ""


_MARKS = msgspec.json.Decoder(HalfMark)
_encode = msgspec.json.Encoder().encode


class HalfMessage(NamedTuple):
    """One message of a transaction, decoded from its record in the half topic, where consumers cannot read
    it.

    It has the fields that `dead_record` needs. `identity`: its idempotency key or sequence number; "" if the
    message has neither.
    """

    offset: int
    message_id: bytes
    born_ms: int
    flags: int
    delivery: bytes
    mark: HalfMark
    key: bytes
    tags: bytes
    identity: str


def half_record(shard: int, record: NewRecord, mark: HalfMark) -> NewRecord:
    """Build the record for the half topic from `record`, the message's own record.

    It has no key for the engine: the shard itself detects duplicates within the transaction.
    """
    system = {TRANSACTION: _encode(mark).decode()}
    if record.system:
        identity = record.system[IDENTITY]
        system[KEY if is_key(identity) else IDENTITY] = identity
    return NewRecord(
        HALF_TOPIC,
        shard,
        record.message_id,
        record.born_ms,
        record.delivery,
        b"",
        b"",
        record.flags,
        0,
        system,
    )


class StoredHalf(dead.Dying, Protocol):
    """A record of the half topic, as read from the backend."""

    @property
    def offset(self) -> int: ...
    @property
    def system(self) -> Mapping[str, str]: ...


def read_half(record: StoredHalf) -> HalfMessage:
    """Decode a half record. Raises DamagedError for a record that `half_record` did not write."""
    mark = parse_mark(record.system.get(TRANSACTION, ""))
    delivery, identity = bytes(record.delivery), record.system.get(IDENTITY) or record.system.get(KEY, "")
    key, tags = key_and_tags(delivery)
    return HalfMessage(
        record.offset, record.message_id, record.born_ms, record.flags, delivery, mark, key, tags, identity
    )


def parse_mark(text: str | bytes) -> HalfMark:
    """Decode the system property of a half record. Raises DamagedError."""
    try:
        mark = _MARKS.decode(text)
    except msgspec.DecodeError as error:
        raise DamagedError(f"half record's mark {text[:80]!r} does not parse: {error}") from error
    if not _ID.match(mark.id.encode()):
        raise DamagedError(f"half record's transaction is {mark.id[:80]!r}; a UUID of version 7 is required")
    return mark


def half_identity(identity: str, transaction: bytes) -> str:
    """Return the identity of a half message, for duplicate detection within its transaction.

    It includes transaction and topic, so that the key of a rolled-back message can be used again. The
    identity of a sequence stays unchanged.
    """
    if not is_key(identity):
        return identity
    digest, checksum = parse_key(identity)
    return f"k{blake2b(transaction + digest, digest_size=16).hexdigest()}{checksum:08x}"


def name_of(identity: str) -> str:
    """Return the part of an identity that is the same in every resend of the message; "" for "".

    It leaves out the body's checksum and the answered sequences.
    """
    return identity[:33] if is_key(identity) else sequence_name(identity)


def checksum_of(identity: str) -> str:
    """Return the body checksum that is part of a key identity; "" for a sequence or no identity."""
    return identity[33:] if is_key(identity) else ""


def message_id_of(identity: str, transaction: bytes) -> bytes:
    """Derive the message id from an identity: the same in every resend, different in another transaction."""
    name = transaction + name_of(identity).encode()
    return blake2b(name, digest_size=16, person=b"transaction").digest()


def with_first_copy(
    record: NewRecord, shard: int, stored: AppendResult, verdict: HalfVerdict
) -> AppendResult:
    """Return the result of a stored message.

    For a duplicate that the shard detected, add the first copy to it.
    """
    if verdict not in (HalfVerdict.COPY, HalfVerdict.CHANGED) or stored.first is not None:
        return stored
    differs = verdict is HalfVerdict.CHANGED
    return stored._replace(first=FirstStored(record.message_id, shard, stored.offset, differs))


def is_in_other_transaction(record: NewRecord, stored: AppendResult) -> bool:
    """Return whether the engine detected a duplicate of a message from another transaction with the same
    sequence."""
    return stored.first is not None and stored.first.message_id != record.message_id


class Op(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an op record: the record of a transaction's end.

    `reason`: why it is a dead letter. `end`: half messages of the transaction at or above this offset came
    too late.
    """

    outcome: int
    group: str
    at_ms: int
    messages: int = 0
    reason: str = ""
    end: int = -1


_OPS = msgspec.json.Decoder(Op)


def op_record(shard: int, transaction: bytes, op: Op) -> NewRecord:
    """Build the record for the op topic."""
    return NewRecord(OP_TOPIC, shard, transaction, op.at_ms, encode(b"", _encode(op), b"", None))


def read_op(delivery: bytes) -> Op:
    """Decode an op record. Raises DamagedError for a record that `op_record` did not write."""
    try:
        op = _OPS.decode(value_of(bytes(delivery)))
        TransactionOutcome(op.outcome)
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedError(f"op record of {len(delivery)} bytes does not parse: {error}") from error
    return op


def dead_half(half: HalfMessage, reason: str, checks: int, error: str, now_ms: int) -> NewRecord:
    """Build the dead-letter record of a half message."""
    mark = half.mark
    texts: dict[str, Any] = {
        dead.REASON: reason,
        dead.ERROR: error,
        dead.TOPIC: mark.topic,
        dead.QUEUE_CHOICE: str(mark.queue),
        dead.ATTEMPTS: str(checks),
        dead.TIME: str(now_ms),
        dead.DELAY: _delay_of(mark),
        dead.TRANSACTION: mark.id,
        DEAD_GROUP: mark.group,
    }
    facts = {name: text for name, text in texts.items() if text}
    return dead.dead_record(TRANSACTION_DEAD_TOPIC, half, facts, {})


def _delay_of(mark: HalfMark) -> str:
    """Return a description of the message's delay; "" if it has none."""
    if mark.level:
        return f"level {mark.level}"
    if mark.command is None:
        return ""
    if mark.wait_ms >= 0:
        return f"{mark.wait_ms} ms after the commit"
    return f"until {mark.command.due_ms} ms since the epoch"


def dead_unreadable(record: StoredHalf, now_ms: int) -> NewRecord:
    """Build the dead-letter record of a half record that cannot be decoded. Its bytes stay unchanged."""
    facts = {dead.REASON: "unreadable", dead.ATTEMPTS: "0", dead.TIME: str(now_ms)}
    return dead.dead_record(TRANSACTION_DEAD_TOPIC, record, facts, dict(record.system), bare=True)
