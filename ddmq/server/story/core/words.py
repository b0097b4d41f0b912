"""The words of a story. Pure."""

from __future__ import annotations

from ddmq.server.story.core.facts import MessageCopy, RecordedEvent
from ddmq_common.trace.events import TraceEvent, TraceKind


def describe_route(recorded_event: RecordedEvent) -> str:
    """Return the client and the process of an event as text."""
    return f"{describe_client(recorded_event.event)} → {recorded_event.process}"


def describe_client(event: TraceEvent) -> str:
    """Return a client's name and address."""
    name, address = event.text_of("client"), event.text_of("address")
    return f"{name} ({address})" if name and address else name or address


def describe_key(event: TraceEvent) -> str:
    """Describe the order key that an event names."""
    key = event.text_of("key")
    return f"key {key}" if key else ""


def describe_position(copy: MessageCopy) -> str:
    """Describe a position: topic, queue and offset."""
    return f"{copy.topic} {copy.queue_id}/{copy.offset}"


def count_deliveries(copy: MessageCopy) -> str:
    """Return the number of deliveries as text, such as `3 deliveries`."""
    return "1 delivery" if copy.deliveries == 1 else f"{copy.deliveries} deliveries"


def with_error(text: str, error: str) -> str:
    """Append the error to a text, if there is one."""
    return f"{text}: {error}" if error else text


def death_reason(copy: MessageCopy) -> str:
    """Return the text for why the message became a dead letter."""
    after = f" after {count_deliveries(copy)}" if copy.deliveries else ""
    return with_error(f"{copy.reason or 'died'}{after}", copy.error)


def describe_ending(event: TraceEvent) -> str:
    """Return the text for how a delivery ended."""
    if event.kind == TraceKind.TIMED_OUT:
        return "the lease ran out"
    if event.kind == TraceKind.FAILED:
        return with_error("failed", event.text_of("error"))
    return event.text_of("reason") if event.kind == TraceKind.SPENT else ""
