"""The input and output of a producer: OutgoingMessage and SendResult."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.errors import InvalidMessageError, OptionError, SendError
from ddmq_client.idl.codes import DELAY_PROPERTY, IDEMPOTENCY_KEY, Code, DurabilityClass

ShardKey = str | bytes | int
BODY_BYTES_MAX = 2 * 1024 * 1024  # unless the topic is set otherwise
BODY_ALLOWED = f"allowed: 1 to {BODY_BYTES_MAX} bytes, or what the topic is set to"
LEVEL_MAX = 18  # of RocketMQ's list, which is the default
STORED_DIFFERENTLY = 2  # of the wire's `duplicate`


@dataclass(slots=True)
class OutgoingMessage:
    """One message to send.

    topic       letters, digits, `_ - % |`, at most 127 bytes
    body        bytes, or str (sent as UTF-8); any value that the producer's serializer accepts, if it has
                one. Not empty; 2 MiB at most unless the topic allows more
    key, tags   at most 255 characters each; empty counts as absent
    properties  text to text; no blank names or values, no reserved names
    shard_key   messages of one topic with the same shard key go to the same queue
    queue       queue number, taken modulo the topic's queue count; takes precedence over the selector
    idempotency_key  1 to 255 characters: a message sent with the same key to this topic, by any producer
                and within the proxies' window (an hour), is not stored again
    """

    topic: str
    body: Any
    key: str | None = None
    tags: str | None = None
    properties: Mapping[str, str] | None = None
    shard_key: ShardKey | None = None
    queue: int | None = None
    idempotency_key: str | None = None


OutgoingMessage.__init__ = explain_arguments("docs/client.md#sending")(  # type: ignore[method-assign]
    OutgoingMessage.__init__
)


def describe_no_message(value: object) -> str:
    """Return the error text for a value in place of an OutgoingMessage."""
    what = f"a message is {type(value).__name__} {value!r:.100}"
    return f"{what}; allowed: OutgoingMessage(topic, body, key=...)"


def check_batch(messages: object) -> None:
    """Raise TypeError for one message, or another value that is not iterable, in place of many messages."""
    if not isinstance(messages, Iterable):
        what = f"messages is {type(messages).__name__} {messages!r:.100}"
        raise TypeError(f"{what}; allowed: a list of OutgoingMessage; for one: send_message(message)")


def has_key(message: OutgoingMessage) -> bool:
    """Return whether the message has an idempotency key, as a field or as a property."""
    return message.idempotency_key is not None or IDEMPOTENCY_KEY in (message.properties or ())


def find_properties_error(properties: object) -> str:
    """Return why `properties` cannot be the properties of a message; "" if it can be, and for None."""
    if properties is None or isinstance(properties, Mapping):
        return ""
    kind = type(properties).__name__
    return f"properties is {kind} {properties!r:.100}; allowed: a mapping of text to text, or None"


def add_properties(properties: Mapping[str, str] | None, added: Mapping[str, str]) -> Mapping[str, str]:
    """Return both sets of properties merged. Raises InvalidMessageError if `properties` is not a mapping."""
    if error_text := find_properties_error(properties):
        raise InvalidMessageError(error_text, Code.ILLEGAL_MESSAGE)
    return {**(properties or {}), **added}


def with_level(properties: Mapping[str, str] | None, level: int | None) -> Mapping[str, str] | None:
    """Add the property that requests a delay level. Raises OptionError unless `level` is 1 to 18."""
    if level is None:
        return properties
    if not isinstance(level, int) or isinstance(level, bool) or not 1 <= level <= LEVEL_MAX:
        raise OptionError(
            f"level={level!r}; allowed: a whole number from 1 (1 s) to {LEVEL_MAX} (2 h);"
            " for another wait: delay=timedelta(...)"
        )
    return add_properties(properties, {DELAY_PROPERTY: str(level)})


class SendResult:
    """The outcome for one message. Read only.

    code         the proxy's code: 0 stored; -1 if no proxy answered
    text         "OK", or a description of the error
    message_id   the id that the message has until it is consumed; None from proxies that state none
    queue_id     the queue in which it is stored; None as above
    offset       its offset in that queue; None as above
    durability   the failures that the stored message survives (`ddmq_client.idl.codes.DurabilityClass`);
                 None as above
    delay_id     the id of a delayed message, as `Producer.cancel` takes it; None for others
    duplicate    the message was already stored, by an earlier attempt or send, and these are its data
    body_differs     the message stored earlier has another body, which stays
    proxy        "host:port" of the proxy that answered
    error        None if stored; else the exception that `Producer.send` would raise
    """

    __slots__ = (
        "code", "delay_id", "duplicate_code", "durability", "error", "message_id", "offset", "proxy",
        "queue_id", "text",
    )  # fmt: skip

    code: int
    text: str
    message_id: str | None
    queue_id: int | None
    offset: int | None
    durability: int | None
    delay_id: str | None
    duplicate_code: int | None  # the wire's: None where the proxy cannot tell a duplicate
    proxy: str
    error: SendError | None

    def __init__(self) -> None:
        self.code = -1
        self.text = self.proxy = ""
        self.message_id = self.queue_id = self.offset = self.durability = self.error = self.delay_id = None
        self.duplicate_code = None

    @property
    def durability_class(self) -> DurabilityClass | None:
        """The value of `durability` as a member of the enumeration."""
        return None if self.durability is None else DurabilityClass(self.durability)

    @property
    def duplicate(self) -> bool:
        """Whether the message was already stored by an earlier send."""
        return bool(self.duplicate_code)

    @property
    def body_differs(self) -> bool:
        """Whether the message was already stored, with another body."""
        return self.duplicate_code == STORED_DIFFERENTLY

    @property
    def delayed(self) -> bool:
        """Whether the message is stored for later delivery, by a delay level or another delay."""
        return self.offset is None and (self.delay_id is not None or self.message_id is not None)

    @property
    def due_at(self) -> datetime | None:
        """The (first) due time of a delayed message, in UTC; None for others, and for delay levels."""
        return None

    @property
    def stored(self) -> bool:
        """Whether the message is confirmed as stored."""
        return self.error is None and self.code >= 0

    def raise_for_error(self) -> SendResult:
        """Return this result if the message is stored; otherwise raise `error`."""
        if self.error is not None:
            raise self.error
        return self

    def __repr__(self) -> str:
        if self.error is not None:
            return f"SendResult(error={self.error!r})"
        if self.delay_id is not None:
            return f"{type(self).__name__}(code={self.code}, delay_id={self.delay_id!r})"
        where = f"queue_id={self.queue_id}, offset={self.offset}"
        before = f", duplicate=True, body_differs={self.body_differs}" if self.duplicate else ""
        return f"SendResult(code={self.code}, message_id={self.message_id!r}, {where}{before})"
