"""Histograms by minute and hour, made in Python workers by Arrow (metrics_job.arrow.histograms).

Percentiles are those of ddmq_common.metrics: the upper edge of the first bucket at which the counts reach the
fraction.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.arrow.histograms import GIVEN, merged, schema
from metrics_job.arrow.spark import map_in_arrow
from metrics_job.minutes import DAY_MINUTES
from metrics_job.rollups.numbers import minute_start


def latencies(made: DataFrame) -> DataFrame:
    """From metrics_job.minutes: rows of latencies_minute and latencies_hour; `period` says which. Worth
    persisting."""
    rows = made.filter(F.col("kind") == "histogram").select(*GIVEN)
    day = F.floor(F.col("minute") / DAY_MINUTES)
    together = rows.repartition("metric", "topic", "group", "detail", day)
    return map_in_arrow(together, merged, schema()).withColumn("start", minute_start())


def of_period(rows: DataFrame, period: str) -> DataFrame:
    """Those of "minute" or "hour"."""
    return rows.filter(F.col("period") == period)
