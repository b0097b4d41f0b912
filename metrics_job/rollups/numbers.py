"""Counters and gauges by minute and hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.minutes import INTERVAL, MINUTE_MS
from metrics_job.tables import SERIES_KEY

MINUTE_KEY = ("start", *SERIES_KEY)


def minute_start() -> Column:
    """The timestamp of the column `minute`."""
    return F.timestamp_millis(F.col("minute") * MINUTE_MS)


def counters_minute(made: DataFrame) -> DataFrame:
    """From metrics_job.minutes: sums of deltas. `seconds` is what the process's intervals of the minute
    cover."""
    totals = (
        made.filter(F.col("kind") == "counter")
        .groupBy(minute_start().alias("start"), *SERIES_KEY)
        .agg(F.sum("total").alias("total"))
    )
    return totals.transform(lambda some: _with_rate(some, covered(made, minute_start())))


def counters_hour(minutes: DataFrame, made: DataFrame) -> DataFrame:
    """The same from counters_minute; `seconds` are those of the whole hour, with minutes of no change."""
    hour = F.date_trunc("hour", minute_start())
    totals = minutes.groupBy(F.date_trunc("hour", "start").alias("start"), *SERIES_KEY).agg(
        F.sum("total").alias("total")
    )
    return totals.transform(lambda some: _with_rate(some, covered(made, hour)))


def covered(made: DataFrame, start: Column) -> DataFrame:
    """start, process, seconds that its intervals of that time cover."""
    length = F.greatest(F.col("to_ms") - F.col("from_ms"), F.lit(0))
    return (
        made.filter(F.col("kind") == INTERVAL)
        .groupBy(start.alias("start"), "process")
        .agg((F.sum(length) / 1000).alias("seconds"))
    )


def gauges_minute(made: DataFrame) -> DataFrame:
    """The last value by time, extremes, and the mean of the samples."""
    return (
        made.filter(F.col("kind") == "gauge")
        .groupBy(minute_start().alias("start"), *SERIES_KEY)
        .agg(
            F.max(F.struct("to_ms", "seq", "last"))["last"].alias("last"),
            F.max("max").alias("max"),
            F.min("min").alias("min"),
            (F.sum("total") / F.sum("lines")).alias("mean"),
        )
    )


def gauges_hour(minutes: DataFrame) -> DataFrame:
    """The same from gauges_minute; the mean is that of the minutes."""
    return minutes.groupBy(F.date_trunc("hour", "start").alias("start"), *SERIES_KEY).agg(
        F.max_by("last", "start").alias("last"),
        F.max("max").alias("max"),
        F.min("min").alias("min"),
        F.mean("mean").alias("mean"),
    )


def _with_rate(totals: DataFrame, lived: DataFrame) -> DataFrame:
    rate = F.when(F.col("seconds") > 0, F.col("total") / F.col("seconds"))
    joined = totals.join(F.broadcast(lived), on=["start", "process"], how="left")
    return joined.select(*MINUTE_KEY, "total", "seconds", rate.alias("per_s"))
