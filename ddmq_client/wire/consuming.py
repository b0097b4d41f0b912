"""The consumer service's calls: requests to bytes, answers to messages. Pull, submit and settle; then the
low-level ones, fetch and ack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddmq_client.core import frames
from ddmq_client.core.acks import NO_DELAY, AckBatch, OriginResults, UnappliedResult
from ddmq_client.core.frames import FrameError
from ddmq_client.core.settings import ConsumerSettings
from ddmq_client.core.verdicts import PERMANENT, CallFailed, CallVerdict
from ddmq_client.errors import LoginError, PullError, SubscriptionError
from ddmq_client.idl import consumer as idl
from ddmq_client.idl.codes import Code
from ddmq_client.received import FetchedQueue, Message, Origin
from ddmq_client.wire.codec import Specs, decode, encode
from ddmq_client.wire.producing import UNKNOWN_METHOD, ProxyCallError, answer_at
from ddmq_client.wire.wording import explain_missing_login

SPECS = Specs()
SPECS.register_struct(
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
_CONTEXT: Any = SPECS.register_struct(idl.Context)[0]
_RESULT: Any = SPECS.register_struct(idl.ConsumeResult)[0]
_REQUEST: Any = SPECS.register_struct(idl.PullRequest)[0]
_SETTLE_REQUEST: Any = SPECS.register_struct(idl.SettleRequest)[0]
_STATS_REQUEST: Any = SPECS.register_struct(idl.ConsumeStatsRequest)[0]
_FETCH_REQUEST: Any = SPECS.register_struct(idl.FetchRequest)[0]
_OFFSETS: Any = SPECS.register_struct(idl.AckResult)[0]


class _Method:
    """A method of ConsumerService with one argument; `argument` is its name in the IDL."""

    def __init__(self, name: str, argument: str) -> None:
        self._name = name.encode()
        self._argument = argument
        self._args = SPECS.register_struct(getattr(idl.ConsumerService, f"{name}_args"))
        self._result = SPECS.register_struct(getattr(idl.ConsumerService, f"{name}_result"))

    def frame(self, argument: Any, sequence_id: int) -> bytes:
        args = self._args[0]()
        setattr(args, self._argument, argument)
        return frames.build_frame((frames.call_head(self._name, sequence_id), encode(args, self._args)))

    def answer(self, payload: bytes, sequence_id: int) -> Any:
        """Decode the returned value of a call. Raises PullError, ProxyCallError or FrameError."""
        value = decode(payload, answer_at(payload, self._name, sequence_id), self._result)
        error = getattr(value, "error", None)
        if error is not None:
            kind = PullError if getattr(error, "option", None) is None else SubscriptionError
            raise kind(explain_missing_login(error.message or "pull refused"), error.code)
        if value.success is None:
            raise FrameError("answer without a result")
        return value.success


_PULL, _SETTLE, _FETCH = _Method("pull", "request"), _Method("settle", "request"), _Method("fetch", "request")
_SUBMIT, _ACK = _Method("submit", "result"), _Method("ack", "result")
_STATS = _Method("getConsumeStats", "request")


class PullSettings(NamedTuple):
    """The settings that every pull of one consumer sends."""

    group: str
    client_id: str
    linger_ms: int
    filter_type: str | None = None
    filter_text: str | None = None
    start: str | None = None
    order_key: str | None = None


def pull_settings(settings: ConsumerSettings) -> PullSettings:
    """Return the part of a consumer's settings that its pulls send."""
    kind, text = None, None
    if settings.tags is not None:
        kind, text = "TAG", settings.tags
    elif settings.sql is not None:
        kind, text = "SQL92", settings.sql
    return PullSettings(
        settings.group, settings.client_id, settings.linger_ms, kind, text, settings.start, settings.order_key
    )


class Pulled(NamedTuple):
    """The answer to a pull: messages of one origin.

    `lease_ms`: the duration of their leases, None from old proxies. `unapplied`: results of the pull that the
    proxy did not apply. `notice`: a warning to log.
    """

    origin: Origin
    messages: Sequence[Message]
    lease_ms: int | None = None
    unapplied: Sequence[UnappliedResult] = ()
    notice: str = ""


def pull_frame(
    settings: PullSettings, topic: str | None, batch: int, acks: AckBatch | None, sequence_id: int
) -> bytes:
    """Encode a pull request with the results that it carries."""
    request = _REQUEST()
    request.groupId = settings.group
    request.topic = topic
    request.maxBatchSize = batch
    request.maxLingerTime = settings.linger_ms
    request.clientId = settings.client_id
    request.filterType, request.filter = settings.filter_type, settings.filter_text
    request.start, request.orderKey = settings.start, settings.order_key
    request.result = _link_results(acks) if acks else None
    return _PULL.frame(request, sequence_id)


def submit_frame(acks: AckBatch, sequence_id: int) -> bytes:
    """Encode the request of a submit."""
    return _SUBMIT.frame(_link_results(acks), sequence_id)


def stats_frame(group: str, sequence_id: int) -> bytes:
    """Encode a request for a group's offsets.

    It changes nothing, and only a consumer proxy answers it.
    """
    request = _STATS_REQUEST()
    request.group = group
    return _STATS.frame(request, sequence_id)


def read_stats(payload: bytes, sequence_id: int) -> None:
    """Check that the request was answered. Raises PullError, ProxyCallError or FrameError."""
    _STATS.answer(payload, sequence_id)


def read_pulled(payload: bytes, sequence_id: int) -> Pulled:
    """Decode the answer to a pull, possibly without messages. Raises PullError, ProxyCallError or
    FrameError."""
    value = _PULL.answer(payload, sequence_id)
    unapplied, notice = _unapplied_results(value.late), value.notice or ""
    return Pulled(_origin_of(value.context), value.messages or (), value.leaseMs, unapplied, notice)


def settle_frame(settings: PullSettings, acks: AckBatch | None, leave: bool, sequence_id: int) -> bytes:
    """Encode a settle request.

    With `leave` the proxy answers the client's waiting pulls, because it stops.
    """
    request = _SETTLE_REQUEST()
    request.result = _link_results(acks) if acks else None
    request.groupId, request.clientId = settings.group, settings.client_id
    request.leave = True if leave else None
    return _SETTLE.frame(request, sequence_id)


def read_settled(payload: bytes, sequence_id: int) -> list[UnappliedResult]:
    """Return the results that were not applied. Raises PullError, ProxyCallError or FrameError."""
    return _unapplied_results(_SETTLE.answer(payload, sequence_id).late)


def _unapplied_results(late: Sequence[Any] | None) -> list[UnappliedResult]:
    results: list[UnappliedResult] = []
    for each in late or ():
        origin = _origin_of(each.context)
        finished = set(each.finished or ())
        for offset, lease in zip(each.offsets or (), each.leases or (), strict=False):
            results.append(UnappliedResult(origin, offset, lease, offset in finished))
    return results


def _origin_of(context: Any) -> Origin:
    return Origin(context.groupId or "", context.topic or "", context.qid or "") if context else NOWHERE


def read_submitted(payload: bytes, sequence_id: int) -> bool:
    """Return whether the proxy accepted the results. Raises PullError, ProxyCallError or FrameError."""
    return bool(_SUBMIT.answer(payload, sequence_id))


def _link_results(acks: AckBatch) -> Any:
    """Convert results into the linked list of the wire, one element for each origin."""
    head = None
    for results in reversed(acks):
        element = _result_element(results)
        element.nextResult = head
        head = element
    return head


def _result_element(results: OriginResults) -> Any:
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


NOWHERE = Origin("", "", "")
CLUSTER = "R_default"  # required by the wire, but not read
FAILURES = (CallFailed, FrameError, ProxyCallError, PullError)  # the errors of a call that got no result
_PERMANENT_CODES = (Code.ILLEGAL_MESSAGE, Code.TOPIC_REFUSED, Code.NO_SUCH_QUEUE)
Offsets = Mapping[str, Mapping[str, int]]


def to_login_error(error: Exception, proxy: str) -> Exception:
    """Convert a failed login into the error that the application gets; return any other error unchanged."""
    if isinstance(error, CallFailed) and error.verdict is CallVerdict.LOGIN_FAILED:
        return LoginError(error.text, None, proxy)
    return error


def is_permanent(error: BaseException) -> bool:
    """Return whether another call to the same server would fail as well."""
    if isinstance(error, ProxyCallError):
        return error.kind == UNKNOWN_METHOD
    if isinstance(error, CallFailed):
        return error.verdict in PERMANENT
    if isinstance(error, LoginError):
        return True
    return isinstance(error, PullError) and error.code in _PERMANENT_CODES


class FetchSettings(NamedTuple):
    """The settings that every fetch of one client sends.

    `topics`: None for all topics of the group. `exact`: see the IDL.
    """

    group: str
    consumer_id: str
    client_id: str
    model: str
    topics: Sequence[str] | None = None
    exact: bool = False


def fetch_frame(
    settings: FetchSettings, offsets: Offsets, batch: int, linger_ms: int, sequence_id: int
) -> bytes:
    """Encode a fetch request for at most `batch` messages of each queue."""
    request = _FETCH_REQUEST()
    request.consumerId, request.groupId, request.cluster = settings.consumer_id, settings.group, CLUSTER
    request.fetchOffset = {topic: dict(queues) for topic, queues in offsets.items()} or None
    request.maxBatchSize, request.maxLingerTime = batch, linger_ms
    request.clientId, request.model = settings.client_id, settings.model
    request.topics = list(settings.topics) if settings.topics else None
    request.exact = True if settings.exact else None
    return _FETCH.frame(request, sequence_id)


def leave_frame(settings: FetchSettings, sequence_id: int) -> bytes:
    """Encode a fetch request that announces that this consumer id fetches no more; it returns no messages."""
    request = _FETCH_REQUEST()
    request.consumerId, request.groupId, request.cluster = settings.consumer_id, settings.group, CLUSTER
    request.clientId, request.leave = settings.client_id, True
    return _FETCH.frame(request, sequence_id)


def ack_frame(settings: FetchSettings, offsets: Offsets, sequence_id: int) -> bytes:
    """Encode an ack request: the next offset to consume of each queue."""
    result = _OFFSETS()
    result.consumerId, result.groupId, result.cluster = settings.consumer_id, settings.group, CLUSTER
    result.offsets = {topic: dict(queues) for topic, queues in offsets.items()}
    return _ACK.frame(result, sequence_id)


def read_fetched(payload: bytes, sequence_id: int) -> list[FetchedQueue]:
    """Decode the answer to a fetch: an entry for each assigned queue.

    Raises PullError, ProxyCallError or FrameError.
    """
    answer = _FETCH.answer(payload, sequence_id)
    if answer.error is not None:
        raise PullError(explain_missing_login(answer.error), answer.code)
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
    """Return whether the offsets are stored. Raises ProxyCallError or FrameError."""
    return bool(_ACK.answer(payload, sequence_id))
