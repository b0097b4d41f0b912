"""What holds up the messages of an order key: the head of its chain, as operators see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """One key whose head is not finished.

    `key`: its value as canonical JSON text. `topic`, `queue_id`, `offset`: the head. `since_ms`: epoch
    milliseconds of the head's first delivery, 0 before it. `state`: "ready" (nobody has pulled it yet), "in
    flight", "retrying", "parked" or "to the dead letters". `waiting`: messages known to wait behind the head;
    `more`: there are more than those.
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
