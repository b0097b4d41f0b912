"""Holds of topics' delayed messages: an operator's setting `hold/TOPIC`, its value since when (epoch ms).

A setting of the backend, so that it is durable, and the same for all processes. A topic with a value that
cannot be read counts as held, for nothing may fire by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend.port import Backend
from ddmq_common.names import HOLD_PREFIX


def is_held(backend: Backend, topic: str) -> bool:
    """Return whether no delayed message of the topic may fire."""
    return backend.setting(HOLD_PREFIX + topic) is not None


def held_since_ms(backend: Backend, topic: str) -> int | None:
    """Return since when the topic's delayed messages are held; None if they are not."""
    value = backend.setting(HOLD_PREFIX + topic)
    return None if value is None else _decode(value)


def list_holds(backend: Backend) -> dict[str, int]:
    """Return since when the delayed messages of each held topic are held, by topic."""
    holds = backend.settings(HOLD_PREFIX)
    return {key.removeprefix(HOLD_PREFIX): _decode(value) for key, value in sorted(holds.items())}


def hold_setting(topic: str, since_ms: int | None) -> Mapping[str, bytes | None]:
    """Return the setting that holds the topic's delayed messages; with None, the one that releases them."""
    return {HOLD_PREFIX + topic: None if since_ms is None else b"%d" % since_ms}


def _decode(value: bytes) -> int:
    """Return the epoch milliseconds of a hold; 0 for a value that cannot be read."""
    return int(value) if value.isdigit() and len(value) <= 15 else 0
