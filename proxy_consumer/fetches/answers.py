"""The messages that a fetch found per queue, and its reply.

Over the compact protocol the reply is joined from stored slices, otherwise it is built by the codec. The
replies to ack are here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backend.records import Bounds, QueueRef, StoredRecord
from ddmq_client.idl import consumer
from ddmq_common.delivery import STOP, encode_tail, varint, zigzag
from ddmq_rpc.api import Call, Wire
from ddmq_rpc.codec import constant_result
from proxy_consumer.answers import IDL, SERVICE, context_of, list_header, message_of, set_client_fields
from proxy_consumer.core.queue_feed import Filter
from proxy_consumer.core.queue_name import QueueName

NOTHING = constant_result(consumer, SERVICE, "fetch", success=IDL.FetchResponse(results=[]))
TRUE = constant_result(consumer, SERVICE, "ack", success=True)
FALSE = constant_result(consumer, SERVICE, "ack", success=False)


class Target:
    """A queue that a fetch reads from, and the messages read there."""

    __slots__ = (
        "bounds",
        "count",
        "deleted",
        "deliveries",
        "failed",
        "group",
        "message_filter",
        "next_offset",
        "offset",
        "offsets",
        "paused",
        "pressure",
        "qid",
        "queue",
        "records",
        "rounds",
        "stated",
    )  # fmt: skip

    def __init__(
        self,
        queue: QueueRef,
        qid: str,
        offset: int,
        stated: bool,
        count: int,
        pressure: bool,
        message_filter: Filter | None = None,
        group: str = "",
        paused: bool = False,
    ) -> None:
        """Create a target: the queue of `group` to read from `offset`, at most `count` messages.

        `qid`: the queue's name on the wire. `stated`: the client itself stated the offset. `pressure`:
        messages of pressure tests are included. `paused`: nothing is read; the reply still states the offset.
        """
        self.queue = queue
        self.group = group
        self.qid = qid
        self.offset = offset
        self.stated = stated
        self.count = count
        self.pressure = pressure
        self.message_filter = message_filter
        self.paused = paused
        self.bounds: Bounds | None = None  # returned in the reply if set
        self.next_offset = offset
        self.deliveries: list[bytes] = []
        self.offsets: list[int] = []
        self.records: list[Callable[[], StoredRecord]] = []
        self.rounds = 0
        self.deleted = False
        self.failed = False  # it could not be read

    @property
    def has_moved(self) -> bool:
        """Whether the client has new messages or a new offset to receive from this queue."""
        return bool(self.deliveries) or self.next_offset != self.offset


def answer_fetch(call: Call, targets: Sequence[Target], next_offsets: dict[Any, int] | None) -> None:
    """Reply to a fetch with the collected messages. `next_offsets` of the queues: for ddmq_client; None for
    DDMQ clients."""
    if not targets:
        call.reply_encoded(NOTHING[call.wire])
    elif call.wire is Wire.COMPACT:
        chunks = [b"\x0c\x00\xa9", list_header(len(targets))]
        for target in targets:
            chunks += _encode_queue(target, next_offsets)
        chunks.append(STOP + STOP)
        call.reply_encoded(b"".join(chunks))
    else:
        results = [_build_response(target, next_offsets) for target in targets]
        call.reply(IDL.FetchResponse(results=results))


def answer_instance_pull(
    call: Call, group: bytes, target: Target, next_offsets: dict[Any, int] | None
) -> None:
    """Reply to a pull of `group` with the messages collected from one queue."""
    name = QueueName(group.decode(), target.queue.topic, target.qid)
    if call.wire is Wire.COMPACT:
        call.reply_encoded(b"".join([name.head, *_join_messages(target, next_offsets), STOP + STOP]))
    else:
        call.reply(IDL.PullResponse(context=context_of(name), messages=_build_messages(target, next_offsets)))


def reject_fetch(call: Call, code: int, text: str) -> None:
    """Reply that nothing can be fetched; only ddmq_client gets the code and the text."""
    if call.args.request.clientId is None:
        call.reply_encoded(NOTHING[call.wire])
    else:
        call.reply(IDL.FetchResponse(code=int(code), results=[], error=text))


def _encode_queue(target: Target, next_offsets: dict[Any, int] | None) -> list[bytes]:
    topic, qid = target.queue.topic.encode(), target.qid.encode()
    head = b"\x18%b%b\x18%b%b\x16%b\x79" % (
        varint(len(topic)), topic, varint(len(qid)), qid, zigzag(target.next_offset)
    )  # fmt: skip
    chunks = [head, *_join_messages(target, next_offsets)]
    if target.bounds is not None:  # fields 100 and 101
        chunks.append(b"\x06\xc8\x01%b\x16%b" % (zigzag(target.bounds.min), zigzag(target.bounds.next)))
    chunks.append(STOP)
    return chunks


def _join_messages(target: Target, next_offsets: dict[Any, int] | None) -> list[bytes]:
    """Encode the list of messages: for each its stored slice and the fields known only at delivery."""
    chunks = [list_header(len(target.deliveries))]
    for delivery, end in zip(target.deliveries, _encode_tails(target, next_offsets), strict=True):
        chunks += (delivery, end)
    return chunks


def _encode_tails(target: Target, next_offsets: dict[Any, int] | None) -> list[bytes]:
    if next_offsets is None:
        return [encode_tail(offset) for offset in target.offsets]
    behind = zigzag(max(next_offsets.get(target.queue, 0), target.next_offset))
    tails = []
    for offset, record in zip(target.offsets, target.records, strict=True):
        stored = record()
        tails.append(
            b"%b\x08\xc8\x01\x20%b\x36%b\x16%b\x16%b\x00"
            % (
                encode_tail(offset)[:-1],
                stored.message_id.hex().encode(),
                zigzag(stored.born_ms),
                zigzag(stored.stored_ms),
                behind,
            )
        )
    return tails


def _build_response(target: Target, next_offsets: dict[Any, int] | None) -> Any:
    return IDL.QidResponse(
        topic=target.queue.topic,
        qid=target.qid,
        nextRequestOffset=target.next_offset,
        messages=_build_messages(target, next_offsets),
        firstOffset=None if target.bounds is None else target.bounds.min,
        endOffset=None if target.bounds is None else target.bounds.next,
    )


def _build_messages(target: Target, next_offsets: dict[Any, int] | None) -> list[Any]:
    messages = []
    for raw, offset, record in zip(target.deliveries, target.offsets, target.records, strict=True):
        message = message_of(raw, offset)
        if next_offsets is not None:
            set_client_fields(message, record(), max(next_offsets.get(target.queue, 0), target.next_offset))
        messages.append(message)
    return messages
