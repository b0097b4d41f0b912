"""The rights that the methods of the producer proxy need, checked before their handlers (ddmq_rpc/access.py).

A topic that is made by a send needs `create` besides `send`. A forwarded call (`forwardedBy`) acts for a
client whose rights the first proxy has checked, so it is accepted from nodes alone. A rejection has code 13
and the same words whether or not the topic exists.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from backend.port import Backend
from ddmq_client.idl import producer
from ddmq_client.idl.codes import Code, DelayAction
from ddmq_common.security.callers import Caller
from ddmq_common.security.quotas import OverQuota
from ddmq_common.security.rights import EVERY_NAME
from ddmq_rpc.api import Call, ErrorKind, MethodRule
from ddmq_rpc.codec import structs
from proxy_producer import wire
from proxy_producer.core.delay_requests import echoed_id
from proxy_producer.core.rejections import SendRejection, build_rejection
from proxy_producer.core.validation import CHRONOS, HEARTBEAT
from proxy_producer.counts import SendCounts

IDL = structs(producer)
ALLOWED = "allowed: what the rules in security.yaml allow"


class ProducerRights:
    """Checks calls by the rules of their callers. `backend` and `cached_topics`: whether a send makes its
    topic."""

    def __init__(
        self,
        backend: Backend,
        cached_topics: Container[bytes],
        counts: SendCounts,
        monotonic: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._cached_topics = cached_topics
        self._counts = counts
        self._monotonic = monotonic

    def build_rules(self) -> dict[str, MethodRule]:
        """Return the rule of each method."""
        single = MethodRule(self.find_missing_for_message, self.reject_send)
        return {
            "sendSync": single,
            "sendAsync": single,
            "sendOneway": MethodRule(self.find_missing_for_message, self.reject_oneway),
            "sendBatchSync": MethodRule(self.find_missing_for_batch, self.reject_batch),
            "sendBatch": MethodRule(
                find_no_missing, self.reject_send, self.narrow_batch, reject_over=self.reject_each
            ),
            "sendDelaySync": MethodRule(self.find_missing_for_delay, self.reject_delay),
            "sendPrepared": MethodRule(self.find_missing_for_prepare, self.reject_prepare),
            "endTransaction": MethodRule(self.find_missing_for_end, self.reject_end, finishes=True),
            "pollTransactionChecks": MethodRule(self.find_missing_for_end, self.reject_poll, waits=True),
            "callEngine": MethodRule(self.find_missing_for_engine, self.reject_engine_call),
        }

    # --- what is missing

    def find_missing_for_topic(self, caller: Caller, topic: bytes | None) -> str | None:
        """Return the sentence about a right that a send to `topic` lacks, or None."""
        if not caller.has_right("send", topic):
            return caller.find_missing("send", topic)
        if topic in self._cached_topics or not self._makes_topic(topic or b""):
            return None
        return caller.find_missing("create", topic) or caller.usage.count_creation(self._monotonic())

    def _makes_topic(self, topic: bytes) -> bool:
        return topic != HEARTBEAT and self._backend.topic(topic.decode("utf-8", "replace")) is None

    def find_missing_for_messages(self, caller: Caller, messages: Sequence[Any]) -> str | None:
        """Return the first sentence about a right that these sends lack, or None."""
        for topic in dict.fromkeys([message.topic for message in messages]):
            missing = self.find_missing_for_topic(caller, topic)
            if missing is not None:
                return missing
        for message in messages:
            if message.properties:
                drop_unproven_relay(caller, message)
        return None

    def find_missing_for_message(self, call: Call) -> str | None:
        caller, message = caller_of(call), call.args.message
        if message.properties:
            drop_unproven_relay(caller, message)
        return self.find_missing_for_topic(caller, message.topic)

    def find_missing_for_batch(self, call: Call) -> str | None:
        return self.find_missing_for_messages(caller_of(call), call.args.messages)

    def find_missing_for_delay(self, call: Call) -> str | None:
        message = call.args.delayMessage
        if message.action == DelayAction.ADD:
            return self.find_missing_for_topic(caller_of(call), message.topic)
        caller = caller_of(call)
        if message.topic:
            return caller.find_missing("send", message.topic)
        if caller.has_right("send", EVERY_NAME.encode()):
            return None
        return f"{caller.find_missing('send', b'')}; a change of a delayed message must state its topic"

    def find_missing_for_prepare(self, call: Call) -> str | None:
        caller, request = caller_of(call), call.args.request
        if request.forwardedBy is not None:
            return caller.find_missing("node")
        missing = caller.find_missing("transact", request.producerGroup)
        return missing or self.find_missing_for_messages(caller, request.messages or ())

    def find_missing_for_end(self, call: Call) -> str | None:
        """Return what a call about transactions of a producer group lacks."""
        caller, request = caller_of(call), call.args.request
        if request.forwardedBy is not None:
            return caller.find_missing("node")
        return caller.find_missing("transact", request.producerGroup)

    def find_missing_for_engine(self, call: Call) -> str | None:
        return caller_of(call).find_missing("node")

    # --- answers

    def _reject_sends(self, missing: str, messages: int = 1) -> SendRejection:
        rejection = build_right_rejection(missing)
        self._counts.count_rejected(None, rejection, messages)
        return rejection

    def reject_send(self, call: Call, missing: str) -> None:
        call.reply(wire.rejected_result(self._reject_sends(missing)))

    def reject_each(self, call: Call, missing: str) -> None:
        size = len(call.args.messages)
        call.reply([wire.rejected_result(self._reject_sends(missing, size))] * size)

    def reject_oneway(self, call: Call, missing: str) -> None:
        self._reject_sends(missing)
        call.reply_encoded(b"")

    def reject_batch(self, call: Call, missing: str) -> None:
        call.reply(wire.rejected_result(self._reject_sends(missing, len(call.args.messages))))

    def reject_delay(self, call: Call, missing: str) -> None:
        rejection = self._reject_sends(missing)
        delay_id = call.args.delayMessage.uniqDelayMsgId or b""
        call.reply(wire.rejected_delay_result(rejection, echoed_id(rejection.code, delay_id)))

    def reject_prepare(self, call: Call, missing: str) -> None:
        size = len(call.args.request.messages or ())
        rejection = self._reject_sends(missing, max(size, 1))
        results = [wire.rejected_result(rejection)] * size
        call.reply(IDL.PrepareResponse(code=int(rejection.code), msg=rejection.text, results=results))

    def reject_end(self, call: Call, missing: str) -> None:
        rejection = self._reject_sends(missing, 0)
        call.reply(IDL.EndTransactionResponse(code=int(rejection.code), msg=rejection.text))

    def reject_poll(self, call: Call, missing: str) -> None:
        rejection = self._reject_sends(missing, 0)
        call.reply(IDL.PollChecksResponse(code=int(rejection.code), msg=rejection.text, checks=[]))

    def reject_engine_call(self, call: Call, missing: str) -> None:
        call.reply_error(ErrorKind.PROTOCOL_ERROR, build_right_rejection(missing).text)

    # --- sendBatch: message by message

    def narrow_batch(self, call: Call, record: Callable[[str], None]) -> Call:
        """Return the call with the allowed messages alone; its answer has code 13 for the others."""
        caller, messages = caller_of(call), call.args.messages
        if self.find_missing_for_messages(caller, messages) is None:
            return call
        rejections: dict[int, Any] = {}
        for index, message in enumerate(messages):
            missing = self.find_missing_for_messages(caller, (message,))
            if missing is not None:
                record(missing)
                rejections[index] = wire.rejected_result(self._reject_sends(missing))
        call.args.messages = [each for index, each in enumerate(messages) if index not in rejections]
        return NarrowedBatch(call, len(messages), rejections)


class NarrowedBatch(Call):
    """A sendBatch without the messages that its caller may not send. Its answer has a Result for each of
    them.

    `rejections`: by the index in the caller's batch of `size` messages.
    """

    __slots__ = ("_call", "_rejections", "_size")

    def __init__(self, call: Call, size: int, rejections: dict[int, Any]) -> None:
        self._call = call
        self._size = size
        self._rejections = rejections
        self.args = call.args
        self.wire = call.wire
        self.received_at = call.received_at
        self.frame_bytes = call.frame_bytes
        self.peer = call.peer
        self.caller = call.caller
        self.on_abandoned = None

    @property
    def open(self) -> bool:
        return self._call.open

    def reply(self, value: Any) -> None:
        results = iter(value)
        rejections = self._rejections
        self._call.reply(
            [rejections[index] if index in rejections else next(results) for index in range(self._size)]
        )

    def reply_encoded(self, result: bytes) -> None:
        raise TypeError("sendBatch is answered with a list of Results")

    def throw(self, exception: Any) -> None:
        self._call.throw(exception)

    def reply_error(self, kind: ErrorKind, text: str) -> None:
        self._call.reply_error(kind, text)


def caller_of(call: Call) -> Caller:
    """Return the caller of a call that is checked, which has one."""
    assert call.caller is not None
    return call.caller


def find_no_missing(call: Call) -> str | None:
    """Return None: each message of the call is checked by itself."""
    return None


def drop_unproven_relay(caller: Caller, message: Any) -> None:
    """Remove the mark of old delay services from a message whose sender may not relay: it is a plain send."""
    properties = message.properties
    if properties and CHRONOS in properties and not caller.has_right("relay"):
        del properties[CHRONOS]


def build_right_rejection(missing: str) -> SendRejection:
    """Build the rejection of a send whose caller lacks a right, or is over a quota."""
    if isinstance(missing, OverQuota):
        return SendRejection(Code.BUSY, "quota", missing)
    return build_rejection(Code.TOPIC_REFUSED, "right_missing", missing, ALLOWED)
