"""Types 2, 3 and 4 as old clients send them: once, every interval, and at exponentially growing distances.

Occurrence k = 0, 1, 2 … Type 3: t(k) = t(k−1) + interval. Type 4: t(k) = t(k−1) + min(interval^k, one day).
An occurrence exists while k < times and t(k) ≤ expire; occurrence 0 of a command that was accepted always
does. Both times are found by arithmetic, never by walking: the powers reach a day after 16 steps at most.
Times in this module are whole seconds; a due time of our own with milliseconds shifts all of them by the
same milliseconds (occurrences.py).
"""

from __future__ import annotations

from ddmq_common.delays.command import EXPONENTIAL, LOOP, DelayCommand

DAY_S = 86_400


def second_of(command: DelayCommand, occurrence: int) -> int:
    """t(k), epoch seconds."""
    if command.kind == LOOP:
        return command.timestamp_s + occurrence * command.interval_s
    if command.kind == EXPONENTIAL:
        return command.timestamp_s + _grown(command.interval_s, occurrence)
    return command.timestamp_s


def last_by(command: DelayCommand, second: int) -> int:
    """The highest k with t(k) ≤ `second`, of a loop without regard to times and expire; −1: none."""
    since = second - command.timestamp_s
    if since < 0:
        return -1
    if command.kind == LOOP:
        return since // max(command.interval_s, 1)
    return _grown_by(command.interval_s, since)


def last_of(command: DelayCommand) -> int:
    """The highest k that the command has."""
    if command.kind not in (LOOP, EXPONENTIAL):
        return 0
    return max(min(command.times - 1, last_by(command, command.expire_s)), 0)


def _steps(base: int) -> list[int]:
    """The distances under a day: base, base², base³ …; empty for a base of a day and more."""
    steps: list[int] = []
    step = max(base, 2)
    base = step
    while step < DAY_S:
        steps.append(step)
        step *= base
    return steps


def _grown(base: int, occurrence: int) -> int:
    steps = _steps(base)
    return sum(steps[:occurrence]) + max(occurrence - len(steps), 0) * DAY_S


def _grown_by(base: int, since: int) -> int:
    reached = 0
    for occurrence, step in enumerate(_steps(base)):
        if reached + step > since:
            return occurrence
        reached += step
    return len(_steps(base)) + (since - reached) // DAY_S
