"""The moments of a Schedule's series, and whether it may be accepted at all. Pure.

A series is a first delivery after `delay_ms` and `repeat` more, `period_ms` apart. Without a cron there is
one, from the moment of the send (or from a due time that was asked for); with a cron one starts at each of
its times, and one that is still running when the next starts goes on beside it. Deliveries of two series
that fall on the same millisecond are one delivery.

A series may be as long as `OVERLAP_MAX` distances of the cron's times, which bounds the search for the next
delivery; all that a client can send is checked here, at the edge, once.
"""

from __future__ import annotations

from typing import NamedTuple

from ddmq_common.delays.command import Schedule
from ddmq_common.delays.cron import Cron, find_cron_error
from ddmq_common.delays.levels import duration_text

CATCH_UPS = ("fire_once", "all", "skip")
OVERLAP_MAX = 8
PERIOD_MS_MIN = 1_000
DAY_MS = 86_400_000
_SERIES_LOOKED_AT_MAX = 8 * OVERLAP_MAX  # more than overlap on a day on which the clocks change


class ScheduleLimits(NamedTuple):
    """The configured limits on delays, periods and repetitions of delayed messages.

    `delay_ms_max`: the maximum of a first delivery's delay, a delay or a period; the times of a cron are not
    limited. `occurrences_max`: the maximum of `repeat` and the occurrence cap.
    """

    delay_ms_max: int = 62 * DAY_MS
    occurrences_max: int = 1_000_000
    period_ms_min: int = PERIOD_MS_MIN


def find_schedule_error(schedule: Schedule, limits: ScheduleLimits, now_ms: int) -> str | None:
    """Return why this schedule is invalid, with the value and what is allowed; or None."""
    return (
        _find_number_error(schedule, limits)
        or _find_catch_up_error(schedule)
        or (_find_cron_error(schedule, now_ms) if schedule.cron else None)
    )


def first_due_ms(schedule: Schedule, now_ms: int) -> int | None:
    """Return when the first delivery of a schedule sent now is due; None for a cron without a time."""
    if not schedule.cron:
        return now_ms + schedule.delay_ms
    at = Cron.from_expression(schedule.cron, schedule.zone).next_ms(now_ms)
    return None if at is None else at + schedule.delay_ms


def cron_delivery_after(schedule: Schedule, first_due: int, after_ms: int) -> int | None:
    """Return the first delivery after `after_ms` of a schedule with a cron.

    `first_due`: its very first delivery.
    """
    cron = Cron.from_expression(schedule.cron, schedule.zone)
    delay, period, repeat = schedule.delay_ms, schedule.period_ms, schedule.repeat
    start = cron.next_ms(max(after_ms - delay - period * repeat, first_due - delay - 1))
    best: int | None = None
    for _ in range(_SERIES_LOOKED_AT_MAX):
        if start is None or (best is not None and start + delay >= best):
            return best
        first = start + delay
        if first <= after_ms:
            first += ((after_ms - first) // max(period, 1) + 1) * period
        best = first if best is None else min(first, best)
        if not repeat:
            return best
        start = cron.next_ms(start)
    return best


def _find_number_error(schedule: Schedule, limits: ScheduleLimits) -> str | None:
    if not 0 <= schedule.delay_ms <= limits.delay_ms_max:
        longest = duration_text(limits.delay_ms_max)
        return f"the delay is {duration_text(schedule.delay_ms)}; allowed: 0 to {longest}"
    if not -1 <= schedule.repeat <= limits.occurrences_max:
        return f"repeat is {schedule.repeat}; allowed: -1 (without end) to {limits.occurrences_max}"
    if not 0 <= schedule.occurrences_max <= limits.occurrences_max:
        return (
            f"the occurrences are {schedule.occurrences_max}; allowed: 0 (no cap) to {limits.occurrences_max}"
        )
    if not 0 <= schedule.period_ms <= limits.delay_ms_max or (
        schedule.repeat and schedule.period_ms < limits.period_ms_min
    ):
        least, most = duration_text(limits.period_ms_min), duration_text(limits.delay_ms_max)
        what = f"the period is {duration_text(schedule.period_ms)}"
        return f"{what}; allowed: {least} to {most} between deliveries"
    return None


def _find_catch_up_error(schedule: Schedule) -> str | None:
    if schedule.catch_up in CATCH_UPS:
        return None
    return f"catch-up is {schedule.catch_up[:40]!r}; allowed: {', '.join(CATCH_UPS)}"


def _find_cron_error(schedule: Schedule, now_ms: int) -> str | None:
    if error := find_cron_error(schedule.cron, schedule.zone, now_ms):
        return error
    if schedule.repeat < 0:
        return "repeat is -1 beside a cron; allowed: 0 or more, since the series starts again by itself"
    longest = OVERLAP_MAX * Cron.from_expression(schedule.cron, schedule.zone).gap_ms_min
    length = schedule.period_ms * schedule.repeat
    if length <= longest:
        return None
    what = f"the series of cron {schedule.cron!r} lasts {duration_text(length)}"
    times = f"{OVERLAP_MAX} times the shortest distance of the cron's times"
    return f"{what}; allowed: at most {duration_text(longest)}, {times}"
