"""Sample files to slices through Arrow: Spark finds and reads the files, Python workers make rows of them.

Spark reads whole files (its `binaryFile`), so that whatever file system it reaches will do; the workers parse
and add up (metrics_job.arrow.parse, add) and send back a row where there were several lines. Odd lines come
back as they are and go through the functions of metrics_job.read, which decide what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.arrow import parse as parsing
from metrics_job.arrow.add import added, odd_rows, schema
from metrics_job.arrow.spark import Batches, map_in_arrow
from metrics_job.folders import Days
from metrics_job.read import FILE, KIND, READER_OPTIONS, REASON, classified
from metrics_job.slices import BLOCK, ODD, in_range, slices
from metrics_job.tables import CORRUPT, line_schema

PIECE_BYTES = 4 << 20  # that are parsed and added up at once
Keep = Callable[[DataFrame], DataFrame]


class Found(NamedTuple):
    """What is in the files."""

    made: DataFrame  # slices(in_range(read_lines(spark, paths))), but a key may come more than once
    odd: DataFrame  # among them the lines that are refused, as metrics_job.read has them


def read_slices(contents: DataFrame, days: Days, keep: Keep) -> Found:
    """The lines of these days in files(), and all that are refused.

    `keep` persists what is used more than once.
    """

    def work(batches: Batches) -> Batches:
        for files, pieces in _pieces(batches):
            found = parsing.parse(pieces)
            for table in (*added(_of_days(found.lines, days)), odd_rows(found.odd, files)):
                yield from table.combine_chunks().to_batches()

    rows = keep(map_in_arrow(contents, work, schema()))
    odd = in_range(lines_of_text(rows.filter(F.col("kind") == ODD)), days.from_ms, days.to_ms)
    made = rows.filter(F.col("kind") != ODD).drop("text").unionByName(keep(slices(odd)))
    return Found(made, odd)


def read_blocks(
    contents: DataFrame, days: Days, blocks: Collection[tuple[str, int]], keep: Keep
) -> DataFrame:
    """Lines of the files as metrics_job.read has them: good ones of these (instance, block) of these days,
    and odd ones of all."""
    wanted = frozenset(blocks)

    def work(batches: Batches) -> Batches:
        for files, pieces in _pieces(batches):
            found = parsing.parse(pieces)
            lines = _of_blocks(_of_days(found.lines, days), wanted)
            odd = odd_rows(found.odd, files).select(["text", "detail"])
            for table in (lines, odd):
                yield from _widened(table).combine_chunks().to_batches()

    rows = keep(map_in_arrow(contents, work, _lines_schema()))
    good = rows.filter(F.col("text").isNull()).drop("text", "detail")
    for name in (CORRUPT, FILE, REASON):
        good = good.withColumn(name, F.lit(None).cast("string"))
    odd = in_range(lines_of_text(rows.filter(F.col("text").isNotNull())), days.from_ms, days.to_ms)
    return good.unionByName(odd)


def lines_of_text(odd: DataFrame) -> DataFrame:
    """Lines as metrics_job.read has them, from rows with `text` and their file as `detail`."""
    options = {name: READER_OPTIONS[name] for name in ("mode", "columnNameOfCorruptRecord")}
    line = F.from_json("text", line_schema(), options).alias("line")
    return odd.select(line, F.col("detail").alias(FILE)).select("line.*", FILE).transform(classified)


def files(spark: SparkSession, paths: list[str]) -> DataFrame:
    """file, content of all in these folders but those that are being written (a dot in front)."""
    found = spark.read.format("binaryFile").option("pathGlobFilter", READER_OPTIONS["pathGlobFilter"])
    return found.load(paths).select(F.col("_metadata.file_path").alias(FILE), "content")


def name_of(path: Column) -> Column:
    """The name of a file from its path."""
    return F.substring_index(path, "/", -1)


def _of_days(lines: Any, days: Days) -> Any:
    """The lines whose interval ends in them."""
    if days.from_ms is not None:
        lines = lines.filter(pc.greater_equal(lines["to"], days.from_ms))
    return lines if days.to_ms is None else lines.filter(pc.less(lines["to"], days.to_ms))


def _of_blocks(lines: Any, wanted: frozenset[tuple[str, int]]) -> Any:
    there, block = set(pc.unique(lines["instance"]).to_pylist()), pc.divide(lines["seq"], BLOCK)
    masks = [pc.and_(pc.equal(lines["instance"], instance), pc.equal(block, number))
             for instance, number in wanted if instance in there]  # fmt: skip
    return lines.filter(reduce(pc.or_, masks)) if masks else lines.slice(0, 0)


def _lines_schema() -> Any:
    more = [pa.field(name, pa.string()) for name in (KIND, "text", "detail")]
    return pa.schema([*parsing.line_schema(), *more])


def _widened(table: Any) -> Any:
    """A table of _lines_schema(): null where nothing is given."""
    made = [table[field.name] if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
            for field in _lines_schema()]  # fmt: skip
    return pa.table(made, schema=_lines_schema())


def _pieces(batches: Batches) -> Iterator[tuple[list[str], list[bytes]]]:
    """Files and parts of files, cut at line ends, about PIECE_BYTES together."""
    files: list[str] = []
    pieces: list[bytes] = []
    for batch in batches:
        for file, content in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            for piece in _cut(content.as_py()):
                files.append(file)
                pieces.append(piece)
                if sum(map(len, pieces)) >= PIECE_BYTES:
                    yield files, pieces
                    files, pieces = [], []
    if pieces:
        yield files, pieces


def _cut(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        end = content.find(b"\n", at + PIECE_BYTES) + 1
        yield content[at : end or len(content)]
        at = end or len(content)
