"""The tables that have rows by the day: promises, starts of processes, rejected lines.

They are read date by date, the newest first, and added up in Arrow, so that memory follows the number of
different promises and starts and not the number of days. A list has a bound; whatever lies beyond it is
still in the sums, or it is counted as left out (`Tallies`), and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from metrics_job.report.core.material import Row

PROMISES_MAX = 100_000  # different promises; those that were missed come first
STARTS_MAX = 100_000  # different starts of processes; those that sent the latest samples come first
REJECTS_MAX = 1_000  # of the newest dates; all of them are in the sums
DatedTables = Iterable[tuple[str, Any]]  # date and its rows, the newest date first
PROMISE_KEY = ["slo", "topic", "group"]


class Promises(NamedTuple):
    """The results of all objectives over all dates. `rows` contains only the worst ones; `kept` and `missed`
    count all."""

    rows: list[Row]
    kept: int
    missed: int


class Starts(NamedTuple):
    """One row for each start of a process. `left_out`: the number of older starts that are not in `rows`."""

    rows: list[Row]
    left_out: int


class Rejects(NamedTuple):
    """The rejected lines of the newest dates. `kinds` (rows) and `lines` count those of all dates."""

    rows: list[Row]
    kinds: int
    lines: int


def read_promises(tables: DatedTables) -> Promises:
    """Sum each objective over all dates; sort missed objectives first, the furthest from its target
    first."""
    sums: Any = None
    missed_days: dict[tuple[str, ...], list[str]] = {}
    for date, rows in tables:
        rows = rows.filter(pc.greater(rows["total"], 0))
        _record_missed_days(rows, date, missed_days)
        sums = _add_promises(sums, _promises_of_date(rows, date))
    if sums is None or not sums.num_rows:
        return Promises([], 0, 0)
    missed = pc.sum(pc.greater(sums["missed"], 0)).as_py()
    listed = _worst_promises(sums).to_pylist()
    for row in listed:
        row["days_missed"] = missed_days.get(tuple(row[name] for name in PROMISE_KEY), [])
    return Promises(listed, sums.num_rows - missed, missed)


def _record_missed_days(rows: Any, date: str, missed_days: dict[tuple[str, ...], list[str]]) -> None:
    missed = rows.filter(pc.equal(rows["met"], False))
    for key in zip(*(_to_texts(missed[name]) for name in PROMISE_KEY), strict=True):
        missed_days.setdefault(key, []).append(date)


def _promises_of_date(rows: Any, date: str) -> Any:
    """Return the columns of one date to be summed. For a missed day, compliance and date are set, too."""
    missed = pc.fill_null(pc.equal(rows["met"], False), False)
    compliance = pc.if_else(missed, rows["compliance"], pa.scalar(None, pa.float64()))
    day = pc.if_else(missed, pa.scalar(date), pa.scalar(None, pa.string()))
    keys = {name: pc.fill_null(rows[name], "") for name in PROMISE_KEY}
    sums = {"good": rows["good"], "total": rows["total"], "missed": missed.cast(pa.int64())}
    sums |= {
        "unjudged": pc.is_null(rows["met"]).cast(pa.int64()),
        "days": pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows),
    }
    newest = {"target": rows["target"], "missed_compliance": compliance, "missed_day": day}
    return pa.table(keys | sums | newest).select([*PROMISE_KEY, *SUMMED, *NEWEST])


SUMMED = ("good", "total", "missed", "unjudged", "days")
NEWEST = ("target", "missed_compliance", "missed_day")


def _add_promises(newer: Any, older: Any) -> Any:
    both = older if newer is None else pa.concat_tables([newer, older])
    how = [(name, "sum") for name in SUMMED] + [(name, "first") for name in NEWEST]
    sums = both.group_by(PROMISE_KEY, use_threads=False).aggregate(how)
    names = [*PROMISE_KEY, *(f"{name}_{function}" for name, function in how)]
    return sums.select(names).rename_columns([*PROMISE_KEY, *SUMMED, *NEWEST])


def _worst_promises(sums: Any) -> Any:
    share = pc.divide(sums["good"].cast(pa.float64()), sums["total"].cast(pa.float64()))
    sums = sums.append_column("kept", pc.equal(sums["missed"], 0))
    sums = sums.append_column("margin", pc.subtract(share, sums["target"]))
    order = [(name, "ascending") for name in ("kept", "margin", *PROMISE_KEY)]
    return sums.sort_by(order).slice(0, PROMISES_MAX).drop_columns(["kept", "margin"])


def read_starts(tables: DatedTables) -> Starts:
    """Merge the dates of each process start into one row. `first_seen` and `last_seen` are epoch ms."""
    starts: dict[tuple[str, str], Row] = {}
    left_out: set[tuple[str, str]] = set()
    for _, rows in tables:
        for row in _newest_first(rows):
            key = (row["process"], row["instance"])
            if key in starts or len(starts) < STARTS_MAX:
                starts[key] = _join_dates(starts.get(key), row)
            else:
                left_out.add(key)
    return Starts(list(starts.values()), len(left_out))


def _newest_first(rows: Any) -> Iterator[Row]:
    yield from rows.sort_by([("last_seen", "descending")]).to_pylist()


def _join_dates(newer: Row | None, older: Row) -> Row:
    """Add an older date to a start. Its end state and its interval remain those of the newest date."""
    if newer is None:
        return older
    gap_s = max(0.0, (newer["first_seen"] - older["last_seen"]) / 1000)
    both = {name: (newer.get(name) or 0) + (older.get(name) or 0) for name in STARTS_SUMMED}
    return {
        **newer,
        **both,
        "first_seen": min(newer["first_seen"], older["first_seen"]),
        "last_seen": max(newer["last_seen"], older["last_seen"]),
        "longest_gap_s": max(newer["longest_gap_s"] or 0.0, older["longest_gap_s"] or 0.0, gap_s),
    }


STARTS_SUMMED = ("samples", "files", "missing", "duplicates", "clock_steps")


def read_rejects(tables: DatedTables) -> Rejects:
    """List the newest rejected lines, per date the most frequent first, and count all of them."""
    listed: list[Row] = []
    count = lines = 0
    for _, rows in tables:
        free_rows = REJECTS_MAX - len(listed)
        if free_rows and rows.num_rows:
            listed += rows.sort_by([("lines", "descending")]).slice(0, free_rows).to_pylist()
        count, lines = count + rows.num_rows, lines + (pc.sum(rows["lines"]).as_py() or 0)
    return Rejects(listed, count, lines)


def _to_texts(column: Any) -> list[str]:
    texts: list[str] = pc.fill_null(column, "").to_pylist()
    return texts
