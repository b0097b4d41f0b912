"""How much a pending message counts towards its topic's bound on bytes. Pure.

A message that repeats is written again and again: it counts once for each delivery of a day, so that one
bound holds what waits and what endless schedules write. Equal records weigh the same whenever they are asked.
"""

from __future__ import annotations

from ddmq_common.delays.command import EXPONENTIAL, LOOP, DelayCommand, decode_command
from ddmq_common.delays.cron import Cron, CronError
from ddmq_common.errors import DamagedError
from delay_service.store.port import Pending

RECORD_BYTES = 256  # what a message takes beside its content: command, id, keys
_DAY_MS = 86_400_000
_REPEATS = (
    '"kind":'  # a text of JSON has no such piece unless the command says a kind: it is left out for once
)


def weight(message: Pending) -> int:
    """Bytes."""
    size = len(message.delivery) + RECORD_BYTES
    if _REPEATS not in message.command:
        return size
    try:
        return size * deliveries_a_day(decode_command(message.command))
    except (DamagedError, CronError):
        return size


def deliveries_a_day(command: DelayCommand) -> int:
    """At most so many, and at least one; of a cron by its shortest distance."""
    schedule = command.schedule
    if command.kind == LOOP:
        return _within(86_400 // max(command.interval_s, 1) + 1, command.times)
    if command.kind == EXPONENTIAL:
        return _within(_DAY_MS.bit_length(), command.times)
    if schedule is None:
        return 1
    series = 1
    if schedule.repeat:
        most = schedule.repeat + 1 if schedule.repeat > 0 else 0
        series = _within(_DAY_MS // max(schedule.period_ms, 1) + 1, most)
    if schedule.cron:
        series *= _DAY_MS // Cron.of(schedule.cron, schedule.zone).gap_ms_min + 1
    return _within(series, schedule.occurrences_max)


def _within(count: int, most: int) -> int:
    """`most` 0: there is no end to them."""
    return max(min(count, most) if most else count, 1)
