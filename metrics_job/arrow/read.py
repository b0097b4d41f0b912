"""Sample files to minutes through Arrow: Spark finds and reads the files, Python workers make rows of them.

Spark reads whole files (its `binaryFile`), so that whatever file system it reaches will do; the workers parse
and add up (metrics_job.arrow.parse, add) and send back a row where there were several lines. Files that by
their names may hold the same lines (metrics_job.units) are given to one worker at once.

What cannot be decided there is done again line by line, with Spark's reader and metrics_job.minutes: a unit
in which that reader finds a line good that was odd before, and everything when names and contents of files
do not agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from metrics_job.arrow.add import FILE as ROW_FILE
from metrics_job.arrow.add import ODD, TEXT, schema
from metrics_job.arrow.parse import Odd, column, parse
from metrics_job.arrow.pieces import file_name, pieces, unit_pieces
from metrics_job.arrow.series import Known
from metrics_job.arrow.spark import Batches, map_in_arrow
from metrics_job.arrow.work import DOUBT, Adding, of_days
from metrics_job.folders import Days, Folders, input_files
from metrics_job.minutes import Keep, in_range, minutes
from metrics_job.read import FILE, KIND, READER_OPTIONS, REASON, classified
from metrics_job.tables import CORRUPT, VERSION, line_schema
from metrics_job.units import Units, holds, units_of

AGAIN_MAX = 2_000  # intervals; more, and everything is done again: naming files one by one would take as long


class Found(NamedTuple):
    """What is in the files."""

    made: DataFrame  # metrics_job.minutes, persisted
    odd: DataFrame | None  # lines as metrics_job.read has them, those that are refused among them


def read_minutes(contents: DataFrame, days: Days, keep: Keep) -> Found:
    """The lines of these days in files(), and all lines that are refused."""
    urls = input_files(contents)
    units = units_of(urls)
    if units.strange:
        return _line_by_line(contents, days, keep)
    rows = _alone(contents, units, days)
    if units.shared:
        shared = _some_files(contents.sparkSession, urls, units.shared)
        rows = rows.unionByName(_together(shared, units, days))
    rows = keep(rows)
    kinds = {row["kind"] for row in rows.select("kind").distinct().collect()}
    if DOUBT in kinds:
        return _line_by_line(contents, days, keep)
    if ODD not in kinds:
        return Found(rows.drop(TEXT, ROW_FILE), None)
    odd = rows.filter(F.col("kind") == ODD).select(TEXT, ROW_FILE)
    lines = keep(in_range(_lines_of_text(odd), days.from_ms, days.to_ms))
    made, good = rows.filter(F.col("kind") != ODD), lines.filter(F.col(REASON).isNull())
    told = good.select(_name_of(F.col(FILE)).alias("name"), "instance", "seq").distinct()
    intervals = [tuple(row) for row in told.limit(AGAIN_MAX).collect()]
    if len(intervals) == AGAIN_MAX or not all(
        holds([name], [(instance, seq)]) for name, instance, seq in intervals
    ):
        return _line_by_line(contents, days, keep)
    again = {units.unit(name) for name, *_ in intervals}
    if again:
        names = [*again, *(name for name, unit in units.shared.items() if unit in again)]
        some = _some_files(contents.sparkSession, urls, names)
        made = made.filter(F.col(ROW_FILE).isNull() | ~F.col(ROW_FILE).isin(list(again)))
        made = made.drop(TEXT, ROW_FILE).unionByName(minutes(_lines(some, days, keep), keep))
    return Found(made.drop(TEXT, ROW_FILE), lines)


def files(spark: SparkSession, paths: list[str]) -> DataFrame:
    """file, content of all in these folders but those that are being written (a dot in front)."""
    found = spark.read.format("binaryFile").option("pathGlobFilter", READER_OPTIONS["pathGlobFilter"])
    return found.load(paths).select(F.col("_metadata.file_path").alias(FILE), "content")


def _some_files(spark: SparkSession, urls: Iterable[str], names: Collection[str]) -> DataFrame:
    """Those with these names."""
    folders = Folders(spark)
    return files(spark, [folders.plain(url) for url in urls if file_name(url) in names])


def _alone(contents: DataFrame, units: Units, days: Days) -> DataFrame:
    shared = frozenset(units.shared)

    def work(batches: Batches) -> Batches:
        adding = Adding(days)
        for piece in pieces(_contents(batches), shared):
            for table in adding.alone(piece):
                yield from table.combine_chunks().to_batches()

    return map_in_arrow(contents, work, schema())


def _together(contents: DataFrame, units: Units, days: Days) -> DataFrame:
    def work(batches: Batches) -> Batches:
        adding = Adding(days)
        found = ((row[0].as_py(), row[1].as_py(), row[2].as_py()) for batch in batches
                 for row in zip(*batch.columns, strict=True))  # fmt: skip
        for unit, piece in unit_pieces(found):
            for table in adding.together(unit, piece):
                yield from table.combine_chunks().to_batches()

    names = contents.sparkSession.createDataFrame(list(units.shared.items()), "name string, unit string")
    some = contents.join(F.broadcast(names), _name_of(F.col(FILE)) == F.col("name"))
    sorted_ = some.select("unit", FILE, "content").repartition("unit").sortWithinPartitions("unit")
    return map_in_arrow(sorted_, work, schema())


def _line_by_line(contents: DataFrame, days: Days, keep: Keep) -> Found:
    lines = _lines(contents, days, keep)
    return Found(keep(minutes(lines, keep)), lines)


def _lines(contents: DataFrame, days: Days, keep: Keep) -> DataFrame:
    """Lines of these days as metrics_job.read has them, and all that are refused."""

    def work(batches: Batches) -> Batches:
        for piece in pieces(_contents(batches)):
            known = Known()
            found = parse(piece.data, known)
            lines = of_days(found.lines, days).combine_chunks()
            for columns in (_whole_lines(lines, known), _odd_lines(found.odd, piece.files)):
                yield from _widened(columns).to_batches()

    rows = keep(map_in_arrow(contents, work, _lines_schema()))
    good = rows.filter(F.col(TEXT).isNull()).drop(TEXT, ROW_FILE)
    for name in (CORRUPT, FILE, REASON):
        good = good.withColumn(name, F.lit(None).cast("string"))
    odd = _lines_of_text(rows.filter(F.col(TEXT).isNotNull()))
    return good.unionByName(in_range(odd, days.from_ms, days.to_ms))


def _lines_of_text(odd: DataFrame) -> DataFrame:
    """Lines as metrics_job.read has them."""
    options = {name: READER_OPTIONS[name] for name in ("mode", "columnNameOfCorruptRecord")}
    line = F.from_json(TEXT, line_schema(), options).alias("line")
    return odd.select(line, F.col(ROW_FILE).alias(FILE)).select("line.*", FILE).transform(classified)


def _name_of(path: Column) -> Column:
    return F.substring_index(path, "/", -1)


def _contents(batches: Batches) -> Iterator[tuple[str, bytes]]:
    for batch in batches:
        for file, content in zip(batch.column(0), batch.column(1), strict=True):
            yield file.as_py(), content.as_py()


def _lines_schema() -> Any:
    fields = [field for field in to_arrow_schema(line_schema()) if field.name != CORRUPT]
    return pa.schema([*fields, *(pa.field(name, pa.string()) for name in (KIND, TEXT, ROW_FILE))])


def _whole_lines(lines: Any, known: Known) -> dict[str, Any]:
    """Columns of _lines_schema() from lines of parse.Parsed."""
    codes, number = column(lines, "code"), column(lines, "number")
    kinds = known.column("kind", codes)
    is_histogram = pc.equal(kinds, "histogram")
    labels = [dict(known.series[code].labels) for code in codes.to_pylist()]
    made = {name: column(lines, name) for name in ("seq", "from", "to", "buckets", "counts")}
    made |= known.columns(("process", "instance", "metric"), codes)
    made |= {"v": pa.repeat(VERSION, len(codes)), KIND: kinds}
    made["labels"] = pa.array(labels, _lines_schema().field("labels").type)
    none = pa.scalar(None, pa.float64())
    made |= {"sum": pc.if_else(is_histogram, number, none), "value": pc.if_else(is_histogram, none, number)}
    return made


def _odd_lines(odd: list[Odd], files: list[str]) -> dict[str, Any]:
    texts, names = [one.text for one in odd], [files[one.file] for one in odd]
    return {TEXT: pa.array(texts, pa.string()), ROW_FILE: pa.array(names, pa.string())}


def _widened(columns: dict[str, Any]) -> Any:
    """A table of _lines_schema(): null where nothing is given."""
    rows = len(next(iter(columns.values())))
    made = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in _lines_schema()
    ]
    return pa.table(made, schema=_lines_schema())
