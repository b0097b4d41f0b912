"""Sample files to minutes through Arrow: Spark finds and reads the files, Python workers make rows of them.

Spark reads whole files (its `binaryFile`), so that whatever file system it reaches will do; those of a local
one the workers read themselves, which saves two copies of everything. Only what is too long for that is read
in parts and line by line. The workers parse
and add up (metrics_job.arrow.lines, add) and send back a row where there were several lines. Files that by
their names may hold the same lines (metrics_job.arrow.work) are given to one worker at once.

What cannot be decided there is done again line by line, with Spark's reader and metrics_job.minutes: a unit
in which that reader finds a line good that was odd before, and everything when names and contents of files
do not agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from ddmq_common.metrics.samples import parse as parse_name
from metrics_job.arrow import Batches, map_in_arrow
from metrics_job.arrow.add import ODD, schema
from metrics_job.arrow.lines import Known, Odd, column, filled, parse
from metrics_job.arrow.work import (
    DOUBT,
    Adding,
    Piece,
    Units,
    file_name,
    holds,
    of_days,
    pieces,
    unit_pieces,
    units_of,
)
from metrics_job.folders import Days, Folders, input_files
from metrics_job.minutes import (
    FILE,
    KIND,
    READER_OPTIONS,
    REASON,
    TEXT,
    Keep,
    classified,
    in_range,
    minutes,
    read_schema,
)
from metrics_job.tables import CORRUPT, VERSION, line_schema

WHOLE_BYTES_MAX = 96 << 20  # a longer file is read in parts, line by line: the JVM has a file several times
_SAMPLES = {"pathGlobFilter": READER_OPTIONS["pathGlobFilter"], "ignoreMissingFiles": "true"}
LOCAL = "file:"  # how URLs of a local file system begin; a path follows, with what is escaped in it
AGAIN_MAX = 2_000  # intervals; more, and everything is done again: naming files one by one would take as long


class Found(NamedTuple):
    """What is in the files."""

    made: DataFrame  # metrics_job.minutes, persisted
    odd: DataFrame | None  # lines as metrics_job.minutes has them, those that are refused among them


def read_minutes(spark: SparkSession, paths: list[str], days: Days, keep: Keep) -> Found:
    """The lines of these days in the files of these folders, and all lines that are refused.

    A server may merge files or delete old ones meanwhile: what is gone is passed over, and when a merged file
    has taken its place, everything is read again.
    """
    folders = Folders(spark)
    kept: list[DataFrame] = []

    def keep_of_try(rows: DataFrame) -> DataFrame:
        kept.append(keep(rows))
        return kept[-1]

    for last in (False, False, True):
        while kept:  # Spark takes what it has for the same folders, whatever is in them now
            kept.pop().unpersist(blocking=True)
        there = [path for path in paths if folders.exists(path)]
        before = folders.sizes(there)
        try:
            found = _read(spark, there, before, days, keep_of_try)
        except AnalysisException as error:
            if last or "PATH_NOT_FOUND" not in str(error):
                raise
            continue
        if last or not merged_since(before, folders.sizes(there)):
            break
    return found


def merged_since(before: Iterable[str], after: Iterable[str]) -> bool:
    """Whether files that were there are now in a merged one that was not."""
    former, now = set(before), set(after)
    new = [said for name in now - former if (said := parse_name(name)) is not None and said.merged]
    gone = [said for name in former - now if (said := parse_name(name)) is not None]
    return any(one.covers(other) for one in new for other in gone)


def _read(spark: SparkSession, paths: list[str], sizes: Mapping[str, int], days: Days, keep: Keep) -> Found:
    contents = files(spark, paths)
    urls = input_files(contents)
    units = units_of(urls)
    if units.strange:
        return _line_by_line(spark, urls, days, keep)
    long = split_names(units, sizes)
    whole = contents.filter(F.col("length") <= WHOLE_BYTES_MAX)
    is_local = all(url.startswith(LOCAL) for url in urls)
    rows = _alone(whole.select(FILE) if is_local else whole.select(FILE, "content"), units, long, days)
    together = units.shared.keys() - long
    if together:
        some = files(spark, _some_paths(spark, urls, together)).select(FILE, "content")
        rows = rows.unionByName(_together(some, units, days))
    rows = keep(rows)
    kinds = {row["kind"] for row in rows.select("kind").distinct().collect()}
    if DOUBT in kinds:
        return _line_by_line(spark, urls, days, keep)
    found = Found(rows.drop(TEXT, FILE), None)
    if ODD in kinds:
        found = _with_odd(spark, rows, urls, units, days, keep) or _line_by_line(spark, urls, days, keep)
    if not long:
        return found
    lines = keep(_lines(texts(spark, _some_paths(spark, urls, long)), days, keep))
    made = found.made.unionByName(minutes(lines, keep))
    return Found(made, lines if found.odd is None else found.odd.unionByName(lines))


def _with_odd(
    spark: SparkSession, rows: DataFrame, urls: list[str], units: Units, days: Days, keep: Keep
) -> Found | None:
    """What Spark's reader says of the odd lines, too; None when names and contents do not agree."""
    odd = rows.filter(F.col("kind") == ODD).select(TEXT, FILE)
    lines = keep(in_range(_lines_of_text(odd), days.from_ms, days.to_ms))
    made, good = rows.filter(F.col("kind") != ODD), lines.filter(F.col(REASON).isNull())
    told = good.select(_name_of(F.col(FILE)).alias("name"), "instance", "seq").distinct()
    intervals = [tuple(row) for row in told.limit(AGAIN_MAX).collect()]
    if len(intervals) == AGAIN_MAX or not all(
        holds([name], [(instance, seq)]) for name, instance, seq in intervals
    ):
        return None
    again = {units.unit(name) for name, *_ in intervals}
    if again:
        names = {*again, *(name for name, unit in units.shared.items() if unit in again)}
        some = texts(spark, _some_paths(spark, urls, names))
        made = made.filter(F.col(FILE).isNull() | ~F.col(FILE).isin(list(again)))
        made = made.drop(TEXT, FILE).unionByName(minutes(_lines(some, days, keep), keep))
    return Found(made.drop(TEXT, FILE), lines)


def split_names(units: Units, sizes: Mapping[str, int]) -> set[str]:
    """Files that are too long to be read whole, and those that may hold the same lines."""
    long = {name for name, size in sizes.items() if size > WHOLE_BYTES_MAX}
    shared = {units.shared[name] for name in long if name in units.shared}
    return long | {name for name, unit in units.shared.items() if unit in shared}


def files(spark: SparkSession, paths: list[str]) -> DataFrame:
    """file, content, length of all in these folders but those that are being written (a dot in front)."""
    found = spark.read.format("binaryFile").options(**_SAMPLES).load(paths)
    return found.select(F.col("_metadata.file_path").alias(FILE), "content", "length")


def texts(spark: SparkSession, paths: list[str]) -> DataFrame:
    """file, line (bytes) of the same: a file of any length, in as many parts as Spark likes."""
    found = spark.read.options(**_SAMPLES).option("lineSep", "\n").text(paths)
    return found.select(F.col("_metadata.file_path").alias(FILE), F.col("value").cast("binary").alias("line"))


def _some_paths(spark: SparkSession, urls: Iterable[str], names: Collection[str]) -> list[str]:
    """Those with these names that are still there."""
    folders = Folders(spark)
    wanted = (folders.plain(url) for url in urls if file_name(url) in names)
    return [path for path in wanted if folders.exists(path)]


def _alone(contents: DataFrame, units: Units, long: Collection[str], days: Days) -> DataFrame:
    shared = frozenset((*units.shared, *long))

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


def _line_by_line(spark: SparkSession, urls: list[str], days: Days, keep: Keep) -> Found:
    paths = _some_paths(spark, urls, {file_name(url) for url in urls})
    lines = _lines(texts(spark, paths), days, keep)
    return Found(keep(minutes(lines, keep)), lines)


def _lines(given: DataFrame, days: Days, keep: Keep) -> DataFrame:
    """Lines of these days as metrics_job.minutes has them, and all that are refused; from texts()."""

    def work(batches: Batches) -> Batches:
        for piece in _pieces_of_lines(batches):
            known = Known()
            found = parse(piece.data, known)
            lines = of_days(found.lines, days).combine_chunks()
            for columns in (_whole_lines(lines, known), _odd_lines(found.odd, piece.files)):
                yield from filled(columns, _lines_schema()).to_batches()

    rows = keep(map_in_arrow(given, work, _lines_schema()))
    good = rows.filter(F.col(TEXT).isNull()).drop(TEXT)
    for name in (CORRUPT, REASON):
        good = good.withColumn(name, F.lit(None).cast("string"))
    odd = _lines_of_text(rows.filter(F.col(TEXT).isNotNull()))
    return good.unionByName(in_range(odd, days.from_ms, days.to_ms))


def _lines_of_text(odd: DataFrame) -> DataFrame:
    """Lines as metrics_job.minutes has them."""
    options = {name: READER_OPTIONS[name] for name in ("mode", "columnNameOfCorruptRecord")}
    line = F.from_json(TEXT, read_schema(), options).alias("line")
    return odd.select(line, FILE).select("line.*", FILE).transform(classified)


def _name_of(path: Column) -> Column:
    return F.substring_index(path, "/", -1)


def _contents(batches: Batches) -> Iterator[tuple[str, bytes]]:
    """Of files with their contents, or of local ones without; what is gone is passed over."""
    for batch in batches:
        if batch.num_columns > 1:
            for file, content in zip(batch.column(0), batch.column(1), strict=True):
                yield file.as_py(), content.as_py()
            continue
        for url in batch.column(0).to_pylist():
            try:
                content = Path(unquote(url.removeprefix(LOCAL))).read_bytes()
            except FileNotFoundError:
                continue
            yield url, content


def _pieces_of_lines(batches: Batches) -> Iterator[Piece]:
    """The lines of a batch, those of a file together."""
    for batch in batches:
        by_file: dict[str, list[bytes]] = {}
        for file, line in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            by_file.setdefault(file, []).append(line)
        yield Piece(list(by_file), [b"\n".join(lines) for lines in by_file.values()])


def _lines_schema() -> Any:
    fields = [field for field in to_arrow_schema(line_schema()) if field.name != CORRUPT]
    return pa.schema([*fields, *(pa.field(name, pa.string()) for name in (KIND, TEXT, FILE))])


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
    return {TEXT: pa.array(texts, pa.string()), FILE: pa.array(names, pa.string())}
