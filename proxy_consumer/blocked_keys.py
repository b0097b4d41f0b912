"""What holds up the messages of an order key: the head of its chain, as operators see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """One key whose head is not finished.

    `key`: its value as canonical JSON text. `topic`, `queue_id`, `offset`: the head. `since_ms`: epoch
    milliseconds of the head's first delivery. `state`: "in flight", "retrying", "parked" or "to the dead
    letters". `waiting`: messages known to wait behind the head; `more`: there are more than those.
    """

    key: str
    topic: str
    queue_id: int
    offset: int
    since_ms: int
    attempts: int
    state: str
    error: str
    waiting: int
    more: bool


class KeyHolder(Protocol):
    """A group that knows its blocked keys. The last three raise CallerError when the key is not theirs."""

    def blocked_keys(self, limit: int) -> list[BlockedKey]:
        """Up to `limit` keys whose head was delivered and is not finished, or that are parked."""

    def park_key(self, key: str) -> None:
        """Deliver nothing of the key until it is replayed."""

    def replay_key(self, key: str) -> None:
        """Deliver the head again at once, also of a parked key."""

    def skip_key(self, key: str) -> None:
        """Move the head to the dead letters; the next message of the key goes on."""
