"""Compute how many messages waited at each time: one step function per subscription over all processes.

A process reports the lag of the queues that it owns. Its last value counts until its next one. The last
sample of a process that stops is ignored, because it has released its queues by then. The value of a process
that vanished is dropped when its next but one sample would have been due: by then other processes report its
queues.

Queues change owners between the samples of the processes, so for the length of an interval a queue is in two
sums, or in none. So an instant has two readings: the sum of the last value of each process, or the sum of
the next ones. The reading that is nearer to the instant before counts, because moving a queue changes no
sum.

A Python worker gets the samples of one subscription on one day, one after the other: rows with the values of
one process in a minute (`metric` is one of minutes.FOLLOWED), and one row without a metric for each run of a
process that reported any. Times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from metrics_job.minutes import FOLLOWED, VALUE_FIELDS

INTERVAL_MS = 10_000  # for a process whose interval is unknown so far
VALID_INTERVALS, DUE_INTERVALS = 2, 1.5
MINUTE_MS = 60_000


class Run(NamedTuple):
    """One start of a process, as the time from its second sample to its last."""

    instance: str
    first_ms: int
    last_ms: int
    interval_ms: float | None = None
    stopped: bool = False  # it sent its last sample: there will be no more
    stopping_ms: int | None = None  # the end of the sample before its last, if that had a value

    @property
    def due_ms(self) -> int:
        """Return how long after a sample the next one must arrive, in ms."""
        return int(DUE_INTERVALS * (self.interval_ms or INTERVAL_MS))

    @property
    def valid_ms(self) -> int:
        """Return how long after a sample its values still count, in ms."""
        return int(VALID_INTERVALS * (self.interval_ms or INTERVAL_MS))


# There is one of these for each value, so they are plain tuples.
Step = tuple[int, float]  # from when on, how much
StepsByRun = dict[str, list[Step]]  # the values of one process by instance, without its last sample
# start_ms, end_ms, the value in between, and due_ms: how soon the next value must follow.
ValueRange = tuple[int, int, float, int]
FAR_MS = 1 << 62
NOTHING: ValueRange = (FAR_MS, FAR_MS, 0.0, 0)


class Minute(NamedTuple):
    """The values of a step function in one minute: its last value, its highest value, and the time of its
    last step."""

    last: float
    highest: float
    at_ms: int


def sum_steps(owners: Mapping[str, tuple[Sequence[Run], StepsByRun]], until_ms: int) -> list[Step]:
    """Sum the values of all processes (name → runs, values) at every instant at which one changes.

    `until_ms`: the end of the newest sample of any process. The newest instants are left out as long as a
    live process has not sent its sample of them.
    """
    by_owner = [
        (runs, ranges)
        for runs, steps_by_run in owners.values()
        if (ranges := build_ranges(runs, steps_by_run))
    ]
    range_lists = [ranges for _, ranges in by_owner]
    if len(range_lists) < 2:
        return [(start_ms, value) for ranges in range_lists for start_ms, _, value, _ in ranges]
    complete_until_ms = min(_complete_until_ms(runs, until_ms) for runs, _ in by_owner)
    instants = _list_instants(range_lists)
    instants = [at_ms for at_ms in instants if at_ms <= complete_until_ms] or instants
    readings = [_read_values_at(ranges, instants) for ranges in range_lists]
    lasts, afters = (map(sum, zip(*each, strict=True)) for each in zip(*readings, strict=True))
    steps_of_sum: list[Step] = []
    before = None
    for at_ms, last, after in zip(instants, lasts, afters, strict=True):
        if before is None:
            before = max(last, after)
        before = last if abs(last - before) <= abs(after - before) else after
        steps_of_sum.append((at_ms, before))
    return steps_of_sum


def highest_steps(owners: Mapping[str, tuple[Sequence[Run], StepsByRun]]) -> list[Step]:
    """Return, for every instant, the maximum over all processes of their most recent values. For gauges that
    hold an age, whose sum has no meaning."""
    range_lists = [
        ranges for runs, steps_by_run in owners.values() if (ranges := build_ranges(runs, steps_by_run))
    ]
    instants = _list_instants(range_lists)
    lasts = (_read_values_at(ranges, instants)[0] for ranges in range_lists)
    return list(zip(instants, map(max, zip(*lasts, strict=True)), strict=True))


def by_minute(steps: Sequence[Step]) -> dict[int, Minute]:
    """Return a Minute for each minute (since the epoch) that has a step, and for each minute between steps in
    which the value is above 0."""
    minutes: dict[int, Minute] = {}
    former: Minute | None = None
    for minute, some in groupby(steps, key=lambda step: step[0] // MINUTE_MS):
        if former is not None and former.last:
            for between in range(former.at_ms // MINUTE_MS + 1, minute):
                minutes[between] = Minute(former.last, former.last, former.at_ms)
        minute_steps = list(some)
        former = minutes[minute] = Minute(
            minute_steps[-1][1], max(value for _, value in minute_steps), minute_steps[-1][0]
        )
    return minutes


def build_ranges(runs: Sequence[Run], steps_by_run: StepsByRun) -> list[ValueRange]:
    """Return the values of one process over all its starts as ordered, non-overlapping ranges."""
    runs_by_instance = {run.instance: run for run in runs}
    for instance, points in steps_by_run.items():
        points.sort(key=itemgetter(0))
        if points:
            runs_by_instance.setdefault(instance, Run(instance, points[0][0], points[-1][0]))
    all_ranges: list[ValueRange] = []
    for run in sorted(runs_by_instance.values(), key=lambda run: run.first_ms):
        ranges = _build_run_ranges(
            run, steps_by_run.get(run.instance, []), silent_before=bool(all_ranges and all_ranges[-1][2])
        )
        if ranges and all_ranges and all_ranges[-1][1] > ranges[0][0]:
            start_ms, _, value, due_ms = all_ranges[-1]
            all_ranges[-1] = (start_ms, ranges[0][0], value, due_ms)
        all_ranges += ranges
    return sorted(value_range for value_range in all_ranges if value_range[0] < value_range[1])


def _build_run_ranges(run: Run, points: list[Step], silent_before: bool) -> list[ValueRange]:
    """Return the lag that one run of a process reported as ranges of time with a constant value.

    Every sample contains all values above 0, so a missing value of a live process is 0. The last sample of a
    stopping process has no values, so the sample before it is the end. `silent_before`: the process had a
    value above 0 before this run.
    """
    end_ms, value = points[-1] if points else (run.last_ms, 0.0)
    last_ms, due_ms = max(run.last_ms, end_ms), run.due_ms
    quiet_ms = run.first_ms + run.valid_ms  # a new process needs a moment until it owns its queues
    ranges: list[ValueRange] = []
    if silent_before:
        ranges.append((quiet_ms, points[0][0] if points else last_ms, 0.0, due_ms))
    ranges += [(at_ms, then_ms, amount, due_ms) for (at_ms, amount), (then_ms, _) in pairwise(points)]
    reported_until_stop = run.stopping_ms is not None and end_ms >= run.stopping_ms
    if points and value and last_ms > end_ms + run.valid_ms and not reported_until_stop:
        ranges.append((end_ms, end_ms + run.valid_ms, value, due_ms))
        ranges.append((end_ms + run.valid_ms, last_ms + run.valid_ms, 0.0, due_ms))
    elif points:
        ranges.append((end_ms, last_ms + run.valid_ms, value, due_ms))
    return [value_range for value_range in ranges if value_range[0] < value_range[1]]


def _complete_until_ms(runs: Sequence[Run], until_ms: int) -> float:
    """Return the time until which the values of a process are complete: infinity if it has stopped or has
    been silent for too long."""
    newest = max(runs, key=lambda run: run.last_ms, default=None)
    is_silent = newest is None or newest.stopped or until_ms - newest.last_ms > newest.valid_ms
    return inf if newest is None or is_silent else newest.last_ms


def _list_instants(range_lists: Iterable[Sequence[ValueRange]]) -> list[int]:
    """Return the start times of all ranges, sorted."""
    return sorted({value_range[0] for ranges in range_lists for value_range in ranges})


def _read_values_at(ranges: Sequence[ValueRange], instants: Iterable[int]) -> tuple[list[float], list[float]]:
    """Return two lists with the value of a process at each of these sorted instants: the last one before or
    at it, and the one after it."""
    lasts, afters = list[float](), list[float]()
    coming = iter(ranges)
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
OUTPUT_COLUMNS = (
    "minute", "at_ms", "group", "topic", "lag", "lag_max", "lag_age_ms", "blocked_keys", "blocked_key_age_ms",
)  # fmt: skip


class Row(NamedTuple):
    """One input row: the values of one metric, or a run of a process if `metric` is "".

    For a run, the times are those of its second and its last interval; `seq` is that of its last sample if
    it stopped, else -1; `value` is the length of its intervals.
    """

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
    values: list[tuple[int, int, float]]  # to_ms, seq and value of each


def lag_schema() -> Any:
    """Return the schema of the output rows: lag_minute's columns from gauges, and `at_ms`, the time of the
    last lag value.
    """
    kinds = [pa.int64(), pa.int64(), pa.string(), pa.string(), *[pa.float64()] * 5]
    return pa.schema(list(zip(OUTPUT_COLUMNS, kinds, strict=True)))


def follow_lags(batches: Iterator[Any], ahead: Mapping[str, int]) -> Iterator[Any]:
    """Convert batches of COLUMNS to batches of lag_schema().

    `ahead`: how many ms a process's clock is ahead.
    """
    rows = (row for batch in batches for row in _rows_in(batch))
    for (_, group, topic), some in groupby(rows, key=lambda row: row[:3]):
        minutes = minutes_of(some, ahead)
        minute_rows = [(minute, at_ms, group, topic, *values) for minute, at_ms, *values in minutes]
        if minute_rows:
            columns = dict(zip(OUTPUT_COLUMNS, map(list, zip(*minute_rows, strict=True)), strict=True))
            yield from pa.table(columns, schema=lag_schema()).to_batches()


def _rows_in(batch: Any) -> Iterator[Row]:
    lists = batch.column("told")
    fields = [pc.struct_field(lists.flatten(), [at]).to_pylist() for at in range(len(VALUE_FIELDS))]
    values = zip(*fields, strict=True)
    value_lists = [list(islice(values, size or 0)) for size in pc.list_value_length(lists).to_pylist()]
    others = [batch.column(name).to_pylist() for name in COLUMNS[:-1]]
    return (Row(*row) for row in zip(*others, value_lists, strict=True))


def minutes_of(samples: Iterable[Row], ahead: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of minute, at_ms, lag, lag_max, lag_age_ms, blocked_keys and blocked_key_age_ms of one
    subscription. `ahead`: by how many ms each process's clock is ahead."""
    rows = list(samples)
    runs: dict[str, list[Run]] = {}
    steps_of_processes: dict[str, dict[str, StepsByRun]] = {metric: {} for metric in FOLLOWED}
    stops: set[tuple[str, int]] = set()
    ends = _last_reported(rows)
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
            points = steps_of_processes[row.metric].setdefault(row.process, {}).setdefault(instance, [])
            points += [(at - by_ms, value) for at, seq, value in row.values if (instance, seq) not in stops]
    until_ms = max((run.last_ms for some in runs.values() for run in some), default=0)
    steps_of_metrics = {
        metric: _combine_steps(metric, runs, steps_of_processes[metric], until_ms) for metric in FOLLOWED
    }
    yield from _to_minute_rows({metric: by_minute(some) for metric, some in steps_of_metrics.items()})


def _last_reported(rows: Iterable[Row]) -> dict[tuple[str, int], int]:
    """Return the end times of the last two samples with a value in each minute, by (instance, seq)."""
    return {(row.instance, seq): at for row in rows for at, seq, _ in (row.values or ())[-2:]}


def _combine_steps(
    metric: str, runs: dict[str, list[Run]], steps_of_processes: dict[str, StepsByRun], until_ms: int
) -> list[Step]:
    owners = {process: (runs.get(process, []), values) for process, values in steps_of_processes.items()}
    return highest_steps(owners) if metric in (LAG_AGE, BLOCKED_AGE) else sum_steps(owners, until_ms)


def _to_minute_rows(minutes: dict[str, dict[int, Minute]]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each minute in which any metric has a value. A metric without a value keeps its
    previous one."""
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
