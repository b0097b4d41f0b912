"""How consumer groups are doing: lag and time to drain by minute, ratios of what went wrong by hour."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.arrow import Batches, map_in_arrow
from metrics_job.lag import COLUMNS, followed, schema
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


def lag_minute(made: DataFrame, counters: DataFrame, now_ms: int) -> DataFrame:
    """From metrics_job.minutes and counters_minute: one row per subscription and minute that told its lag.

    Lags and blocked keys of several proxies add up (each tells of the queues it holds), ages are the worst,
    all of them at one instant (metrics_job.lag): `lag` at the last of the minute, `lag_max` at the highest.
    `arrived_per_s` is what was finished plus what the lag grew by since the minute before; where
    there is no minute before (of the same day, at most MINUTES_APART_MAX), what was stored in the topic.
    `time_to_drain_s` is the lag over what is finished more than arrives. Clocks ahead of `now_ms` are put
    right by what they are ahead.
    """
    lags = _lags(made, clocks_ahead(made, now_ms))
    last = made.filter(F.col("kind") == INTERVAL).agg(F.max("minute").alias("minute"))
    newest = last.select(F.least(minute_start(), F.timestamp_millis(F.lit(now_ms))).alias("newest"))
    newest = newest.select(F.date_trunc("minute", "newest").alias("newest"))
    is_finished = F.col("metric").isin(*FINISHED)
    finished = _rates(counters, newest, is_finished, "finished_per_s", *SUBSCRIPTION)
    stored = (F.col("metric") == "ddmq_sends_total") & (F.col("detail") == "code=0")
    sent = _rates(counters, newest, stored, "stored_per_s", "start", "topic")
    return (
        lags.join(finished, on=list(SUBSCRIPTION), how="left")
        .join(sent, on=["start", "topic"], how="left")
        .withColumn("finished_per_s", F.coalesce("finished_per_s", F.lit(0.0)))
        .transform(_with_arrivals)
        .withColumn("time_to_drain_s", _time_to_drain())
    )


def ratios_hour(counters: DataFrame) -> DataFrame:
    """From counters_hour. error_ratio: failed and timed out of what was delivered; retry_ratio: redelivered
    and retry steps of delivered; dead_letter_ratio: of what was finished (acked and dead). Null without any.
    """
    metric, total = F.col("metric"), F.col("total")
    sums = {name: F.sum(F.when(metric == one, total).otherwise(0.0)) for name, one in COUNTED.items()}
    found = counters.filter(metric.isin(*COUNTED.values())).groupBy(*SUBSCRIPTION)
    delivered, dead = F.col("delivered"), F.col("dead_lettered")
    ratios = {
        "error_ratio": _ratio(F.col("failed") + F.col("timeouts"), delivered),
        "retry_ratio": _ratio(F.col("redelivered") + F.col("retried"), delivered),
        "dead_letter_ratio": _ratio(dead, F.col("acked") + dead),
    }
    return found.agg(*(one.alias(name) for name, one in sums.items())).withColumns(ratios)


def clocks_ahead(made: DataFrame, now_ms: int) -> dict[str, int]:
    """Return by how many ms the clocks of processes are ahead: nobody has written in the future.

    It is one number for a process over the whole run, so that a midnight in it cuts nothing in two.
    """
    last = made.filter(F.col("kind") == INTERVAL).groupBy("process").agg(F.max("to_ms").alias("last_ms"))
    rows = last.filter(F.col("last_ms") > now_ms).collect()
    return {row["process"]: row["last_ms"] - now_ms for row in rows}


def _lags(made: DataFrame, ahead: Mapping[str, int]) -> DataFrame:
    """lag_minute's columns from gauges, and `at_ms`: when the lag was told last in that minute."""
    none = F.lit(0).cast("long").alias("from_ms")
    values = F.coalesce("told", F.array(F.struct("to_ms", "seq", F.col("last").alias("value"))))
    gauges = made.filter((F.col("kind") == "gauge") & F.col("metric").isin(*FOLLOWED))
    told = _by_day(gauges.withColumn("told", values), ahead).select(
        "day", "group", "topic", "metric", "process", "instance", none, "to_ms", "seq",
        F.col("last").alias("value"), "told",
    )  # fmt: skip
    names = told.select("day", "group", "topic", "process").distinct()
    runs = _runs(_by_day(made.filter(F.col("kind") == INTERVAL), ahead))
    rows = told.unionByName(runs.join(names, on=["day", "process"]), allowMissingColumns=True)
    together = rows.select(*COLUMNS).repartition("day", "group", "topic")
    together = together.sortWithinPartitions("day", "group", "topic")

    def work(batches: Batches) -> Batches:
        return followed(batches, ahead)

    found = map_in_arrow(together, work, schema())
    return found.withColumn("start", minute_start())


def _by_day(rows: DataFrame, ahead: Mapping[str, int]) -> DataFrame:
    """With the column `day` by right clocks. A row whose values are of two days then becomes one of each."""
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


def _runs(own: DataFrame) -> DataFrame:
    """A row for each instance and day, as metrics_job.lag wants it, from intervals."""
    of_run = {
        "from_ms": F.coalesce(F.min(F.when(F.col("seq") > 0, F.col("to_ms"))), F.max("to_ms")),
        "to_ms": F.max("to_ms"),
        "seq": F.coalesce(F.max(F.when(F.col("is_last"), F.col("seq"))), F.lit(-1)).cast("long"),
        "value": F.median(F.when(F.col("seq") > 0, F.col("to_ms") - F.col("from_ms"))).cast("double"),
    }
    runs = own.groupBy("day", "process", "instance").agg(*(one.alias(name) for name, one in of_run.items()))
    return runs.withColumn("metric", F.lit(""))


def _rates(counters: DataFrame, newest: DataFrame, which: Column, name: str, *key: str) -> DataFrame:
    """Per second, by key: each process's total over its seconds, added up over the processes. One that
    covers no time (its clock stepped back, or it has just started) has no rate. The newest minute is not over
    for everybody: its rates are those of two minutes."""
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
    """Against the minute before; where the newest minute has only begun, the one before that."""
    before = Window.partitionBy("group", "topic", F.to_date("start")).orderBy("start")
    at, then = F.col("at_ms"), F.lag("at_ms").over(before)
    begun = at - then < GROWTH_MIN_MS
    lag_then = F.when(begun, F.lag("lag", 2).over(before)).otherwise(F.lag("lag").over(before))
    apart = (at - F.when(begun, F.lag("at_ms", 2).over(before)).otherwise(then)) / 1000
    growth = F.try_divide(F.col("lag") - lag_then, apart)  # nothing new was told: no rate
    recent = F.when(apart <= MINUTES_APART_MAX * 60, F.col("finished_per_s") + growth)
    arrived = F.greatest(F.coalesce(recent, F.col("stored_per_s"), F.lit(0.0)), F.lit(0.0))
    return lags.withColumn("arrived_per_s", arrived)


def _time_to_drain() -> Column:
    shrinking = F.col("finished_per_s") - F.col("arrived_per_s")
    return F.when(F.col("lag") == 0, 0.0).when(shrinking > 0, F.col("lag") / shrinking)


def _ratio(part: Column, whole: Column) -> Column:
    return F.when(whole > 0, part / whole)
