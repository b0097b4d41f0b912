"""Delays asked for by properties of a plain send, in the words of other systems and in our own. Pure.

| dialect | properties |
|---|---|
| `amq` | AMQ_SCHEDULED_DELAY, _PERIOD, _REPEAT, _CRON as ActiveMQ's scheduler; AMQ_SCHEDULED_ZONE of ours |
| `rabbit` | x-delay as RabbitMQ's delayed message exchange |
| `rocketmq` | TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS as RocketMQ 5; DELAY is on always |
| `ddmq` | deliver-at, deliver-after, deliver-cron … of our own (ours.py) |

A topic speaks those it is set to, none by default; the names of the others are ordinary properties there.
Where a dialect is spoken its names are never delivered, whether or not they asked for a delay: a consumer
that sends a message on with its properties must not delay it again. Two dialects on one message, or one and
a delay level, are refused: nobody could say which was meant. All refusals are code 11, for old clients leave
a server that answers a plain send otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddmq_common.delays.command import ADD, SCHEDULE, DelayCommand
from ddmq_common.delays.schedules import ScheduleLimits, first_due_ms, schedule_fault
from ddmq_common.names import DELAY_DIALECTS
from proxy_producer.core.dialects import amq, ours, rabbit, rocketmq
from proxy_producer.core.dialects.parsed import ParsedSchedule, WrongValueError
from proxy_producer.core.refusal import SendRefusal, illegal
from proxy_producer.core.validation import delay_level

DIALECTS = DELAY_DIALECTS
_READERS = dict(zip(DIALECTS, (amq, rabbit, rocketmq, ours), strict=True))


class Dialects(NamedTuple):
    """Those that a topic speaks, and all their property names."""

    spoken: tuple[str, ...]
    properties: frozenset[bytes]


def dialects(names: Iterable[str]) -> Dialects:
    """Raises ValueError for a name that is none."""
    spoken = tuple(dict.fromkeys(names))
    for name in spoken:
        if name not in _READERS:
            raise ValueError(f"delay dialect {name!r} is not known; allowed: {', '.join(DIALECTS)}")
    return Dialects(spoken, frozenset(p for name in spoken for p in _READERS[name].PROPERTIES))


def dialect_of(
    properties: Mapping[bytes, bytes], enabled: Dialects, now_ms: int, limits: ScheduleLimits
) -> DelayCommand | SendRefusal | None:
    """The command that these (checked) properties ask for, why they cannot, or None: no delay is asked for.

    The command is a schedule, so that the message keeps its own key; its uuid, topic, shard and queue are the
    caller's to fill in. A due time that has come is no delay. `now_ms`: the end of this millisecond,
    so that what counts from it is never early.
    """
    if enabled.properties.isdisjoint(properties):
        return None
    found = [name for name in enabled.spoken if not _READERS[name].PROPERTIES.isdisjoint(properties)]
    level = delay_level(properties)
    if len(found) > 1 or level:
        return _several(found, level, properties, enabled)
    try:
        parsed = _READERS[found[0]].read(properties, now_ms)
    except WrongValueError as error:
        return illegal("delay_dialect", error.what, error.allowed)
    return None if parsed is None else _command(parsed, now_ms, limits)


def without_dialects(properties: Mapping[bytes, bytes], enabled: Dialects) -> Mapping[bytes, bytes]:
    """The properties that are delivered."""
    if enabled.properties.isdisjoint(properties):
        return properties
    return {name: value for name, value in properties.items() if name not in enabled.properties}


def _command(
    parsed: ParsedSchedule, now_ms: int, limits: ScheduleLimits
) -> DelayCommand | SendRefusal | None:
    schedule = parsed.schedule
    fault = schedule_fault(schedule, limits, now_ms)
    due = first_due_ms(schedule, now_ms) if fault is None and parsed.due_ms is None else parsed.due_ms
    if fault is None and due is not None and not schedule.cron and due - now_ms > limits.delay_ms_max:
        fault = f"the due time is {due - now_ms} ms from now; allowed: at most {limits.delay_ms_max}"
    if fault is not None or due is None:
        what, _, allowed = (fault or "the cron has no time to come; allowed: one that has").partition("; ")
        return illegal("delay_dialect", what, allowed)
    relative = parsed.relative or parsed.due_ms is None
    if (due <= now_ms if relative else due < now_ms) and not schedule.repeat and not schedule.cron:
        return None
    return DelayCommand(ADD, "", kind=SCHEDULE, due_ms=due, timestamp_s=due // 1_000, schedule=schedule)


def _several(
    found: list[str], level: int, properties: Mapping[bytes, bytes], enabled: Dialects
) -> SendRefusal:
    names = sorted(name.decode() for name in properties if name in enabled.properties)
    named = [*names, f"DELAY={level}"] if level else names
    return illegal(
        "delay_dialects_mixed",
        f"the message asks for a delay in several ways: {' '.join(named)}",
        f"allowed: one of the dialects {', '.join(enabled.spoken)}, or DELAY alone",
    )
