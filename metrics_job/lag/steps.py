"""What several processes told of one thing, as one step function: what all of it came to at each instant.

A process tells of the queues that it holds. What it told last holds until it tells again; a sample of a
process that stops says nothing, because it has let its queues go by then. What a process told that is gone is
dropped once its next but one sample would have been due: by then others have told of its queues.

Queues change hands between the samples of those who tell of them, so for the length of an interval they are
in two sums, or in none. So an instant has two readings: of each process the last thing it told, or of each
the next. Of the two that counts which is nearer to the instant before: a sum of moved queues moves nowhere.

Pure: numbers in, numbers out. Times are epoch milliseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

INTERVAL_MS = 10_000  # of a process whose own is not known yet
HELD_INTERVALS, DUE_INTERVALS = 2, 1.5
MINUTE_MS = 60_000


class Run(NamedTuple):
    """One start of a process, as its samples tell: from the first but one to the last."""

    instance: str
    first_ms: int
    last_ms: int
    interval_ms: float | None = None
    stopped: bool = False  # it said so: there will be no more

    @property
    def due_ms(self) -> int:
        """Within which the next sample comes."""
        return int(DUE_INTERVALS * (self.interval_ms or INTERVAL_MS))

    @property
    def held_ms(self) -> int:
        """For how long after a sample what it said may still be so."""
        return int(HELD_INTERVALS * (self.interval_ms or INTERVAL_MS))


class Told(NamedTuple):
    """A value in one sample; those of a process's very last sample are not given."""

    instance: str
    at_ms: int
    value: float


class Held(NamedTuple):
    """What one process says in [start_ms, end_ms); `due_ms`: within which it says something again."""

    start_ms: int
    end_ms: int
    value: float
    due_ms: int


class Minute(NamedTuple):
    """A minute of a step function: its value at the end and its highest, and when it was told last."""

    last: float
    highest: float
    at_ms: int


Step = tuple[int, float]  # from when on, how much


def steps(owners: Mapping[str, tuple[Sequence[Run], Iterable[Told]]], until_ms: int) -> list[Step]:
    """The sum over processes (name → its runs, what it told) at every instant at which one told.

    `until_ms`: when anybody was heard last. Of the newest instants those are left out which a process that is
    alive has not told of yet.
    """
    each = [(runs, spans) for runs, told in owners.values() if (spans := spans_of(runs, told))]
    held = [spans for _, spans in each]
    if len(held) == 1:
        return [(one.start_ms, one.value) for one in held[0]]
    heard = [_heard_ms(runs, until_ms) for runs, _ in each]
    starts = [[one.start_ms for one in spans] for spans in held]
    instants = sorted({start for begins in starts for start in begins})
    whole = [at_ms for at_ms in instants if at_ms <= min(heard, default=0)]
    found: list[Step] = []
    for at_ms in whole or instants:
        last = after = 0.0
        for spans, begins in zip(held, starts, strict=True):
            now, then = _readings(spans, bisect_right(begins, at_ms) - 1, at_ms)
            last, after = last + now, after + then
        before = found[-1][1] if found else max(last, after)
        found.append((at_ms, last if abs(last - before) <= abs(after - before) else after))
    return found


def highest(owners: Mapping[str, tuple[Sequence[Run], Iterable[Told]]]) -> list[Step]:
    """The same for what does not add up, ages: the highest of what the processes told last."""
    held = [spans for runs, told in owners.values() if (spans := spans_of(runs, told))]
    starts = [[one.start_ms for one in spans] for spans in held]
    found = []
    for at_ms in sorted({start for each in starts for start in each}):
        told = [_at(spans, bisect_right(begins, at_ms) - 1, at_ms)
                for spans, begins in zip(held, starts, strict=True)]  # fmt: skip
        found.append((at_ms, max(told)))
    return found


def by_minute(found: Sequence[Step]) -> dict[int, Minute]:
    """Minutes since the epoch in which something was told, and those between in which it went on above 0."""
    minutes: dict[int, Minute] = {}
    former: Minute | None = None
    for at_ms, value in found:
        minute = at_ms // MINUTE_MS
        if former is not None and former.last:
            for between in range(former.at_ms // MINUTE_MS + 1, minute):
                minutes[between] = Minute(former.last, former.last, former.at_ms)
        same = minutes.get(minute)
        former = minutes[minute] = Minute(value, max(value, same.highest) if same else value, at_ms)
    return minutes


def spans_of(runs: Sequence[Run], told: Iterable[Told]) -> list[Held]:
    """What one process says, over all its starts, in order and apart."""
    by_run: dict[str, list[Told]] = {run.instance: [] for run in runs}
    for one in told:
        by_run.setdefault(one.instance, []).append(one)
    known = {run.instance: run for run in runs}
    found: list[Held] = []
    for instance, points in sorted(by_run.items(), key=lambda item: _begin(known, *item)):
        points.sort(key=lambda one: one.at_ms)
        run = known.get(instance) or Run(instance, points[0].at_ms, points[-1].at_ms)
        for span in _of_run(run, points, silent_before=bool(found and found[-1].value)):
            if found and found[-1].end_ms > span.start_ms:
                found[-1] = found[-1]._replace(end_ms=span.start_ms)
            found.append(span)
    return sorted(span for span in found if span.start_ms < span.end_ms)


def _begin(known: Mapping[str, Run], instance: str, points: Sequence[Told]) -> int:
    return known[instance].first_ms if instance in known else min(one.at_ms for one in points)


def _of_run(run: Run, points: Sequence[Told], silent_before: bool) -> list[Held]:
    """A value above 0 is in every sample: one that is not told any more while the process goes on is 0."""
    last_ms = max(run.last_ms, points[-1].at_ms) if points else run.last_ms
    quiet_ms = run.first_ms + run.held_ms  # who starts needs a moment until it knows what it holds
    found = []

    def say(start_ms: int, end_ms: int, value: float) -> None:
        if start_ms < end_ms:
            found.append(Held(start_ms, end_ms, value, run.due_ms))

    if silent_before:
        say(quiet_ms, points[0].at_ms if points else last_ms, 0.0)
    for one, after in pairwise([*points, None]):
        if one is None:
            break
        if after is not None:
            say(one.at_ms, after.at_ms, one.value)
        elif one.value and last_ms > one.at_ms + run.held_ms:
            say(one.at_ms, one.at_ms + run.held_ms, one.value)
            say(one.at_ms + run.held_ms, last_ms + run.held_ms, 0.0)
        else:
            say(one.at_ms, last_ms + run.held_ms, one.value)
    return found


def _heard_ms(runs: Sequence[Run], until_ms: int) -> float:
    """Until when a process has told everything: for ever, if it stopped or is silent for too long."""
    newest = max(runs, key=lambda run: run.last_ms, default=None)
    gone = newest is None or newest.stopped or until_ms - newest.last_ms > newest.held_ms
    return inf if newest is None or gone else newest.last_ms


def _readings(spans: Sequence[Held], at: int, at_ms: int) -> tuple[float, float]:
    """What a process told last, and what it told next; `at`: the span that began last, -1: none yet."""
    last = _at(spans, at, at_ms)
    if at >= 0 and spans[at].start_ms == at_ms:
        return last, last
    if at + 1 == len(spans):
        return last, 0.0
    after = spans[at + 1]
    goes_on = at >= 0 and spans[at].value and spans[at].end_ms == after.start_ms
    return last, after.value if goes_on or after.start_ms - at_ms <= after.due_ms else 0.0


def _at(spans: Sequence[Held], at: int, at_ms: int) -> float:
    return spans[at].value if at >= 0 and at_ms < spans[at].end_ms else 0.0
