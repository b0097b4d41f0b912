"""Messages for unit tests of handlers, made without a broker, as a consumer hands them over.

    message = make_message(b'{"id": 17}', key="order-17", attempt=3)
    handle(message)
    assert message.outcome is Outcome.ACKED

A handler that settles nothing leaves the outcome None, for it is the consumer that acknowledges after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from types import MappingProxyType
from typing import Any

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.application.names import GROUP_BYTES_MAX, TOPIC_BYTES_MAX, find_name_error
from ddmq_client.core.settings import TEXT_MAX, check, check_text
from ddmq_client.delays import duration_ms, epoch_ms
from ddmq_client.errors import ClientError, OptionError
from ddmq_client.idl import consumer as idl
from ddmq_client.idl.codes import OK_TEXT, Code
from ddmq_client.outgoing import OutgoingMessage, SendResult
from ddmq_client.received import DEAD_LETTER, DeliveryContext, Message, Origin, Outcome, Settling
from ddmq_client.serializers import Serializer, check_serializer
from ddmq_client.wire.codec import Specs, decode
from ddmq_client.wire.producing import find_text_error

ATTEMPTS_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 2  # the next offset is a number of the wire, too
_offsets = count()
_REPLY = Specs().register_struct(idl.ReplyMessage)


@dataclass(slots=True)
class RecordedOutcome:
    """The outcome of a message of `make_message`, as its handler stated it.

    `outcome` None: the handler has not settled it. `delay`: what a fail asked for. `is_dead_letter`: a fail
    without a retry. `extensions`: calls of `extend`. `replies`: what was sent with its acknowledgement.
    """

    outcome: Outcome | None = None
    delay: timedelta | None = None
    reason: str = ""
    is_dead_letter: bool = False
    extensions: int = 0
    replies: list[OutgoingMessage] = field(default_factory=list)


class RecordedSettling(Settling):
    """Receives the outcome of a message and records it for the test."""

    def __init__(self, *, inline: bool) -> None:
        self.inline = inline
        self.recorded = RecordedOutcome()

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str) -> bool:
        if message.outcome is not None:
            return False
        message.outcome = self.recorded.outcome = outcome
        self.recorded.reason = reason
        self.recorded.is_dead_letter = delay_ms == DEAD_LETTER
        if delay_ms is not None and delay_ms >= 0:
            self.recorded.delay = timedelta(milliseconds=delay_ms)
        return True

    def extend(self, message: Message) -> bool:
        if message.outcome is not None:
            return False
        message.extended_at = time.monotonic()
        self.recorded.extensions += 1
        return True

    def hand_back(self, message: Message) -> bool:
        return self.settle(message, Outcome.HANDED_BACK, None, "")

    def reply(self, message: Message, messages: Sequence[bytes], timeout_ms: int | None) -> Any:
        if self.inline:
            return self._reply(message, messages)
        return self._reply_later(message, messages)

    async def _reply_later(self, message: Message, messages: Sequence[bytes]) -> Sequence[SendResult]:
        return self._reply(message, messages)

    def _reply(self, message: Message, messages: Sequence[bytes]) -> Sequence[SendResult]:
        if message.outcome is not None:
            raise ClientError(f"{message!r} is settled, or has no lease; nothing is sent with it")
        self.settle(message, Outcome.ACKED, None, "")
        self.recorded.replies += map(_read_reply, messages)
        return [_stored_result() for _ in messages]


@explain_arguments("docs/testing-handlers.md")
def make_message(
    body: object = b"",
    *,
    topic: str = "topic",
    key: str | None = None,
    tags: str | None = None,
    properties: Mapping[str, str] | None = None,
    group: str = "group",
    queue: str = "R_default_a_0",
    offset: int | None = None,
    attempt: int = 1,
    message_id: str | None = None,
    sent_at: datetime | None = None,
    lease: timedelta | None = None,
    inline: bool = True,
    serializer: Serializer | None = None,
) -> Message:
    """Return a message as a consumer would hand it to a handler.

    body      bytes, or a text that is encoded as UTF-8; with a serializer, bytes or any value that it takes.
              It may be empty, although no producer can send an empty body
    offset    each message has the next one when it is absent
    attempt   1 for the first delivery
    sent_at   when a proxy accepted and stored it, with a time zone; now when absent
    lease     how long until the ack time-out; for ever when absent
    inline    False: for a handler of an asyncio consumer, which writes `async with message.replies()`
    serializer  that of the consumer: it sets `message.value`. ValueError if the body has no value, because a
              consumer would hand such a message to no handler

    Raises OptionError for values that no message can have.
    """
    _check_names(topic, group, queue, message_id)
    _check_texts(properties, key=key, tags=tags)
    check("attempt", attempt, 1, ATTEMPTS_MAX)
    if offset is not None:
        check("offset", offset, 0, OFFSET_MAX)
    if not isinstance(inline, bool):
        raise OptionError(f"inline={inline!r}; allowed: True, or False for a handler of an asyncio consumer")
    message = Message()
    message.body = _encode_body(body, serializer)
    if serializer is not None:
        message.value, message.serializer = serializer.deserialize(message.body), serializer
    message.key, message.tags, message.attempt, message.lease_id = key, tags, attempt, 1
    message.properties = MappingProxyType(dict(properties or {}))
    number = next(_offsets)
    message.offset = number if offset is None else offset
    message.next_offset = message.offset + 1
    message.message_id = message_id or f"{number:032x}"
    message.born_ms = message.stored_ms = _sent_ms(sent_at)
    lease_s = math.inf if lease is None else duration_ms("lease", lease, 1) / 1_000
    settling, now = RecordedSettling(inline=inline), time.monotonic()
    message.delivery = DeliveryContext(Origin(group, topic, queue), now, None, settling, lease_s, True)
    return message


def read_outcome(message: Message) -> RecordedOutcome:
    """Return the outcome of a message of `make_message`. ClientError for any other message."""
    if not isinstance(message, Message):
        raise OptionError(f"message={message!r:.100}; allowed: a message of make_message")
    settling = message.delivery.settling
    if not isinstance(settling, RecordedSettling):
        raise ClientError(f"{message!r} is not made by make_message; the broker keeps its outcome")
    return settling.recorded


def _check_names(topic: str, group: str, queue: str, message_id: str | None) -> None:
    """Raise OptionError for names that no server has."""
    for name, value, bytes_max in (("topic", topic, TOPIC_BYTES_MAX), ("group", group, GROUP_BYTES_MAX)):
        if error := find_name_error(value, bytes_max):
            raise OptionError(f"{name} {error}")
    check_text("queue", queue)
    if message_id is not None:
        check_text("message_id", message_id)


def _check_texts(properties: Mapping[str, str] | None, **texts: str | None) -> None:
    """Raise OptionError for a value that a producer would reject, or that no consumer could deliver."""
    if properties is not None and not isinstance(properties, Mapping):
        raise OptionError(f"properties={properties!r:.100}; allowed: a mapping of text to text, or None")
    for name, value in (properties or {}).items():
        if (error := find_text_error(name)) or (error := _find_blank_error(name)):
            raise OptionError(f"the name of a property {error}")
        if (error := find_text_error(value)) or (error := _find_blank_error(value)):
            raise OptionError(f"property {name!r} {error}")
    for name, text in texts.items():
        if text is None:
            continue
        if error := find_text_error(text):
            raise OptionError(f"{name} {error}")
        if len(text) > TEXT_MAX:
            raise OptionError(f"{name} has {len(text)} characters; allowed: at most {TEXT_MAX}")


def _find_blank_error(text: str) -> str:
    """Return why a text of a property cannot be sent; "" if it can."""
    return "" if text.strip() else f"is {text!r}; allowed: text that is not blank"


def _sent_ms(sent_at: datetime | None) -> int:
    """Convert the time of a message into epoch milliseconds. Raises OptionError."""
    if sent_at is None:
        return int(time.time() * 1000)
    sent_ms = epoch_ms("sent_at", sent_at)
    if sent_ms < 0:
        raise OptionError(f"sent_at={sent_at.isoformat()}; allowed: a time since 1970, or None for now")
    return sent_ms


def _encode_body(body: object, serializer: Serializer | None) -> bytes:
    check_serializer(serializer)
    if isinstance(body, bytes):
        return body
    if serializer is not None:
        return serializer.serialize(body)
    if isinstance(body, str):
        if error := find_text_error(body):
            raise OptionError(f"body {error}")
        return body.encode()
    raise OptionError(f"body is {type(body).__name__}; allowed: bytes or str, or with serializer= any value")


def _read_reply(encoded: bytes) -> OutgoingMessage:
    wire = decode(encoded, 0, _REPLY)
    return OutgoingMessage(
        wire.topic, wire.body or b"", wire.key or None, wire.tags or None, wire.properties or None
    )


def _stored_result() -> SendResult:
    result = SendResult()
    result.code, result.text = int(Code.OK), OK_TEXT
    return result
