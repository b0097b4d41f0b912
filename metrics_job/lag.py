"""How many messages waited, when: one step function for each subscription over all processes.

A process tells of the queues that it holds. What it told last holds until it tells again; a sample of a
process that stops says nothing, because it has let its queues go by then. What a process told that is gone is
dropped once its next but one sample would have been due: by then others have told of its queues.

Queues change hands between the samples of those who tell of them, so for the length of an interval they are
in two sums, or in none. So an instant has two readings: of each process the last thing it told, or of each
the next. Of the two that counts which is nearer to the instant before: a sum of moved queues moves nowhere.

A Python worker is given the samples of one subscription on one day, one after the other: one row for each
value told (`metric` is one of minutes.FOLLOWED), and one without a metric for each run of a process that told
any. Times are epoch milliseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

import pyarrow as pa

from metrics_job.minutes import FOLLOWED

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
    by_run: dict[str, list[Told]] = {}
    for one in sorted(told, key=lambda one: one.at_ms):
        by_run.setdefault(one.instance, []).append(one)
    known = {run.instance: run for run in runs}
    for instance, some in by_run.items():
        known.setdefault(instance, Run(instance, some[0].at_ms, some[-1].at_ms))
    found: list[Held] = []
    for run in sorted(known.values(), key=lambda run: run.first_ms):
        points = by_run.get(run.instance, [])
        for span in _of_run(run, points, silent_before=bool(found and found[-1].value)):
            if found and found[-1].end_ms > span.start_ms:
                found[-1] = found[-1]._replace(end_ms=span.start_ms)
            found.append(span)
    return sorted(span for span in found if span.start_ms < span.end_ms)


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
    for one, after in zip(points, [*points[1:], None], strict=False):
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


LAG, LAG_AGE, BLOCKED, BLOCKED_AGE = FOLLOWED
COLUMNS = ("day", "group", "topic", "metric", "process", "instance", "from_ms", "to_ms", "seq", "value")
MADE = (
    "minute", "at_ms", "group", "topic", "lag", "lag_max", "lag_age_ms", "blocked_keys", "blocked_key_age_ms",
)  # fmt: skip


class Row(NamedTuple):
    """One row in. Of a run: from its first interval but one to its last, `seq`: that of the sample in which
    it said that it stops, -1: it did not, `value`: how long its intervals are."""

    day: int
    group: str
    topic: str
    metric: str
    process: str
    instance: str
    from_ms: int
    to_ms: int
    seq: int
    value: float | None


def schema() -> Any:
    """Rows out: the columns of lag_minute that come from gauges; `at_ms`: when lag was told last."""
    kinds = [pa.int64(), pa.int64(), pa.string(), pa.string(), *[pa.float64()] * 5]
    return pa.schema(list(zip(MADE, kinds, strict=True)))


def followed(batches: Iterator[Any], now_ms: int) -> Iterator[Any]:
    """Batches of COLUMNS to batches of schema()."""
    rows = (
        Row(*values)
        for batch in batches
        for values in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
    )
    for (_, group, topic), some in groupby(rows, key=lambda row: row[:3]):
        found = minutes_of(some, now_ms)
        made = [(minute, at_ms, group, topic, *values) for minute, at_ms, *values in found]
        if made:
            columns = dict(zip(MADE, map(list, zip(*made, strict=True)), strict=True))
            yield from pa.table(columns, schema=schema()).to_batches()


def minutes_of(rows: Iterable[Row], now_ms: int) -> Iterator[tuple[Any, ...]]:
    """minute, at_ms, lag, lag_max, lag_age_ms, blocked_keys, blocked_key_age_ms of one subscription."""
    rows = _clocks_right(list(rows), now_ms)
    runs: dict[str, list[Run]] = {}
    told: dict[str, dict[str, list[Told]]] = {metric: {} for metric in FOLLOWED}
    stops: set[tuple[str, int]] = set()
    for row in rows:
        if not row.metric:
            run = Run(row.instance, row.from_ms, row.to_ms, max(row.value or 0, 0), stopped=row.seq >= 0)
            runs.setdefault(row.process, []).append(run)
            stops.add((row.instance, row.seq))
    for row in rows:
        if row.metric and (row.instance, row.seq) not in stops and row.value is not None:
            told[row.metric].setdefault(row.process, []).append(Told(row.instance, row.to_ms, row.value))
    until_ms = max((run.last_ms for some in runs.values() for run in some), default=0)
    found = {metric: _steps(metric, runs, told[metric], until_ms) for metric in FOLLOWED}
    yield from _rows({metric: by_minute(some) for metric, some in found.items()})


def _clocks_right(rows: list[Row], now_ms: int) -> list[Row]:
    """Nobody has written in the future: a process whose clock is ahead is put back by so much."""
    ahead: dict[str, int] = {}
    for row in rows:
        ahead[row.process] = max(ahead.get(row.process, 0), row.to_ms - now_ms)
    if not any(ahead.values()):
        return rows
    return [
        row._replace(from_ms=row.from_ms - ahead[row.process], to_ms=row.to_ms - ahead[row.process])
        for row in rows
    ]


def _steps(metric: str, runs: dict[str, list[Run]], told: dict[str, list[Told]], until_ms: int) -> list[Step]:
    owners = {process: (runs.get(process, []), values) for process, values in told.items()}
    return highest(owners) if metric in (LAG_AGE, BLOCKED_AGE) else steps(owners, until_ms)


def _rows(minutes: dict[str, dict[int, Minute]]) -> Iterator[tuple[Any, ...]]:
    """A row for each minute in which anything is known; what was not told in it is as it was."""
    last = dict.fromkeys(FOLLOWED, 0.0)
    at_ms = 0
    for minute in sorted({minute for each in minutes.values() for minute in each}):
        lag = minutes[LAG].get(minute)
        for metric, each in minutes.items():
            last[metric] = each[minute].last if minute in each else last[metric]
        at_ms = lag.at_ms if lag else at_ms
        lag_max = lag.highest if lag else last[LAG]
        age = last[LAG_AGE] if last[LAG] else 0.0
        blocked_age = last[BLOCKED_AGE] if last[BLOCKED] else 0.0
        yield minute, at_ms or minute * 60_000, last[LAG], lag_max, age, last[BLOCKED], blocked_age
