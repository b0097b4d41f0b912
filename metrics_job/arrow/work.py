"""What a Python worker does with sample files: pieces of their contents into rows of add.schema().

Which files may hold the same lines their names say (docs/formats-samples.md). A line is known by (instance,
seq, metric, labels), and a name tells the instance and the first and last sequence number. Files whose
numbers overlap (an hour's merged file beside its parts, a file that was sent again into another folder) make
one unit: a line that is there twice is there twice within its unit. All others are units of their own. A file
with a name of another kind may hold anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ddmq_common.metrics.samples import SampleName
from ddmq_common.metrics.samples import parse as parse_name
from metrics_job.arrow.add import added, odd_rows, schema
from metrics_job.arrow.lines import Known, Parsed, column, filled, parse
from metrics_job.folders import Days


class Units(NamedTuple):
    """What the names of some files say."""

    shared: dict[str, str]  # name of a file that is not alone in its unit -> the unit: its first name
    strange: bool  # a name says nothing

    def unit(self, name: str) -> str:
        return self.shared.get(name, name)


def units_of(paths: Iterable[str]) -> Units:
    """The units of these files; paths may be URLs."""
    names = [path.rpartition("/")[2] for path in paths]
    known = sorted((said, name) for name in names if (said := parse_name(name)) is not None)
    shared: dict[str, str] = {}
    unit, instance, last = "", "", -1
    for said, name in known:
        if said.instance != instance or said.first > last:
            unit, instance, last = name, said.instance, said.last
        else:
            shared[unit] = shared[name] = unit
            last = max(last, said.last)
    return Units(shared, len(known) < len(names))


def holds(names: Iterable[str], intervals: Iterable[tuple[str, int]]) -> bool:
    """Whether these names of files say that they can hold each of these (instance, seq)."""
    ranges: dict[str, list[SampleName]] = {}
    for said in filter(None, map(parse_name, names)):
        ranges.setdefault(said.instance, []).append(said)
    return all(
        any(one.first <= seq <= one.last for one in ranges.get(instance, ())) for instance, seq in intervals
    )


PIECE_BYTES = 4 << 20
CUT_BYTES = 16 << 20  # a longer file is several pieces
Contents = Iterable[tuple[str, bytes]]  # path and bytes of a file


class Piece(NamedTuple):
    """Whole files, or a part of one that was cut at the end of a line."""

    files: list[str]
    data: list[bytes]
    follows: bool = False  # the beginning of the file was in the piece before
    goes_on: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.data))


def pieces(
    contents: Contents, without: Collection[str] = (), size: int = PIECE_BYTES, uncut: int = CUT_BYTES
) -> Iterator[Piece]:
    """About `size` bytes each, of files but those with these names; a longer file than `uncut` is cut."""
    piece = Piece([], [])
    for file, content in contents:
        if file_name(file) in without:
            continue
        if len(content) > uncut:
            yield from _cut(file, content, size)
            continue
        piece.files.append(file)
        piece.data.append(content)
        if piece.size >= size:
            yield piece
            piece = Piece([], [])
    if piece.files:
        yield piece


def unit_pieces(contents: Iterable[tuple[str, str, bytes]]) -> Iterator[tuple[str, Piece]]:
    """Units, each whole; from (unit, path, bytes) of files, those of a unit one after the other."""
    for unit, files in groupby(contents, key=lambda file: file[0]):
        some = sorted((path, content) for _, path, content in files)
        yield unit, Piece([path for path, _ in some], [content for _, content in some])


def file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _cut(file: str, content: bytes, size: int) -> Iterator[Piece]:
    at = 0
    while at < len(content):
        end = content.find(b"\n", at + size) + 1 or len(content)
        yield Piece([file], [content[at:end]], follows=at > 0, goes_on=end < len(content))
        at = end


KNOWN_MAX = 20_000  # names of series that a worker remembers from file to file
DOUBT = "doubt"  # the kind of a row that says: names and contents do not agree


class Adding:
    """Adds up pieces of whole files, and files that come in several pieces."""

    def __init__(self, days: Days) -> None:
        self._days = days
        self._known = Known()
        self._held: Any = None  # lines of the last interval, which may go on in the next piece
        self._through = -1  # the last interval that is done of a file that was cut

    def alone(self, piece: Piece) -> Iterator[Any]:
        """Of files each of which is a unit, or of a part of one."""
        found = self._parsed(piece)
        if found.odd and len(piece.files) > 1:
            for part in _apart(piece, {line.file for line in found.odd}):
                yield from self.alone(part)
            return
        lines, in_order = self._whole_intervals(piece, of_days(found.lines, self._days))
        if not in_order:
            yield _doubt()
        # Only of a file in one piece is it known at once whether it has odd lines.
        marked = bool(found.odd) or piece.follows or piece.goes_on
        yield from self._rows(piece, lines, file_name(piece.files[0]) if marked else None)
        if found.odd:
            yield odd_rows(found.odd, piece.files)

    def together(self, unit: str, piece: Piece) -> Iterator[Any]:
        """Of files that are one unit."""
        found = self._parsed(piece)
        yield from self._rows(piece, of_days(found.lines, self._days), unit if found.odd else None)
        if found.odd:
            yield odd_rows(found.odd, piece.files)

    def _parsed(self, piece: Piece) -> Parsed:
        if len(self._known) > KNOWN_MAX and not piece.follows:
            self._known = Known()
        return parse(piece.data, self._known)

    def _rows(self, piece: Piece, lines: Any, mark: str | None) -> Iterator[Any]:
        made = added(lines.combine_chunks(), self._known, mark)
        if made:
            intervals = made[0].select(["instance", "seq"]).to_pydict()
            if not holds(
                map(file_name, piece.files), zip(intervals["instance"], intervals["seq"], strict=True)
            ):
                yield _doubt()
        yield from made

    def _whole_intervals(self, piece: Piece, lines: Any) -> tuple[Any, bool]:
        """The lines that can be added up, and whether no interval came in two places of the file."""
        if not piece.follows:
            self._held, self._through = None, -1
        if self._held is not None:
            lines = pa.concat_tables([self._held, lines]).combine_chunks()
        self._held = None
        if not lines.num_rows or not (piece.follows or piece.goes_on):
            return lines, True
        ends = pc.min_max(column(lines, "seq")).as_py()
        in_order = ends["min"] > self._through
        if piece.goes_on:
            last = pc.equal(column(lines, "seq"), ends["max"])
            self._held, lines = lines.filter(last), lines.filter(pc.invert(last))
            self._through = max(self._through, ends["max"] - 1)
        return lines, in_order


def _apart(piece: Piece, places: set[int]) -> Iterator[Piece]:
    """The files in these places one by one, the others together."""
    others = Piece([], [])
    for place, (file, data) in enumerate(zip(piece.files, piece.data, strict=True)):
        if place in places:
            yield Piece([file], [data])
        else:
            others.files.append(file)
            others.data.append(data)
    if others.files:
        yield others


def of_days(lines: Any, days: Days) -> Any:
    """The lines whose interval ends in them."""
    if days.from_ms is not None:
        lines = lines.filter(pc.greater_equal(lines["to"], days.from_ms))
    return lines if days.to_ms is None else lines.filter(pc.less(lines["to"], days.to_ms))


def _doubt() -> Any:
    return filled({"kind": pa.array([DOUBT])}, schema())
