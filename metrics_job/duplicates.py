"""Lines that are there twice: found in the sums, taken out by reading only their files again.

A line is known by (instance, seq, metric, labels). A file that came twice, or an hour's merged file beside
its parts, doubles a few intervals of millions; to compare all lines with each other would cost more than the
whole rest of the job. So the slices (metrics_job.slices) keep the set of sequence numbers that went into
them. Where that set is smaller than the number of lines, the block of that instance is taken out, its files
are read again, each line is counted once, and the sums are put back.

Which files those are follows from their names (docs/formats-samples.md), and a file with a name of another
kind may hold anything. Should the second reading find another number of lines than the first one, names and
contents do not agree, and all files are read again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.read import REASON
from metrics_job.slices import BLOCK, COPIES, slices

FILES_MAX = 2_000  # more, and all are read again: listing them one by one would take as long
LINE_KEY = ("instance", "seq", "metric", "labels")
_NAME = re.compile(r"(?:samples-(\w+)-(\d+)|hour-(\w+)-(\d+)-(\d+))\.jsonl\Z")
Blocks = Collection[tuple[str, int]]  # instance, block
Read = Callable[[list[str] | None, Blocks], DataFrame]  # the names of files, None: all
Keep = Callable[[DataFrame], DataFrame]


def without_duplicates(
    made: DataFrame, files: Callable[[], list[str]], read: Read, keep: Keep = DataFrame.persist
) -> DataFrame:
    """Slices in which every line counts once. `made`: slices of `files`, persisted; `read` gives the lines of
    some of these files, at least those of some blocks; `keep` persists what is used more than once."""
    twice = keep(_blocks_with_duplicates(made))
    rows = twice.collect()
    if not rows:
        return made
    blocks = {(row["instance"], row["block"]) for row in rows}
    some = files_of(blocks, files())
    again = keep(_repaired(read(some if 0 < len(some) <= FILES_MAX else None, blocks), twice))
    if _lines(again, COPIES) != sum(row["lines"] for row in rows):
        again = keep(_repaired(read(None, blocks), twice))
    touched = _touched(made, twice)
    return made.join(touched, on=["series", "block"], how="left_anti").unionByName(again)


def files_of(blocks: Blocks, files: Sequence[str]) -> list[str]:
    """The names of the files that by their names can hold lines of these (instance, block)."""
    return [name for path in files if _can_hold(name := path.rpartition("/")[2], blocks)]


def _can_hold(name: str, blocks: Blocks) -> bool:
    found = _NAME.match(name)
    if found is None:
        return True
    instance, first, last = found[1] or found[3], int(found[2] or found[4]), int(found[2] or found[5])
    return any((instance, block) in blocks for block in range(first // BLOCK, last // BLOCK + 1))


def _blocks_with_duplicates(made: DataFrame) -> DataFrame:
    """instance, block, and the lines read of it."""
    return (
        made.filter(F.col("instance").isNotNull())
        .groupBy("series", "block")
        .agg(
            F.any_value("instance").alias("instance"),
            F.sum("lines").alias("lines"),
            F.bit_or("seen").alias("seen"),
        )
        .groupBy("instance", "block")
        .agg(F.max(F.col("lines") != F.bit_count("seen")).alias("doubled"), F.sum("lines").alias("lines"))
        .filter("doubled")
        .drop("doubled")
    )


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
