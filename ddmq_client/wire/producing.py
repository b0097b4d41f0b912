"""The producer service's calls: messages to bytes, answers to results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddmq_client.core import frames
from ddmq_client.core.frames import FrameError
from ddmq_client.core.selectors import Placement
from ddmq_client.core.sending import SEND_DELAYED, SEND_MANY, SEND_ONE
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.delays import DelayResult, When
from ddmq_client.errors import InvalidMessageError
from ddmq_client.idl import producer as idl
from ddmq_client.idl.codes import FRAME_BYTES_MAX, OK_TEXT, Code, DelayAction, DelayType
from ddmq_client.outgoing import BODY_ALLOWED, OutgoingMessage, SendResult, find_properties_error
from ddmq_client.printable import printable
from ddmq_client.wire.codec import Specs, StructArgs, decode, encode
from ddmq_client.wire.wording import explain_unknown_method

HEARTBEAT_TOPIC = "carrera_heartbeat"
UNKNOWN_METHOD = 1  # a `kind` of ProxyCallError


class ProxyCallError(Exception):
    """The proxy answered a call with a Thrift application exception; `kind` is its type number."""

    def __init__(self, kind: int, text: str) -> None:
        self.kind = kind
        self.text = printable(text)
        super().__init__(f"proxy fault {kind}: {self.text}")


class _ErrorAnswer:
    message: str | None = None
    type: int | None = None


class _One:
    success: SendResult | None = None


class _Many:
    success: list[SendResult] | None = None


class _Delayed:
    success: DelayResult | None = None


RESULT_NAMES = {
    "msg": "text", "messageId": "message_id", "queueId": "queue_id", "key": None, "delayId": "delay_id",
    "duplicate": "duplicate_code",
}  # fmt: skip
_DELAY_NAMES = {"msg": "text", "uniqDelayMsgId": "delay_id", "firedAtMs": "fired_at_ms", "dueMs": "due_ms"}
_specs = Specs()
_MESSAGE = _specs.register_struct(idl.Message)
_RESULT = _specs.register_struct(idl.Result, SendResult, RESULT_NAMES)
_ONE = _specs.register_struct(idl.ProducerService.sendSync_result, _One)
_MANY = _specs.register_struct(idl.ProducerService.sendBatch_result, _Many)
_DELAY_MESSAGE = _specs.register_struct(idl.DelayMessage)
_specs.register_struct(idl.DelayResult, DelayResult, _DELAY_NAMES)
_DELAYED = _specs.register_struct(idl.ProducerService.sendDelaySync_result, _Delayed)
_ANSWERS = {SEND_ONE: _ONE, SEND_MANY: _MANY, SEND_DELAYED: _DELAYED}
_ERROR_ANSWER = [_ErrorAnswer, (None, (1, 11, "message", "UTF8", None), (2, 8, "type", None, None))]
_WireMessage: Any = _MESSAGE[0]
_WireDelay: Any = _DELAY_MESSAGE[0]


def encode_message(
    message: OutgoingMessage, placement: Placement, client_id: str, producer_group: str | None
) -> bytes:
    """Encode a message without a sequence number (see frames.with_number). Raises InvalidMessageError for
    one that no proxy would take or the wire cannot carry.
    """
    wire = _WireMessage()
    wire.producerGroup = producer_group
    wire.idempotencyKey = message.idempotency_key
    wire.clientId = client_id
    return encoded_message(wire, _MESSAGE, message, placement)


def encode_delayed(
    message: OutgoingMessage, placement: Placement, client_id: str, uuid: str, when: When
) -> tuple[bytes, Callable[[], bytes]]:
    """Encode the request that adds a delayed message; return its bytes, and a function that encodes a resend.

    Both requests have the same `uuid`, by which the proxy recognises the resend.
    """
    wire = _WireDelay()
    wire.action, wire.dmsgtype, wire.uuid = int(DelayAction.ADD), int(DelayType.SCHEDULE), uuid
    wire.dueMs, wire.delayMs = when.due_ms, when.delay_ms
    wire.cron, wire.zone, wire.catchUp = when.cron, when.zone, when.catch_up
    wire.periodMs, wire.repeat, wire.occurrencesMax = when.period_ms, when.repeat, when.occurrences_max
    wire.fresh = True
    wire.clientId = client_id
    first = encoded_message(wire, _DELAY_MESSAGE, message, placement)

    def encode_resend() -> bytes:
        wire.fresh = None
        return encode(wire, _DELAY_MESSAGE)

    return first, encode_resend


def encoded_message(wire: Any, args: StructArgs, message: OutgoingMessage, placement: Placement) -> bytes:
    """Fill a message into the wire struct `wire`, and return its bytes."""
    wire.topic = message.topic
    wire.key = message.key or None
    wire.tags = message.tags or None
    wire.partitionId, wire.hashId = placement
    body = message.body
    try:
        if isinstance(body, str):
            body = body.encode()
        elif not isinstance(body, bytes):
            raise TypeError
        wire.body = body
        wire.properties = dict(message.properties) if message.properties else None
        encoded = encode(wire, args)
    except (TypeError, ValueError, AttributeError) as error:
        raise _explain_error(message, error) from error
    if not body or len(encoded) > FRAME_BYTES_MAX - frames.HEAD_BYTES_MAX:
        frame = f", at most {FRAME_BYTES_MAX} with all fields" if body else ""
        raise _invalid_message(f"the body has {len(body)} bytes; {BODY_ALLOWED}{frame}")
    return encoded


def encode_change(
    action: DelayAction, delay_id: str, topic: str | None, client_id: str, when: When | None = None
) -> bytes:
    """Encode a cancel, a reschedule or a fire-now request for the delayed message `delay_id`. `topic`: which
    servers with rights want to know; None: not known."""
    wire = _WireDelay()
    wire.topic = topic
    wire.action, wire.uniqDelayMsgId, wire.clientId = int(action), delay_id, client_id
    if when is not None:
        wire.dueMs, wire.delayMs = when.due_ms, when.delay_ms
    try:
        return encode(wire, _DELAY_MESSAGE)
    except (TypeError, ValueError) as error:
        what = f"delay id {delay_id!r} or topic {topic!r}"
        raise _invalid_message(f"{what} is not text that UTF-8 can carry") from error


def read_results(payload: bytes, sequence_id: int, method: bytes) -> list[SendResult]:
    """Decode the results of sendSync, sendBatch or sendDelaySync.

    Raises ProxyCallError, or FrameError if the bytes do not answer this request.
    """
    at = answer_at(payload, method, sequence_id)
    success = decode(payload, at, _ANSWERS[method]).success
    if success is None:
        raise FrameError("answer without a result")
    results: list[SendResult] = success if method == SEND_MANY else [success]
    for result in results:
        if result.text != OK_TEXT:
            result.text = printable(result.text or "")
    return results


def heartbeat_verdict(payload: bytes, sequence_id: int) -> CallVerdict:
    """Return the verdict of a heartbeat's answer; only code 0 puts a proxy back into rotation."""
    (result,) = read_results(payload, sequence_id, SEND_ONE)
    return CallVerdict.STORED if result.code == Code.OK else CallVerdict.LOST


def answer_at(payload: bytes, method: bytes, sequence_id: int) -> int:
    """Return the position of the answer's struct. Raises the error that the proxy returned."""
    at = frames.body_of_reply(payload, method, sequence_id)
    if at is not None:
        return at
    head = frames.reply_head(payload)
    if head.sequence_id != sequence_id:
        raise FrameError(f"answer to request {head.sequence_id}, expected {sequence_id}")
    if head.kind == frames.EXCEPTION:
        error = decode(payload, head.body_at, _ERROR_ANSWER)
        hint = explain_unknown_method(method) if error.type == UNKNOWN_METHOD else ""
        raise ProxyCallError(error.type or 0, (error.message or "") + hint)
    return head.body_at


def encode_heartbeat(client_id: str) -> bytes:
    """Encode the heartbeat message. Every proxy answers it at once with code 0."""
    return encode_message(OutgoingMessage(HEARTBEAT_TOPIC, b"1"), Placement(-2, 0), client_id, None)


def _explain_error(message: OutgoingMessage, error: Exception) -> InvalidMessageError:
    """Return an error that names the field that the codec rejected."""
    for name in ("topic", "key", "tags"):
        value = getattr(message, name)
        if value is not None and (error_text := find_text_error(value)):
            return _invalid_message(f"{name} {error_text}")
    body: object = message.body
    if not isinstance(body, bytes | str):
        return _invalid_message(f"body is {type(body).__name__}; allowed: bytes or str")
    if error_text := find_properties_error(message.properties):
        return _invalid_message(error_text)
    for property_name, text in _list_items(message.properties):
        if error_text := find_text_error(property_name):
            return _invalid_message(f"the name of a property {error_text}")
        if error_text := find_text_error(text):
            return _invalid_message(f"the value of property {property_name!r} {error_text}")
    return _invalid_message(f"message cannot be encoded: {error}; properties={message.properties!r}")


def _list_items(properties: object) -> Sequence[tuple[object, object]]:
    return list(properties.items()) if isinstance(properties, Mapping) else ()


def find_text_error(value: object) -> str:
    """Return the reason why `value` is not text that the wire can carry; "" if it is."""
    if not isinstance(value, str):
        return f"is {type(value).__name__} {value!r:.100}; allowed: str"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"is {value!r:.100}; allowed: text that UTF-8 can carry"
    return ""


def _invalid_message(text: str) -> InvalidMessageError:
    return InvalidMessageError(text, Code.ILLEGAL_MESSAGE)
