"""Delayed messages: when they are due, and what became of a change. Pure.

`when_of` turns the keyword arguments of `send` into the wire's numbers and says clearly what does not fit
together; whether a cron expression or a zone is known is said by the proxy (InvalidMessageError).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

from ddmq_client.core.settings import is_text
from ddmq_client.errors import OptionError
from ddmq_client.idl.codes import DelayOutcome
from ddmq_client.outgoing import SendResult

CATCH_UPS = ("fire_once", "all", "skip")
TIMES_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_FIRST_ALLOWED = "allowed: one of delay, deliver_at, cron, level; or every alone"


class When(NamedTuple):
    """The due time of a message, as the wire states it; fields that are None are not stated."""

    due_ms: int | None = None
    delay_ms: int | None = None
    cron: str | None = None
    zone: str | None = None
    period_ms: int | None = None
    repeat: int | None = None
    occurrences_max: int | None = None
    catch_up: str | None = None


class DelayStatus(Enum):
    """The outcome of a change to a delayed message."""

    CANCELLED = "cancelled"  # it is not delivered any more
    RESCHEDULED = "rescheduled"
    HELD = "held"  # it does not fire until it is released
    RELEASED = "released"
    FIRED = "already fired"  # delivered, before or (fire_now) by this call: `fired_at`
    UNKNOWN = "unknown"  # there never was such a message; it will not be delivered if it comes now
    TOO_OLD = "older than what is kept"
    PENDING = "pending"  # the change is durable and will be carried out; its outcome did not come in time


_STATUS: dict[int, DelayStatus] = {
    DelayOutcome.ADDED: DelayStatus.RESCHEDULED,
    DelayOutcome.CANCELLED: DelayStatus.CANCELLED,
    DelayOutcome.ALREADY_FIRED: DelayStatus.FIRED,
    DelayOutcome.UNKNOWN: DelayStatus.UNKNOWN,
    DelayOutcome.OLDER_THAN_KEPT: DelayStatus.TOO_OLD,
    DelayOutcome.PENDING: DelayStatus.PENDING,
}


class DelayResult(SendResult):
    """The proxy's answer to adding or changing a delayed message.

    `topic`: of a message that was added; it is not on the wire. `outcome`:
    ddmq_client.idl.codes.DelayOutcome. `due_ms`, `fired_at_ms`: epoch milliseconds, None if not stated.
    """

    __slots__ = ("due_ms", "fired_at_ms", "outcome", "topic")

    topic: str | None
    due_ms: int | None
    fired_at_ms: int | None
    outcome: int | None

    def __init__(self) -> None:
        super().__init__()
        self.topic = self.due_ms = self.fired_at_ms = self.outcome = None

    @property
    def due_at(self) -> datetime | None:
        """Return the (first) due time of the message, in UTC."""
        return None if self.due_ms is None else to_datetime(self.due_ms)


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    """The outcome of a change of a delayed message, such as a cancel.

    `fired_at` and `due_at`: in UTC, if known (with FIRED; with RESCHEDULED, HELD and RELEASED). `text`: a
    remark of the delay service, or "".
    """

    status: DelayStatus
    fired_at: datetime | None = None
    due_at: datetime | None = None
    text: str = ""

    @property
    def cancelled(self) -> bool:
        """Whether the message will not be delivered any more."""
        return self.status is DelayStatus.CANCELLED


def outcome_of(result: SendResult) -> CancelOutcome:
    """Return the outcome in a confirmed answer.

    The answer of an old proxy has none: the outcome is PENDING.
    """
    if not isinstance(result, DelayResult) or result.outcome is None:
        return CancelOutcome(DelayStatus.PENDING)
    status = _STATUS.get(result.outcome, DelayStatus.PENDING)
    fired = None if result.fired_at_ms is None else to_datetime(result.fired_at_ms)
    return CancelOutcome(status, fired, result.due_at, "" if result.text == "OK" else result.text)


def when_of(
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
    cron: str | None = None,
    zone: str | None = None,
    every: timedelta | None = None,
    times: int | None = None,
    catch_up: str | None = None,
    level: int | None = None,
) -> When | None:
    """Convert the delay arguments of `send` into a due time.

    None if they request no delay of the delay service. Raises OptionError for arguments that cannot be
    combined.
    """
    firsts = {"delay": delay, "deliver_at": deliver_at, "cron": cron, "level": level}
    firsts_set = [name for name, value in firsts.items() if value is not None]
    others = {"zone": zone, "every": every, "times": times, "catch_up": catch_up}
    extras = [name for name, value in others.items() if value is not None]
    if len(firsts_set) > 1:
        raise OptionError(f"{' and '.join(firsts_set)} are both set; {_FIRST_ALLOWED}")
    if level is not None and extras:
        raise OptionError(f"{extras[0]} is set beside level; allowed beside level: nothing")
    if zone is not None and cron is None:
        raise OptionError(f"zone={zone!r} without a cron; a datetime carries its own zone")
    if not firsts_set and every is None:
        if extras:
            raise OptionError(f"{extras[0]} is set without a first delivery; {_FIRST_ALLOWED}")
        return None
    return None if level is not None else _when(delay, deliver_at, cron, zone, every, times, catch_up)


def _when(
    delay: timedelta | None,
    deliver_at: datetime | None,
    cron: str | None,
    zone: str | None,
    every: timedelta | None,
    times: int | None,
    catch_up: str | None,
) -> When:
    period = None if every is None else duration_ms("every", every, 1)
    wait = None if delay is None else duration_ms("delay", delay, 0)
    if delay is None and deliver_at is None and cron is None:
        wait = period
    if times is not None and (type(times) is not int or not 1 <= times <= TIMES_MAX):
        raise OptionError(f"times={times!r}; allowed: a whole number from 1, the deliveries in all")
    if times is not None and every is None and cron is None:
        raise OptionError(f"times={times} without every or cron: it is delivered once")
    if every is not None and cron is not None and times is None:
        raise OptionError("every beside cron without times; allowed: times, the deliveries at each cron time")
    if catch_up is not None and catch_up not in CATCH_UPS:
        raise OptionError(f"catch_up={catch_up!r}; allowed: {', '.join(CATCH_UPS)}")
    if cron is not None and not (is_text(cron) and cron.strip()):
        raise OptionError(f"cron={cron!r}; allowed: five fields, as in '0 9 * * 1-5'")
    if zone is not None and not is_text(zone):
        raise OptionError(f"zone={zone!r}; allowed: the name of a time zone, as in 'Asia/Shanghai'")
    repeat = None
    if every is not None:
        repeat = -1 if times is None else times - 1
    return When(
        None if deliver_at is None else epoch_ms("deliver_at", deliver_at),
        wait,
        cron,
        zone,
        period,
        repeat,
        times if cron is not None and every is None else None,
        catch_up,
    )


def epoch_ms(name: str, value: datetime) -> int:
    """Convert a datetime into epoch milliseconds, rounded up. Raises OptionError if it has no time zone."""
    if not isinstance(value, datetime):
        raise OptionError(f"{name}={value!r} is {type(value).__name__}; allowed: a datetime with a time zone")
    if value.utcoffset() is None:
        raise OptionError(
            f"{name}={value.isoformat()} has no time zone; allowed:"
            " datetime(..., tzinfo=ZoneInfo('Asia/Shanghai')), or value.astimezone() for this machine's zone"
        )
    return -((_EPOCH - value) // _MS)


def start_text(start: object) -> str | None:
    """Convert the start of a subscription into its wire form: first, last, or epoch milliseconds."""
    if start is None or start in ("first", "last"):
        return start if isinstance(start, str) else None
    if not isinstance(start, datetime):
        raise OptionError(f"start={start!r}; allowed: 'first', 'last', or a datetime with a time zone")
    start_ms = epoch_ms("start", start)
    if start_ms < 0:
        raise OptionError(f"start={start.isoformat()} is before 1970; allowed: 'first' for all messages")
    return str(start_ms)


def duration_ms(name: str, value: timedelta, least: int) -> int:
    """Convert a timedelta into milliseconds, rounded up.

    Raises OptionError for other types, or below `least`.
    """
    if not isinstance(value, timedelta):
        raise OptionError(
            f"{name}={value!r} is {type(value).__name__}; allowed: a timedelta, as in timedelta(seconds=90)"
        )
    milliseconds, rest = divmod(value, _MS)
    milliseconds += bool(rest)
    if milliseconds < least:
        raise OptionError(f"{name}={value} is {milliseconds} ms; allowed: at least {least} ms")
    return milliseconds


def to_datetime(epoch: int) -> datetime:
    """Convert epoch milliseconds to a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=epoch)
