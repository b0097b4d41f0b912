"""Waits as people write them, and the delay levels: a list of waits, and which of them a number means.

Level 1 is the first of the list, 0 is no delay, a level above the last means the last. The numbers are
RocketMQ's; so is the default list. A level's messages stand in queue `level - 1` of SCHEDULE_TOPIC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LEVELS_MAX = 64
LEVEL_MS_MAX = 366 * 86_400_000
UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]+(ms|s|m|h|d))+\Z")
_WAIT = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)\Z")
_AMOUNT = re.compile(r"([0-9]+)(ms|s|m|h|d)")


def parse_duration(text: str, digits_max: int) -> int | None:
    """Parse `90s`, `1h30m`, `2d`, `250ms` to milliseconds; None if the text is not a duration or a number in
    it has more than `digits_max` digits.
    """
    if not _DURATION.match(text):
        return None
    total_ms = 0
    for amount, unit in _AMOUNT.findall(text):
        if len(amount) > digits_max:
            return None
        total_ms += int(amount) * UNIT_MS[unit]
    return total_ms


def duration_text(ms: int) -> str:
    """Format milliseconds for `parse_duration`: 5,400,000 → `1h30m`, 0 → `0s`, -5 → `-5ms`."""
    amounts, rest = [], abs(ms)
    for unit in ("d", "h", "m", "s", "ms"):
        amount, rest = divmod(rest, UNIT_MS[unit])
        if amount:
            amounts.append(f"{amount}{unit}")
    return ("-" if ms < 0 else "") + ("".join(amounts) or "0s")


class Levels:
    """The waits of all delay levels in milliseconds, level 1 first. Raises ValueError for invalid waits."""

    __slots__ = ("waits",)

    def __init__(self, waits: Iterable[str]) -> None:
        """Parse the waits, texts such as `30s` or `2h` with the units ms, s, m, h, d."""
        self.waits = tuple(parse_wait(text) for text in waits)
        if not 1 <= len(self.waits) <= LEVELS_MAX:
            raise ValueError(f"levels has {len(self.waits)} entries; allowed: 1 to {LEVELS_MAX}")
        for level, (before, wait) in enumerate(zip(self.waits, self.waits[1:], strict=False), 2):
            if wait <= before:
                raise ValueError(
                    f"levels: level {level} is {wait_text(wait)}, not longer than level {level - 1} "
                    f"({wait_text(before)}); allowed: a list that ascends"
                )

    def __len__(self) -> int:
        return len(self.waits)

    def clamp_level(self, level: int) -> int:
        """Limit `level` to the existing ones: 0 (no delay) to the last level."""
        last = len(self.waits)
        return 0 if level <= 0 else level if level < last else last

    def wait_ms(self, level: int) -> int:
        """Return the wait of `level` in milliseconds, after clamping it; 0 for no delay."""
        clamped = self.clamp_level(level)
        return self.waits[clamped - 1] if clamped else 0


def parse_wait(text: str) -> int:
    """Parse a wait: `30s` → 30,000. Raises ValueError."""
    match = _WAIT.match(text.strip())
    wait = int(match[1]) * UNIT_MS[match[2]] if match else 0
    if not 1 <= wait <= LEVEL_MS_MAX:
        raise ValueError(
            f"levels: {text!r} is no wait; allowed: a whole number and ms, s, m, h or d, at most 366d"
        )
    return wait


def wait_text(wait_ms: int) -> str:
    """Format a wait for people: 7,200,000 → `2h`."""
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if wait_ms % UNIT_MS[unit] == 0)
    return f"{wait_ms // UNIT_MS[unit]}{unit}"


DEFAULT_WAITS = (
    "1s", "5s", "10s", "30s", "1m", "2m", "3m", "4m", "5m", "6m", "7m", "8m", "9m", "10m", "20m", "30m", "1h",
    "2h",
)  # fmt: skip
DEFAULT_LEVELS = Levels(DEFAULT_WAITS)
