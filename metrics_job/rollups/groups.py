"""Compute lag and time to drain of consumer groups by minute, and their error ratios by hour."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.arrow import Batches, map_in_arrow
from metrics_job.lag import COLUMNS, follow_lags, lag_schema
from metrics_job.minutes import DAY_MINUTES, FOLLOWED, INTERVAL, MINUTE_MS
from metrics_job.rollups.series import minute_start
from metrics_job.tables import SUBSCRIPTION

DAY_MS = DAY_MINUTES * MINUTE_MS
MINUTES_APART_MAX = 5  # a lag older than this says nothing about the present rate
FINISHED = ("ddmq_acked_total", "ddmq_dead_letters_total", "ddmq_skipped_total")
GROWTH_MIN_MS = 30_000  # what a lag grew by in less says little
COUNTED = {
    "delivered": "ddmq_delivered_total",
    "acked": "ddmq_acked_total",
    "failed": "ddmq_failed_total",
    "retried": "ddmq_retry_steps_total",
    "redelivered": "ddmq_redelivered_total",
    "timeouts": "ddmq_lease_timeouts_total",
    "dead_lettered": "ddmq_dead_letters_total",
}


def lag_minute(minutes: DataFrame, counters: DataFrame, now_ms: int) -> DataFrame:
    """Build lag_minute from metrics_job.minutes and counters_minute: one row per subscription and minute
    with a lag.

    Lags and blocked keys of several proxies are summed, as each reports the queues that it owns; of ages the
    highest counts. All values of a row are of one instant (metrics_job.lag): `lag` is the last of the
    minute, `lag_max` the highest. `arrived_per_s` is the finished rate plus the growth of the lag since the
    minute before; without such a minute (of the same day, at most MINUTES_APART_MAX before), it is the rate
    of messages stored in the topic. `time_to_drain_s` is the lag divided by the excess of the finished over
    the arrived rate. Clocks ahead of `now_ms` are corrected.
    """
    lags = _lag_rows(minutes, clocks_ahead(minutes, now_ms))
    last = minutes.filter(F.col("kind") == INTERVAL).agg(F.max("minute").alias("minute"))
    newest = last.select(F.least(minute_start(), F.timestamp_millis(F.lit(now_ms))).alias("newest"))
    newest = newest.select(F.date_trunc("minute", "newest").alias("newest"))
    is_finished = F.col("metric").isin(*FINISHED)
    finished = _rates_by_key(counters, newest, is_finished, "finished_per_s", *SUBSCRIPTION)
    stored = (F.col("metric") == "ddmq_sends_total") & (F.col("detail") == "code=0")
    sent = _rates_by_key(counters, newest, stored, "stored_per_s", "start", "topic")
    return (
        lags.join(finished, on=list(SUBSCRIPTION), how="left")
        .join(sent, on=["start", "topic"], how="left")
        .withColumn("finished_per_s", F.coalesce("finished_per_s", F.lit(0.0)))
        .transform(_with_arrivals)
        .withColumn("time_to_drain_s", _time_to_drain())
    )


def ratios_hour(counters: DataFrame) -> DataFrame:
    """Compute the ratios of an hour from counters_hour. A ratio without a denominator is null.

    * error_ratio: failed messages and lease timeouts per delivered message;
    * retry_ratio: redeliveries and retry steps per delivered message;
    * dead_letter_ratio: dead letters per finished message (acked or dead).
    """
    metric, total = F.col("metric"), F.col("total")
    sums = {name: F.sum(F.when(metric == one, total).otherwise(0.0)) for name, one in COUNTED.items()}
    subscriptions = counters.filter(metric.isin(*COUNTED.values())).groupBy(*SUBSCRIPTION)
    delivered, dead = F.col("delivered"), F.col("dead_lettered")
    ratios = {
        "error_ratio": _share_of(F.col("failed") + F.col("timeouts"), delivered),
        "retry_ratio": _share_of(F.col("redelivered") + F.col("retried"), delivered),
        "dead_letter_ratio": _share_of(dead, F.col("acked") + dead),
    }
    return subscriptions.agg(*(one.alias(name) for name, one in sums.items())).withColumns(ratios)


def clocks_ahead(minutes: DataFrame, now_ms: int) -> dict[str, int]:
    """Return by how many ms the clocks of processes are ahead, from samples that would be in the future.

    It is one number per process for the entire run, so that its samples stay consistent across midnight.
    """
    last = minutes.filter(F.col("kind") == INTERVAL).groupBy("process").agg(F.max("to_ms").alias("last_ms"))
    rows = last.filter(F.col("last_ms") > now_ms).collect()
    return {row["process"]: row["last_ms"] - now_ms for row in rows}


def _lag_rows(minutes: DataFrame, ahead: Mapping[str, int]) -> DataFrame:
    """Return lag_minute's columns from gauges, and `at_ms`, the time of the minute's last lag value."""
    none = F.lit(0).cast("long").alias("from_ms")
    values = F.coalesce("told", F.array(F.struct("to_ms", "seq", F.col("last").alias("value"))))
    gauges = minutes.filter((F.col("kind") == "gauge") & F.col("metric").isin(*FOLLOWED))
    gauge_rows = _by_day(gauges.withColumn("told", values), ahead).select(
        "day", "group", "topic", "metric", "process", "instance", none, "to_ms", "seq",
        F.col("last").alias("value"), "told",
    )  # fmt: skip
    names = gauge_rows.select("day", "group", "topic", "process").distinct()
    runs = _run_rows(_by_day(minutes.filter(F.col("kind") == INTERVAL), ahead))
    rows = gauge_rows.unionByName(runs.join(names, on=["day", "process"]), allowMissingColumns=True)
    together = rows.select(*COLUMNS).repartition("day", "group", "topic")
    together = together.sortWithinPartitions("day", "group", "topic")

    def follow_batches(batches: Batches) -> Batches:
        return follow_lags(batches, ahead)

    lags = map_in_arrow(together, follow_batches, lag_schema())
    return lags.withColumn("start", minute_start())


def _by_day(rows: DataFrame, ahead: Mapping[str, int]) -> DataFrame:
    """Add the column `day` by corrected clocks. A row with values of two days becomes two rows."""
    if not ahead:
        return rows.withColumn("day", F.floor(F.col("minute") / DAY_MINUTES))
    clocks = rows.sparkSession.createDataFrame(list(ahead.items()), "process string, ahead_ms long")
    rows = rows.join(F.broadcast(clocks), on="process", how="left").fillna(0, ["ahead_ms"])

    def day_of(to_ms: Column) -> Column:
        return F.floor((to_ms - F.col("ahead_ms")) / DAY_MS)

    days = F.transform("told", lambda one: day_of(one["to_ms"]))
    days = F.array_distinct(F.coalesce(days, F.array(day_of(F.col("to_ms")))))
    values = F.filter("told", lambda one: day_of(one["to_ms"]) == F.col("day"))
    return rows.withColumn("day", F.explode(days)).withColumn("told", values)


def _run_rows(own: DataFrame) -> DataFrame:
    """Return a row for each instance and day, as metrics_job.lag expects it, from the intervals `own`."""
    of_run = {
        "from_ms": F.coalesce(F.min(F.when(F.col("seq") > 0, F.col("to_ms"))), F.max("to_ms")),
        "to_ms": F.max("to_ms"),
        "seq": F.coalesce(F.max(F.when(F.col("is_last"), F.col("seq"))), F.lit(-1)).cast("long"),
        "value": F.median(F.when(F.col("seq") > 0, F.col("to_ms") - F.col("from_ms"))).cast("double"),
    }
    runs = own.groupBy("day", "process", "instance").agg(*(one.alias(name) for name, one in of_run.items()))
    return runs.withColumn("metric", F.lit(""))


def _rates_by_key(counters: DataFrame, newest: DataFrame, which: Column, name: str, *key: str) -> DataFrame:
    """Compute rates per second by key: each process's total over its covered seconds, summed over the
    processes.

    A process that covers no time (its clock stepped back, or it has just started) has no rate. Some
    processes may not have reported the newest minute yet, so its rates are those of two minutes.
    """
    sums = (
        counters.filter(which)
        .groupBy(*key, "process")
        .agg(F.sum("total").alias("total"), F.max("seconds").alias("seconds"))
    )
    before = sums.join(F.broadcast(newest), F.col("start") == F.col("newest") - F.expr("INTERVAL 1 MINUTE"))
    both = sums.unionByName(before.withColumn("start", F.col("newest")).drop("newest"))
    return (
        both.groupBy(*key, "process")
        .agg(F.try_divide(F.sum("total"), F.sum("seconds")).alias(name))
        .groupBy(*key)
        .agg(F.sum(name).alias(name))
    )


def _with_arrivals(lags: DataFrame) -> DataFrame:
    """Add `arrived_per_s` from the growth since the minute before, or over two minutes if the newest has
    only begun."""
    before = Window.partitionBy("group", "topic", F.to_date("start")).orderBy("start")
    at, then = F.col("at_ms"), F.lag("at_ms").over(before)
    is_new_minute = at - then < GROWTH_MIN_MS
    lag_then = F.when(is_new_minute, F.lag("lag", 2).over(before)).otherwise(F.lag("lag").over(before))
    apart = (at - F.when(is_new_minute, F.lag("at_ms", 2).over(before)).otherwise(then)) / 1000
    growth = F.try_divide(F.col("lag") - lag_then, apart)  # no newer report: no rate
    recent = F.when(apart <= MINUTES_APART_MAX * 60, F.col("finished_per_s") + growth)
    arrived = F.greatest(F.coalesce(recent, F.col("stored_per_s"), F.lit(0.0)), F.lit(0.0))
    return lags.withColumn("arrived_per_s", arrived)


def _time_to_drain() -> Column:
    shrinking = F.col("finished_per_s") - F.col("arrived_per_s")
    return F.when(F.col("lag") == 0, 0.0).when(shrinking > 0, F.col("lag") / shrinking)


def _share_of(count: Column, total: Column) -> Column:
    return F.when(total > 0, count / total)
