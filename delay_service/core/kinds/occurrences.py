"""What comes after an occurrence of any kind of command, and what becomes of those that were missed.

Missed is what fell due while nobody could fire it. Loops of the old wire (types 3 and 4) fire all that they
missed, but of more than `catch_up_max` only the last `catch_up_max`: the others are passed over, and `timed`
goes on as if they had fired. A schedule says itself what it wants:

* `fire_once`: the one that is pending fires, late; those that fell due after it are passed over.
* `all`: as a loop, with the same cap.
* `skip`: one that is late by more than 5 s does not fire at all (`to_fire` asks before firing).

Passing over is counted (`Next.skipped`); nothing that was passed over comes later. A schedule ends 278 years
after its first delivery, where the number of an occurrence ends.
"""

from __future__ import annotations

from typing import NamedTuple

from ddmq_common.delays.command import EXPONENTIAL, LOOP, SCHEDULE, DelayCommand
from ddmq_common.delays.cron import CronError
from ddmq_common.delays.ids import DelayId
from ddmq_common.errors import DamagedError
from delay_service.core.kinds import loops, schedules

CATCH_UP_MAX = 1_000
NUMBER_MAX = (1 << 63) - 3  # of an occurrence: it, and one more, are kept in 63 bits
NEVER_MS = 1 << 62


class Next(NamedTuple):
    """An occurrence to come. `skipped`: how many were passed over on the way (of a cron at most 100 are
    counted)."""

    occurrence: int
    due_ms: int
    skipped: int = 0


def due_ms(command: DelayCommand, occurrence: int) -> int:
    """When this occurrence is due, epoch milliseconds. The number must be one that the command has."""
    if command.kind == SCHEDULE:
        return schedules.due_ms(command, occurrence)
    if command.kind in (LOOP, EXPONENTIAL):
        return command.due_ms + (loops.second_of(command, occurrence) - command.timestamp_s) * 1_000
    return command.due_ms


def last_due_ms(command: DelayCommand) -> int:
    """When the last occurrence is due; NEVER_MS when there is none, or a cron says."""
    if command.kind != SCHEDULE:
        return due_ms(command, loops.last_of(command))
    schedule = command.schedule
    if schedule is None:
        return command.due_ms
    if schedule.cron or schedule.repeat < 0:
        return NEVER_MS
    return command.due_ms + schedule.period_ms * schedule.repeat


def occurrence_id(command: DelayCommand, occurrence: int) -> str:
    """The id of this occurrence: what an add is answered with (0), and the key of the delivery."""
    if command.kind == SCHEDULE:
        second, timed = due_ms(command, occurrence) // 1_000, 0
    else:
        second, timed = loops.second_of(command, occurrence), occurrence
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
    """How many occurrences came before this one; of loops those that were passed over are among them."""
    return schedules.delivered_before(occurrence) if command.kind == SCHEDULE else occurrence


def next_after(
    command: DelayCommand, occurrence: int, now_ms: int, catch_up_max: int = CATCH_UP_MAX, put_off_ms: int = 0
) -> Next | None:
    """What comes after `occurrence` has fired (or was passed over), or None: it was the last.

    `put_off_ms`: until when it was made to wait; what fell due meanwhile was not missed, it is passed over.
    Raises DamagedError for a cron or a zone that cannot be read here.
    """
    if command.kind == SCHEDULE:
        return _scheduled(command, occurrence, now_ms, catch_up_max, put_off_ms=put_off_ms)
    last = loops.last_of(command)
    if occurrence >= last:
        return None
    shift_ms = command.due_ms - command.timestamp_s * 1_000
    missed_to = min(last, loops.last_by(command, (now_ms - shift_ms) // 1_000))
    passed_to = loops.last_by(command, (put_off_ms - shift_ms) // 1_000)
    following = max(occurrence, missed_to - max(catch_up_max, 1), passed_to) + 1
    if following > last:
        return None
    return Next(following, due_ms(command, following), following - occurrence - 1)


def to_fire(command: DelayCommand, occurrence: int, now_ms: int, at_ms: int | None = None) -> Next | None:
    """What to do with an occurrence whose due time has come: fire it (it is returned as it is), wait for a
    later one instead, or None: this one is not to be fired, and it was the last. `at_ms`: the due time that
    it waited for, when it was rescheduled. Raises as `next_after`.
    """
    due = due_ms(command, occurrence) if at_ms is None else at_ms
    schedule = command.schedule
    if schedule is None or schedule.catch_up != "skip" or now_ms - due <= schedules.MISSED_AFTER_MS:
        return Next(occurrence, due)
    if not (schedule.cron or schedule.repeat):
        return Next(occurrence, due)  # a single delivery has no later one to wait for
    found = _scheduled(command, occurrence, now_ms, 1, delivered=False)
    return None if found is None else found._replace(skipped=found.skipped + 1)


def _scheduled(
    command: DelayCommand, occurrence: int, now_ms: int, cap: int, delivered: bool = True, put_off_ms: int = 0
) -> Next | None:
    try:
        found = schedules.after(command, occurrence, now_ms, cap, delivered, put_off_ms)
    except CronError as error:  # accepted by a producer proxy that knows more time zones, or a newer cron
        raise DamagedError(f"schedule of {command.uuid} cannot go on: {error}") from error
    if found is None or found[0] > NUMBER_MAX:
        return None
    return Next(*found)
