"""Durations as people write them: `90s`, `1h30m`, `2d`, `250ms`."""

from __future__ import annotations

import re

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WHOLE = re.compile(r"([0-9]+(ms|s|m|h|d))+\Z")
_PART = re.compile(r"([0-9]+)(ms|s|m|h|d)")


def parse_duration(text: str, digits_max: int) -> int | None:
    """Milliseconds; None where the text is no duration, or a number in it has over `digits_max` digits."""
    if not _WHOLE.match(text):
        return None
    parts = _PART.findall(text)
    if any(len(amount) > digits_max for amount, _ in parts):
        return None
    return sum(int(amount) * UNIT_MS[unit] for amount, unit in parts)
