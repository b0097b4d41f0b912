"""Replies: messages that a consumer sends together with the acknowledgement of another.

They pass the checks, limits and rates of plain sends (admission.py, PREPARED), wait for their topics, and
become records. Their keeper, the consumer proxy that holds the acknowledged message, commits them together
with the acknowledgement and answers the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from backend.completion import Completion
from backend.records import AppendResult, NewRecord
from ddmq_client.idl.codes import Code
from ddmq_common.errors import DdmqError
from ddmq_rpc.api import Call
from proxy_producer.admission import DRAINING, Admission
from proxy_producer.batches import summarize_rejections
from proxy_producer.config import ProducerConfig, TransactionLimits
from proxy_producer.core.identity import KEY_PROPERTY
from proxy_producer.core.rejections import (
    SendRejection,
    build_illegal_rejection,
    build_rejection,
    to_rejection,
)
from proxy_producer.flow import Flow
from proxy_producer.pending import Destination, PendingSend, SendMember, result_of
from proxy_producer.wire import RequestKind

IdOf = Callable[[int], bytes]  # the message id of the reply at an index


class ReplyKeeper(Protocol):
    """The consumer proxy's side of a reply: it holds the acknowledgement and commits the replies with it.

    `on_rejected`, `on_stored` or `on_failed` is called exactly once.
    """

    def commit(self, records: list[NewRecord], into: Completion[list[AppendResult]]) -> None:
        """Commit the replies together with the message's acknowledgement, all or nothing; settle `into`."""

    def on_rejected(self, code: int, text: str) -> None:
        """Answer that the replies are not stored."""

    def on_deadline(self, code: int, text: str) -> None:
        """Answer the caller at its deadline, while the commit is still under way."""

    def on_stored(self, results: Sequence[Any]) -> None:
        """Answer that the replies are committed. `results`: one wire Result for each reply."""

    def on_failed(self, error: Exception, code: int, text: str) -> None:
        """Answer that the commit failed: nothing is stored or, after a RemoteError, the outcome is
        unknown."""


class ReplySends:
    """Checks and accepts the replies that consumers send with their acknowledgements.

    There is one for each process.
    """

    def __init__(self, flow: Flow, admission: Admission, config: ProducerConfig) -> None:
        self._flow = flow
        self._admission = admission
        self._config = config

    def reconfigure(self, config: ProducerConfig) -> None:
        """Use the bounds of `config` for all later replies."""
        self._config = config

    def begin(self, call: Call, request: Any, id_of: IdOf, deadline: float, keeper: ReplyKeeper) -> None:
        """Check the messages of a ReplyRequest and store them through `keeper`, or reject them."""
        flow, size = self._flow, len(request.messages)
        members = self._check(request.messages, id_of, call.frame_bytes)
        if not isinstance(members, SendRejection):
            PendingSend(flow, call, deadline, members, ReplyDestination(keeper)).start()
            return
        retry = partial(self.begin, call, request, id_of, deadline, keeper)
        if not flow.delay.presence.will_retry(members, retry):
            flow.counts.count_rejected(None, members, size)
            keeper.on_rejected(members.code, members.text)

    def _check(
        self, messages: Sequence[Any], id_of: IdOf, frame_bytes: int
    ) -> SendRejection | list[SendMember]:
        limits, count = self._config.transactions, len(messages)
        if count > limits.messages_max:
            return _build_long_rejection(f"{count} messages", limits)
        rejection = DRAINING if self._flow.draining else self._flow.check_bounds(frame_bytes)
        if rejection is not None:
            return rejection
        due_times = {index for index, message in enumerate(messages) if message.dueTimes}
        sends = [ReplyMessage(message) for message in messages]
        rejections = {
            index: rejection for index, send in enumerate(sends) if (rejection := _check_key(send.properties))
        }
        members: list[SendMember] = []
        if not rejections:
            members, rejections = self._admission.check_messages(
                RequestKind.PREPARED, sends, due_times=due_times
            )
        if rejections:
            return rejections[0] if count == 1 else summarize_rejections(rejections, count, 0)
        size = 0
        for member in members:
            member.record.message_id = id_of(member.index)
            size += len(member.record.delivery)
            if size > limits.bytes_max:
                return _build_long_rejection(f"messages of {size} bytes and more", limits)
        return members


def _build_long_rejection(what: str, limits: TransactionLimits) -> SendRejection:
    allowed = f"{limits.messages_max} messages and {limits.bytes_max} bytes together, as in a transaction"
    return build_illegal_rejection(
        "reply_long", f"the acknowledgement has {what}", f"allowed: at most {allowed}"
    )


class ReplyMessage:
    """Wraps a wire ReplyMessage, and adds the Message fields that it lacks, such as the client id, as
    None."""

    __slots__ = ("body", "hashId", "key", "partitionId", "properties", "tags", "topic")
    value = idempotencyKey = sequence = clientId = producerGroup = None  # noqa: N815 - the wire's names

    def __init__(self, message: Any) -> None:
        self.topic, self.body, self.properties = message.topic, message.body, message.properties
        self.key, self.tags = message.key, message.tags
        self.partitionId, self.hashId = message.partitionId, message.hashId


def _check_key(properties: Mapping[bytes, bytes] | None) -> SendRejection | None:
    if not properties or KEY_PROPERTY not in properties:
        return None
    what = f"a message that is sent with an acknowledgement has the property {KEY_PROPERTY.decode()}"
    return build_illegal_rejection(
        "reply_key", what, "allowed: none; by its lease the acknowledgement is stored once"
    )


class ReplyDestination(Destination):
    """Lets the ReplyKeeper commit the replies of one acknowledgement."""

    def __init__(self, keeper: ReplyKeeper) -> None:
        super().__init__()
        self._keeper = keeper

    def store_messages(self, send: PendingSend) -> None:
        """Let the keeper commit the replies; reject them when the disk is nearly full."""
        health = send.flow.backend.health()
        if not health.ready:  # a commit would get past a disk that is nearly full
            send.reject_unsent(build_rejection(Code.BUSY, "backend_bound", health.reason, "send it again"))
            return
        records = [send.stored_record(member) for member in send.members]
        send.records, send.sent = records, True
        try:
            self._keeper.commit(records, send)
        except DdmqError as error:
            send.fail(error)

    def settle_send(self, send: PendingSend) -> None:
        """Report the commit's outcome to the keeper, even if the caller has been answered at its deadline."""
        was_answered, send.answered = send.answered, True
        counts = send.flow.counts
        if send.error is not None:
            rejection = to_rejection(send.error)
            if not was_answered:
                counts.count_rejected(None, rejection, send.size)
            self._keeper.on_failed(send.error, rejection.code, rejection.text)
            return
        results = send.value
        if was_answered:
            counts.count_late(True)
        else:
            send.count_stored(results)
        stored = zip(send.members, send.records, results, strict=True)
        self._keeper.on_stored([result_of(member, record, result) for member, record, result in stored])

    def answer_call(self, send: PendingSend, results: Sequence[AppendResult]) -> None:
        """Report to the keeper that the replies were rejected, or that the deadline came before the commit's
        outcome."""
        rejection = (
            summarize_rejections(send.rejections, send.size, 0) if send.size > 1 else send.rejections[0]
        )
        send.flow.counts.count_rejected(None, rejection, send.size)
        notify = self._keeper.on_deadline if send.sent else self._keeper.on_rejected
        notify(rejection.code, rejection.text)
