"""What a Python worker does with the samples that told of one subscription on one day: minutes of its lag.

Rows in: one for each value told (`metric` is one of minutes.FOLLOWED), and one without a metric for each run
of a process that told any. Those of a subscription and day come one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from metrics_job.lag.steps import Minute, Run, Step, Told, by_minute, highest, steps
from metrics_job.minutes import FOLLOWED

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
    values = []
    for row in rows:
        if row.metric:
            values.append(row)
            continue
        runs.setdefault(row.process, []).append(
            Run(row.instance, row.from_ms, row.to_ms, max(row.value or 0, 0), stopped=row.seq >= 0)
        )
        stops.add((row.instance, row.seq))
    for row in values:
        if (row.instance, row.seq) not in stops and row.value is not None:
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
