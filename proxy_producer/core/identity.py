"""The identity of a message, by which a second send of it is recognised: read and checked. Pure.

A key, field idempotencyKey or property idempotency-key, goes before a sequence. On an engine that cannot
recognise messages by it a key is rejected, for an application relies on it; a sequence is ignored, for client
libraries send it by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Protocol

from backend.port import Backend
from ddmq_client.idl.codes import IDEMPOTENCY_KEY
from ddmq_common.security.callers import Caller
from ddmq_common.send_identity import (
    KEY_CHARACTERS_MAX,
    PRODUCER_BYTES_MAX,
    SEQUENCE_MAX,
    add_owner,
    is_key,
    key_identity,
    make_owner,
    parse_key,
    sequence_identity,
    sequence_name,
)
from proxy_producer.core.rejections import SendRejection, build_illegal_rejection, quote_text
from proxy_producer.core.validation import CHRONOS, DELAY

KEY_PROPERTY = IDEMPOTENCY_KEY.encode()
_KEY_ALLOWED = f"allowed: 1 to {KEY_CHARACTERS_MAX} characters of UTF-8 that are not all blank"


class Sender(Protocol):
    """Who sends: a call, or None for a message whose transaction or acknowledgement identifies its sender."""

    @property
    def peer(self) -> str: ...
    @property
    def caller(self) -> Caller | None: ...


IdentityOf = Callable[[Any, Mapping[bytes, bytes] | None, Sender | None], str | SendRejection | None]


def identity_of(
    message: Any, properties: Mapping[bytes, bytes] | None, sender: Sender | None
) -> str | SendRejection | None:
    """Return the identity of a wire Message for duplicate detection, a rejection, or None if it has none.

    The body may be None here; a later check rejects such a message.
    """
    key = _key_of(message, properties)
    if key is not None:
        return _key_identity(message, key, properties, sender)
    sequence = message.sequence
    if sequence is None:
        return None
    identity = _sequence_identity(
        message.producerId or b"", sequence, message.answeredBelow, message.underWayMs
    )
    return _add_owner(identity, sender) if isinstance(identity, str) else identity


def key_identity_of(
    message: Any, properties: Mapping[bytes, bytes] | None, sender: Sender | None
) -> str | SendRejection | None:
    """Return the identity of a message by its idempotency key, a rejection, or None if it has no key.

    This engine recognises no sequences.
    """
    key = _key_of(message, properties)
    return None if key is None else _key_identity(message, key, properties, sender)


def _add_owner(identity: str, sender: Sender | None) -> str:
    """Return the identity with its owner: the identity that is logged in, else the address."""
    if sender is None:
        return identity
    caller = sender.caller
    name = caller.name if caller is not None and caller.name else sender.peer.rpartition(":")[0]
    return add_owner(identity, make_owner(name)) if name else identity


def choose_identity_of(backend: Backend) -> IdentityOf:
    """Return the function that reads the identities which this engine recognises."""
    if not backend.capabilities.idempotent:
        return no_identity_of
    return identity_of if backend.recognises_numbers else key_identity_of


def own_sequence(identity: str, sender: Sender) -> str:
    """Return the identity of a message of a transaction, with its owner if it is a sequence."""
    return identity if is_key(identity) else _add_owner(identity, sender)


def no_identity_of(
    message: Any, properties: Mapping[bytes, bytes] | None, sender: Sender | None
) -> str | SendRejection | None:
    """Return a rejection of an idempotency key, because this engine detects no duplicates; else None."""
    key = _key_of(message, properties)
    if key is None:
        return None
    return build_illegal_rejection(
        "idempotency_key",
        f"the message has the idempotency key {quote_text(key)}, and this cluster's engine cannot tell"
        " whether it was stored before",
        "allowed here: messages without one; the file log can, and Kafka with store_once: keys or all",
    )


def _key_of(message: Any, properties: Mapping[bytes, bytes] | None) -> bytes | None:
    """Return the message's idempotency key, or None.

    Messages of a delay server have none: their properties are copied from the original message to every
    occurrence.
    """
    key: bytes | None = message.idempotencyKey
    if key is None and properties and CHRONOS not in properties:
        key = properties.get(KEY_PROPERTY)
    return key


def _key_identity(
    message: Any, key: bytes, properties: Mapping[bytes, bytes] | None, sender: Sender | None
) -> str | SendRejection:
    """Return the identity of a message by its idempotency key, or the rejection of an invalid key.

    A message with a delay level and one without never count as duplicates.
    """
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.strip() or len(text) > KEY_CHARACTERS_MAX:
        what = f"the idempotency key {quote_text(key)} has {len(key)} bytes"
        return build_illegal_rejection("idempotency_key", what, _KEY_ALLOWED)
    topic = message.topic or b""
    if properties is not None and DELAY in properties:
        topic = b"\x00" + topic
    caller = None if sender is None else sender.caller
    body = message.body or message.value or b""
    return _add_owner(key_identity(topic, key, body, "" if caller is None else caller.name), sender)


def _sequence_identity(
    producer: bytes, sequence: int, below: int | None, under_way_ms: int | None
) -> str | SendRejection:
    below = below or 0
    if not 1 <= len(producer) <= PRODUCER_BYTES_MAX:
        what = f"sequence {sequence} comes with a producerId of {len(producer)} bytes"
        return build_illegal_rejection("sequence", what, f"allowed: 1 to {PRODUCER_BYTES_MAX} bytes")
    if not 0 <= below <= sequence <= SEQUENCE_MAX:
        what = f"sequence {sequence} comes with answeredBelow {below}"
        return build_illegal_rejection("sequence", what, "allowed: 0 <= answeredBelow <= sequence")
    if under_way_ms is None:
        return sequence_identity(producer, sequence, below)
    if not 0 <= under_way_ms <= SEQUENCE_MAX:
        what = f"sequence {sequence} comes with underWayMs {under_way_ms}"
        return build_illegal_rejection("sequence", what, "allowed: 0 or more, or none with a first attempt")
    return sequence_identity(producer, sequence, below, under_way_ms)


def delay_uuid(identity: str) -> bytes:
    """Return the 16-byte uuid under which the delay service recognises resends of a message."""
    name = parse_key(identity)[0] if is_key(identity) else sequence_name(identity).encode()
    return blake2b(name, digest_size=16).digest()
