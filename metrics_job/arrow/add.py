"""Add up lines into minutes: the columns and their meaning are those of metrics_job.minutes.

Rows are added up within one chunk of files only, so another chunk may have the same key. Every table that is
computed from minutes sums them. A line that is in the chunk twice is counted once.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from metrics_job.arrow.lines import SeriesCodes, UndecodedLine, column_array, fill_table
from metrics_job.minutes import FILE, FOLLOWED, INTERVAL, MINUTE_MS, TEXT, VALUE_FIELDS
from metrics_job.minutes import minutes_schema as minutes_schema
from metrics_job.tables import SERIES_KEY

UNDECODED = "undecoded"  # the kind of a line that is left to Spark's reader
BY = ["code", "minute"]


def worker_schema() -> Any:
    """Return the Arrow schema of `add_up_lines` and `undecoded_rows`, that of
    metrics_job.minutes.minutes_schema.

    TEXT is set in undecoded lines, FILE in all rows of a file that has such lines.
    """
    fields = list(to_arrow_schema(minutes_schema()))
    return pa.schema([*fields, (TEXT, pa.string()), (FILE, pa.string())])


def add_up_lines(lines: Any, series_codes: SeriesCodes, file: str | None = None) -> list[Any]:
    """Aggregate parsed sample lines by minute; return one table for each kind of row.

    `lines`: the table of the same name in lines.Parsed. The first table that is returned has the intervals of
    the processes; those for counters, gauges and histograms follow if there are such lines. Every table has
    the columns of worker_schema(). `file`: the value of the column FILE in each row.
    """
    if not lines.num_rows:
        return []
    lines, copies = _count_copies(lines)
    lines = lines.append_column("minute", pc.divide(column_array(lines, "to"), MINUTE_MS))
    tables = [_group_intervals(lines.append_column("copies", copies), series_codes)]
    kinds = series_codes.field_column("kind", column_array(lines, "code"))
    followed = pc.is_in(series_codes.field_column("metric", column_array(lines, "code")), pa.array(FOLLOWED))
    gauge = pc.equal(kinds, "gauge")
    for is_kind, make in (
        (pc.equal(kinds, "counter"), _sum_numbers),
        (pc.and_not(gauge, followed), _group_gauges),
        (pc.and_(gauge, followed), _group_followed_gauges),
        (pc.equal(kinds, "histogram"), _group_histograms),
    ):
        if pc.any(is_kind).as_py():
            sums = make(lines.filter(is_kind))
            names = series_codes.field_columns(("kind", "instance", *SERIES_KEY), column_array(sums, "code"))
            tables.append({name: column_array(sums, name) for name in sums.column_names} | names)
    return [
        fill_table(one if file is None else one | {FILE: pa.repeat(file, len(one["kind"]))}, worker_schema())
        for one in tables
    ]


def undecoded_rows(undecoded: list[UndecodedLine], files: list[str]) -> Any:
    """Return a table of worker_schema() with the undecoded lines."""
    texts = {"kind": [UNDECODED] * len(undecoded), TEXT: [one.text for one in undecoded]}
    columns = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    return fill_table(
        columns | {FILE: pa.array([files[one.file] for one in undecoded], pa.string())}, worker_schema()
    )


def _count_copies(lines: Any) -> tuple[Any, Any]:
    """Return the distinct lines, and how many copies of each there were."""
    rows = pa.array(range(lines.num_rows), pa.int64())
    keys = lines.select(["code", "seq"]).append_column("row", rows)
    first = keys.group_by(["code", "seq"], use_threads=False).aggregate([("row", "min"), ("row", "count")])
    copies = column_array(first, "row_count")
    if first.num_rows == lines.num_rows:
        return lines, copies
    return lines.take(column_array(first, "row_min")).combine_chunks(), copies


def _group_intervals(lines: Any, series_codes: SeriesCodes) -> dict[str, Any]:
    codes = column_array(lines, "code")
    rows = lines.select(["seq", "from", "to", "copies"]).append_column("run", series_codes.run_numbers(codes))
    rows = rows.append_column("is_last", series_codes.field_column("is_last", codes))
    intervals = rows.group_by(["run", "seq", "from", "to"], use_threads=False).aggregate(
        [("copies", "count"), ("copies", "sum"), ("is_last", "max")]
    )
    end, run = column_array(intervals, "to"), column_array(intervals, "run")
    columns = {
        "seq": column_array(intervals, "seq"),
        "from_ms": column_array(intervals, "from"),
        "to_ms": end,
    }
    columns |= {
        "lines": column_array(intervals, "copies_count"),
        "copies": column_array(intervals, "copies_sum"),
    }
    columns |= {"is_last": column_array(intervals, "is_last_max"), "minute": pc.divide(end, MINUTE_MS)}
    columns["kind"] = pa.repeat(INTERVAL, intervals.num_rows)
    for at, name in enumerate(("process", "instance")):
        columns[name] = pa.array([one[at] for one in series_codes.runs], pa.string()).take(run)
    return columns


def _sum_numbers(lines: Any) -> Any:
    return _group_rows(lines, {"total": ("number", "sum")})


def _group_gauges(lines: Any, **more: tuple[str, str]) -> Any:
    end = column_array(lines, "to")
    if pc.any(pc.less(end.slice(1), end.slice(0, len(end) - 1))).as_py():
        lines = lines.sort_by([("to", "ascending"), ("seq", "ascending")])
    aggregates = {"total": ("number", "sum"), "lines": ("number", "count")}
    aggregates |= {name: ("number", name) for name in ("last", "max", "min")}
    return _group_rows(lines, aggregates | {"to_ms": ("to", "last"), "seq": ("seq", "last")} | more)


def _group_followed_gauges(lines: Any) -> Any:
    """Aggregate gauges as _group_gauges does, and also collect all values of each minute in order, for the
    lag."""
    rows = _group_gauges(lines, ends=("to", "list"), seqs=("seq", "list"), told=("number", "list"))
    lists = [column_array(rows, name) for name in ("ends", "seqs", "told")]
    values = pa.StructArray.from_arrays(list(map(pc.list_flatten, lists)), list(VALUE_FIELDS))
    value_lists = pa.ListArray.from_arrays(lists[0].offsets, values)
    return rows.drop_columns(["ends", "seqs", "told"]).append_column("told", value_lists)


def _group_histograms(lines: Any) -> Any:
    """Aggregate histograms by minute; the buckets of a minute are lists in no particular order."""
    sums, lists = _sum_numbers(lines), column_array(lines, "buckets")
    flat = {name: column_array(lines, name).take(pc.list_parent_indices(lists)) for name in BY}
    flat |= {"bucket": pc.list_flatten(lists), "n": pc.list_flatten(column_array(lines, "counts"))}
    bucket_counts = pa.table(flat).group_by([*BY, "bucket"], use_threads=False).aggregate([("n", "sum")])
    buckets = _group_rows(bucket_counts, {"buckets": ("bucket", "list"), "counts": ("n_sum", "list")})
    in_order = [(name, "ascending") for name in BY]  # groups come in any order
    sums, buckets = sums.sort_by(in_order), buckets.sort_by(in_order)
    for name in ("buckets", "counts"):
        sums = sums.append_column(name, column_array(buckets, name))
    return sums


def _group_rows(rows: Any, aggregates: dict[str, tuple[str, str]]) -> Any:
    """Group rows by code and minute. `aggregates`: new column → (column, aggregate function)."""
    groups = rows.group_by(BY, use_threads=False).aggregate(list(aggregates.values()))
    values = {name: column_array(groups, f"{source}_{how}") for name, (source, how) in aggregates.items()}
    return pa.table({name: column_array(groups, name) for name in BY} | values)
