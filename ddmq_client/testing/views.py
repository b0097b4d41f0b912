"""The values that a broker shows to a test, read when the test asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from ddmq_client.delays import to_datetime

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class MessageView:
    """One message of a topic, whether or not anybody has consumed it."""

    topic: str
    queue_id: int
    offset: int
    message_id: str
    key: str | None
    tags: str | None
    body: bytes
    properties: Mapping[str, str]
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """One dead letter of a group. `topic`, `queue_id`, `offset`: where the message was sent to.

    `reason`: failed, timed-out, client, skipped …; `error`: a handler's last; `attempts`: deliveries.
    """

    group: str
    topic: str
    queue_id: int | None
    offset: int | None
    message_id: str
    key: str | None
    tags: str | None
    body: bytes
    properties: Mapping[str, str]
    reason: str
    error: str
    attempts: int
    died_at: datetime


@dataclass(frozen=True, slots=True)
class DelayedMessageView:
    """One message that waits for its time; of a repeated one the next delivery."""

    topic: str
    key: str | None
    tags: str | None
    body: bytes
    properties: Mapping[str, str]
    due_at: datetime


@dataclass(frozen=True, slots=True)
class KeyView:
    """One order key of a group whose head is not finished. `key`: as canonical JSON, so a text has quotes.

    `state`: ready, in flight, retrying, parked or "to the dead letters"; `waiting`: messages behind the head.
    """

    key: str
    topic: str
    queue_id: int
    offset: int
    state: str
    attempts: int
    error: str
    waiting: int


def view_of(kind: type[V], row: Mapping[str, Any]) -> V:
    """Make a view of a broker's row; `…_ms` becomes `…_at`."""
    times = {f"{name[:-3]}_at": to_datetime(value) for name, value in row.items() if name.endswith("_ms")}
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in {**row, **times}.items() if name in names})
