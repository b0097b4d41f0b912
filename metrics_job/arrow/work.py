"""What a Python worker does with pieces of files: lines into rows of add.schema()."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from metrics_job.arrow.add import added, odd_rows, shaped
from metrics_job.arrow.parse import Parsed, column, parse
from metrics_job.arrow.pieces import Piece, file_name
from metrics_job.arrow.series import Known
from metrics_job.folders import Days
from metrics_job.units import holds

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
    return shaped({"kind": pa.array([DOUBT])})
