"""Histograms by minute and hour: merged exactly, bucket by bucket, over intervals and over processes.

Percentiles are those of ddmq_common.metrics: the upper edge of the first bucket at which the counts reach the
fraction. Rows are numbers only until the end; the names of a series come back by its id.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from ddmq_common.metrics.buckets import BUCKETS, upper_edge
from metrics_job.rollups.numbers import MINUTE_KEY, minute_start
from metrics_job.slices import names

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
HOUR_MINUTES = 60


def bucket_minutes(made: DataFrame) -> DataFrame:
    """minute, id, bucket, counted: every bucket of every lane (with process) and merged lane (without).

    Bucket -1 counts nothing and holds the sum of the values. Worth persisting: both tables come from it.
    """
    return (
        made.filter(F.col("kind").isin("bucket", "histogram"))
        .withColumn("id", F.explode(F.array("lane", "merged")))
        .groupBy("minute", "id", "bucket")
        .agg(F.sum("total").alias("counted"))
    )


def bucket_hours(minutes: DataFrame) -> DataFrame:
    """The same by hour, from minutes; `minute` is the hour's first one."""
    first = F.floor(F.col("minute") / HOUR_MINUTES) * HOUR_MINUTES
    return minutes.groupBy(first.alias("minute"), "id", "bucket").agg(F.sum("counted").alias("counted"))


def latencies(counted: DataFrame, made: DataFrame) -> DataFrame:
    """latencies_minute or latencies_hour from the buckets; `made` has the names."""
    return (
        counted.transform(_with_running)
        .groupBy("minute", "id")
        .agg(*_summed())
        .filter(F.col("count") > 0)
        .join(F.broadcast(_lane_names(made)), on="id", how="inner")
        .select(
            minute_start().alias("start"),
            *MINUTE_KEY[1:],
            "count",
            "sum",
            F.col("entries.bucket").alias("buckets"),
            F.col("entries.n").alias("counts"),
            *(_edge(F.col(name)).alias(name) for name in (*PERCENTILES, "max")),
        )
    )


def _with_running(counted: DataFrame) -> DataFrame:
    """n of each bucket, n of it and all before, n of all. A bucket without counts is left out."""
    lane = Window.partitionBy("minute", "id")
    ordered = lane.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    n = F.when(F.col("bucket") >= 0, F.col("counted").cast("long")).otherwise(0)
    return (
        counted.withColumn("n", n)
        .filter((F.col("n") > 0) | (F.col("bucket") < 0))
        .withColumn("running", F.sum("n").over(ordered))
        .withColumn("all", F.sum("n").over(lane))
    )


def _summed() -> list[Column]:
    bucket, real = F.col("bucket"), F.col("bucket") >= 0
    return [
        F.sum("n").alias("count"),
        F.max(F.when(~real, F.col("counted"))).alias("sum"),
        F.sort_array(F.collect_list(F.when(real, F.struct("bucket", "n")))).alias("entries"),
        *(
            F.min(F.when(real & (F.col("running") >= F.col("all") * F.lit(fraction)), bucket)).alias(name)
            for name, fraction in PERCENTILES.items()
        ),
        F.max(F.when(real, bucket)).alias("max"),
    ]


def _edge(bucket: Column) -> Column:
    edges = F.array(*(F.lit(upper_edge(index)) for index in range(BUCKETS)))
    return F.get(edges, bucket)


def _lane_names(made: DataFrame) -> DataFrame:
    lanes = names(made, "lane").withColumnRenamed("lane", "id")
    merged = names(made, "merged").withColumnRenamed("merged", "id").withColumn("process", F.lit(""))
    return lanes.unionByName(merged)
