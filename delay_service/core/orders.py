"""An order as it lies in the inner topic, taken apart."""

from __future__ import annotations

from typing import NamedTuple

from backend.progress.ack_map import OFFSET_END
from backend.records import StoredRecord
from ddmq_common.delay_id import uuid_bytes
from ddmq_common.delay_order import ADD, CANCEL, FIRE, ORDER_PROPERTY, RESCHEDULE, DelayOrder, decode_order
from ddmq_common.delivery_parts import tag_of
from ddmq_common.errors import DamagedError
from delay_service.store.port import DueKey, Pending

OPS = frozenset((ADD, CANCEL, RESCHEDULE, FIRE))


class Order(NamedTuple):
    """One order. `said` is None when the record does not say what is wanted: it becomes a dead letter.

    `delivery`: the record's own bytes, which a reader may give back.
    """

    offset: int
    record: StoredRecord
    said: DelayOrder | None
    uuid: bytes
    text: str
    delivery: bytes


def order_of(record: StoredRecord) -> Order:
    """The order that an inner record holds."""
    text = record.system.get(ORDER_PROPERTY, "")
    offset, delivery = record.offset, bytes(record.delivery)
    try:
        said = decode_order(text)
    except DamagedError:
        return Order(offset, record, None, b"", text, delivery)
    if said.op not in OPS or (said.op == ADD and not said.topic):
        return Order(offset, record, None, b"", text, delivery)
    return Order(offset, record, said, uuid_bytes(said.uuid), text, delivery)


def pending_of(order: Order) -> Pending:
    """The message that an add asks to keep. Raises DamagedError when its delivery bytes do not parse."""
    record, said = order.record, order.said
    if said is None:
        raise DamagedError(f"order at offset {order.offset} does not parse")
    delivery = order.delivery
    return Pending(
        max(said.at_ms or said.due_ms, 0),
        order.offset,
        said.occurrence,
        said.topic,
        order.uuid,
        order.text,
        record.message_id,
        record.born_ms,
        record.flags,
        tag_of(delivery),
        delivery,
    )


def before(key: DueKey) -> DueKey | None:
    """The greatest place in front of `key`; None: the beginning."""
    if key.offset > 0:
        return DueKey(key.due_ms, key.offset - 1)
    return DueKey(key.due_ms - 1, OFFSET_END) if key.due_ms > 0 else None
