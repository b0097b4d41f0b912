"""Hours that are not like the same hour of the same weekday in the weeks before.

Compared are totals of the counters that say how much flows and how much goes wrong, and the 99th percentile
of every histogram, by topic and group. Usual is the median of up to WEEKS former weeks; a deviation is told
in robust standard deviations (1.4826 times the median distance from the median), which are taken as at least
a tenth of what is usual and at least 1, so that a flat history does not make every change strange. A flow
that is there in former weeks and not now counts as 0.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

WEEKS = 4
WEEKS_MIN = 2  # less history says nothing
STRANGE = 3.5  # robust standard deviations
SPREAD_MIN_SHARE, SPREAD_MIN = 0.1, 1.0
FLOWS = (
    "ddmq_sends_total",
    "ddmq_delivered_total",
    "ddmq_acked_total",
    "ddmq_failed_total",
    "ddmq_redelivered_total",
    "ddmq_lease_timeouts_total",
    "ddmq_dead_letters_total",
    "ddmq_delay_fired_total",
)
KEY = ("start", "metric", "topic", "group")


def hour_values(counters_hour: DataFrame, latencies_hour: DataFrame) -> DataFrame:
    """KEY, value, and whether it is a flow (of which nothing is 0)."""
    flows = (
        counters_hour.filter(F.col("metric").isin(*FLOWS)).groupBy(*KEY).agg(F.sum("total").alias("value"))
    )
    slow = (
        latencies_hour.filter(F.col("process") == "").groupBy(*KEY).agg(F.max("p99").alias("value"))
    )  # the worst of several details
    return flows.withColumn("flow", F.lit(True)).unionByName(slow.withColumn("flow", F.lit(False)))


def anomalies_hour(now: DataFrame, former: DataFrame, hours: DataFrame) -> DataFrame:
    """`now` and `former`: hour_values of the days to judge and of those before; `hours`: `start` of every
    hour that is judged, so that a flow that stopped is seen."""
    week = F.explode(F.sequence(F.lit(1), F.lit(WEEKS)))
    past = (
        former.withColumn("week", week)
        .withColumn("start", F.timestamp_seconds(F.unix_timestamp("start") + F.col("week") * 7 * 86_400))
        .join(F.broadcast(hours), on="start", how="left_semi")
        .groupBy(*KEY, "flow")
        .agg(F.collect_list("value").alias("past"))
        .filter(F.size("past") >= WEEKS_MIN)
        .withColumn("usual", _median(F.col("past")))
    )
    distances = F.transform("past", lambda one: F.abs(one - F.col("usual")))
    spread = F.greatest(1.4826 * _median(distances), SPREAD_MIN_SHARE * F.abs("usual"), F.lit(SPREAD_MIN))
    return (
        past.join(now.drop("flow"), on=list(KEY), how="left")
        .withColumn("value", F.coalesce("value", F.when(F.col("flow"), 0.0)))
        .withColumn("deviation", (F.col("value") - F.col("usual")) / spread)
        .filter(F.abs("deviation") >= STRANGE)
        .select(*KEY, "value", "usual", "deviation", F.size("past").alias("weeks"))
    )


def _median(values: Column) -> Column:
    ordered, size = F.sort_array(values), F.size(values)
    low = F.get(ordered, F.floor((size - 1) / 2).cast("int"))
    return (low + F.get(ordered, F.floor(size / 2).cast("int"))) / 2
