"""Build the tables of processes and of refused lines."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.minutes import FILE, INTERVAL, REASON
from metrics_job.tables import CORRUPT, PARTITION, line_schema

VANISHED_AFTER_S = 120  # silent for so long while others still wrote
VANISHED_AFTER_INTERVALS = 3  # where its own are so long that this is more
VANISHED_AFTER_MAX_S = 3600 + VANISHED_AFTER_S  # nobody has a second file: the longest interval there is
EXAMPLE_CHARS = 300
RUN = ("date", "process", "instance")


def process_rows(minutes: DataFrame, now_ms: int) -> DataFrame:
    """Return one row per instance and date, with `ended`: `last`, `vanished` or `running`.

    `last`: its last file says that it stopped. `vanished`: other processes wrote for VANISHED_AFTER_S (or
    VANISHED_AFTER_INTERVALS of its own intervals) after its last interval of that date. Samples of a clock
    that is ahead of `now_ms` do not count for this.
    """
    own = minutes.filter(F.col("kind") == INTERVAL).withColumn("date", F.to_date(F.timestamp_millis("to_ms")))
    before = F.lag("to_ms").over(Window.partitionBy(*RUN).orderBy("seq", "from_ms", "to_ms"))
    runs = own.withColumn("gap_s", (F.col("from_ms") - before) / 1000).groupBy(*RUN).agg(*_of_run())
    same_date = Window.partitionBy("date")
    interval_ms = F.coalesce("usual_ms", F.max("usual_ms").over(same_date))
    newest = F.least(F.max("last_ms").over(same_date), F.lit(now_ms))
    return runs.withColumns({"newest_ms": newest, "usual_ms": interval_ms}).select(
        *RUN,
        F.timestamp_millis("first_ms").alias("first_seen"),
        F.timestamp_millis("last_ms").alias("last_seen"),
        "samples",
        "files",
        (F.col("seq_max") - F.col("seq_min") + 1 - F.col("files")).alias("missing"),
        (F.col("copies") - F.col("samples")).alias("duplicates"),
        F.greatest(F.coalesce("gap_s", F.lit(0.0)), F.lit(0.0)).alias("longest_gap_s"),
        _end_state_column().alias("ended"),
        "clock_steps",
        (F.col("usual_ms") / 1000).alias("interval_s"),
    )


def refused_lines(lines: DataFrame) -> DataFrame:
    """Select the refused lines: date (their own, else that of their folder), file, reason, and the beginning
    of the text.

    The text of a line that could be parsed is rebuilt from its fields.
    """
    path = F.col(FILE)
    file = F.regexp_replace(F.regexp_extract(path, r"date(?:=|%3D)[^/]*/.*", 0), "%3D", "=")
    folder = F.try_to_date(F.regexp_extract(file, r"date=(\d{4}-\d\d-\d\d)", 1))
    day = F.col(PARTITION) if PARTITION in lines.columns else folder
    understood = F.to_json(F.struct(*(name for name in line_schema().names if name != CORRUPT)))
    text = F.substring(F.make_valid_utf8(F.coalesce(F.col(CORRUPT), understood)), 1, EXAMPLE_CHARS)
    return lines.filter(F.col(REASON).isNotNull()).select(
        day.alias("date"), F.when(file == "", path).otherwise(file).alias(FILE), REASON, text.alias("text")
    )


def count_rejects(refused: DataFrame) -> DataFrame:
    """Count refused lines by date, file and reason, with one example of each."""
    counted = F.count(F.lit(1)).alias("lines"), F.min("text").alias("example")
    return refused.groupBy("date", FILE, REASON).agg(*counted)


def _of_run() -> list[Column]:
    return [
        F.sum("lines").alias("samples"),
        F.sum("copies").alias("copies"),
        F.count_distinct("seq").alias("files"),
        F.min("seq").alias("seq_min"),
        F.max("seq").alias("seq_max"),
        F.min("from_ms").alias("first_ms"),
        F.max("to_ms").alias("last_ms"),
        F.max("gap_s").alias("gap_s"),
        F.bool_or("is_last").alias("said_last"),
        F.count_if(F.col("to_ms") < F.col("from_ms")).alias("clock_steps"),
        # The first of a process is cut short, one over a full disk or a machine that slept is long.
        F.median(F.when(F.col("seq") > 0, F.col("to_ms") - F.col("from_ms"))).alias("usual_ms"),
    ]


def _end_state_column() -> Column:
    intervals = F.greatest(F.lit(VANISHED_AFTER_S * 1000), VANISHED_AFTER_INTERVALS * F.col("usual_ms"))
    patience = F.when(F.col("usual_ms").isNull(), VANISHED_AFTER_MAX_S * 1000).otherwise(intervals)
    silent = F.col("newest_ms") - F.col("last_ms") > patience
    return F.when(F.col("said_last"), "last").when(silent, "vanished").otherwise("running")
