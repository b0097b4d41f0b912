"""Lines added up into minutes: the columns and their meaning are those of metrics_job.minutes.

Rows are added up within one piece of files only, so that the same key may come again from another piece;
whatever is made from minutes adds up anyway. A line that is in the piece twice is taken once.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from metrics_job.arrow.lines import Known, Odd, column, filled
from metrics_job.minutes import FILE, FOLLOWED, INTERVAL, MINUTE_MS, TEXT, TOLD
from metrics_job.minutes import schema as minutes_schema
from metrics_job.tables import SERIES_KEY

ODD = "odd"  # the kind of a line that is left to Spark's reader
BY = ["code", "minute"]


def schema() -> Any:
    """What `added` and `odd_rows` give: metrics_job.minutes.schema in Arrow's types; TEXT of an odd line, and
    FILE of all rows of a file that has such lines."""
    fields = list(to_arrow_schema(minutes_schema()))
    return pa.schema([*fields, (TEXT, pa.string()), (FILE, pa.string())])


def added(lines: Any, known: Known, file: str | None = None) -> list[Any]:
    """Tables of schema() from lines of parse.Parsed, the intervals first; `file` goes into every row."""
    if not lines.num_rows:
        return []
    lines, copies = _once(lines)
    lines = lines.append_column("minute", pc.divide(column(lines, "to"), MINUTE_MS))
    made = [_intervals(lines.append_column("copies", copies), known)]
    kinds = known.column("kind", column(lines, "code"))
    followed = pc.is_in(known.column("metric", column(lines, "code")), pa.array(FOLLOWED))
    gauge = pc.equal(kinds, "gauge")
    for wanted, make in (
        (pc.equal(kinds, "counter"), _sums),
        (pc.and_not(gauge, followed), _gauges),
        (pc.and_(gauge, followed), _followed),
        (pc.equal(kinds, "histogram"), _histograms),
    ):
        if pc.any(wanted).as_py():
            sums = make(lines.filter(wanted))
            names = known.columns(("kind", "instance", *SERIES_KEY), column(sums, "code"))
            made.append({name: column(sums, name) for name in sums.column_names} | names)
    return [
        filled(one if file is None else one | {FILE: pa.repeat(file, len(one["kind"]))}, schema())
        for one in made
    ]


def odd_rows(odd: list[Odd], files: list[str]) -> Any:
    """A table of schema() with the odd lines."""
    texts = {"kind": [ODD] * len(odd), TEXT: [one.text for one in odd]}
    made = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    return filled(made | {FILE: pa.array([files[one.file] for one in odd], pa.string())}, schema())


def _once(lines: Any) -> tuple[Any, Any]:
    """Lines without those that were there before, and how often each is there."""
    rows = pa.array(range(lines.num_rows), pa.int64())
    keys = lines.select(["code", "seq"]).append_column("row", rows)
    first = keys.group_by(["code", "seq"], use_threads=False).aggregate([("row", "min"), ("row", "count")])
    copies = column(first, "row_count")
    if first.num_rows == lines.num_rows:
        return lines, copies
    return lines.take(column(first, "row_min")).combine_chunks(), copies


def _intervals(lines: Any, known: Known) -> dict[str, Any]:
    codes = column(lines, "code")
    rows = lines.select(["seq", "from", "to", "copies"]).append_column("run", known.run(codes))
    rows = rows.append_column("is_last", known.column("is_last", codes))
    found = rows.group_by(["run", "seq", "from", "to"], use_threads=False).aggregate(
        [("copies", "count"), ("copies", "sum"), ("is_last", "max")]
    )
    end, run = column(found, "to"), column(found, "run")
    made = {"seq": column(found, "seq"), "from_ms": column(found, "from"), "to_ms": end}
    made |= {"lines": column(found, "copies_count"), "copies": column(found, "copies_sum")}
    made |= {"is_last": column(found, "is_last_max"), "minute": pc.divide(end, MINUTE_MS)}
    made["kind"] = pa.repeat(INTERVAL, found.num_rows)
    for at, name in enumerate(("process", "instance")):
        made[name] = pa.array([one[at] for one in known.runs], pa.string()).take(run)
    return made


def _sums(lines: Any) -> Any:
    return _grouped(lines, {"total": ("number", "sum")})


def _gauges(lines: Any, **more: tuple[str, str]) -> Any:
    end = column(lines, "to")
    if pc.any(pc.less(end.slice(1), end.slice(0, len(end) - 1))).as_py():
        lines = lines.sort_by([("to", "ascending"), ("seq", "ascending")])
    wanted = {"total": ("number", "sum"), "lines": ("number", "count")}
    wanted |= {name: ("number", name) for name in ("last", "max", "min")}
    return _grouped(lines, wanted | {"to_ms": ("to", "last"), "seq": ("seq", "last")} | more)


def _followed(lines: Any) -> Any:
    """With every value that was told in the minute, in order."""
    rows = _gauges(lines, ends=("to", "list"), seqs=("seq", "list"), told=("number", "list"))
    lists = [column(rows, name) for name in ("ends", "seqs", "told")]
    values = pa.StructArray.from_arrays(list(map(pc.list_flatten, lists)), list(TOLD))
    told = pa.ListArray.from_arrays(lists[0].offsets, values)
    return rows.drop_columns(["ends", "seqs", "told"]).append_column("told", told)


def _histograms(lines: Any) -> Any:
    """With the buckets of a minute as lists, in no order."""
    sums, lists = _sums(lines), column(lines, "buckets")
    flat = {name: column(lines, name).take(pc.list_parent_indices(lists)) for name in BY}
    flat |= {"bucket": pc.list_flatten(lists), "n": pc.list_flatten(column(lines, "counts"))}
    met = pa.table(flat).group_by([*BY, "bucket"], use_threads=False).aggregate([("n", "sum")])
    buckets = _grouped(met, {"buckets": ("bucket", "list"), "counts": ("n_sum", "list")})
    in_order = [(name, "ascending") for name in BY]  # a group's place says nothing
    sums, buckets = sums.sort_by(in_order), buckets.sort_by(in_order)
    for name in ("buckets", "counts"):
        sums = sums.append_column(name, column(buckets, name))
    return sums


def _grouped(rows: Any, wanted: dict[str, tuple[str, str]]) -> Any:
    """By code and minute: a column for each of (column, function)."""
    found = rows.group_by(BY, use_threads=False).aggregate(list(wanted.values()))
    made = {name: column(found, f"{given}_{how}") for name, (given, how) in wanted.items()}
    return pa.table({name: column(found, name) for name in BY} | made)
