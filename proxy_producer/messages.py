"""One wire Message into a checked record: where the wire's names end and ours begin.

Everything is taken out of the message here, at once: the RPC layer may use its argument objects again.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend.records import FLAG_PRESSURE, NewRecord
from ddmq_client.idl.codes import Code
from ddmq_common.delivery import encode
from proxy_producer.core.refusal import Refusal, illegal, refusal
from proxy_producer.core.validation import CHRONOS, DELAY, PRESSURE, delay_level

NO_DELAY_SERVICE = refusal(
    Code.NO_SERVICE, "no_delay_service", "no delay service is running", "allowed here: sends without a delay"
)
DELAY_FULL = refusal(
    Code.BUSY,
    "delay_pending",
    "this topic has as many delayed messages waiting as it may",
    "allowed: later, when some were delivered or cancelled; more with a higher pending_count_max or "
    "pending_bytes_max of the delay service",
)
_PRESSURE_ON = b"true"


def marks(properties: Mapping[bytes, bytes]) -> tuple[Mapping[bytes, bytes], int, int, bool]:
    """(properties to store, record flags, delay level, sent by a delay service) of checked properties."""
    flags = FLAG_PRESSURE if properties.get(PRESSURE) == _PRESSURE_ON else 0
    chronos = CHRONOS in properties
    if DELAY not in properties:
        return properties, flags, 0, chronos
    level = delay_level(properties)
    return {name: value for name, value in properties.items() if name != DELAY}, flags, level, chronos


DIALECT_IN_BATCH = illegal(
    "delayed_in_batch",
    "the batch holds a message whose properties ask for a delay",
    "allowed in a batch: messages without a delay; send it alone",
)


def delayed_in_batch(level: int) -> Refusal:
    """Code 11: batches hold plain messages only."""
    return illegal(
        "delayed_in_batch",
        f"the batch holds a message with property DELAY = {level}",
        "allowed in a batch: messages without a delay; send it alone",
    )


def record_of(
    topic: str,
    queue_id: int,
    message_id: bytes,
    born_ms: int,
    key: bytes,
    tags: bytes,
    body: bytes,
    properties: Mapping[bytes, bytes] | None,
    flags: int,
) -> NewRecord:
    """The record to append; `delivery` is encoded here, once for all consumers."""
    return NewRecord(
        topic, queue_id, message_id, born_ms, encode(key, body, tags, properties), key, tags, flags
    )
