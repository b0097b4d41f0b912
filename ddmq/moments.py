"""Moments as people write them: epoch milliseconds, ISO 8601, or so far from now."""

from __future__ import annotations

import datetime

from ddmq_common.delays.levels import parse_duration

ALLOWED = "epoch milliseconds, a time like 2026-11-21T12:00+01:00, or so far from now: -2h, +90s, +1d12h"
WALL_MS_MIN = 1_000_000_000_000  # September 2001; where an offset may stand too, smaller numbers are offsets
WALL_MS_MAX = 253_370_764_800_000  # the year 9999, which calendars end with
DURATION_ALLOWED = "numbers with units ms, s, m, h, d, as in 90s, 1h30m or 2d"
_DIGITS_MAX = 9  # of each number in a duration


def read_moment(text: str, now_ms: int, *, local: bool = False) -> int:
    """Parse a moment into epoch milliseconds, 0 to WALL_MS_MAX. Raises ValueError with the allowed forms.

    `local`: ISO text without a zone is in the zone of this machine; else the zone must be given.
    """
    if text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) <= WALL_MS_MAX:
        return int(text)
    if is_relative(text):
        away = read_duration(text[1:])
        return min(max(0, now_ms + (away if text[0] == "+" else -away)), WALL_MS_MAX)
    try:
        parsed = datetime.datetime.fromisoformat(text)
        if parsed.tzinfo is None and not local:
            raise ValueError(f"{text!r} has no time zone; write it like 2026-11-21T12:00+01:00 or …Z")
        return min(max(0, int(parsed.timestamp() * 1000)), WALL_MS_MAX)
    except (ValueError, OverflowError, OSError) as error:
        if "time zone" in str(error):
            raise
        raise ValueError(f"{text!r} is no moment; allowed: {ALLOWED}") from error


def read_duration(text: str) -> int:
    """Parse `90s`, `1h30m`, `2d` or `250ms` into milliseconds. Raises ValueError with the allowed forms."""
    milliseconds = parse_duration(text, _DIGITS_MAX)
    if milliseconds is None:
        raise ValueError(f"{text!r} is no duration; allowed: {DURATION_ALLOWED}")
    return milliseconds


def is_relative(text: str) -> bool:
    """Return whether a text is a moment relative to now, such as -2h."""
    return text[:1] in ("-", "+") and parse_duration(text[1:], _DIGITS_MAX) is not None


def format_moment(wall_ms: int) -> str:
    """Format a moment as local time with milliseconds and zone, behind the year 9998 as milliseconds."""
    if wall_ms > WALL_MS_MAX:
        return f"{wall_ms} ms since 1970"
    zoned = datetime.datetime.fromtimestamp(wall_ms / 1000).astimezone()
    return zoned.isoformat(sep=" ", timespec="milliseconds")


def format_age(seconds: float) -> str:
    """Format a length of time for people: 340 ms, 12.0 s, 3 m 20 s, 4 h 5 m, 2 d 3 h."""
    if seconds < 1:
        return f"{max(0, int(seconds * 1000))} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    rounded = int(seconds)
    for unit, size, next_unit, next_size in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60)):
        if rounded >= size:
            return f"{rounded // size:,} {unit} {rounded % size // next_size} {next_unit}"
    return f"{rounded // 60} m {rounded % 60} s"
