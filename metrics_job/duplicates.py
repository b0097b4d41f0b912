"""Lines that are there twice: found in the sums, taken out by reading only their files again.

A line is known by (instance, seq, metric, labels). A file that came twice, or an hour's merged file beside
its parts, doubles a few intervals of millions; to compare all lines with each other would cost more than the
whole rest of the job. So the slices (metrics_job.slices) keep the set of sequence numbers that went into
them. Where that set is smaller than the number of lines, the block of that instance is taken out, its files
are read again, each line is counted once, and the sums are put back.

Which files those are follows from the layout: the instance's name, the interval's hour and the hour after it.
Should the second reading find another number of lines than the first one, names and contents do not agree,
and all files of the range are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.folders import Hour
from metrics_job.read import FILES, REASON
from metrics_job.slices import BLOCK, COPIES, MINUTE_MS, slices

HOUR_MINUTES = 60
INSTANCES_MAX = 200  # in one pattern; more, and all files of those hours are read again
LINE_KEY = ("instance", "seq", "metric", "labels")
Read = Callable[[list[str], str], DataFrame]  # folders or files, a pattern of names
Keep = Callable[[DataFrame], DataFrame]


def without_duplicates(
    made: DataFrame, hours: Sequence[Hour], read: Read, keep: Keep = DataFrame.persist
) -> DataFrame:
    """Slices in which every line counts once. `made` is persisted; `read` gives the range's lines of files;
    `keep` persists what is used more than once until the run ends."""
    twice = keep(_blocks_with_duplicates(made))
    rows = twice.collect()
    if not rows:
        return made
    again = keep(_repaired(read(*_places(hours, rows)), twice))
    if _lines(again, COPIES) != sum(row["lines"] for row in rows):
        again = keep(_repaired(read([hour.path for hour in hours], FILES), twice))
    touched = _touched(made, twice)
    return made.join(touched, on=["series", "block"], how="left_anti").unionByName(again)


def _blocks_with_duplicates(made: DataFrame) -> DataFrame:
    """instance, block, the lines read of it and the minutes they fall in."""
    doubled = F.max(F.col("lines") != F.bit_count("seen"))
    return (
        made.filter(F.col("instance").isNotNull())
        .groupBy("instance", "block")
        .agg(
            doubled.alias("doubled"),
            F.sum("lines").alias("lines"),
            F.collect_set(F.floor(F.col("minute") / HOUR_MINUTES)).alias("hours"),
        )
        .filter("doubled")
        .drop("doubled")
    )


def _places(hours: Sequence[Hour], rows: Sequence[Any]) -> tuple[list[str], str]:
    """The folders and the pattern of names of the files that can hold those blocks."""
    there = {hour.start: hour.path for hour in hours}
    ended = {
        _start(number) + timedelta(hours=late) for row in rows for number in row["hours"] for late in (0, 1)
    }
    instances = sorted({row["instance"] for row in rows})
    paths = sorted(there[start] for start in ended if start in there)
    safe = len(instances) <= INSTANCES_MAX and all(map(str.isalnum, instances))
    return paths, "*-{" + ",".join(instances) + "}-*.jsonl" if safe else FILES


def _start(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR_MINUTES * MINUTE_MS / 1000, UTC)


def _repaired(lines: DataFrame, twice: DataFrame) -> DataFrame:
    """The slices of these blocks, from lines of which each is taken once and knows how often it was there."""
    block = F.floor(F.col("seq") / BLOCK)
    wanted = F.broadcast(twice.select("instance", "block"))
    columns = [name for name in lines.columns if name not in LINE_KEY]
    once = (
        lines.filter(F.col(REASON).isNull())
        .withColumn("block", block)
        .join(wanted, on=["instance", "block"], how="left_semi")
        .groupBy(*LINE_KEY)
        .agg(F.min(F.struct(*columns)).alias("line"), F.count(F.lit(1)).alias(COPIES))
        .select(*LINE_KEY, "line.*", COPIES)
    )
    return slices(once)


def _lines(made: DataFrame, column: str) -> int:
    row = made.filter(F.col("instance").isNotNull()).agg(F.sum(column).alias("lines")).first()
    return int(row["lines"] or 0) if row else 0


def _touched(made: DataFrame, twice: DataFrame) -> DataFrame:
    """series and block of all that is put back; the rows of buckets have no instance of their own."""
    found = made.join(
        F.broadcast(twice.select("instance", "block")), on=["instance", "block"], how="left_semi"
    )
    return F.broadcast(found.select("series", "block").distinct())
