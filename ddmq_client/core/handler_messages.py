"""The messages that handlers are processing, and the leases to extend meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from ddmq_client.core.prefetch_buffer import LEASE_FRACTION
from ddmq_client.received import Message, get_lease_start


class HandlerMessages:
    """The messages that handlers are processing at present."""

    def __init__(self, extend_for_s: float) -> None:
        """Create an object without messages.

        Leases are extended for `extend_for_s` after a handler received the message; 0: never.
        """
        self._extend_for_s = extend_for_s
        self._messages: dict[int, tuple[Message, float, object]] = {}  # by id()

    def add(self, messages: Sequence[Message], now: float, worker: object) -> None:
        """Add messages that a handler starts to process; `worker` is its thread or task."""
        self._messages.update((id(message), (message, now, worker)) for message in messages)

    def remove(self, messages: Iterable[Message]) -> None:
        """Remove messages that their handler has finished."""
        for message in messages:
            self._messages.pop(id(message), None)

    def list_messages(self, worker: object) -> list[Message]:
        """Return the messages that one thread or task is processing."""
        return [message for message, _, owner in self._messages.values() if owner == worker]

    def due_messages(self, now: float) -> list[Message]:
        """Return the messages whose leases must be extended now."""
        return [message for message in self._list_extendable(now) if keep_at(message) <= now]

    def next_due(self, now: float) -> float:
        """Return the time of the next lease extension."""
        return min(map(keep_at, self._list_extendable(now)), default=inf)

    def _list_extendable(self, now: float) -> list[Message]:
        if not self._extend_for_s:
            return []
        since = now - self._extend_for_s
        recent = [message for message, received_at, _ in self._messages.values() if received_at > since]
        return [message for message in recent if message.outcome is None and message.lease_id is not None]


def keep_at(message: Message) -> float:
    """Return the time at which to extend the lease of a message in a handler."""
    return get_lease_start(message) + message.delivery.lease_s * LEASE_FRACTION
