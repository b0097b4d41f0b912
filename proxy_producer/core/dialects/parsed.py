"""What a dialect's properties ask for, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from ddmq_common.delays.command import Schedule
from ddmq_common.durations import parse_duration
from proxy_producer.core.refusal import shown

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}\Z")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?\Z")
_EPOCH = "1970-01-01T00:00:00+00:00"
SECONDS_BELOW = 100_000_000_000
"""A moment given as a number below this is in seconds, else in milliseconds (as seconds: the year 5138)."""


class ParsedSchedule(NamedTuple):
    """`due_ms`: the first delivery, epoch milliseconds; None: as the schedule says, from now on. `relative`:
    it counts from now, too."""

    schedule: Schedule
    due_ms: int | None = None
    relative: bool = False


class WrongValueError(Exception):
    """A property of the dialect has a value that means nothing."""

    def __init__(self, what: str, allowed: str) -> None:
        super().__init__(f"{what}; {allowed}")
        self.what = what
        self.allowed = allowed


def whole(properties: Mapping[bytes, bytes], name: bytes) -> int | None:
    """A whole number; None: absent. Raises WrongValueError."""
    text = _text(properties, name)
    if text is None:
        return None
    if not _WHOLE.match(text):
        raise wrong(properties, name, "a whole number of at most 18 digits")
    return int(text)


def number(properties: Mapping[bytes, bytes], name: bytes) -> int | None:
    """A number, cut to a whole one. Raises WrongValueError."""
    text = _text(properties, name)
    if text is None:
        return None
    if not _NUMBER.match(text):
        raise wrong(properties, name, "a number of milliseconds")
    return int(Decimal(text))


def text(properties: Mapping[bytes, bytes], name: bytes) -> str:
    """As it stands, "" when absent."""
    return _text(properties, name) or ""


def duration_ms(properties: Mapping[bytes, bytes], name: bytes) -> int | None:
    """`1h30m`, `250ms`, or a number of milliseconds. Raises WrongValueError."""
    written = _text(properties, name)
    if written is None:
        return None
    if _WHOLE.match(written) and not written.startswith("-"):
        return int(written)
    found = parse_duration(written, digits_max=12) if len(written) <= 64 else None
    if found is None:
        raise wrong(properties, name, "a number of milliseconds, or parts in ms, s, m, h, d, as in 1h30m")
    return found


def moment_ms(properties: Mapping[bytes, bytes], name: bytes) -> int | None:
    """Epoch seconds (also with a fraction), epoch milliseconds, or ISO 8601 with its offset from UTC. Parts
    of a millisecond count as a whole one: never early. Raises WrongValueError.
    """
    written = _text(properties, name)
    if written is None:
        return None
    if _NUMBER.match(written) and not written.startswith("-"):
        value = Decimal(written)
        return _up(value * 1_000 if value < SECONDS_BELOW else value)
    try:
        at = datetime.fromisoformat(written)
        if at.tzinfo is not None:
            return -((datetime.fromisoformat(_EPOCH) - at) // timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        pass
    raise wrong(properties, name, "epoch seconds or milliseconds, or a time as in 2026-12-24T18:00:00+01:00")


def wrong(properties: Mapping[bytes, bytes], name: bytes, allowed: str) -> WrongValueError:
    """For a value that is not `allowed`."""
    return WrongValueError(
        f"property {name.decode()} has the value {shown(properties[name])}", f"allowed: {allowed}"
    )


def _text(properties: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = properties.get(name)
    return None if value is None else value.decode("utf-8", "replace").strip()


def _up(value: Decimal) -> int:
    down = int(value)
    return down if down == value else down + 1
