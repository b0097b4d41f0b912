"""Delay dialects: the properties by which plain sends ask for a delay, of other systems and of ddmq. Pure.

| dialect | properties |
|---|---|
| `amq` | AMQ_SCHEDULED_DELAY, _PERIOD, _REPEAT, _CRON as ActiveMQ's scheduler; AMQ_SCHEDULED_ZONE of ours |
| `rabbit` | x-delay as RabbitMQ's delayed message exchange |
| `rocketmq` | TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS as RocketMQ 5; DELAY is on always |
| `ddmq` | deliver-at, deliver-after, deliver-cron … of our own |

A topic speaks those it is set to, none by default; the names of the others are ordinary properties there.
Where a dialect is spoken its names are never delivered, whether or not they asked for a delay: a consumer
that sends a message on with its properties must not delay it again. Two dialects on one message, or one and
a delay level, are rejected, because the intended delay is unclear. All rejections are code 11: old clients
leave a server that answers a plain send otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from ddmq_common.delays.command import ADD, SCHEDULE, DelayCommand, Schedule
from ddmq_common.delays.levels import duration_text, parse_duration
from ddmq_common.delays.schedules import ScheduleLimits, find_schedule_error, first_due_ms
from ddmq_common.names import DELAY_DIALECTS
from proxy_producer.core.delay_requests import TIMESTAMP_S_MIN
from proxy_producer.core.rejections import SendRejection, build_illegal_rejection, quote_text
from proxy_producer.core.validation import delay_level

Properties = Mapping[bytes, bytes]
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?\Z")
_EPOCH = "1970-01-01T00:00:00+00:00"
_SECONDS_BELOW = 100_000_000_000
"""A moment given as a number below this is in seconds, else in milliseconds (as seconds: the year 5138)."""


class ParsedSchedule(NamedTuple):
    """The delay that a message's properties ask for.

    `due_ms`: the first delivery in epoch milliseconds; None: the schedule counts from now. `relative`:
    `due_ms` was computed from now.
    """

    schedule: Schedule
    due_ms: int | None = None
    relative: bool = False


class PropertyValueError(Exception):
    """A delay property has an invalid value."""

    def __init__(self, what: str, allowed: str) -> None:
        super().__init__(f"{what}; {allowed}")
        self.what = what
        self.allowed = allowed


class Dialect(NamedTuple):
    """One delay dialect: the names of its properties, and the function that reads them.

    `read` returns None if the message asks for no delay, and raises PropertyValueError.
    """

    properties: frozenset[bytes]
    read: Callable[[Properties, int], ParsedSchedule | None]


class Dialects(NamedTuple):
    """The delay dialects that a topic accepts, and the names of all their properties."""

    spoken: tuple[str, ...]
    properties: frozenset[bytes]


def select_dialects(names: Iterable[str]) -> Dialects:
    """Return the dialects with these names. Raises ValueError for an unknown name."""
    spoken = tuple(dict.fromkeys(names))
    for name in spoken:
        if name not in _DIALECTS:
            raise ValueError(f"delay dialect {name!r} is not known; allowed: {', '.join(_DIALECTS)}")
    return Dialects(spoken, frozenset(p for name in spoken for p in _DIALECTS[name].properties))


def read_command(
    properties: Properties, enabled: Dialects, now_ms: int, limits: ScheduleLimits
) -> DelayCommand | SendRejection | None:
    """Return the delay command that the (checked) properties ask for, a rejection, or None for no delay.

    The command is always a schedule, so that the message keeps its key; the caller adds uuid, topic, shard
    and queue. A due time in the past is no delay. `now_ms`: the end of this millisecond, so that no relative
    delay is early.
    """
    names = [name for name in enabled.spoken if not _DIALECTS[name].properties.isdisjoint(properties)]
    if not names:
        return None
    level = delay_level(properties)
    if len(names) > 1 or level:
        return _build_mixed_rejection(level, properties, enabled)
    try:
        parsed = _DIALECTS[names[0]].read(properties, now_ms)
    except PropertyValueError as error:
        return build_illegal_rejection("delay_dialect", error.what, error.allowed)
    return None if parsed is None else _make_command(parsed, now_ms, limits)


def counts_from_now(properties: Properties, enabled: Dialects, now_ms: int) -> bool:
    """Return whether the due time is relative to the send, for properties that `read_command` accepted."""
    spoken = next(name for name in enabled.spoken if not _DIALECTS[name].properties.isdisjoint(properties))
    parsed = _DIALECTS[spoken].read(properties, now_ms)
    return parsed is not None and (parsed.relative or parsed.due_ms is None)


def drop_dialects(properties: Properties, enabled: Dialects) -> Properties:
    """Return the properties without those of the dialects, as consumers get them."""
    return {name: value for name, value in properties.items() if name not in enabled.properties}


def _make_command(
    parsed: ParsedSchedule, now_ms: int, limits: ScheduleLimits
) -> DelayCommand | SendRejection | None:
    schedule = parsed.schedule
    error = find_schedule_error(schedule, limits, now_ms)
    due = first_due_ms(schedule, now_ms) if error is None and parsed.due_ms is None else parsed.due_ms
    if error is None and due is not None and not schedule.cron and due - now_ms > limits.delay_ms_max:
        longest = duration_text(limits.delay_ms_max)
        error = f"the due time is {duration_text(due - now_ms)} from now; allowed: at most {longest}"
    if error is not None or due is None:
        what, _, allowed = (error or "the cron has no time to come; allowed: one that has").partition("; ")
        return build_illegal_rejection("delay_dialect", what, allowed)
    relative = parsed.relative or parsed.due_ms is None
    if (due <= now_ms if relative else due < now_ms) and not schedule.repeat and not schedule.cron:
        return None
    return DelayCommand(ADD, "", kind=SCHEDULE, due_ms=due, timestamp_s=due // 1_000, schedule=schedule)


def _build_mixed_rejection(level: int, properties: Properties, enabled: Dialects) -> SendRejection:
    names = sorted(name.decode() for name in properties if name in enabled.properties)
    if level:
        names.append(f"DELAY={level}")
    return build_illegal_rejection(
        "delay_dialects_mixed",
        f"the message asks for a delay in several ways: {' '.join(names)}",
        f"allowed: one of the dialects {', '.join(enabled.spoken)}, or DELAY alone",
    )


# --- the dialects

_AMQ = (
    b"AMQ_SCHEDULED_DELAY", b"AMQ_SCHEDULED_PERIOD", b"AMQ_SCHEDULED_REPEAT", b"AMQ_SCHEDULED_CRON",
    b"AMQ_SCHEDULED_ZONE",
)  # fmt: skip
_AMQ_DELIVERED_BEFORE = b"scheduledJobId"


def _read_amq(properties: Properties, now_ms: int) -> ParsedSchedule | None:
    """Read the properties of ActiveMQ's scheduler, and ddmq's own AMQ_SCHEDULED_ZONE.

    Delay and period are milliseconds. A message is scheduled if it has a delay, a period or a cron, and no
    `scheduledJobId` (a message that ActiveMQ's scheduler delivered before has one, and goes out at once). The
    first delivery comes after the delay, without one (or with 0) after the period; _REPEAT n lets n more
    follow, _PERIOD apart; −1 without end. With a cron that series starts at each of its times. ActiveMQ reads
    crons in the broker's own time zone; here it is UTC unless _ZONE says otherwise.
    """
    delay, period, repeat = (_read_integer(properties, name) for name in _AMQ[:3])
    cron, zone = (_read_text(properties, name) for name in _AMQ[3:])
    if zone and not cron:
        raise PropertyValueError(
            "AMQ_SCHEDULED_ZONE stands without a cron", "allowed: with AMQ_SCHEDULED_CRON"
        )
    if _AMQ_DELIVERED_BEFORE in properties or (delay is None and period is None and not cron):
        return None
    first = delay if delay is not None and delay > 0 else period or 0
    return ParsedSchedule(Schedule(first, period or 0, repeat or 0, cron, zone or "UTC"))


_RABBIT_DELAY, _RABBIT_MS_MAX = b"x-delay", (1 << 32) - 1


def _read_rabbit(properties: Properties, now_ms: int) -> ParsedSchedule | None:
    """Read the header of RabbitMQ's delayed message exchange: x-delay, in milliseconds.

    As that plugin does it, a delay holds from 1 to 2³²−1 ms (49.7 days); anything outside is no delay, and so
    a message that the plugin delayed before, which carries its delay negated, goes out at once. A fraction is
    cut. What is no number the plugin cannot read either; here it is rejected.
    """
    delay = _read_number(properties, _RABBIT_DELAY)
    if delay is None or not 0 < delay <= _RABBIT_MS_MAX:
        return None
    return ParsedSchedule(Schedule(delay_ms=delay))


_DELAY_SEC, _DELAY_MS, _DELIVER_MS = b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS"


def _read_rocketmq(properties: Properties, now_ms: int) -> ParsedSchedule | None:
    """Read RocketMQ 5's arbitrary delays: seconds from now, milliseconds from now, epoch milliseconds.

    If several are set, the first in this order wins. A time in the past means no delay. (RocketMQ rounds down
    to the precision of its timer and may deliver up to a second early; this keeps the millisecond.)
    """
    seconds = _read_integer(properties, _DELAY_SEC)
    delay = _read_integer(properties, _DELAY_MS)
    moment = _read_integer(properties, _DELIVER_MS)
    if seconds is not None:
        return ParsedSchedule(Schedule(), now_ms + seconds * 1_000, relative=True)
    if delay is not None:
        return ParsedSchedule(Schedule(), now_ms + delay, relative=True)
    return None if moment is None else ParsedSchedule(Schedule(), moment)


_AT, _AFTER, _CRON, _ZONE = b"deliver-at", b"deliver-after", b"deliver-cron", b"deliver-zone"
_PERIOD, _REPEAT = b"deliver-period", b"deliver-repeat"
_OCCURRENCES, _CATCH_UP = b"deliver-occurrences", b"deliver-catch-up"


def _read_ddmq(properties: Properties, now_ms: int) -> ParsedSchedule | None:
    """Read ddmq's own properties, which state all of a schedule, for clients that can only set properties.

    `deliver-at`: epoch seconds (with a fraction, as the score of a sorted set), epoch milliseconds or ISO
    8601; not before 1970 (the zero time of some languages), and where it repeats not before 2001, as for
    sendDelaySync. `deliver-after`: a wait, `90s`, `1h30m`, `250ms`, or milliseconds. `deliver-cron` with
    `deliver-zone`: five fields and an IANA zone. `deliver-period`, `deliver-repeat`: n more, so far apart
    (-1: without end). `deliver-occurrences`: deliveries in all. `deliver-catch-up`: fire_once, all or skip.
    """
    at, after = _read_time_ms(properties, _AT), _read_duration_ms(properties, _AFTER)
    repeat = _read_integer(properties, _REPEAT) or 0
    if at is not None and at < (TIMESTAMP_S_MIN * 1_000 if repeat else 0):
        allowed = f"from 1970 on; with deliver-repeat from second {TIMESTAMP_S_MIN} (2001) on"
        raise _build_value_error(properties, _AT, allowed)
    cron, zone = _read_text(properties, _CRON), _read_text(properties, _ZONE)
    if at is not None and (after is not None or cron):
        raise PropertyValueError(
            "deliver-at stands beside deliver-after or deliver-cron", "allowed: one first delivery"
        )
    if zone and not cron:
        raise PropertyValueError("deliver-zone stands without deliver-cron", "allowed: both or none")
    schedule = Schedule(
        after or 0,
        _read_duration_ms(properties, _PERIOD) or 0,
        repeat,
        cron,
        zone or "UTC",
        _read_integer(properties, _OCCURRENCES) or 0,
        _read_text(properties, _CATCH_UP) or "fire_once",
    )
    return ParsedSchedule(schedule, at)


_DDMQ = (_AT, _AFTER, _CRON, _ZONE, _PERIOD, _REPEAT, _OCCURRENCES, _CATCH_UP)
_READERS = (
    Dialect(frozenset(_AMQ), _read_amq),
    Dialect(frozenset((_RABBIT_DELAY,)), _read_rabbit),
    Dialect(frozenset((_DELAY_SEC, _DELAY_MS, _DELIVER_MS)), _read_rocketmq),
    Dialect(frozenset(_DDMQ), _read_ddmq),
)
_DIALECTS = dict(zip(DELAY_DIALECTS, _READERS, strict=True))


# --- how values are read; numbers are None where the property is absent


def _read_text(properties: Properties, name: bytes) -> str:
    """Return the property's value without surrounding white space; "" if it is absent."""
    value = properties.get(name)
    return "" if value is None else value.decode("utf-8", "replace").strip()


def _read_integer(properties: Properties, name: bytes) -> int | None:
    """Parse an integer property; None if it is absent. Raises PropertyValueError."""
    if name not in properties:
        return None
    text = _read_text(properties, name)
    if not _INTEGER.match(text):
        raise _build_value_error(properties, name, "a whole number of at most 18 digits")
    return int(text)


def _read_number(properties: Properties, name: bytes) -> int | None:
    """Parse a numeric property and truncate it to an integer; None if it is absent.

    Raises PropertyValueError.
    """
    if name not in properties:
        return None
    text = _read_text(properties, name)
    if not _NUMBER.match(text):
        raise _build_value_error(properties, name, "a number of milliseconds")
    return int(Decimal(text))


def _read_duration_ms(properties: Properties, name: bytes) -> int | None:
    """Parse `1h30m`, `250ms` or a number of milliseconds; None if absent. Raises PropertyValueError."""
    if name not in properties:
        return None
    text = _read_text(properties, name)
    if _INTEGER.match(text) and not text.startswith("-"):
        return int(text)
    duration_ms = parse_duration(text, digits_max=12) if len(text) <= 64 else None
    if duration_ms is None:
        raise _build_value_error(
            properties, name, "a number of milliseconds, or parts in ms, s, m, h, d, as in 1h30m"
        )
    return duration_ms


def _read_time_ms(properties: Properties, name: bytes) -> int | None:
    """Parse epoch seconds (also fractional), epoch milliseconds, or ISO 8601 with a UTC offset.

    Fractions of a millisecond are rounded up, so that no message is early. Returns None if the property is
    absent. Raises PropertyValueError.
    """
    if name not in properties:
        return None
    text = _read_text(properties, name)
    if _NUMBER.match(text) and not text.startswith("-"):
        value = Decimal(text)
        return _round_up(value * 1_000 if value < _SECONDS_BELOW else value)
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return -((datetime.fromisoformat(_EPOCH) - at) // timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        pass
    raise _build_value_error(
        properties, name, "epoch seconds or milliseconds, or a time as in 2026-12-24T18:00:00+01:00"
    )


def _round_up(value: Decimal) -> int:
    down = int(value)
    return down if down == value else down + 1


def _build_value_error(properties: Properties, name: bytes, allowed: str) -> PropertyValueError:
    """Return the PropertyValueError for a property. `allowed`: a description of valid values."""
    return PropertyValueError(
        f"property {name.decode()} has the value {quote_text(properties[name])}", f"allowed: {allowed}"
    )
