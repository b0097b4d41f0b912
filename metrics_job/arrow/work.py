"""Turn pieces of sample files into rows of add.worker_schema(), in a Python worker.

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
    """Return whether, judging by their names, these files can contain all of these intervals, given as
    (instance, seq)."""
    ranges: dict[str, list[SampleName]] = {}
    for sample in filter(None, map(parse_name, names)):
        ranges.setdefault(sample.instance, []).append(sample)
    return all(
        any(one.first <= seq <= one.last for one in ranges.get(instance, ())) for instance, seq in intervals
    )


PIECE_BYTES = 4 << 20
CUT_BYTES = 16 << 20  # a longer file is cut into several pieces
Contents = Iterable[tuple[str, bytes]]  # path and bytes of a file


class Piece(NamedTuple):
    """Some complete files, or a part of one long file that is cut at the end of a line."""

    files: list[str]
    data: list[bytes]
    follows: bool = False  # the beginning of the file was in the piece before
    continues: bool = False

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.data))


def gather_pieces(
    contents: Contents, without: Collection[str] = (), size: int = PIECE_BYTES, uncut: int = CUT_BYTES
) -> Iterator[Piece]:
    """Yield pieces of about `size` bytes.

    Files named in `without` are skipped; files above `uncut` bytes are cut.
    """
    piece = Piece([], [])
    for file, content in contents:
        if file_name(file) in without:
            continue
        if len(content) > uncut:
            yield from _cut_file(file, content, size)
            continue
        piece.files.append(file)
        piece.data.append(content)
        if piece.byte_count >= size:
            yield piece
            piece = Piece([], [])
    if piece.files:
        yield piece


def unit_pieces(contents: Iterable[tuple[str, str, bytes]]) -> Iterator[tuple[str, Piece]]:
    """Yield each unit with its files as one piece. `contents`: (unit, path, bytes), sorted by unit."""
    for unit, files in groupby(contents, key=lambda file: file[0]):
        some = sorted((path, content) for _, path, content in files)
        yield unit, Piece([path for path, _ in some], [content for _, content in some])


def file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _cut_file(file: str, content: bytes, size: int) -> Iterator[Piece]:
    at = 0
    while at < len(content):
        end = content.find(b"\n", at + size) + 1 or len(content)
        yield Piece([file], [content[at:end]], follows=at > 0, continues=end < len(content))
        at = end


KNOWN_MAX = 20_000  # names of series that a worker caches from file to file
DOUBT = "doubt"  # the kind of a row that reports that names and contents do not agree


class PieceAdder:
    """Aggregates the lines of pieces into tables. A file may be cut into several pieces."""

    def __init__(self, days: Days) -> None:
        self._days = days
        self._series_codes = SeriesCodes()
        self._partial_lines: Any = None  # lines of the last interval, which may continue in the next piece
        self._complete_through = -1  # the last complete interval of a file that was cut

    def add_alone(self, piece: Piece) -> Iterator[Any]:
        """Aggregate a piece whose files are units of their own, or which is a part of such a file."""
        parsed = self._parse_piece(piece)
        if parsed.odd and len(piece.files) > 1:
            for part in _split_undecoded_files(piece, {line.file for line in parsed.odd}):
                yield from self.add_alone(part)
            return
        lines, in_order = self._whole_intervals(piece, of_days(parsed.lines, self._days))
        if not in_order:
            yield _doubt_row()
        # Whether a file has undecoded lines is known at once only if it is in one piece.
        marked = bool(parsed.odd) or piece.follows or piece.continues
        yield from self._add_rows(piece, lines, file_name(piece.files[0]) if marked else None)
        if parsed.odd:
            yield undecoded_rows(parsed.odd, piece.files)

    def add_unit(self, unit: str, piece: Piece) -> Iterator[Any]:
        """Aggregate the files of one unit, given as one piece."""
        parsed = self._parse_piece(piece)
        yield from self._add_rows(piece, of_days(parsed.lines, self._days), unit if parsed.odd else None)
        if parsed.odd:
            yield undecoded_rows(parsed.odd, piece.files)

    def _parse_piece(self, piece: Piece) -> Parsed:
        if len(self._series_codes) > KNOWN_MAX and not piece.follows:
            self._series_codes = SeriesCodes()
        return parse(piece.data, self._series_codes)

    def _add_rows(self, piece: Piece, lines: Any, mark: str | None) -> Iterator[Any]:
        tables = add_up_lines(lines.combine_chunks(), self._series_codes, mark)
        if tables:
            intervals = tables[0].select(["instance", "seq"]).to_pydict()
            if not can_hold(
                map(file_name, piece.files), zip(intervals["instance"], intervals["seq"], strict=True)
            ):
                yield _doubt_row()
        yield from tables

    def _whole_intervals(self, piece: Piece, lines: Any) -> tuple[Any, bool]:
        """Return the lines of complete intervals, and whether the file's intervals are in order and not
        repeated.
        """
        if not piece.follows:
            self._partial_lines, self._complete_through = None, -1
        if self._partial_lines is not None:
            lines = pa.concat_tables([self._partial_lines, lines]).combine_chunks()
        self._partial_lines = None
        if not lines.num_rows or not (piece.follows or piece.continues):
            return lines, True
        ends = pc.min_max(column_array(lines, "seq")).as_py()
        in_order = ends["min"] > self._complete_through
        if piece.continues:
            last = pc.equal(column_array(lines, "seq"), ends["max"])
            self._partial_lines, lines = lines.filter(last), lines.filter(pc.invert(last))
            self._complete_through = max(self._complete_through, ends["max"] - 1)
        return lines, in_order


def _split_undecoded_files(piece: Piece, indexes: set[int]) -> Iterator[Piece]:
    """Yield the files at these indexes one by one, then all others together."""
    others = Piece([], [])
    for index, (file, data) in enumerate(zip(piece.files, piece.data, strict=True)):
        if index in indexes:
            yield Piece([file], [data])
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


def _doubt_row() -> Any:
    return fill_table({"kind": pa.array([DOUBT])}, worker_schema())
