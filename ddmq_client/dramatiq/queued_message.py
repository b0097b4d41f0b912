"""A Dramatiq message in the form in which it is stored: topic, body, order key and due time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dramatiq

from ddmq_client.application.names import GROUP_BYTES_MAX, NAME_ALLOWED, find_name_error
from ddmq_client.core.settings import TEXT_MAX
from ddmq_client.errors import OptionError
from ddmq_client.outgoing import SendResult
from ddmq_client.producer import Producer
from ddmq_client.replies import Replies

KEY_OPTION = "ddmq_key"
IDEMPOTENCY_OPTION = "ddmq_idempotency_key"
DELAY_ID_OPTION = "ddmq_delay_id"
ETA_OPTION = "eta"
KeyOption = str | int | Callable[..., "str | int | None"] | None


def topic_name(namespace: str, queue_name: str) -> str:
    """Return the topic, and the group, of a Dramatiq queue; a topic's name has no dot, so it is escaped.

    Raises OptionError if no topic and group can have this name.
    """
    name = f"{namespace}-{queue_name.replace('.', '%2E')}"
    if find_name_error(name, GROUP_BYTES_MAX):
        raise OptionError(
            f"queue_name={queue_name!r:.160} makes the topic and group {name!r:.160} of"
            f" {len(name.encode(errors='replace'))} bytes; allowed: 1 to {GROUP_BYTES_MAX} {NAME_ALLOWED},"
            " in which a dot of the queue's name becomes %2E"
        )
    return name


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """One message to store. `delay` or `deliver_at` is set for a delayed one, never both."""

    topic: str
    body: bytes
    tags: str
    key: str | None = None
    idempotency_key: str | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None

    def send(self, producer: Producer) -> SendResult:
        """Send the message by itself; raises the errors of `Producer.send`."""
        return producer.send(
            self.topic,
            self.body,
            key=self.key,
            shard_key=self.key,
            tags=self.tags,
            delay=self.delay,
            deliver_at=self.deliver_at,
            idempotency_key=self.idempotency_key,
        )

    def add_to(self, replies: Replies) -> None:
        """Add the message to those that are stored together with an acknowledgement."""
        replies.send(
            self.topic,
            self.body,
            key=self.key,
            shard_key=self.key,
            tags=self.tags,
            delay=self.delay,
            deliver_at=self.deliver_at,
        )


def queue_message(
    message: dramatiq.Message[Any], topic: str, key_option: KeyOption, delay_ms: int | None, now: datetime
) -> QueuedMessage:
    """Encode the message, and take the idempotency key out of its options, because a retry must not have it.

    `key_option` is that of the actor, for a message that has none. A message with an `eta` and no delay is
    delivered at that time.
    """
    idempotency_key = message.options.pop(IDEMPOTENCY_OPTION, None)
    delay, deliver_at = None, None
    if delay_ms is not None:
        delay = timedelta(milliseconds=delay_ms) if delay_ms > 0 else None
    else:
        deliver_at = _get_eta(message.options, now)
    return QueuedMessage(
        topic,
        message.encode(),
        message.actor_name[:TEXT_MAX],
        _get_order_key(message, key_option),
        idempotency_key,
        delay,
        deliver_at,
    )


def _get_eta(options: Mapping[str, Any], now: datetime) -> datetime | None:
    """Return the message's own due time, if it has one that is yet to come."""
    eta_ms = options.get(ETA_OPTION)
    if not isinstance(eta_ms, int | float) or isinstance(eta_ms, bool) or eta_ms <= now.timestamp() * 1000:
        return None
    return datetime.fromtimestamp(eta_ms / 1000, UTC)


def _get_order_key(message: dramatiq.Message[Any], actor_option: KeyOption) -> str | None:
    key = message.options.get(KEY_OPTION, actor_option)
    if callable(key):
        key = key(*message.args, **message.kwargs)
    if key is None:
        return None
    if isinstance(key, bool) or not isinstance(key, str | int) or not 1 <= len(str(key)) <= TEXT_MAX:
        raise OptionError(f"{KEY_OPTION}={key!r}; allowed: text of 1 to {TEXT_MAX} characters, or a number")
    return str(key)
