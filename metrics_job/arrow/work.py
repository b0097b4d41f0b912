"""Turn chunks of sample files into rows of add.worker_schema(), in a Python worker.

The names of files say which of them may hold the same lines (docs/formats-samples.md). A line is identified
by (instance, seq, metric, labels); a name has the instance and the first and last sequence number. Files
whose numbers overlap (an hour's merged file next to its parts, a file that was sent again into another
folder) make one unit, so copies of a line are always in the same unit. Any other file is a unit of its own.
A file with a name of another kind may hold any line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ddmq_common.metrics.samples import SampleName
from ddmq_common.metrics.samples import parse as parse_name
from metrics_job.arrow.add import add_up_lines, undecoded_rows, worker_schema
from metrics_job.arrow.lines import Parsed, SeriesCodes, column_array, fill_table, parse
from metrics_job.folders import Days


class Units(NamedTuple):
    """The units of some files. A unit is a group of files that may contain the same lines, such as a merged
    file and its parts."""

    shared: dict[str, str]  # name of a file that shares its unit -> the unit: its first name
    strange: bool  # a name is of another kind

    def unit_of(self, name: str) -> str:
        return self.shared.get(name, name)


def units_of(paths: Iterable[str]) -> Units:
    """Group files into units by their names; paths may be URLs."""
    names = [path.rpartition("/")[2] for path in paths]
    named_samples = sorted((sample, name) for name in names if (sample := parse_name(name)) is not None)
    shared: dict[str, str] = {}
    unit, instance, last = "", "", -1
    for sample, name in named_samples:
        if sample.instance != instance or sample.first > last:
            unit, instance, last = name, sample.instance, sample.last
        else:
            shared[unit] = shared[name] = unit
            last = max(last, sample.last)
    return Units(shared, len(named_samples) < len(names))


def can_hold(names: Iterable[str], intervals: Iterable[tuple[str, int]]) -> bool:
    """Return whether, judging by their names, these files can contain all of these intervals, as
    (instance, seq)."""
    ranges: dict[str, list[SampleName]] = {}
    for sample in filter(None, map(parse_name, names)):
        ranges.setdefault(sample.instance, []).append(sample)
    return all(
        any(one.first <= seq <= one.last for one in ranges.get(instance, ())) for instance, seq in intervals
    )


CHUNK_BYTES = 4 << 20
SPLIT_BYTES = 16 << 20  # a longer file is split into several chunks
Contents = Iterable[tuple[str, bytes]]  # path and bytes of a file


class FileChunk(NamedTuple):
    """Some complete files, or a section of one long file that ends with a line."""

    files: list[str]
    data: list[bytes]
    follows: bool = False  # the chunk before has the beginning of the file
    continues: bool = False

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.data))


def gather_chunks(
    contents: Contents, without: Collection[str] = (), size: int = CHUNK_BYTES, split_above: int = SPLIT_BYTES
) -> Iterator[FileChunk]:
    """Yield chunks of about `size` bytes.

    Files named in `without` are skipped; files above `split_above` bytes are split.
    """
    chunk = FileChunk([], [])
    for file, content in contents:
        if file_name(file) in without:
            continue
        if len(content) > split_above:
            yield from _split_file(file, content, size)
            continue
        chunk.files.append(file)
        chunk.data.append(content)
        if chunk.byte_count >= size:
            yield chunk
            chunk = FileChunk([], [])
    if chunk.files:
        yield chunk


def gather_units(contents: Iterable[tuple[str, str, bytes]]) -> Iterator[tuple[str, FileChunk]]:
    """Yield each unit with its files as one chunk. `contents`: (unit, path, bytes), sorted by unit."""
    for unit, files in groupby(contents, key=lambda file: file[0]):
        some = sorted((path, content) for _, path, content in files)
        yield unit, FileChunk([path for path, _ in some], [content for _, content in some])


def file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _split_file(file: str, content: bytes, size: int) -> Iterator[FileChunk]:
    at = 0
    while at < len(content):
        end = content.find(b"\n", at + size) + 1 or len(content)
        yield FileChunk([file], [content[at:end]], follows=at > 0, continues=end < len(content))
        at = end


CACHED_SERIES_MAX = 20_000  # names of series that a worker caches from file to file
MISMATCH = "mismatch"  # the kind of a row that reports that names and contents do not agree


class ChunkAdder:
    """Aggregates the lines of chunks into tables. A file may be split into several chunks."""

    def __init__(self, days: Days) -> None:
        self._days = days
        self._series_codes = SeriesCodes()
        self._partial_lines: Any = None  # lines of the last interval, which may continue in the next chunk
        self._complete_through = -1  # the last complete interval of a file that was split

    def add_alone(self, chunk: FileChunk) -> Iterator[Any]:
        """Aggregate a chunk whose files are units of their own, or which is a section of such a file."""
        parsed = self._parse_chunk(chunk)
        if parsed.undecoded and len(chunk.files) > 1:
            for subset in _split_undecoded_files(chunk, {line.file for line in parsed.undecoded}):
                yield from self.add_alone(subset)
            return
        lines, in_order = self._take_complete_intervals(chunk, of_days(parsed.lines, self._days))
        if not in_order:
            yield _mismatch_row()
        # Whether a file has undecoded lines is clear at once only if it is in one chunk.
        marked = bool(parsed.undecoded) or chunk.follows or chunk.continues
        yield from self._add_rows(chunk, lines, file_name(chunk.files[0]) if marked else None)
        if parsed.undecoded:
            yield undecoded_rows(parsed.undecoded, chunk.files)

    def add_unit(self, unit: str, chunk: FileChunk) -> Iterator[Any]:
        """Aggregate the files of one unit. They form one chunk."""
        parsed = self._parse_chunk(chunk)
        yield from self._add_rows(
            chunk, of_days(parsed.lines, self._days), unit if parsed.undecoded else None
        )
        if parsed.undecoded:
            yield undecoded_rows(parsed.undecoded, chunk.files)

    def _parse_chunk(self, chunk: FileChunk) -> Parsed:
        if len(self._series_codes) > CACHED_SERIES_MAX and not chunk.follows:
            self._series_codes = SeriesCodes()
        return parse(chunk.data, self._series_codes)

    def _add_rows(self, chunk: FileChunk, lines: Any, mark: str | None) -> Iterator[Any]:
        tables = add_up_lines(lines.combine_chunks(), self._series_codes, mark)
        if tables:
            intervals = tables[0].select(["instance", "seq"]).to_pydict()
            if not can_hold(
                map(file_name, chunk.files), zip(intervals["instance"], intervals["seq"], strict=True)
            ):
                yield _mismatch_row()
        yield from tables

    def _take_complete_intervals(self, chunk: FileChunk, lines: Any) -> tuple[Any, bool]:
        """Return the lines of complete intervals, and whether the file's intervals are in order and not
        repeated.
        """
        if not chunk.follows:
            self._partial_lines, self._complete_through = None, -1
        if self._partial_lines is not None:
            lines = pa.concat_tables([self._partial_lines, lines]).combine_chunks()
        self._partial_lines = None
        if not lines.num_rows or not (chunk.follows or chunk.continues):
            return lines, True
        ends = pc.min_max(column_array(lines, "seq")).as_py()
        in_order = ends["min"] > self._complete_through
        if chunk.continues:
            last = pc.equal(column_array(lines, "seq"), ends["max"])
            self._partial_lines, lines = lines.filter(last), lines.filter(pc.invert(last))
            self._complete_through = max(self._complete_through, ends["max"] - 1)
        return lines, in_order


def _split_undecoded_files(chunk: FileChunk, indexes: set[int]) -> Iterator[FileChunk]:
    """Yield the files at these indexes one by one, then all others together."""
    others = FileChunk([], [])
    for index, (file, data) in enumerate(zip(chunk.files, chunk.data, strict=True)):
        if index in indexes:
            yield FileChunk([file], [data])
        else:
            others.files.append(file)
            others.data.append(data)
    if others.files:
        yield others


def of_days(lines: Any, days: Days) -> Any:
    """Return the lines whose interval ends within these days."""
    if days.from_ms is not None:
        lines = lines.filter(pc.greater_equal(lines["to"], days.from_ms))
    return lines if days.to_ms is None else lines.filter(pc.less(lines["to"], days.to_ms))


def _mismatch_row() -> Any:
    return fill_table({"kind": pa.array([MISMATCH])}, worker_schema())
