"""Names and attributes of spans: of the semantic conventions for messaging, ours are `messaging.ddmq.*`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.trace import Span, Status, StatusCode

from ddmq_client.observer import SendCall
from ddmq_client.outgoing import OutgoingMessage, SendResult
from ddmq_client.received import Message

SYSTEM = "ddmq"
Attributes = dict[str, str | bool | int]


def span_name(operation: str, attributes: Mapping[str, Any]) -> str:
    topic = attributes.get("messaging.destination.name")
    return operation if topic is None else f"{operation} {topic}"


def sent_attributes(
    messages: Sequence[OutgoingMessage], call: SendCall, operation: str, kind: str
) -> Attributes:
    attributes = _attributes({message.topic for message in messages}, call.client_id, operation)
    attributes["messaging.operation.type"] = kind
    if call.batch:
        attributes["messaging.batch.message_count"] = len(messages)
    if len(messages) == 1:
        body: object = messages[0].body
        if isinstance(body, bytes | str):
            attributes["messaging.message.body.size"] = len(
                body if isinstance(body, bytes) or body.isascii() else body.encode(errors="replace")
            )
    if call.transaction is not None:
        attributes["messaging.ddmq.transaction.id"] = call.transaction
    return attributes


def got_attributes(messages: Sequence[Message], client_id: str | None, operation: str) -> Attributes:
    attributes = _attributes({message.topic for message in messages}, client_id, operation)
    if messages:
        attributes["messaging.consumer.group.name"] = messages[0].group
    return attributes


def _attributes(topics: set[str], client_id: str | None, operation: str) -> Attributes:
    attributes: Attributes = {"messaging.system": SYSTEM, "messaging.operation.name": operation}
    if client_id is not None:
        attributes["messaging.client.id"] = client_id
    if len(topics) == 1:
        attributes["messaging.destination.name"] = str(*topics)
    return attributes


def message_attributes(message: Message, now_ns: int) -> Attributes:
    """Return the span attributes of one message that the application receives now."""
    attributes: Attributes = {
        "messaging.destination.partition.id": _partition(message.queue),
        "messaging.ddmq.message.offset": message.offset,
    }
    if message.message_id is not None:
        attributes["messaging.message.id"] = message.message_id
    if message.attempt is not None:
        attributes["messaging.ddmq.message.delivery_count"] = message.attempt
    if message.stored_ms is not None:
        attributes["messaging.ddmq.message.waited_ms"] = now_ns // 1_000_000 - message.stored_ms
    return attributes


def _partition(queue: str) -> str:
    """Return the number of a queue as text; the complete name for a queue that belongs to no topic."""
    number = queue.rpartition("_")[2]
    return number if number.isdigit() and "%RETRY%" not in queue else queue


def set_result(span: Span, result: SendResult) -> None:
    host, _, port = result.proxy.rpartition(":")
    if host and port.isdigit():
        span.set_attribute("server.address", host.strip("[]"))
        span.set_attribute("server.port", int(port))
    if result.error is not None:
        set_error(span, result.error)
        return
    attributes = {
        "messaging.message.id": result.message_id,
        "messaging.destination.partition.id": None if result.queue_id is None else str(result.queue_id),
        "messaging.ddmq.message.offset": result.offset,
        "messaging.ddmq.delay.id": result.delay_id,
        "messaging.ddmq.message.duplicate": result.duplicate or None,
    }
    for name, value in attributes.items():
        if value is not None:
            span.set_attribute(name, value)


def set_error(span: Span, error: BaseException) -> None:
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    span.set_attribute("error.type", module + kind.__qualname__)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
