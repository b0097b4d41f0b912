"""How many messages waited, when: one step function for each subscription over all processes.

A process tells of the queues that it holds. What it told last holds until it tells again; a sample of a
process that stops says nothing, because it has let its queues go by then. What a process told that is gone is
dropped once its next but one sample would have been due: by then others have told of its queues.

Queues change hands between the samples of those who tell of them, so for the length of an interval they are
in two sums, or in none. So an instant has two readings: of each process the last thing it told, or of each
the next. Of the two that counts which is nearer to the instant before: a sum of moved queues moves nowhere.

A Python worker is given the samples of one subscription on one day, one after the other: rows with what one
process told in a minute (`metric` is one of minutes.FOLLOWED), and one without a metric for each run of a
process that told any. Times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from metrics_job.minutes import FOLLOWED, TOLD

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
    stopping_ms: int | None = None  # the end of the sample before its last, if that told anything

    @property
    def due_ms(self) -> int:
        """Within which the next sample comes."""
        return int(DUE_INTERVALS * (self.interval_ms or INTERVAL_MS))

    @property
    def held_ms(self) -> int:
        """For how long after a sample what it said may still be so."""
        return int(HELD_INTERVALS * (self.interval_ms or INTERVAL_MS))


# Of these there are as many as values were told, so they are plain tuples.
Step = tuple[int, float]  # from when on, how much
Told = dict[str, list[Step]]  # what one process said, by instance, but in its very last sample
Held = tuple[
    int, int, float, int
]  # start_ms, end_ms, the value between, within which it says something again
FAR_MS = 1 << 62
NOTHING: Held = (FAR_MS, FAR_MS, 0.0, 0)


class Minute(NamedTuple):
    """A minute of a step function: its value at the end and its highest, and when it was told last."""

    last: float
    highest: float
    at_ms: int


def steps(owners: Mapping[str, tuple[Sequence[Run], Told]], until_ms: int) -> list[Step]:
    """The sum over processes (name → its runs, what it told) at every instant at which one told.

    `until_ms`: when anybody was heard last. Of the newest instants those are left out which a process that is
    alive has not told of yet.
    """
    each = [(runs, spans) for runs, told in owners.values() if (spans := spans_of(runs, told))]
    held = [spans for _, spans in each]
    if len(held) < 2:
        return [(start_ms, value) for spans in held for start_ms, _, value, _ in spans]
    heard = min(_heard_ms(runs, until_ms) for runs, _ in each)
    instants = _instants(held)
    instants = [at_ms for at_ms in instants if at_ms <= heard] or instants
    readings = [_readings(spans, instants) for spans in held]
    lasts, afters = (map(sum, zip(*each, strict=True)) for each in zip(*readings, strict=True))
    found: list[Step] = []
    before = None
    for at_ms, last, after in zip(instants, lasts, afters, strict=True):
        if before is None:
            before = max(last, after)
        before = last if abs(last - before) <= abs(after - before) else after
        found.append((at_ms, before))
    return found


def highest(owners: Mapping[str, tuple[Sequence[Run], Told]]) -> list[Step]:
    """The same for what does not add up, ages: the highest of what the processes told last."""
    held = [spans for runs, told in owners.values() if (spans := spans_of(runs, told))]
    instants = _instants(held)
    lasts = (_readings(spans, instants)[0] for spans in held)
    return list(zip(instants, map(max, zip(*lasts, strict=True)), strict=True))


def by_minute(found: Sequence[Step]) -> dict[int, Minute]:
    """Minutes since the epoch in which something was told, and those between in which it went on above 0."""
    minutes: dict[int, Minute] = {}
    former: Minute | None = None
    for minute, some in groupby(found, key=lambda step: step[0] // MINUTE_MS):
        if former is not None and former.last:
            for between in range(former.at_ms // MINUTE_MS + 1, minute):
                minutes[between] = Minute(former.last, former.last, former.at_ms)
        told = list(some)
        former = minutes[minute] = Minute(told[-1][1], max(value for _, value in told), told[-1][0])
    return minutes


def spans_of(runs: Sequence[Run], told: Told) -> list[Held]:
    """What one process says, over all its starts, in order and apart."""
    known = {run.instance: run for run in runs}
    for instance, points in told.items():
        points.sort(key=itemgetter(0))
        if points:
            known.setdefault(instance, Run(instance, points[0][0], points[-1][0]))
    found: list[Held] = []
    for run in sorted(known.values(), key=lambda run: run.first_ms):
        spans = _of_run(run, told.get(run.instance, []), silent_before=bool(found and found[-1][2]))
        if spans and found and found[-1][1] > spans[0][0]:
            start_ms, _, value, due_ms = found[-1]
            found[-1] = (start_ms, spans[0][0], value, due_ms)
        found += spans
    return sorted(span for span in found if span[0] < span[1])


def _of_run(run: Run, points: list[Step], silent_before: bool) -> list[Held]:
    """A value above 0 is in every sample: one that is not told any more while the process goes on is 0. The
    last sample of a process that stops tells nothing, so there the one before it is the end."""
    end_ms, value = points[-1] if points else (run.last_ms, 0.0)
    last_ms, due_ms = max(run.last_ms, end_ms), run.due_ms
    quiet_ms = run.first_ms + run.held_ms  # who starts needs a moment until it knows what it holds
    found: list[Held] = []
    if silent_before:
        found.append((quiet_ms, points[0][0] if points else last_ms, 0.0, due_ms))
    found += [(at_ms, then_ms, told, due_ms) for (at_ms, told), (then_ms, _) in pairwise(points)]
    told_to_the_end = run.stopping_ms is not None and end_ms >= run.stopping_ms
    if points and value and last_ms > end_ms + run.held_ms and not told_to_the_end:
        found.append((end_ms, end_ms + run.held_ms, value, due_ms))
        found.append((end_ms + run.held_ms, last_ms + run.held_ms, 0.0, due_ms))
    elif points:
        found.append((end_ms, last_ms + run.held_ms, value, due_ms))
    return [span for span in found if span[0] < span[1]]


def _heard_ms(runs: Sequence[Run], until_ms: int) -> float:
    """Until when a process has told everything: for ever, if it stopped or is silent for too long."""
    newest = max(runs, key=lambda run: run.last_ms, default=None)
    gone = newest is None or newest.stopped or until_ms - newest.last_ms > newest.held_ms
    return inf if newest is None or gone else newest.last_ms


def _instants(held: Iterable[Sequence[Held]]) -> list[int]:
    """When anybody told anything."""
    return sorted({span[0] for spans in held for span in spans})


def _readings(spans: Sequence[Held], instants: Iterable[int]) -> tuple[list[float], list[float]]:
    """At each of these instants, in order: what a process told last, and what it told next."""
    lasts, afters = list[float](), list[float]()
    coming = iter(spans)
    start_ms, end_ms, value = -FAR_MS, -FAR_MS, 0.0
    following = next(coming, NOTHING)
    for at_ms in instants:
        while following[0] <= at_ms:
            start_ms, end_ms, value, _ = following
            following = next(coming, NOTHING)
        last = value if at_ms < end_ms else 0.0
        lasts.append(last)
        if start_ms == at_ms:
            afters.append(last)
        else:
            next_ms, _, after, due_ms = following
            goes_on = value and end_ms == next_ms
            afters.append(after if goes_on or next_ms - at_ms <= due_ms else 0.0)
    return lasts, afters


LAG, LAG_AGE, BLOCKED, BLOCKED_AGE = FOLLOWED
COLUMNS = (
    "day", "group", "topic", "metric", "process", "instance", "from_ms", "to_ms", "seq", "value", "told",
)  # fmt: skip
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
    told: list[tuple[int, int, float]]  # to_ms, seq and value of each


def schema() -> Any:
    """Rows out: the columns of lag_minute that come from gauges; `at_ms`: when lag was told last."""
    kinds = [pa.int64(), pa.int64(), pa.string(), pa.string(), *[pa.float64()] * 5]
    return pa.schema(list(zip(MADE, kinds, strict=True)))


def followed(batches: Iterator[Any], ahead: Mapping[str, int]) -> Iterator[Any]:
    """Batches of COLUMNS to batches of schema(). `ahead`: ms by which clocks of processes are put back."""
    rows = (row for batch in batches for row in _rows_in(batch))
    for (_, group, topic), some in groupby(rows, key=lambda row: row[:3]):
        found = minutes_of(some, ahead)
        made = [(minute, at_ms, group, topic, *values) for minute, at_ms, *values in found]
        if made:
            columns = dict(zip(MADE, map(list, zip(*made, strict=True)), strict=True))
            yield from pa.table(columns, schema=schema()).to_batches()


def _rows_in(batch: Any) -> Iterator[Row]:
    lists = batch.column("told")
    fields = [pc.struct_field(lists.flatten(), [at]).to_pylist() for at in range(len(TOLD))]
    values = zip(*fields, strict=True)
    told = [list(islice(values, size or 0)) for size in pc.list_value_length(lists).to_pylist()]
    others = [batch.column(name).to_pylist() for name in COLUMNS[:-1]]
    return (Row(*row) for row in zip(*others, told, strict=True))


def minutes_of(given: Iterable[Row], ahead: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    """minute, at_ms, lag, lag_max, lag_age_ms, blocked_keys, blocked_key_age_ms of one subscription."""
    rows = list(given)
    runs: dict[str, list[Run]] = {}
    told: dict[str, dict[str, Told]] = {metric: {} for metric in FOLLOWED}
    stops: set[tuple[str, int]] = set()
    ends = _last_told(rows)
    for row in rows:
        if not row.metric:
            by_ms, length_ms = ahead.get(row.process, 0), max(row.value or 0, 0)
            run = Run(row.instance, row.from_ms - by_ms, row.to_ms - by_ms, length_ms, stopped=row.seq >= 0)
            end_ms = ends.get((row.instance, row.seq - 1))
            run = run if end_ms is None else run._replace(stopping_ms=end_ms - by_ms)
            runs.setdefault(row.process, []).append(run)
            stops.add((row.instance, row.seq))
    for row in rows:
        if row.metric:
            by_ms, instance = ahead.get(row.process, 0), row.instance
            points = told[row.metric].setdefault(row.process, {}).setdefault(instance, [])
            points += [(at - by_ms, value) for at, seq, value in row.told if (instance, seq) not in stops]
    until_ms = max((run.last_ms for some in runs.values() for run in some), default=0)
    found = {metric: _steps(metric, runs, told[metric], until_ms) for metric in FOLLOWED}
    yield from _rows({metric: by_minute(some) for metric, some in found.items()})


def _last_told(rows: Iterable[Row]) -> dict[tuple[str, int], int]:
    """Instance and number of the last two samples that told in each minute, and when they ended."""
    return {(row.instance, seq): at for row in rows for at, seq, _ in (row.told or ())[-2:]}


def _steps(metric: str, runs: dict[str, list[Run]], told: dict[str, Told], until_ms: int) -> list[Step]:
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
