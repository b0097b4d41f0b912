"""The job's tables as the reference gives its own: from the key of a row to its values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import dataset

KEY = ("start", "metric", "process", "topic", "group", "detail")
BY_DATE = dataset.partitioning(pa.schema([("date", pa.date32())]), flavor="hive")
Rows = dict[tuple[Any, ...], tuple[Any, ...]]


def rows(out: Path, table: str, key: tuple[str, ...], values: tuple[str, ...]) -> Rows:
    """All rows of a table; times in epoch ms, arrays as tuples. Raises AssertionError for a key that is
    there twice."""
    if not (out / table).exists():
        return {}
    table_files = dataset.dataset(out / table, format="parquet", partitioning=BY_DATE)
    read_rows: Rows = {}
    for row in table_files.to_table(columns=[*key, *values]).to_pylist():
        name = tuple(plain(row[column]) for column in key)
        assert name not in read_rows, f"{table} has two rows {name}"
        read_rows[name] = tuple(plain(row[column]) for column in values)
    return read_rows


def plain(value: Any) -> Any:
    """Times as epoch ms, days as days since the epoch, lists as tuples."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    return tuple(value) if isinstance(value, list) else value


def counters(out: Path, period: str) -> Rows:
    return rows(out, f"counters_{period}", KEY, ("total", "seconds", "per_s"))


def gauges(out: Path, period: str) -> Rows:
    return rows(out, f"gauges_{period}", KEY, ("last", "max", "min", "mean"))


def latencies(out: Path, period: str) -> Rows:
    values = ("count", "sum", "buckets", "counts", "p50", "p90", "p99", "p999", "max")
    return rows(out, f"latencies_{period}", KEY, values)


def processes(out: Path) -> Rows:
    values = ("samples", "files", "missing", "duplicates", "longest_gap_s", "clock_steps")
    return rows(out, "processes", ("date", "process", "instance"), values)


def rejects(out: Path) -> dict[tuple[str, str], int]:
    """(file name, reason) -> lines."""
    read_rows = rows(out, "rejects", ("date", "file", "reason"), ("lines",))
    counts: dict[tuple[str, str], int] = {}
    for (_, file, reason), (lines,) in read_rows.items():
        name = (file.rpartition("/")[2], reason)
        counts[name] = counts.get(name, 0) + lines
    return counts


def everything(out: Path) -> dict[str, Rows]:
    """Every table with all its columns but floating sums' last digits, to compare two runs."""
    tables: dict[str, Rows] = {}
    for folder in sorted(path for path in out.iterdir() if path.is_dir() and path.name != "stream"):
        table = dataset.dataset(folder, format="parquet", partitioning=BY_DATE).to_table()
        listed = [tuple(rounded(plain(value)) for value in row.values()) for row in table.to_pylist()]
        tables[folder.name] = dict.fromkeys(listed, ())
        assert len(tables[folder.name]) == len(listed), f"{folder.name} has a row twice"
    return tables


def rounded(value: Any) -> Any:
    """Sums of floats depend on the order of adding."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def same(actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    """Equal, floats up to rounding; says which rows are not."""
    assert expected, "the reference found nothing"
    assert not actual.keys() - expected.keys(), "rows too many"
    assert not expected.keys() - actual.keys(), "rows missing"
    differ = {
        key: (actual[key], row) for key, row in expected.items() if _values(actual[key]) != _values(row)
    }
    assert not differ, (
        f"{len(differ)} of {len(expected)} rows differ (found, wanted): {list(differ.items())[:3]}"
    )


def _values(row: Any) -> Any:
    return tuple(map(rounded, row)) if isinstance(row, tuple) else row
