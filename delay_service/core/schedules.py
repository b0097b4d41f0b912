"""Our own kind: due times in milliseconds, series of a period, crons; and what a late one does.

The number of an occurrence holds two things: how many milliseconds after the first one it is due, and
(in its lowest 20 bits) how many were delivered before it. So the number alone gives the due time and the
count, it only grows, and it needs no walk through a cron's past. The cap `occurrences_max` counts deliveries;
`repeat` counts places in the series, so those that were passed over are among them.

The command was checked at the edge (ddmq_common/delays/schedules.py).
"""

from __future__ import annotations

from typing import NamedTuple

from ddmq_common.delays.command import DelayCommand, Schedule
from ddmq_common.delays.cron import Cron
from ddmq_common.delays.schedules import cron_delivery_after

COUNT_BITS = 20
COUNT_MAX = (1 << COUNT_BITS) - 1
CRON_CATCH_UP_MAX = 100
"""The cap of `all` with a cron, when the caller's is higher: looking back costs a walk."""
MISSED_AFTER_MS = 5_000


class Next(NamedTuple):
    """A future occurrence of a schedule."""

    occurrence: int
    due_ms: int


def due_ms(command: DelayCommand, occurrence: int) -> int:
    return command.due_ms + (occurrence >> COUNT_BITS)


def delivered_before(occurrence: int) -> int:
    """Return the number of deliveries before this occurrence, modulo 2²⁰. No limit is so high."""
    return occurrence & COUNT_MAX


def next_occurrence(
    command: DelayCommand,
    occurrence: int,
    now_ms: int,
    catch_up_max: int,
    delivered: bool = True,
    put_off_ms: int = 0,
) -> Next | None:
    """Return the occurrence that follows this one, or None. `delivered`: this one counts as a delivery.

    `put_off_ms`: the time to which this one was deferred; occurrences due until then are skipped.
    """
    schedule = command.schedule or Schedule()
    count = (delivered_before(occurrence) + delivered) & COUNT_MAX
    if schedule.occurrences_max and count >= schedule.occurrences_max:
        return None
    due = max(due_ms(command, occurrence), put_off_ms)
    due_after = _cron_after if schedule.cron else _series_after
    at = due_after(command, schedule, due, now_ms, max(catch_up_max, 1))
    return None if at is None else Next((at - command.due_ms) << COUNT_BITS | count, at)


def _floor_ms(schedule: Schedule, now_ms: int) -> int:
    """Return the time up to which missed occurrences are skipped under `fire_once` and `skip`."""
    return now_ms if schedule.catch_up == "fire_once" else now_ms - MISSED_AFTER_MS - 1


def _series_after(command: DelayCommand, schedule: Schedule, due: int, now_ms: int, cap: int) -> int | None:
    period = max(schedule.period_ms, 1)
    index = (due - command.due_ms) // period
    if schedule.catch_up == "all":
        missed_to = (now_ms - command.due_ms) // period
        if schedule.repeat >= 0:
            missed_to = min(missed_to, schedule.repeat)
        following = max(index + 1, missed_to - cap + 1)
    else:
        following = max(index + 1, (_floor_ms(schedule, now_ms) - command.due_ms) // period + 1)
    if 0 <= schedule.repeat < following:
        return None
    return command.due_ms + following * period


def _cron_after(command: DelayCommand, schedule: Schedule, due: int, now_ms: int, cap: int) -> int | None:
    following = cron_delivery_after(schedule, command.due_ms, due)
    if following is None or following > now_ms:
        return following
    if schedule.catch_up == "all":
        floor = _floor_of_all(command, schedule, following, now_ms, min(cap, CRON_CATCH_UP_MAX))
    else:
        floor = _floor_ms(schedule, now_ms)
    if following > floor:
        return following
    return cron_delivery_after(schedule, command.due_ms, max(floor, due))


def _floor_of_all(command: DelayCommand, schedule: Schedule, first: int, now_ms: int, cap: int) -> int:
    """Return the time after which exactly the last `cap` missed deliveries since `first` are due."""
    cron = _cron_of(schedule)
    beside = schedule.period_ms * schedule.repeat // cron.gap_ms_min + 1
    series = (now_ms - first) // cron.gap_ms_min + beside + 1
    if series * (schedule.repeat + 1) <= cap:
        return first - 1
    back = cap // (schedule.repeat + 1) + beside + 1
    while True:
        start = cron.back_ms(now_ms - schedule.delay_ms, back)
        start = first - 1 if start is None else max(start + schedule.delay_ms - 1, first - 1)
        deliveries = _deliveries_between(command, schedule, start, now_ms, slice(-cap - 1, None), 64 * back)
        if start < first or len(deliveries) >= cap:
            return deliveries[-cap] - 1 if len(deliveries) > cap else start
        back *= 4  # deliveries of several series that are one


def _deliveries_between(
    command: DelayCommand, schedule: Schedule, after_ms: int, until_ms: int, of_each: slice, series_max: int
) -> list[int]:
    """Return the due times in (after_ms, until_ms], `of_each` of each series and at most `series_max`
    series."""
    cron, delay, period = _cron_of(schedule), schedule.delay_ms, max(schedule.period_ms, 1)
    length = schedule.period_ms * schedule.repeat
    due_times: set[int] = set()
    start = cron.next_ms(max(after_ms - delay - length, command.due_ms - delay - 1))
    while start is not None and start + delay <= until_ms and series_max > 0:
        series_max -= 1
        first = start + delay
        indexes = range(
            max((after_ms - first) // period + 1, 0), min((until_ms - first) // period, schedule.repeat) + 1
        )
        due_times.update(first + index * period for index in indexes[of_each])
        start = cron.next_ms(start)
    return sorted(due_times)


def _cron_of(schedule: Schedule) -> Cron:
    return Cron.from_expression(schedule.cron, schedule.zone)
