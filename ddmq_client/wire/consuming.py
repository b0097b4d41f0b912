"""The consumer service's calls: requests to bytes, answers to messages. Pull, submit and settle; then the
low-level ones, fetch and ack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddmq_client.core import frames
from ddmq_client.core.acks import NO_DELAY, AckBatch, OriginResults, UnappliedResult
from ddmq_client.core.frames import FrameError
from ddmq_client.core.settings import ConsumerSettings
from ddmq_client.core.verdicts import CallFailed
from ddmq_client.errors import PullError
from ddmq_client.idl import consumer as idl
from ddmq_client.received import FetchedQueue, Message, Origin
from ddmq_client.wire.codec import Specs, decode, encode
from ddmq_client.wire.producing import ProxyFault, answer_at

PULL = b"pull"
SUBMIT = b"submit"
SETTLE = b"settle"
STATS = b"getConsumeStats"
SPECS = Specs()
SPECS.register(
    idl.Message,
    Message,
    {
        "value": "body",
        "tag": "tags",
        "messageId": "message_id",
        "leaseId": "lease_id",
        "bornMs": "born_ms",
        "storedMs": "stored_ms",
        "nextOffset": "next_offset",
    },
)
_CONTEXT: Any = SPECS.register(idl.Context)[0]
_RESULT: Any = SPECS.register(idl.ConsumeResult)[0]
_REQUEST: Any = SPECS.register(idl.PullRequest)[0]
_PULL_ARGS = SPECS.register(idl.ConsumerService.pull_args)
_PULL_RESULT = SPECS.register(idl.ConsumerService.pull_result)
_SETTLE_REQUEST: Any = SPECS.register(idl.SettleRequest)[0]
_SETTLE_ARGS = SPECS.register(idl.ConsumerService.settle_args)
_SETTLE_RESULT = SPECS.register(idl.ConsumerService.settle_result)
_SUBMIT_ARGS = SPECS.register(idl.ConsumerService.submit_args)
_SUBMIT_RESULT = SPECS.register(idl.ConsumerService.submit_result)
_STATS_REQUEST: Any = SPECS.register(idl.ConsumeStatsRequest)[0]
_STATS_ARGS = SPECS.register(idl.ConsumerService.getConsumeStats_args)
_STATS_RESULT = SPECS.register(idl.ConsumerService.getConsumeStats_result)


class PullSettings(NamedTuple):
    """What every pull of one consumer says."""

    group: str
    client_id: str
    linger_ms: int
    filter_type: str | None = None
    filter_text: str | None = None


def pull_settings(settings: ConsumerSettings) -> PullSettings:
    """The part of a consumer's settings that its pulls carry."""
    kind, text = None, None
    if settings.tags is not None:
        kind, text = "TAG", settings.tags
    elif settings.sql is not None:
        kind, text = "SQL92", settings.sql
    return PullSettings(settings.group, settings.client_id, settings.linger_ms, kind, text)


class Pulled(NamedTuple):
    """An answer: messages of one origin. `lease_ms`: how long their leases last, None from old proxies.

    `told`: results of the pull that changed nothing. `notice`: what is odd, for people.
    """

    origin: Origin
    messages: Sequence[Message]
    lease_ms: int | None = None
    told: Sequence[UnappliedResult] = ()
    notice: str = ""


def pull_frame(
    settings: PullSettings, topic: str | None, batch: int, acks: AckBatch | None, sequence_id: int
) -> bytes:
    """A pull request with the results that ride on it."""
    request = _REQUEST()
    request.groupId = settings.group
    request.topic = topic
    request.maxBatchSize = batch
    request.maxLingerTime = settings.linger_ms
    request.clientId = settings.client_id
    request.filterType, request.filter = settings.filter_type, settings.filter_text
    request.result = _linked(acks) if acks else None
    args = _PULL_ARGS[0]()
    args.request = request
    return frames.framed((frames.call_head(PULL, sequence_id), encode(args, _PULL_ARGS)))


def submit_frame(acks: AckBatch, sequence_id: int) -> bytes:
    """A submit request."""
    args = _SUBMIT_ARGS[0]()
    args.result = _linked(acks)
    return frames.framed((frames.call_head(SUBMIT, sequence_id), encode(args, _SUBMIT_ARGS)))


def stats_frame(group: str, sequence_id: int) -> bytes:
    """A request for a group's offsets: it makes nothing, and only a consumer proxy answers it."""
    args = _STATS_ARGS[0]()
    args.request = _STATS_REQUEST()
    args.request.group = group
    return frames.framed((frames.call_head(STATS, sequence_id), encode(args, _STATS_ARGS)))


def read_stats(payload: bytes, sequence_id: int) -> None:
    """That it was answered; PullError, ProxyFault or FrameError."""
    _raise_refusal(decode(payload, answer_at(payload, STATS, sequence_id), _STATS_RESULT))


def read_pulled(payload: bytes, sequence_id: int) -> Pulled:
    """The messages of an answer, perhaps none; PullError, ProxyFault or FrameError."""
    answer = decode(payload, answer_at(payload, PULL, sequence_id), _PULL_RESULT)
    _raise_refusal(answer)
    response = answer.success
    if response is None:
        raise FrameError("answer without a result")
    context = response.context or _CONTEXT()
    origin = Origin(context.groupId or "", context.topic or "", context.qid or "")
    told = _told(response.late)
    return Pulled(origin, response.messages or (), response.leaseMs, told, response.notice or "")


def settle_frame(settings: PullSettings, acks: AckBatch | None, leave: bool, sequence_id: int) -> bytes:
    """A settle request; `leave`: the client stops, its waiting pulls are to be answered."""
    request = _SETTLE_REQUEST()
    request.result = _linked(acks) if acks else None
    request.groupId, request.clientId = settings.group, settings.client_id
    request.leave = True if leave else None
    args = _SETTLE_ARGS[0]()
    args.request = request
    return frames.framed((frames.call_head(SETTLE, sequence_id), encode(args, _SETTLE_ARGS)))


def read_settled(payload: bytes, sequence_id: int) -> list[UnappliedResult]:
    """What came too late; PullError, ProxyFault or FrameError."""
    answer = decode(payload, answer_at(payload, SETTLE, sequence_id), _SETTLE_RESULT)
    _raise_refusal(answer)
    if answer.success is None:
        raise FrameError("answer without a result")
    return _told(answer.success.late)


def _told(late: Sequence[Any] | None) -> list[UnappliedResult]:
    found: list[UnappliedResult] = []
    for each in late or ():
        context = each.context or _CONTEXT()
        origin = Origin(context.groupId or "", context.topic or "", context.qid or "")
        finished = set(each.finished or ())
        for offset, lease in zip(each.offsets or (), each.leases or (), strict=False):
            found.append(UnappliedResult(origin, offset, lease, offset in finished))
    return found


def read_submitted(payload: bytes, sequence_id: int) -> bool:
    """Whether the proxy took the results; PullError, ProxyFault or FrameError."""
    answer = decode(payload, answer_at(payload, SUBMIT, sequence_id), _SUBMIT_RESULT)
    _raise_refusal(answer)
    if answer.success is None:
        raise FrameError("answer without a result")
    return bool(answer.success)


def _raise_refusal(answer: Any) -> None:
    if answer.error is not None:
        raise PullError(answer.error.message or "pull refused", answer.error.code)


def _linked(acks: AckBatch) -> Any:
    """The linked list of the wire, one element per origin."""
    head = None
    for results in reversed(acks):
        element = _element(results)
        element.nextResult = head
        head = element
    return head


def _element(results: OriginResults) -> Any:
    element = _RESULT()
    element.context = context = _CONTEXT()
    context.groupId, context.topic, context.qid = results.origin
    element.successOffsets, element.failOffsets = results.successes, results.fails
    # Without a single lease the proxy is an old one; it need not be shown fields of ours.
    if any(results.success_leases):
        element.successLeases = results.success_leases
    if any(results.fail_leases):
        element.failLeases = results.fail_leases
    if any(delay != NO_DELAY for delay in results.fail_delays):
        element.failDelaysMs = results.fail_delays
    if any(results.fail_reasons) and any(results.fail_leases):
        element.failReasons = results.fail_reasons
    if results.extends:
        element.extendLeases, element.extendOffsets = results.extends, results.extend_offsets
    if results.returns:
        element.returnOffsets, element.returnLeases = results.returns, results.return_leases
    return element


FETCH = b"fetch"
ACK = b"ack"
CLUSTER = "R_default"  # demanded by the wire, read by nobody
_FETCH_REQUEST: Any = SPECS.register(idl.FetchRequest)[0]
_OFFSETS: Any = SPECS.register(idl.AckResult)[0]
_FETCH_ARGS = SPECS.register(idl.ConsumerService.fetch_args)
_FETCH_RESULT = SPECS.register(idl.ConsumerService.fetch_result)
_ACK_ARGS = SPECS.register(idl.ConsumerService.ack_args)
_ACK_RESULT = SPECS.register(idl.ConsumerService.ack_result)

FAILURES = (CallFailed, FrameError, ProxyFault, PullError)  # how a call ends without what was asked for
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
    request = _FETCH_REQUEST()
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
    request = _FETCH_REQUEST()
    request.consumerId, request.groupId, request.cluster = settings.consumer_id, settings.group, CLUSTER
    request.clientId, request.leave = settings.client_id, True
    args = _FETCH_ARGS[0]()
    args.request = request
    return frames.framed((frames.call_head(FETCH, sequence_id), encode(args, _FETCH_ARGS)))


def ack_frame(settings: FetchSettings, offsets: Offsets, sequence_id: int) -> bytes:
    """An ack request: the next offset to consume of each queue."""
    result = _OFFSETS()
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
