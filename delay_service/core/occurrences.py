"""The occurrences of every kind of delay message: when each is due, and which one follows. Pure.

Occurrence 0 is the first. A number determines its due time (`due_ms`) and its id, numbers and due times only
grow together, and what comes after one is a function of the command, the number and the clock (`next_after`),
so that whoever knows the last number fired goes on as if nothing had happened. `delivered_before` says how
many fired. A rescheduled delivery keeps its number, so `due_ms` returns its original time; only
`Pending.due_ms` has the new one, and each caller passes it to `next_after` as `put_off_ms`. Where a count
must rise above 0 with the first occurrence, as attempts do, keep occurrence + 1. `next_after` costs the
same however much was missed: a loop that started in 2001 is not walked through.

Types 2, 3 and 4 as old clients send them fire once, every interval, and at exponentially growing distances:
type 3: t(k) = t(k−1) + interval; type 4: t(k) = t(k−1) + min(interval^k, one day), in whole seconds; a due
time of our own with milliseconds shifts all of them by the same milliseconds. An occurrence exists while
k < times and t(k) ≤ expire; occurrence 0 of a command that was accepted always does. Our own kind counts its
own way (schedules.py).

Missed is what fell due while nobody could fire it. Loops of the old wire (types 3 and 4) fire all that they
missed, but of more than `catch_up_max` only the last `catch_up_max`: the others are passed over, and `timed`
goes on as if they had fired. A schedule says itself what it wants:

* `fire_once`: the one that is pending fires, late; those that fell due after it are passed over.
* `all`: as a loop, with the same cap.
* `skip`: one that is late by more than 5 s does not fire at all (`to_fire` asks before firing).

Nothing that was passed over comes later. A schedule ends 278 years after its first delivery, where the number
of an occurrence ends.
"""

from __future__ import annotations

from ddmq_common.delays.command import EXPONENTIAL, LOOP, SCHEDULE, DelayCommand, DelayId
from ddmq_common.delays.cron import CronError
from ddmq_common.errors import DamagedError
from delay_service.core import schedules
from delay_service.core.schedules import Next

CATCH_UP_MAX = 1_000
DAY_S = 86_400
NUMBER_MAX = (1 << 63) - 3  # of an occurrence: it, and one more, are kept in 63 bits
NEVER_MS = 1 << 62


def due_ms(command: DelayCommand, occurrence: int) -> int:
    """Return when this occurrence of the command is due, in epoch milliseconds."""
    if command.kind == SCHEDULE:
        return schedules.due_ms(command, occurrence)
    if command.kind in (LOOP, EXPONENTIAL):
        return command.due_ms + (_second_of(command, occurrence) - command.timestamp_s) * 1_000
    return command.due_ms


def last_due_ms(command: DelayCommand) -> int:
    """Return when the last occurrence is due; NEVER_MS for endless series and crons."""
    if command.kind != SCHEDULE:
        return due_ms(command, _last_of(command))
    schedule = command.schedule
    if schedule is None:
        return command.due_ms
    if schedule.cron or schedule.repeat < 0:
        return NEVER_MS
    return command.due_ms + schedule.period_ms * schedule.repeat


def occurrence_id(command: DelayCommand, occurrence: int) -> str:
    """Return the delay id of one delivery of a command.

    The id of occurrence 0 answers an add; each is the key of its delivery.
    """
    if command.kind == SCHEDULE:
        second, timed = due_ms(command, occurrence) // 1_000, 0
    else:
        second, timed = _second_of(command, occurrence), occurrence
    return DelayId(
        second,
        command.kind,
        command.expire_s,
        command.times,
        timed,
        command.interval_s,
        command.shard,
        command.uuid,
    ).text()


def delivered_before(command: DelayCommand, occurrence: int) -> int:
    """Return how many occurrences precede this one, including those that a loop skipped."""
    return schedules.delivered_before(occurrence) if command.kind == SCHEDULE else occurrence


def next_after(
    command: DelayCommand, occurrence: int, now_ms: int, catch_up_max: int = CATCH_UP_MAX, put_off_ms: int = 0
) -> Next | None:
    """Return the occurrence that follows one which has fired or was skipped; None if it was the last.

    `put_off_ms`: the time to which this delivery was rescheduled, which only `Pending.due_ms` has; callers
    pass it. Occurrences due until then are skipped and do not count as missed. Raises DamagedError for a cron
    or a zone that cannot be read here.
    """
    if command.kind == SCHEDULE:
        return _next_scheduled(command, occurrence, now_ms, catch_up_max, put_off_ms=put_off_ms)
    last = _last_of(command)
    if occurrence >= last:
        return None
    shift_ms = command.due_ms - command.timestamp_s * 1_000
    missed_to = min(last, _last_by(command, (now_ms - shift_ms) // 1_000))
    passed_to = _last_by(command, (put_off_ms - shift_ms) // 1_000)
    following = max(occurrence, missed_to - max(catch_up_max, 1), passed_to) + 1
    if following > last:
        return None
    return Next(following, due_ms(command, following))


def to_fire(command: DelayCommand, occurrence: int, now_ms: int, at_ms: int | None = None) -> Next | None:
    """Return the occurrence to fire when this one is due: this one, or a later one to wait for.

    None: this one is skipped and was the last. `at_ms`: the due time to which it was rescheduled. Raises the
    errors of `next_after`.
    """
    due = due_ms(command, occurrence) if at_ms is None else at_ms
    schedule = command.schedule
    if schedule is None or schedule.catch_up != "skip" or now_ms - due <= schedules.MISSED_AFTER_MS:
        return Next(occurrence, due)
    if not (schedule.cron or schedule.repeat):
        return Next(occurrence, due)  # a single delivery has no later one to wait for
    return _next_scheduled(command, occurrence, now_ms, 1, delivered=False)


def _next_scheduled(
    command: DelayCommand, occurrence: int, now_ms: int, cap: int, delivered: bool = True, put_off_ms: int = 0
) -> Next | None:
    try:
        upcoming = schedules.next_occurrence(command, occurrence, now_ms, cap, delivered, put_off_ms)
    except CronError as error:  # accepted by a producer proxy that knows more time zones, or a newer cron
        raise DamagedError(f"schedule of {command.uuid} cannot go on: {error}") from error
    return None if upcoming is None or upcoming.occurrence > NUMBER_MAX else upcoming


# --- loops: types 3 and 4, by arithmetic, never by walking: powers reach a day after 16 steps at most


def _second_of(command: DelayCommand, occurrence: int) -> int:
    """Return the due time of an occurrence in epoch seconds."""
    if command.kind == LOOP:
        return command.timestamp_s + occurrence * command.interval_s
    if command.kind == EXPONENTIAL:
        return command.timestamp_s + _distance_to(command.interval_s, occurrence)
    return command.timestamp_s


def _last_by(command: DelayCommand, second: int) -> int:
    """Return the highest occurrence of a loop that is due by `second`, ignoring times and expire; -1 if there
    is none.
    """
    since = second - command.timestamp_s
    if since < 0:
        return -1
    if command.kind == LOOP:
        return since // max(command.interval_s, 1)
    return _last_within(command.interval_s, since)


def _last_of(command: DelayCommand) -> int:
    """Return the number of the command's last occurrence."""
    if command.kind not in (LOOP, EXPONENTIAL):
        return 0
    return max(min(command.times - 1, _last_by(command, command.expire_s)), 0)


def _short_steps(base: int) -> list[int]:
    """Return the powers of `base` (base, base², …) that are under a day; none for a base of a day or more."""
    steps: list[int] = []
    step = max(base, 2)
    base = step
    while step < DAY_S:
        steps.append(step)
        step *= base
    return steps


def _distance_to(base: int, occurrence: int) -> int:
    steps = _short_steps(base)
    return sum(steps[:occurrence]) + max(occurrence - len(steps), 0) * DAY_S


def _last_within(base: int, since: int) -> int:
    reached = 0
    for occurrence, step in enumerate(_short_steps(base)):
        if reached + step > since:
            return occurrence
        reached += step
    return len(_short_steps(base)) + (since - reached) // DAY_S
