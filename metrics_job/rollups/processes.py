"""What became of each process, and what the reader refused."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.read import FILE, REASON
from metrics_job.slices import BLOCK
from metrics_job.tables import CORRUPT, line_schema

VANISHED_AFTER_S = 120  # silent for so long while others still wrote
EXAMPLE_CHARS = 300
RUN = ("date", "process", "instance")


def processes(made: DataFrame) -> DataFrame:
    """One row per instance and date. `ended`: `last` when its last file says so, `vanished` when others wrote
    for VANISHED_AFTER_S after its last interval of that date, else `running`."""
    own = made.filter(F.col("instance").isNotNull()).withColumn("date", _date())
    newest = own.groupBy("date").agg(F.max("to_ms").alias("newest_ms"))
    return (
        own.groupBy(*RUN, "block")
        .agg(*_of_block())
        .groupBy(*RUN)
        .agg(*_of_run())
        .join(_intervals(own), on=list(RUN), how="left")
        .join(F.broadcast(newest), on="date", how="inner")
        .select(
            "date",
            "process",
            "instance",
            F.timestamp_millis("first_ms").alias("first_seen"),
            F.timestamp_millis("last_ms").alias("last_seen"),
            "samples",
            "files",
            (F.col("seq_max") - F.col("seq_min") + 1 - F.col("files")).alias("missing"),
            "duplicates",
            F.coalesce("longest_gap_s", F.lit(0.0)).alias("longest_gap_s"),
            _ended().alias("ended"),
            F.coalesce("clock_steps", F.lit(0)).cast("long").alias("clock_steps"),
        )
    )


def rejects(made: DataFrame) -> DataFrame:
    """date, path, file, reason, lines: the date of the folder, unless the lines were given one."""
    path = F.col("detail")
    file = F.regexp_replace(F.regexp_extract(path, r"date(?:=|%3D)[^/]*/.*", 0), "%3D", "=")
    folder = F.try_to_date(F.regexp_extract(file, r"date=(\d{4}-\d\d-\d\d)", 1))
    return (
        made.filter(F.col("kind") == "reject")
        .groupBy(
            F.coalesce(_date(), folder).alias("date"),
            path.alias("path"),
            F.when(file == "", path).otherwise(file).alias("file"),
            F.col("metric").alias("reason"),
        )
        .agg(F.sum("lines").alias("lines"))
    )


def with_examples(refused: DataFrame, lines: DataFrame) -> DataFrame:
    """The same with the beginning of one such line of each file and reason, from the lines themselves.

    A line that was read but refused is written again from what was understood of it.
    """
    understood = F.to_json(F.struct(*(name for name in line_schema().names if name != CORRUPT)))
    text = F.substring(F.make_valid_utf8(F.coalesce(F.col(CORRUPT), understood)), 1, EXAMPLE_CHARS)
    examples = (
        lines.filter(F.col(REASON).isNotNull())
        .groupBy(F.col(FILE).alias("path"), REASON)
        .agg(F.min(text).alias("example"))
    )
    return refused.join(examples, on=["path", "reason"], how="left")


def _date() -> Column:
    return F.to_date(F.timestamp_millis(F.col("minute") * 60_000))


def _of_block() -> list[Column]:
    seen = F.bit_or("seen")
    digits = F.bin(seen)  # the highest sequence number first, no zeros in front
    highest = F.length(digits) - 1
    lowest = F.length(digits) - F.length(F.rtrim(digits, F.lit("0")))
    first = F.col("block") * BLOCK
    return [
        F.sum("lines").alias("samples"),
        F.sum("copies").alias("copies"),
        F.bit_count(seen).cast("long").alias("files"),
        (first + lowest).alias("seq_min"),
        (first + highest).alias("seq_max"),
        F.min("from_ms").alias("first_ms"),
        F.max("to_ms").alias("last_ms"),
        F.bool_or((F.col("kind") == "process") & (F.col("detail") == "state=last")).alias("said_last"),
    ]


def _of_run() -> list[Column]:
    return [
        F.sum("samples").alias("samples"),
        F.sum("files").alias("files"),
        (F.sum("copies") - F.sum("samples")).alias("duplicates"),
        F.min("seq_min").alias("seq_min"),
        F.max("seq_max").alias("seq_max"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
        F.bool_or("said_last").alias("said_last"),
    ]


def _intervals(own: DataFrame) -> DataFrame:
    """The longest time between two intervals, and the steps of the clock; from the first lines of files."""
    seq = F.col("block") * BLOCK + F.col("bucket")
    order = Window.partitionBy(*RUN).orderBy("seq")
    return (
        own.filter(F.col("kind") == "process")
        .withColumn("seq", seq)
        .withColumn("gap_s", (F.col("from_ms") - F.lag("to_ms").over(order)) / 1000)
        .groupBy(*RUN)
        .agg(
            F.greatest(F.max("gap_s"), F.lit(0.0)).alias("longest_gap_s"),
            F.sum("clock_steps").alias("clock_steps"),
        )
    )


def _ended() -> Column:
    silent = F.col("newest_ms") - F.col("last_ms") > VANISHED_AFTER_S * 1000
    return F.when(F.col("said_last"), "last").when(silent, "vanished").otherwise("running")
