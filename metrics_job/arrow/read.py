"""Read sample files into minutes through Arrow: Spark finds and reads the files, Python workers make the
rows.

Spark reads entire files (`binaryFile`), so every file system that it reaches can be used; files on a local
one are read by the workers themselves, which saves two copies of the contents. Only files that are too long
for that are split and read line by line. The workers parse and add up the lines (metrics_job.arrow.lines,
add) and return one row for several lines. Files that by their names may hold the same lines
(metrics_job.arrow.work) go to one worker together.

Two cases are done again line by line, with Spark's reader and metrics_job.minutes: a unit in which that
reader accepts a line that was undecoded before, and everything if names and contents of files do not agree.
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
from metrics_job.arrow.add import UNDECODED, worker_schema
from metrics_job.arrow.lines import SeriesCodes, UndecodedLine, column_array, fill_table, parse
from metrics_job.arrow.work import (
    MISMATCH,
    ChunkAdder,
    FileChunk,
    Units,
    can_hold,
    file_name,
    gather_chunks,
    gather_units,
    of_days,
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
    classify_lines,
    in_range,
    read_schema,
    to_minutes,
)
from metrics_job.tables import CORRUPT, VERSION, line_schema

FILE_BYTES_MAX = 96 << 20  # a longer file is split and read line by line: the JVM has a file several times
_SAMPLES = {"pathGlobFilter": READER_OPTIONS["pathGlobFilter"], "ignoreMissingFiles": "true"}
LOCAL = "file:"  # how URLs of a local file system begin; a path follows, with what is escaped in it
RETRIES_MAX = (
    2_000  # intervals; more, and everything is done again: naming files one by one would take as long
)


class ReadSamples(NamedTuple):
    """The contents of sample files as DataFrames: minutes that were aggregated while reading, and the lines
    that Spark's reader parsed."""

    minutes: DataFrame  # metrics_job.minutes, persisted
    spark_lines: DataFrame | None  # lines of metrics_job.minutes, including the refused ones


def read_minutes(spark: SparkSession, paths: list[str], days: Days, keep: Keep) -> ReadSamples:
    """Read the lines of these days from the files in these folders, and all refused lines.

    A server may merge or delete files meanwhile. Deleted files are skipped; if a merged file has replaced
    them, everything is read again.
    """
    folders = Folders(spark)
    cached: list[DataFrame] = []

    def keep_of_try(rows: DataFrame) -> DataFrame:
        cached.append(keep(rows))
        return cached[-1]

    for last in (False, False, True):
        while cached:  # Spark takes what it has for the same folders, whatever is in them now
            cached.pop().unpersist(blocking=True)
        there = [path for path in paths if folders.exists(path)]
        before = folders.read_sizes(there)
        try:
            samples = _read(spark, there, before, days, keep_of_try)
        except AnalysisException as error:
            if last or "PATH_NOT_FOUND" not in str(error):
                raise
            continue
        if last or not merged_since(before, folders.read_sizes(there)):
            break
    return samples


def merged_since(before: Iterable[str], after: Iterable[str]) -> bool:
    """Return whether some files in `before` have been replaced by a merged file that is only in `after`."""
    former, now = set(before), set(after)
    new = [sample for name in now - former if (sample := parse_name(name)) is not None and sample.merged]
    removed = [sample for name in former - now if (sample := parse_name(name)) is not None]
    return any(one.covers(other) for one in new for other in removed)


def _read(
    spark: SparkSession, paths: list[str], sizes: Mapping[str, int], days: Days, keep: Keep
) -> ReadSamples:
    contents = read_files(spark, paths)
    urls = input_files(contents)
    units = units_of(urls)
    if units.strange:
        return _line_by_line(spark, urls, days, keep)
    long = names_to_split(units, sizes)
    short_files = contents.filter(F.col("length") <= FILE_BYTES_MAX)
    is_local = all(url.startswith(LOCAL) for url in urls)
    rows = _add_alone(
        short_files.select(FILE) if is_local else short_files.select(FILE, "content"), units, long, days
    )
    together = units.shared.keys() - long
    if together:
        some = read_files(spark, _some_paths(spark, urls, together)).select(FILE, "content")
        rows = rows.unionByName(_add_units(some, units, days))
    rows = keep(rows)
    kinds = {row["kind"] for row in rows.select("kind").distinct().collect()}
    if MISMATCH in kinds:
        return _line_by_line(spark, urls, days, keep)
    samples = ReadSamples(rows.drop(TEXT, FILE), None)
    if UNDECODED in kinds:
        samples = _with_undecoded(spark, rows, urls, units, days, keep) or _line_by_line(
            spark, urls, days, keep
        )
    if not long:
        return samples
    lines = keep(_parse_lines(read_lines(spark, _some_paths(spark, urls, long)), days, keep))
    minutes = samples.minutes.unionByName(to_minutes(lines, keep))
    return ReadSamples(
        minutes, lines if samples.spark_lines is None else samples.spark_lines.unionByName(lines)
    )


def _with_undecoded(
    spark: SparkSession, rows: DataFrame, urls: list[str], units: Units, days: Days, keep: Keep
) -> ReadSamples | None:
    """Add the undecoded lines, parsed by Spark's reader, to the minutes. Returns None if the names and the
    contents of files do not agree, so that all must be read line by line."""
    undecoded = rows.filter(F.col("kind") == UNDECODED).select(TEXT, FILE)
    lines = keep(in_range(_lines_of_text(undecoded), days.from_ms, days.to_ms))
    minutes, good = rows.filter(F.col("kind") != UNDECODED), lines.filter(F.col(REASON).isNull())
    good_intervals = good.select(_name_of(F.col(FILE)).alias("name"), "instance", "seq").distinct()
    intervals = [tuple(row) for row in good_intervals.limit(RETRIES_MAX).collect()]
    if len(intervals) == RETRIES_MAX or not all(
        can_hold([name], [(instance, seq)]) for name, instance, seq in intervals
    ):
        return None
    repeated_units = {units.unit_of(name) for name, *_ in intervals}
    if repeated_units:
        names = {*repeated_units, *(name for name, unit in units.shared.items() if unit in repeated_units)}
        some = read_lines(spark, _some_paths(spark, urls, names))
        minutes = minutes.filter(F.col(FILE).isNull() | ~F.col(FILE).isin(list(repeated_units)))
        minutes = minutes.drop(TEXT, FILE).unionByName(to_minutes(_parse_lines(some, days, keep), keep))
    return ReadSamples(minutes.drop(TEXT, FILE), lines)


def names_to_split(units: Units, sizes: Mapping[str, int]) -> set[str]:
    """Return the names of files to read line by line: files too long to read at once, and all files of
    their units.
    """
    long = {name for name, size in sizes.items() if size > FILE_BYTES_MAX}
    shared = {units.shared[name] for name in long if name in units.shared}
    return long | {name for name, unit in units.shared.items() if unit in shared}


def read_files(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Read path, content and length of the files in these folders, except files that are still being written.

    Hidden files are the ones being written.
    """
    rows = spark.read.format("binaryFile").options(**_SAMPLES).load(paths)
    return rows.select(F.col("_metadata.file_path").alias(FILE), "content", "length")


def read_lines(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Read the files in these folders line by line (file, line as bytes). Spark may split long files."""
    rows = spark.read.options(**_SAMPLES).option("lineSep", "\n").text(paths)
    return rows.select(F.col("_metadata.file_path").alias(FILE), F.col("value").cast("binary").alias("line"))


def _some_paths(spark: SparkSession, urls: Iterable[str], names: Collection[str]) -> list[str]:
    """Return the paths of the existing files with these names."""
    folders = Folders(spark)
    paths = (folders.to_load_path(url) for url in urls if file_name(url) in names)
    return [path for path in paths if folders.exists(path)]


def _add_alone(contents: DataFrame, units: Units, long: Collection[str], days: Days) -> DataFrame:
    shared = frozenset((*units.shared, *long))

    def add_chunks(batches: Batches) -> Batches:
        adding = ChunkAdder(days)
        for chunk in gather_chunks(_read_contents(batches), shared):
            for table in adding.add_alone(chunk):
                yield from table.combine_chunks().to_batches()

    return map_in_arrow(contents, add_chunks, worker_schema())


def _add_units(contents: DataFrame, units: Units, days: Days) -> DataFrame:
    def add_units(batches: Batches) -> Batches:
        adding = ChunkAdder(days)
        unit_files = ((row[0].as_py(), row[1].as_py(), row[2].as_py()) for batch in batches
                 for row in zip(*batch.columns, strict=True))  # fmt: skip
        for unit, chunk in gather_units(unit_files):
            for table in adding.add_unit(unit, chunk):
                yield from table.combine_chunks().to_batches()

    names = contents.sparkSession.createDataFrame(list(units.shared.items()), "name string, unit string")
    some = contents.join(F.broadcast(names), _name_of(F.col(FILE)) == F.col("name"))
    sorted_ = some.select("unit", FILE, "content").repartition("unit").sortWithinPartitions("unit")
    return map_in_arrow(sorted_, add_units, worker_schema())


def _line_by_line(spark: SparkSession, urls: list[str], days: Days, keep: Keep) -> ReadSamples:
    paths = _some_paths(spark, urls, {file_name(url) for url in urls})
    lines = _parse_lines(read_lines(spark, paths), days, keep)
    return ReadSamples(keep(to_minutes(lines, keep)), lines)


def _parse_lines(texts: DataFrame, days: Days, keep: Keep) -> DataFrame:
    """Parse rows of read_lines() into lines of metrics_job.minutes: those of these days, and all refused
    lines.
    """

    def parse_chunks(batches: Batches) -> Batches:
        for chunk in _gather_line_chunks(batches):
            series_codes = SeriesCodes()
            parsed = parse(chunk.data, series_codes)
            lines = of_days(parsed.lines, days).combine_chunks()
            for columns in (
                _decoded_lines(lines, series_codes),
                _undecoded_lines(parsed.undecoded, chunk.files),
            ):
                yield from fill_table(columns, _lines_schema()).to_batches()

    rows = keep(map_in_arrow(texts, parse_chunks, _lines_schema()))
    good = rows.filter(F.col(TEXT).isNull()).drop(TEXT)
    for name in (CORRUPT, REASON):
        good = good.withColumn(name, F.lit(None).cast("string"))
    undecoded = _lines_of_text(rows.filter(F.col(TEXT).isNotNull()))
    return good.unionByName(in_range(undecoded, days.from_ms, days.to_ms))


def _lines_of_text(undecoded: DataFrame) -> DataFrame:
    """Parse undecoded lines with Spark's reader into lines of metrics_job.minutes."""
    options = {name: READER_OPTIONS[name] for name in ("mode", "columnNameOfCorruptRecord")}
    line = F.from_json(TEXT, read_schema(), options).alias("line")
    return undecoded.select(line, FILE).select("line.*", FILE).transform(classify_lines)


def _name_of(path: Column) -> Column:
    return F.substring_index(path, "/", -1)


def _read_contents(batches: Batches) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of files. Local files are read here; deleted ones are skipped."""
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


def _gather_line_chunks(batches: Batches) -> Iterator[FileChunk]:
    """Yield one chunk for each batch, with the lines of the same file together."""
    for batch in batches:
        by_file: dict[str, list[bytes]] = {}
        for file, line in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            by_file.setdefault(file, []).append(line)
        yield FileChunk(list(by_file), [b"\n".join(lines) for lines in by_file.values()])


def _lines_schema() -> Any:
    fields = [field for field in to_arrow_schema(line_schema()) if field.name != CORRUPT]
    return pa.schema([*fields, *(pa.field(name, pa.string()) for name in (KIND, TEXT, FILE))])


def _decoded_lines(lines: Any, series_codes: SeriesCodes) -> dict[str, Any]:
    """Return the columns of _lines_schema() for the decoded lines of lines.Parsed."""
    codes, number = column_array(lines, "code"), column_array(lines, "number")
    kinds = series_codes.field_column("kind", codes)
    is_histogram = pc.equal(kinds, "histogram")
    labels = [dict(series_codes.series[code].labels) for code in codes.to_pylist()]
    columns = {name: column_array(lines, name) for name in ("seq", "from", "to", "buckets", "counts")}
    columns |= series_codes.field_columns(("process", "instance", "metric"), codes)
    columns |= {"v": pa.repeat(VERSION, len(codes)), KIND: kinds}
    columns["labels"] = pa.array(labels, _lines_schema().field("labels").type)
    none = pa.scalar(None, pa.float64())
    columns |= {
        "sum": pc.if_else(is_histogram, number, none),
        "value": pc.if_else(is_histogram, none, number),
    }
    return columns


def _undecoded_lines(undecoded: list[UndecodedLine], files: list[str]) -> dict[str, Any]:
    texts, names = [one.text for one in undecoded], [files[one.file] for one in undecoded]
    return {TEXT: pa.array(texts, pa.string()), FILE: pa.array(names, pa.string())}
