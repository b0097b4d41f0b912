"""Where a due message goes: its topic, as this process knows it, or the dead letters, and why."""

from __future__ import annotations

from typing import NamedTuple

from backend.port import Backend

GONE = "topic gone"
REFUSED = "refused"
UNREADABLE = "unreadable"  # it does not say where it belongs, or how


class TargetTopic(NamedTuple):
    """A topic that is there. `writable`: it takes messages now, as far as is known."""

    queues: int
    writable: bool


def target_topic(backend: Backend, topic: str) -> TargetTopic | None:
    """What is known of it; None: there is no such topic."""
    info = backend.topic(topic)
    return None if info is None else TargetTopic(info.queues, info.writable)
