"""The low-level calls: fetch and ack requests to bytes, answers to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddmq_client.core import frames
from ddmq_client.core.frames import FrameError
from ddmq_client.errors import PullError
from ddmq_client.idl import consumer as idl
from ddmq_client.received import FetchedQueue
from ddmq_client.wire.codec import decode, encode
from ddmq_client.wire.consuming import SPECS
from ddmq_client.wire.producing import answer_at

FETCH = b"fetch"
ACK = b"ack"
CLUSTER = "R_default"  # demanded by the wire, read by nobody
_REQUEST: Any = SPECS.register(idl.FetchRequest)[0]
_RESULT: Any = SPECS.register(idl.AckResult)[0]
_FETCH_ARGS = SPECS.register(idl.ConsumerService.fetch_args)
_FETCH_RESULT = SPECS.register(idl.ConsumerService.fetch_result)
_ACK_ARGS = SPECS.register(idl.ConsumerService.ack_args)
_ACK_RESULT = SPECS.register(idl.ConsumerService.ack_result)

Offsets = Mapping[str, Mapping[str, int]]


class FetchSettings(NamedTuple):
    """What every fetch of one client says. `topics` None: all of the group. `exact`: see the IDL."""

    group: str
    consumer_id: str
    client_id: str
    model: str
    topics: Sequence[str] | None = None
    exact: bool = False


def fetch_frame(
    settings: FetchSettings, offsets: Offsets, batch: int, linger_ms: int, sequence_id: int
) -> bytes:
    """A fetch request; `batch` messages of each queue at most."""
    request = _REQUEST()
    request.consumerId, request.groupId, request.cluster = settings.consumer_id, settings.group, CLUSTER
    request.fetchOffset = {topic: dict(queues) for topic, queues in offsets.items()} or None
    request.maxBatchSize, request.maxLingerTime = batch, linger_ms
    request.clientId, request.model = settings.client_id, settings.model
    request.topics = list(settings.topics) if settings.topics else None
    request.exact = True if settings.exact else None
    args = _FETCH_ARGS[0]()
    args.request = request
    return frames.framed((frames.call_head(FETCH, sequence_id), encode(args, _FETCH_ARGS)))


def leave_frame(settings: FetchSettings, sequence_id: int) -> bytes:
    """A fetch request that brings nothing: this consumer id fetches no more."""
    request = _REQUEST()
    request.consumerId, request.groupId, request.cluster = settings.consumer_id, settings.group, CLUSTER
    request.clientId, request.leave = settings.client_id, True
    args = _FETCH_ARGS[0]()
    args.request = request
    return frames.framed((frames.call_head(FETCH, sequence_id), encode(args, _FETCH_ARGS)))


def ack_frame(settings: FetchSettings, offsets: Offsets, sequence_id: int) -> bytes:
    """An ack request: the next offset to consume of each queue."""
    result = _RESULT()
    result.consumerId, result.groupId, result.cluster = settings.consumer_id, settings.group, CLUSTER
    result.offsets = {topic: dict(queues) for topic, queues in offsets.items()}
    args = _ACK_ARGS[0]()
    args.result = result
    return frames.framed((frames.call_head(ACK, sequence_id), encode(args, _ACK_ARGS)))


def read_fetched(payload: bytes, sequence_id: int) -> list[FetchedQueue]:
    """One entry for each queue that is assigned; PullError, ProxyFault or FrameError."""
    answer = decode(payload, answer_at(payload, FETCH, sequence_id), _FETCH_RESULT).success
    if answer is None:
        raise FrameError("answer without a result")
    if answer.error is not None:
        raise PullError(answer.error, answer.code)
    return [
        FetchedQueue(
            one.topic or "",
            one.qid or "",
            one.nextRequestOffset or 0,
            one.messages or (),
            one.firstOffset,
            one.endOffset,
        )
        for one in answer.results or ()
    ]


def read_acked(payload: bytes, sequence_id: int) -> bool:
    """Whether the offsets are stored; ProxyFault or FrameError."""
    answer = decode(payload, answer_at(payload, ACK, sequence_id), _ACK_RESULT).success
    if answer is None:
        raise FrameError("answer without a result")
    return bool(answer)
