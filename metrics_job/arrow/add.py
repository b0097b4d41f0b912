"""Lines added up into slices: the columns and their meaning are those of metrics_job.slices.

Rows are added up within one piece of files only, so that the same key may come again from another piece;
whatever is made from slices adds up anyway.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from metrics_job.arrow.parse import Odd, column
from metrics_job.arrow.series import Series, series_of
from metrics_job.slices import BLOCK, BUCKET, MINUTE_MS, NAMES, ODD, SUM

_LONGS = ("lines", "copies", "seen", "from_ms", "to_ms", "clock_steps")
_DOUBLES = ("total", "seconds", "last", "max", "min")
_TEXTS = ("kind", *NAMES, "text")
_IDS = ("series", "lane", "merged")
BITS = [*(1 << place for place in range(BLOCK - 1)), -(1 << (BLOCK - 1))]  # Arrow shifts none into the sign
BY = ("code", "minute", "block", "bucket")


def schema() -> Any:
    """What `added` and `odd_rows` give: metrics_job.slices.slice_schema in Arrow's types."""
    fields = [(name, pa.string()) for name in _TEXTS]
    fields += [(name, pa.int64()) for name in ("minute", *_IDS, "block", *_LONGS)]
    fields += [("bucket", pa.int32()), *((name, pa.float64()) for name in _DOUBLES)]
    return pa.schema(fields)


def added(lines: Any) -> list[Any]:
    """Tables of schema(): one row for each number, and one for each bucket, by minute, series and block."""
    if not lines.num_rows:
        return []
    codes, known = series_of(lines)
    flat = _flat(lines, codes)
    rows = [_numbers(flat, known)]
    histograms = pc.equal(column(lines, "kind"), "histogram")
    if pc.any(histograms).as_py():
        rows.append(_buckets(lines.filter(histograms), flat.filter(histograms), known))
    return rows


def odd_rows(odd: list[Odd], files: list[str]) -> Any:
    """A table of schema() with the odd lines: `detail` is the file, `text` the line."""
    made = {
        "kind": [ODD] * len(odd),
        "detail": [files[one.file] for one in odd],
        "text": [one.text for one in odd],
    }
    return _shaped({name: pa.array(values, pa.string()) for name, values in made.items()}, len(odd))


def _flat(lines: Any, codes: Any) -> Any:
    """What is added up, line by line."""
    seq, end, kind = (column(lines, name) for name in ("seq", "to", "kind"))
    length = pc.subtract(end, column(lines, "from"))
    place = pc.bit_wise_and(seq, BLOCK - 1)
    return pa.table(
        {
            "code": codes,
            "minute": pc.divide(end, MINUTE_MS),
            "block": pc.divide(seq, BLOCK),
            "bucket": pc.if_else(pc.equal(kind, "process"), place, pa.scalar(SUM, pa.int64())),
            "bit": pa.array(BITS, pa.int64()).take(place),
            "number": pc.if_else(pc.equal(kind, "histogram"), column(lines, "sum"), column(lines, "value")),
            "length": pc.max_element_wise(length, 0),
            "steps": pc.less(length, 0).cast(pa.int64()),
            "seq": seq,
            "from": column(lines, "from"),
            "to": end,
        }
    )


def _numbers(flat: Any, known: list[Series]) -> Any:
    end = column(flat, "to")
    if pc.any(pc.less(end.slice(1), end.slice(0, len(end) - 1))).as_py():
        flat = flat.sort_by([("to", "ascending"), ("seq", "ascending")])
    wanted = [("number", how) for how in ("sum", "max", "min", "last", "count")]
    wanted += [("bit", "sum"), ("bit", "count_distinct"), ("length", "sum"), ("steps", "sum")]
    sums = flat.group_by(list(BY), use_threads=False).aggregate([*wanted, ("from", "min"), ("to", "max")])
    lines = column(sums, "number_count")
    made = {
        "lines": lines,
        "copies": lines,
        "seen": _seen(flat, sums),
        "total": column(sums, "number_sum"),
        "seconds": pc.divide(column(sums, "length_sum").cast(pa.float64()), 1000.0),
        **{name: column(sums, f"number_{name}") for name in ("last", "max", "min")},
        "from_ms": column(sums, "from_min"),
        "to_ms": column(sums, "to_max"),
        "clock_steps": column(sums, "steps_sum"),
    }
    return _shaped(made | _keys(sums) | _names(column(sums, "code"), known), sums.num_rows)


def _seen(flat: Any, sums: Any) -> Any:
    """The sequence numbers of a block as bits: their sum, unless one is there twice."""
    seen, distinct = column(sums, "bit_sum"), column(sums, "bit_count_distinct")
    if pc.all(pc.equal(distinct, column(sums, "number_count"))).as_py():
        return seen
    once = flat.group_by([*BY, "bit"], use_threads=False).aggregate([])
    bits = once.group_by(list(BY), use_threads=False).aggregate([("bit", "sum")])
    both = sums.select(BY).append_column("row", pa.array(range(sums.num_rows), pa.int64()))
    return column(both.join(bits, list(BY), use_threads=False).sort_by("row"), "bit_sum")


def _buckets(lines: Any, flat: Any, known: list[Series]) -> Any:
    lists = column(lines, "buckets")
    parents = pc.list_parent_indices(lists)
    counted = {name: column(flat, name).take(parents) for name in ("code", "minute", "block")}
    counted |= {"bucket": pc.list_flatten(lists), "total": pc.list_flatten(column(lines, "counts"))}
    sums = pa.table(counted).group_by(list(BY), use_threads=False).aggregate([("total", "sum")])
    kind = pa.array([BUCKET], pa.string()).take(pa.nulls(sums.num_rows, pa.int64()).fill_null(0))
    total = column(sums, "total_sum").cast(pa.float64())
    ids = _names(column(sums, "code"), known, _IDS)
    return _shaped({"kind": kind, "total": total} | _keys(sums) | ids, sums.num_rows)


def _keys(sums: Any) -> dict[str, Any]:
    return {name: column(sums, name) for name in ("minute", "block", "bucket")}


def _names(codes: Any, known: list[Series], which: tuple[str, ...] = Series._fields) -> dict[str, Any]:
    return {
        name: pa.array([getattr(one, name) for one in known], schema().field(name).type).take(codes)
        for name in which
    }


def _shaped(columns: dict[str, Any], rows: int) -> Any:
    """A table of schema(); null where nothing is given."""
    made = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema()
    ]
    return pa.table(made, schema=schema())
