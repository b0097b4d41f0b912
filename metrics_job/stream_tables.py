"""Compute the tables of a stream from its stored rows: those of the hours that a batch touches, and of
their days.

Tables of minutes and hours are computed again for these hours alone. Tables that need a complete day (lag,
processes, promises) are computed from the few rows of the day that they need, which are stored separately,
and from the tables of hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812

from ddmq_common.errors import ConfigError
from metrics_job.batch import write_judged, write_series
from metrics_job.folders import Folders
from metrics_job.minutes import FILE, FOLLOWED, INTERVAL, REASON, TEXT, Keep, caching_rows, minutes_schema
from metrics_job.rollups import groups, judged, processes
from metrics_job.tables import (
    COUNTERS_HOUR,
    COUNTERS_MINUTE,
    GAUGES_MINUTE,
    HOUR,
    INT,
    LAG_MINUTE,
    LATENCIES_HOUR,
    PARTITION,
    PROCESSES,
    REJECTS,
    STRING,
    Store,
    Table,
    table_path,
)

REFUSED = "refused"  # the kind of a row that is a refused line
OF_DAY = -1  # the hour of rows from which tables of a day are computed
HOUR_MINUTES = 60


class Touched(NamedTuple):
    """The days and hours (since the epoch) that have rows in a batch."""

    days: list[date]
    hours: list[int]


# From all stored rows, replaces the tables of the touched days and hours.
RollUp = Callable[[DataFrame, Touched], None]


def stored_schema() -> T.StructType:
    """Return the schema of stored rows: metrics_job.minutes; file, reason and text of a refused line; day
    and hour."""
    more = [T.StructField(name, STRING) for name in (FILE, REASON, TEXT)]
    partition_fields = [T.StructField(PARTITION, T.DateType()), T.StructField(HOUR, INT)]
    return T.StructType([*minutes_schema().fields, *more, *partition_fields])


def rows_to_keep(minutes: DataFrame, refused: DataFrame) -> DataFrame:
    """Return the rows to store: rows of metrics_job.minutes, and refused lines of
    processes.refused_lines."""
    epoch_hour = F.floor(F.col("minute") / HOUR_MINUTES)
    followed = F.coalesce(F.col("metric").isin(*FOLLOWED), F.lit(False))
    hour = F.when((F.col("kind") == INTERVAL) | followed, OF_DAY).otherwise(F.pmod(epoch_hour, F.lit(24)))
    day = F.to_date(F.timestamp_seconds(epoch_hour * 3600))
    rows = minutes.withColumn(PARTITION, day).withColumn(HOUR, hour.cast("int"))
    refused_rows = refused.withColumn("kind", F.lit(REFUSED)).withColumn(HOUR, F.lit(OF_DAY))
    return rows.unionByName(refused_rows, allowMissingColumns=True).select(*stored_schema().names)


def find_touched(rows: DataFrame) -> Touched:
    """Return the days and hours of these rows."""
    hour = F.floor(F.col("minute") / HOUR_MINUTES).alias("epoch_hour")
    hours = rows.select(PARTITION, hour).distinct().collect()
    days = sorted({row[0] for row in hours if row[0] is not None})
    return Touched(days, sorted({int(row[1]) for row in hours if row[1] is not None}))


def roll_up(spark: SparkSession, out: str, config: Path | None = None) -> RollUp:
    """Return the function that replaces tables under `out` after a batch.

    Raises ConfigError if `out` has tables of a batch run or of an older stream.
    """
    goals = judged.load_objectives(config)
    _check(Folders(spark), out)

    def replace_tables(rows: DataFrame, which: Touched) -> None:
        with caching_rows() as keep:
            _write_tables(Store(spark, out, which.days, which.hours), rows, which, keep, goals)

    return replace_tables


def _write_tables(
    store: Store,
    rows: DataFrame,
    which: Touched,
    keep: Keep,
    goals: judged.Goals,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    of_days = rows.filter(F.col(PARTITION).isin(which.days))
    day_rows = keep(_merge_intervals(of_days.filter((F.col(HOUR) == OF_DAY) & (F.col("kind") != REFUSED))))
    in_hours = F.floor(F.col("minute") / HOUR_MINUTES).isin(which.hours)
    of_hours = of_days.filter(F.col(HOUR).isin([hour % 24 for hour in which.hours]) & in_hours)
    minutes = keep(of_hours.select(*minutes_schema().names).unionByName(day_rows.filter(in_hours)))
    write_series(store, minutes, keep)
    written = {table: _of_days(store, table, which) for table in OF_OTHER_HOURS}
    lags = keep(groups.lag_minute(day_rows, written[COUNTERS_MINUTE], now_ms))
    written[LAG_MINUTE] = store.shape_rows(LAG_MINUTE, lags)
    store.write(LAG_MINUTE, lags)
    store.write(PROCESSES, processes.process_rows(day_rows, now_ms))
    store.write(REJECTS, processes.count_rejects(of_days.filter(F.col("kind") == REFUSED)))
    write_judged(store, written, which.days, goals)


OF_OTHER_HOURS = (COUNTERS_MINUTE, COUNTERS_HOUR, LATENCIES_HOUR, GAUGES_MINUTE)  # their days are read back


def _of_days(store: Store, table: Table, which: Touched) -> DataFrame:
    """Read all rows of the touched days, including the hours without rows in this batch."""
    return store.read(table).filter(F.col(PARTITION).isin(which.days))


def _merge_intervals(rows: DataFrame) -> DataFrame:
    """Merge the rows of the same interval into one."""
    interval = ("kind", "minute", "process", "instance", "seq", "from_ms", "to_ms")
    sums = {"lines": F.sum("lines"), "copies": F.sum("copies"), "is_last": F.bool_or("is_last")}
    once = (
        rows.filter(F.col("kind") == INTERVAL)
        .groupBy(*interval)
        .agg(*(one.alias(name) for name, one in sums.items()))
    )
    others = rows.filter(F.col("kind") != INTERVAL).select(*minutes_schema().names)
    return others.unionByName(once, allowMissingColumns=True)


def _check(folders: Folders, out: str) -> None:
    path = table_path(out, COUNTERS_MINUTE)
    has_day_files = any(
        name.endswith(".parquet")
        for day in folders.list_names(path)
        for name in folders.list_names(f"{path}/{day}")
    )
    if has_day_files or folders.exists(f"{out.rstrip('/')}/stream/arrived"):
        raise ConfigError(
            f"{out} is of a batch run, or of a stream of a version before, which knew no hours: give another "
            "folder as --out; what is still in the samples' folder is read into it"
        )
