"""Slices: what one process added to one series in one minute. Everything else is made from them.

The lines are read once. Each good line gives one row for its number (a histogram's is its sum) and one for
each of its buckets; rows are added up by minute, series and `block`, 64 sequence numbers that share it.
`seen` is the set of sequence numbers of the block as bits, so that `lines` different from its size shows that
a line was there twice (metrics_job.duplicates). Rows of buckets carry no names, only the ids of their series:
they are many, and their names are the same as those of the sum's row.

An id is a 64-bit hash of the names; `series` has the instance in it, `lane` the process, `merged` neither.
Refused lines travel along as rows of the kind `reject`: `metric` is the reason, `detail` the file.

Minute: of the interval's end. A clock that stepped back (`to` < `from`) makes an interval of 0 s, counted.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.read import FILE, KIND, REASON, key_columns
from metrics_job.tables import PARTITION

MINUTE_MS = 60_000
DAY_MINUTES = 24 * 60
BLOCK = 64
SUM = -1  # in `bucket`: the row of the line's own number
NAMES = ("metric", "process", "instance", "topic", "group", "detail")
KEY = ("kind", "minute", "series", "lane", "merged", "bucket", "block", *NAMES)
COPIES = "copies"
HISTOGRAM_INPUT = (
    "minute",
    "lane",
    "merged",
    "bucket",
    "total",
    "metric",
    "process",
    "topic",
    "group",
    "detail",
)
BUCKET, REJECT = "bucket", "reject"  # kinds of rows besides those of metrics
ODD = "odd"  # a line that metrics_job.arrow leaves to Spark's reader


def slices(lines: DataFrame) -> DataFrame:
    """Lines of metrics_job.read (with `copies`, or each as one) added up.

    `minute` counts minutes since the epoch (null for rejects). Columns: KEY, and lines, copies, seen, total,
    seconds, last, max, min, mean_sum, from_ms, to_ms, clock_steps.
    """
    return lines.transform(_named).transform(_contributions).groupBy(*KEY).agg(*_sums())


def in_range(lines: DataFrame, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """Lines whose interval ends in [from_ms, to_ms), and all that cannot be read."""
    end, kept = F.col("to"), F.lit(True)
    if from_ms is not None:
        kept = kept & (end >= from_ms)
    if to_ms is not None:
        kept = kept & (end < to_ms)
    return lines.filter(F.col(REASON).isNotNull() | kept)


def _named(lines: DataFrame) -> DataFrame:
    refused = F.col(REASON).isNotNull()
    topic, group, detail = key_columns()
    who = ("metric", "labels")
    copies = F.col(COPIES) if COPIES in lines.columns else F.lit(1).cast("long")
    return lines.select(
        F.when(refused, REJECT).otherwise(F.col(KIND)).alias("kind"),
        F.when(~refused, F.floor(F.col("to") / MINUTE_MS)).otherwise(_day_given(lines)).alias("minute"),
        F.xxhash64("instance", "process", *who).alias("series"),
        F.xxhash64("process", *who).alias("lane"),
        F.xxhash64(*who).alias("merged"),
        F.when(refused, F.col(REASON)).otherwise(F.col("metric")).alias("metric"),
        *(F.when(~refused, F.col(name)).alias(name) for name in ("process", "instance", "seq")),
        F.when(~refused, topic).alias("topic"),
        F.when(~refused, group).alias("group"),
        F.when(refused, F.col(FILE)).otherwise(detail).alias("detail"),
        "from",
        "to",
        F.when(F.col(KIND) == "histogram", F.col("sum")).otherwise(F.col("value")).alias("number"),
        F.when(~refused & (F.col(KIND) == "histogram"), F.col("buckets")).alias("buckets"),
        "counts",
        copies.alias(COPIES),
    )


def _day_given(lines: DataFrame) -> Column:
    """The first minute of the day that the lines say they belong to; null where they do not say."""
    if PARTITION not in lines.columns:
        return F.lit(None).cast("long")
    return F.unix_date(PARTITION).cast("long") * DAY_MINUTES


def _contributions(named: DataFrame) -> DataFrame:
    """One row for the number, one for each bucket."""
    none = F.array().cast("array<int>")
    interval = F.when(F.col("kind") == "process", (F.col("seq") % BLOCK).cast("int")).otherwise(SUM)
    entries = F.concat(F.array(interval), F.coalesce(F.col("buckets"), none))
    rows = named.select("*", F.posexplode(entries).alias("position", "bucket"))
    first = F.col("position") == 0
    counted = F.get(F.col("counts"), F.col("position") - 1)
    return rows.select(
        F.when(first, F.col("kind")).otherwise(F.lit(BUCKET)).alias("kind"),
        "minute",
        "series",
        "lane",
        "merged",
        "bucket",
        F.floor(F.col("seq") / BLOCK).alias("block"),
        *(F.when(first, F.col(name)).alias(name) for name in NAMES),
        F.when(first, F.col("number")).otherwise(counted).alias("number"),
        F.expr(f"shiftleft(1L, cast(seq % {BLOCK} as int))").alias("bit"),
        "from",
        "to",
        COPIES,
    )


def _sums() -> list[Column]:
    number, end = F.col("number"), F.col("to")
    length = end - F.col("from")
    return [
        F.count(F.lit(1)).alias("lines"),
        F.sum(COPIES).alias(COPIES),
        F.bit_or("bit").alias("seen"),
        F.sum(number).alias("total"),
        (F.sum(F.greatest(length, F.lit(0))) / 1000).alias("seconds"),
        F.max_by(number, end).alias("last"),
        F.max(number).alias("max"),
        F.min(number).alias("min"),
        F.min("from").alias("from_ms"),
        F.max("to").alias("to_ms"),
        F.count_if(length < 0).alias("clock_steps"),
    ]
