"""Counters, gauges and histograms by minute and hour.

Arrow merges histograms in Python workers: exactly, bucket by bucket, over intervals, processes and hours,
one partition at a time. The rows are unsorted, but all rows of one day that differ only in their process are
in one partition. Percentiles are those of ddmq_common.metrics: the upper edge of the first bucket at which
the counts reach the fraction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ddmq_common.metrics.cells import BUCKETS, upper_edge
from metrics_job.arrow import map_in_arrow
from metrics_job.arrow.lines import column_array, encode_texts
from metrics_job.minutes import DAY_MINUTES, INTERVAL, MINUTE_MS
from metrics_job.tables import SERIES_KEY


def minute_start() -> Column:
    """Return a column with the timestamp of the column `minute`."""
    return F.timestamp_millis(F.col("minute") * MINUTE_MS)


def counters_minute(minutes: DataFrame) -> DataFrame:
    """Sum the increments of metrics_job.minutes.

    `seconds`: the time that the process's intervals cover in the minute.
    """
    return _sum_counters(
        minutes.filter(F.col("kind") == "counter"), minute_start(), covered_seconds(minutes, minute_start())
    )


def counters_hour(counters: DataFrame, minutes: DataFrame) -> DataFrame:
    """Sum counters_minute by hour. `seconds` covers the full hour, including minutes without a change."""
    lived = covered_seconds(minutes, F.date_trunc("hour", minute_start()))
    return _sum_counters(counters, F.date_trunc("hour", "start"), lived)


def _sum_counters(rows: DataFrame, start: Column, lived: DataFrame) -> DataFrame:
    totals = rows.groupBy(start.alias("start"), *SERIES_KEY).agg(F.sum("total").alias("total"))
    rate = F.when(F.col("seconds") > 0, F.col("total") / F.col("seconds"))
    return totals.join(F.broadcast(lived), on=["start", "process"], how="left").withColumn("per_s", rate)


def covered_seconds(minutes: DataFrame, start: Column) -> DataFrame:
    """Return start, process, and the seconds that the process's intervals cover in that minute or hour."""
    length = F.greatest(F.col("to_ms") - F.col("from_ms"), F.lit(0))
    return (
        minutes.filter(F.col("kind") == INTERVAL)
        .groupBy(start.alias("start"), "process")
        .agg((F.sum(length) / 1000).alias("seconds"))
    )


def gauges_minute(minutes: DataFrame) -> DataFrame:
    """Return the last value, the extremes and the mean of each gauge by minute."""
    return (
        minutes.filter(F.col("kind") == "gauge")
        .groupBy(minute_start().alias("start"), *SERIES_KEY)
        .agg(
            F.max(F.struct("to_ms", "seq", "last"))["last"].alias("last"),
            F.max("max").alias("max"),
            F.min("min").alias("min"),
            (F.sum("total") / F.sum("lines")).alias("mean"),
        )
    )


def gauges_hour(minutes: DataFrame) -> DataFrame:
    """Aggregate gauges_minute by hour. The mean is that of the minutes."""
    return minutes.groupBy(F.date_trunc("hour", "start").alias("start"), *SERIES_KEY).agg(
        F.max_by("last", "start").alias("last"),
        F.max("max").alias("max"),
        F.min("min").alias("min"),
        F.mean("mean").alias("mean"),
    )


def latency_rows(minutes: DataFrame) -> DataFrame:
    """Build the rows of latencies_minute and latencies_hour from metrics_job.minutes. `period` says which.

    Cache the result if it is used twice.
    """
    rows = minutes.filter(F.col("kind") == "histogram").select(*HISTOGRAM_COLUMNS)
    day = F.floor(F.col("minute") / DAY_MINUTES)
    together = rows.repartition("metric", "topic", "group", "detail", day)
    return map_in_arrow(together, merge_histograms, latency_schema()).withColumn("start", minute_start())


PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
PERIODS = {"minute": 1, "hour": 60}  # in minutes
HISTOGRAM_COLUMNS = ("minute", *SERIES_KEY, "total", "buckets", "counts")
_BY = ("minute", "id")
_EDGES = [upper_edge(index) for index in range(BUCKETS)]


def latency_schema() -> Any:
    """Return the schema of latency rows: one per period, start (minutes since the epoch) and series.

    Process "" stands for all processes together.
    """
    fields: list[Any] = [("period", pa.string()), ("minute", pa.int64())]
    fields += [(name, pa.string()) for name in SERIES_KEY]
    fields += [("count", pa.int64()), ("sum", pa.float64())]
    fields += [("buckets", pa.list_(pa.int32())), ("counts", pa.list_(pa.int64()))]
    return pa.schema([*fields, *((name, pa.float64()) for name in (*PERCENTILES, "max"))])


def merge_histograms(batches: Iterator[Any]) -> Iterator[Any]:
    """Convert batches of HISTOGRAM_COLUMNS of metrics_job.minutes to batches of latency_schema()."""
    inputs = list(batches)
    rows = pa.Table.from_batches(inputs).select(HISTOGRAM_COLUMNS).combine_chunks() if inputs else None
    if rows is None or not rows.num_rows:
        return
    parents, sums, met = pc.list_parent_indices(column_array(rows, "buckets")), *_split_buckets(rows)
    for together in (False, True):
        codes, series_names = encode_texts(
            [column_array(rows, name) for name in SERIES_KEY if name != "process" or not together]
        )
        names = [(one[0], "", *one[1:]) for one in series_names] if together else series_names
        minutes = _sum_totals(met.append_column("id", codes.take(parents)), "bucket")
        totals = _sum_totals(sums.append_column("id", codes))
        for period, length in PERIODS.items():
            period_sums = (
                _sum_totals(_by_period(minutes, length), "bucket"),
                _sum_totals(_by_period(totals, length)),
            )
            yield from _build_table(period, *period_sums, names).combine_chunks().to_batches()


def _split_buckets(rows: Any) -> tuple[Any, Any]:
    """Return minute and total of every row; and minute, bucket and total of every bucket in every row."""
    lists, minute = column_array(rows, "buckets"), column_array(rows, "minute")
    counted = {"minute": minute.take(pc.list_parent_indices(lists)), "bucket": pc.list_flatten(lists)}
    return rows.select(["minute", "total"]), pa.table(
        counted | {"total": pc.list_flatten(column_array(rows, "counts"))}
    )


def _by_period(minutes: Any, length: int) -> Any:
    if length == 1:
        return minutes
    start = pc.multiply(pc.divide(minutes["minute"], length), length)
    return minutes.set_column(minutes.column_names.index("minute"), "minute", start)


def _sum_totals(rows: Any, *more: str) -> Any:
    sums = rows.group_by([*_BY, *more], use_threads=False).aggregate([("total", "sum")])
    return sums.rename_columns(["total" if name == "total_sum" else name for name in sums.column_names])


def _build_table(period: str, counted: Any, sums: Any, series_names: list[tuple[str, ...]]) -> Any:
    """Build rows of latency_schema() from the counts by minute, id and bucket, and the sums by minute and
    id."""
    columns, groups = _add_percentiles(counted.sort_by([(name, "ascending") for name in (*_BY, "bucket")]))
    groups = groups.join(sums, list(_BY), use_threads=False).sort_by("row")
    columns |= {"minute": column_array(groups, "minute"), "sum": column_array(groups, "total")}
    for at, name in enumerate(SERIES_KEY):
        columns[name] = pa.array([one[at] for one in series_names], pa.string()).take(
            column_array(groups, "id")
        )
    columns["period"] = pa.repeat(period, groups.num_rows)
    return pa.table([columns[name] for name in latency_schema().names], schema=latency_schema())


def _add_percentiles(buckets: Any) -> tuple[dict[str, Any], Any]:
    """Return columns with one row per minute and id from sorted bucket rows, and the minute, id and row of
    each.
    """
    minute, ids, bucket = (column_array(buckets, name) for name in ("minute", "id", "bucket"))
    size, n = len(ids), column_array(buckets, "total")
    starts = pa.concat_arrays([pa.array([0], pa.int64()), _find_changes(minute, ids, size)])
    ends = pa.concat_arrays([starts.slice(1), pa.array([size], pa.int64())])
    through = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(n)])
    counts = pc.subtract(through.take(ends), through.take(starts))
    lists = pa.ListArray.from_arrays(
        pa.concat_arrays([starts, ends.slice(len(ends) - 1)]).cast(pa.int32()), bucket
    )
    run = pc.list_parent_indices(lists)
    running = pc.subtract(through.slice(1), through.take(starts).take(run))
    run_totals = counts.take(run).cast(pa.float64())
    columns = {"count": counts, "buckets": lists, "counts": pa.ListArray.from_arrays(lists.offsets, n)}
    edges = pa.array(_EDGES)
    for name, fraction in (PERCENTILES | {"max": 1.0}).items():
        reached = pc.greater_equal(running.cast(pa.float64()), pc.multiply(run_totals, fraction))
        first = pa.table({"run": run.filter(reached), "bucket": bucket.filter(reached)})
        first_buckets = first.group_by("run", use_threads=False).aggregate([("bucket", "min")]).sort_by("run")
        columns[name] = edges.take(column_array(first_buckets, "bucket_min"))
    rows = pa.array(range(len(starts)), pa.int64())
    return columns, pa.table({"minute": minute.take(starts), "id": ids.take(starts), "row": rows})


def _find_changes(minute: Any, ids: Any, size: int) -> Any:
    """Return the row numbers, except the first, at which another minute or id begins."""
    if size < 2:
        return pa.array([], pa.int64())
    other = [pc.not_equal(one.slice(1), one.slice(0, size - 1)) for one in (minute, ids)]
    return pc.add(pc.indices_nonzero(pc.or_(*other)).cast(pa.int64()), 1)
