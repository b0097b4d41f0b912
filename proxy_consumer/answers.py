"""Replies of the consumer service: constant ones are encoded once, pull replies are joined from stored
slices.

A pull reply over the compact protocol is built by hand: a header (the result's field 0, the Context, the list
header), then for each message its delivery bytes and a tail, then three stop bytes. The tails for DDMQ
clients depend on the offset alone and are built for 64 offsets at a time. ddmq_client also gets fields 100 to
105. Callers over the binary protocol are served by the generic codec.

A pull's answer over the compact protocol is built by hand: head (the result's field 0, the Context,
the list header), then per message its delivery bytes and a tail, then three stop bytes. Tails of old
clients depend on the offset alone and are made for 64 offsets at a time. Our own clients get fields
100 to 105 as well. Binary-protocol callers take the codec's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from backend.records import StoredRecord
from ddmq_client.idl import consumer
from ddmq_common.delivery import STOP, decode, encode_tail, varint, zigzag
from ddmq_rpc.api import Call, Wire
from ddmq_rpc.codec import constant_result, structs
from proxy_consumer.core.queue_name import QueueName
from proxy_consumer.core.steps import Delivery
from proxy_consumer.retries.headers import attempts_before

SERVICE = "ConsumerService"
IDL = structs(consumer)
EMPTY = constant_result(
    consumer, SERVICE, "pull", success=IDL.PullResponse(context=IDL.Context(), messages=[])
)
SUBMITTED = constant_result(consumer, SERVICE, "submit", success=True)

_BLOCK = 64  # offsets whose zigzag varints differ in the first byte only
_LOWS = tuple(b"\x06\x08" + bytes([low << 1 | 128]) for low in range(_BLOCK))
_END = STOP + STOP  # of PullResponse and of the result
_LEASE_MS = b"\x06\xc8\x01"  # field 100 of PullResponse


def context_of(name: QueueName) -> Any:
    """Return a queue's name as the Thrift struct `Context`."""
    return IDL.Context(groupId=name.group, topic=name.topic, qid=name.qid)


def throw_pull_error(call: Call, code: int, text: str, option: str | None = None) -> None:
    """Reply with a PullException. `option`: the wrong option of the pull; None for any other error."""
    call.throw(IDL.PullException(code=int(code), message=text, option=option))


def answer_pull(
    call: Call,
    name: QueueName,
    delivery: Delivery,
    next_offset: int | None,
    late: Sequence[Any] = (),
    notice: str = "",
) -> None:
    """Reply to a pull with the messages of `delivery`.

    Calls from ddmq_client get three more things: `next_offset` of the queue (None: the caller is a DDMQ
    client), `late` (the LateResults of the results that the pull carried) and `notice` (a text for people).
    """
    if call.wire is not Wire.COMPACT or late or notice:
        response = _build_response(name, delivery, next_offset)
        response.late, response.notice = late or None, notice or None
        call.reply(response)
        return
    deliveries = delivery.messages.deliveries
    count = len(deliveries)
    chunks: list[bytes] = [_END] * (2 * count + 2)
    chunks[0] = name.head + list_header(count)
    chunks[1:-1:2] = deliveries
    chunks[2:-1:2] = plain_tails(delivery) if next_offset is None else extended_tails(delivery, next_offset)
    if next_offset is not None:
        chunks[-1] = b"%b%b%b" % (_LEASE_MS, zigzag(round(delivery.lease.length_s * 1000)), _END)
    call.reply_encoded(b"".join(chunks))


def answer_empty(call: Call, late: Sequence[Any] = (), notice: str = "") -> None:
    """Reply to a pull that there are no messages; only ddmq_client gets `late` and `notice`."""
    if not late and not notice:
        call.reply_encoded(EMPTY[call.wire])
        return
    nothing = IDL.PullResponse(context=IDL.Context(), messages=[], late=late or None, notice=notice or None)
    call.reply(nothing)


def list_header(count: int) -> bytes:
    """Return the bytes that open a list of `count` structs in the compact protocol."""
    return bytes([count << 4 | 12]) if count < 15 else b"\xfc" + varint(count)


def plain_tails(delivery: Delivery) -> Sequence[bytes]:
    """Encode the tail of each message for DDMQ clients: its offset and the stop byte."""
    offsets = delivery.messages.offsets
    first, count = offsets[0], len(offsets)
    if offsets[-1] - first != count - 1:
        return [_block_tails(offset >> 6)[offset & 63] for offset in offsets]
    tails_in_order: list[bytes] = []
    at, end = first, first + count
    while at < end:
        after = min((at | 63) + 1, end)
        tails_in_order += _block_tails(at >> 6)[at & 63 : (after - 1 & 63) + 1]
        at = after
    return tails_in_order


@lru_cache(maxsize=64)
def _block_tails(block: int) -> list[bytes]:
    first = block * _BLOCK
    if first == 0:
        return [encode_tail(offset) for offset in range(_BLOCK)]
    rest = varint(first << 1 >> 7) + STOP
    return [low + rest for low in _LOWS]


def extended_tails(delivery: Delivery, next_offset: int) -> list[bytes]:
    """Encode the tail of each message for ddmq_client: its offset, fields 100 to 105 and the stop byte.

    Fields that differ between the messages come first (100, 103, 104), then those that they share (101, 102,
    105).
    """
    messages = delivery.messages
    record = messages.batch.record
    times: dict[tuple[int, int], bytes] = {}
    shared: dict[int, bytes] = {}
    ends: list[bytes] = []
    for index, plain, attempt in zip(
        messages.indexes, plain_tails(delivery), delivery.attempt_numbers(), strict=True
    ):
        stored = record(index)
        if stored.system:
            attempt += attempts_before(stored.system)
        moment = (stored.born_ms, stored.stored_ms)
        if moment not in times:
            times[moment] = b"\x36%b\x16%b" % (zigzag(stored.born_ms), zigzag(stored.stored_ms))
        if attempt not in shared:
            values = (zigzag(delivery.lease.id), zigzag(attempt), zigzag(next_offset))
            shared[attempt] = b"\x06\xca\x01%b\x15%b\x36%b\x00" % values
        identity = stored.message_id.hex().encode()
        ends.append(b"%b\x08\xc8\x01\x20%b%b%b" % (plain[:-1], identity, times[moment], shared[attempt]))
    return ends


def message_of(raw: bytes, offset: int) -> Any:
    """Decode delivery bytes into a Message struct, for callers over the binary protocol."""
    content = decode(raw)
    return IDL.Message(
        key=content.key or None,
        value=content.value,
        tag=content.tag or None,
        offset=offset,
        properties=dict(content.properties) or None,
    )


def set_client_fields(message: Any, stored: StoredRecord, next_offset: int) -> None:
    """Set the message fields that only ddmq_client reads, in the replies to pulls and to fetches."""
    message.messageId = stored.message_id.hex()
    message.bornMs = stored.born_ms
    message.storedMs = stored.stored_ms
    message.nextOffset = next_offset


def _build_response(name: QueueName, delivery: Delivery, next_offset: int | None) -> Any:
    messages = delivery.messages
    messages_on_wire = []
    for index, offset, raw in zip(messages.indexes, messages.offsets, messages.deliveries, strict=True):
        message = message_of(raw, offset)
        if next_offset is not None:
            stored = messages.batch.record(index)
            set_client_fields(message, stored, next_offset)
            message.leaseId = delivery.lease.id
            message.attempt = delivery.queue.table.attempt_of(offset) + attempts_before(stored.system)
        messages_on_wire.append(message)
    lease_ms = None if next_offset is None else round(delivery.lease.length_s * 1000)
    return IDL.PullResponse(context=context_of(name), messages=messages_on_wire, leaseMs=lease_ms)
