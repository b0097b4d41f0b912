"""How consumer groups are doing: lag and time to drain by minute, ratios of what went wrong by hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

MINUTES_APART_MAX = 5  # a lag older than this says nothing about the present rate
FINISHED = ("ddmq_acked_total", "ddmq_dead_letters_total", "ddmq_skipped_total")
LAG_GAUGES = {
    "ddmq_lag": "lag",
    "ddmq_lag_age_ms": "lag_age_ms",
    "ddmq_blocked_keys": "blocked_keys",
    "ddmq_blocked_key_age_ms": "blocked_key_age_ms",
}
COUNTED = {
    "delivered": "ddmq_delivered_total",
    "acked": "ddmq_acked_total",
    "failed": "ddmq_failed_total",
    "retried": "ddmq_retry_steps_total",
    "redelivered": "ddmq_redelivered_total",
    "timeouts": "ddmq_lease_timeouts_total",
    "dead_lettered": "ddmq_dead_letters_total",
}
SUBSCRIPTION = ("start", "group", "topic")


def lag_minute(gauges: DataFrame, counters: DataFrame) -> DataFrame:
    """From gauges_minute and counters_minute: one row per subscription and minute that told its lag.

    Lags and blocked keys of several proxies add up (each tells of the queues it holds), ages are the worst.
    `lag` is what the last sample of the minute told, `lag_max` the sum of the highest of each proxy.
    `arrived_per_s` is what was finished plus what the lag grew by since the minute before; where there is no
    minute before (of the same day, at most MINUTES_APART_MAX), what was stored in the topic.
    `time_to_drain_s` is the lag over what is finished more than arrives.
    """
    lags = _lags(gauges)
    finished = _rates(counters, F.col("metric").isin(*FINISHED), "finished_per_s", *SUBSCRIPTION)
    stored = (F.col("metric") == "ddmq_sends_total") & (F.col("detail") == "code=0")
    sent = _rates(counters, stored, "stored_per_s", "start", "topic")
    return (
        lags.join(finished, on=list(SUBSCRIPTION), how="left")
        .join(sent, on=["start", "topic"], how="left")
        .withColumn("finished_per_s", F.coalesce("finished_per_s", F.lit(0.0)))
        .transform(_with_arrivals)
        .select(
            *SUBSCRIPTION,
            "lag",
            "lag_max",
            "lag_age_ms",
            "finished_per_s",
            "arrived_per_s",
            _time_to_drain().alias("time_to_drain_s"),
            "blocked_keys",
            "blocked_key_age_ms",
        )
    )


def ratios_hour(counters: DataFrame) -> DataFrame:
    """From counters_hour. error_ratio: failed and timed out of what was delivered; retry_ratio: redelivered
    and retry steps of delivered; dead_letter_ratio: of what was finished (acked and dead). Null without any.
    """
    sums = (
        counters.filter(F.col("metric").isin(*COUNTED.values()))
        .groupBy(*SUBSCRIPTION)
        .agg(
            *(
                F.sum(F.when(F.col("metric") == metric, F.col("total")).otherwise(0.0)).alias(name)
                for name, metric in COUNTED.items()
            )
        )
    )
    delivered, dead = F.col("delivered"), F.col("dead_lettered")
    return sums.select(
        *SUBSCRIPTION,
        *COUNTED,
        _ratio(F.col("failed") + F.col("timeouts"), delivered).alias("error_ratio"),
        _ratio(F.col("redelivered") + F.col("retried"), delivered).alias("retry_ratio"),
        _ratio(dead, F.col("acked") + dead).alias("dead_letter_ratio"),
    )


def _lags(gauges: DataFrame) -> DataFrame:
    def of(metric: str, column: str) -> Column:
        return F.when(F.col("metric") == metric, F.col(column))

    return (
        gauges.filter(F.col("metric").isin(*LAG_GAUGES))
        .groupBy(*SUBSCRIPTION)
        .agg(
            F.sum(of("ddmq_lag", "last")).alias("lag"),
            F.coalesce(F.sum(of("ddmq_lag", "max")), F.lit(0.0)).alias("lag_max"),
            F.coalesce(F.max(of("ddmq_lag_age_ms", "last")), F.lit(0.0)).alias("lag_age_ms"),
            F.coalesce(F.sum(of("ddmq_blocked_keys", "last")), F.lit(0.0)).alias("blocked_keys"),
            F.coalesce(F.max(of("ddmq_blocked_key_age_ms", "last")), F.lit(0.0)).alias("blocked_key_age_ms"),
        )
        .withColumn("lag", F.coalesce("lag", F.lit(0.0)))
    )


def _rates(counters: DataFrame, which: Column, name: str, *key: str) -> DataFrame:
    """Per second, by key: each process's total over its seconds, added up over the processes. One that
    covers no time (its clock stepped back, or it has just started) has no rate."""
    return (
        counters.filter(which)
        .groupBy(*key, "process")
        .agg(F.try_divide(F.sum("total"), F.max("seconds")).alias(name))
        .groupBy(*key)
        .agg(F.sum(name).alias(name))
    )


def _with_arrivals(lags: DataFrame) -> DataFrame:
    before = Window.partitionBy("group", "topic", F.to_date("start")).orderBy("start")
    apart = F.unix_timestamp("start") - F.unix_timestamp(F.lag("start").over(before))
    growth = (F.col("lag") - F.lag("lag").over(before)) / apart
    recent = F.when(apart <= MINUTES_APART_MAX * 60, F.col("finished_per_s") + growth)
    arrived = F.greatest(F.coalesce(recent, F.col("stored_per_s"), F.lit(0.0)), F.lit(0.0))
    return lags.withColumn("arrived_per_s", arrived)


def _time_to_drain() -> Column:
    shrinking = F.col("finished_per_s") - F.col("arrived_per_s")
    return F.when(F.col("lag") == 0, 0.0).when(shrinking > 0, F.col("lag") / shrinking)


def _ratio(part: Column, whole: Column) -> Column:
    return F.when(whole > 0, part / whole)
