"""Bytes of sample files into columns of lines that are good beyond doubt, and the text of all others.

A line counts as good when every field has exactly its type and lies in its range, and nothing in it is
escaped. Any other is odd. Odd lines are few, and nothing is decided about them here: the caller gives them to
Spark's reader, whose word counts. So this module may be too careful about a line, never too generous.

msgspec decodes, because it checks types and ranges while it reads: a third of what Arrow's own JSON reader
takes for lines like these (decisions/0013).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from metrics_job.arrow.line import Line
from metrics_job.arrow.series import UNKNOWN, Known
from metrics_job.tables import CORRUPT

_ODD_BYTES = (b"\\", b"\r", b"\x00", CORRUPT.encode())
_ENDS = re.compile(rb"\r\n|\n|\r")
_BLANK = b" \t\r\n"


class Odd(NamedTuple):
    """A line that is for Spark's reader; `file` is a position in the files given."""

    file: int
    text: str


class Parsed(NamedTuple):
    """`lines`: columns `code` (of Known), seq, from, to, number (value or sum), buckets and counts."""

    lines: Any
    odd: list[Odd]


_DECODER = msgspec.json.Decoder(Line)
_INTEGERS = {"seq": "seq", "from": "start", "to": "to"}


def parse(files: Sequence[bytes], known: Known) -> Parsed:
    """All lines of these files; an array of objects is as many lines."""
    lines = None if any(map(_is_odd, files)) else _at_once(_joined(files))
    places: list[tuple[int, bytes]] | None = None
    odd: list[Odd] = []
    if lines is None:
        lines, places, odd = _one_by_one(files)
    table, good = _columns(lines, known)
    if good is not None:
        places = places or [(at, text) for at, data in enumerate(files) for text in _split(data)]
        odd += [_odd(*places[at]) for at in pc.indices_nonzero(pc.invert(good)).to_pylist()]
        table = table.filter(good)
    return Parsed(table.combine_chunks(), [one for line in odd for one in _elements(line)])


def _is_odd(data: bytes) -> bool:
    return any(odd in data for odd in _ODD_BYTES)


def _odd(file: int, text: bytes) -> Odd:
    return Odd(file, text.decode(errors="replace"))


def _joined(files: Sequence[bytes]) -> bytes:
    if len(files) == 1:
        return files[0]
    return b"".join(data if data.endswith(b"\n") else data + b"\n" for data in files)


def _split(data: bytes) -> list[bytes]:
    lines = _ENDS.split(data) if b"\r" in data else data.split(b"\n")
    return [text for text in lines if text.strip(_BLANK)]


def _at_once(data: bytes) -> list[Line] | None:
    """None when a line is odd, or when it is not one object on each line."""
    data = data.strip(b"\n")
    try:
        data.decode()
        lines: list[Line] = _DECODER.decode_lines(data)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return None
    ends = data.count(b"\n")
    if lines and not len(lines) == ends + 1 == data.count(b"}\n{") + 1:
        return None
    return lines


def _one_by_one(files: Sequence[bytes]) -> tuple[list[Line], list[tuple[int, bytes]], list[Odd]]:
    """Lines, the text of each with the position of its file, and the odd ones."""
    lines: list[Line] = []
    places: list[tuple[int, bytes]] = []
    odd: list[Odd] = []
    decode = _DECODER.decode
    for at, data in enumerate(files):
        look = _is_odd(data)
        for text in _split(data):
            try:
                if look and _is_odd(text):
                    raise ValueError
                text.decode()
                lines.append(decode(text))
                places.append((at, text))
            except ValueError:  # msgspec's errors are some, too
                odd.append(_odd(at, text))
    return lines, places, odd


def _columns(lines: list[Line], known: Known) -> tuple[Any, Any]:
    """The columns, and which lines are good: None when all are."""
    codes = pa.array(known.codes(lines), pa.int64())
    made = {"code": codes}
    for name, field in _INTEGERS.items():
        made[name] = pa.array(list(map(attrgetter(field), lines)), pa.int64())
    kinds = known.column("kind", codes)
    is_histogram = pc.equal(kinds, "histogram")
    value, total = (pa.array(list(map(attrgetter(name), lines)), pa.float64()) for name in ("value", "sum"))
    made["number"] = pc.if_else(is_histogram, total, value)
    for name, kind in (("buckets", pa.int32()), ("counts", pa.int64())):
        made[name] = _lists([getattr(line, name) or () for line in lines], kind)
    table = pa.table(made)
    sizes = pc.list_value_length(made["buckets"])
    fits = pc.and_(pc.equal(sizes, pc.list_value_length(made["counts"])), pc.greater(sizes, 0))
    fits = pc.if_else(is_histogram, fits, pc.or_(pc.equal(kinds, "gauge"), pc.greater_equal(value, 0.0)))
    good = pc.and_(
        pc.and_(pc.not_equal(codes, UNKNOWN), pc.is_valid(made["number"])), pc.fill_null(fits, False)
    )
    return table, good if pc.all(good).as_py() is False else None


def _lists(lists: list[Sequence[int]], kind: Any) -> Any:
    """Lists of numbers as one array."""
    ends = pc.cumulative_sum(pa.array(list(map(len, lists)), pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, pa.array(list(chain.from_iterable(lists)), kind))


def column(table: Any, name: str) -> Any:
    """A column as one array."""
    chunks = table[name].chunks
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else table[name].combine_chunks()


def _elements(line: Odd) -> Iterator[Odd]:
    """An array of objects as a line for each; anything else as it is."""
    try:
        given = json.loads(line.text) if line.text.lstrip().startswith("[") else None
    except ValueError:
        given = None
    if isinstance(given, list) and all(isinstance(one, dict) for one in given):
        for one in given:
            yield Odd(line.file, json.dumps(one))
    else:
        yield line
