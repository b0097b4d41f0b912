"""Bytes of sample files into a table of lines that are good beyond doubt, and the text of all others.

Arrow reads a line only when every field has exactly its type. A piece that it refuses is halved until the
lines it does not like stand alone; a line that it reads but that is not clearly a good one (another version,
an unknown metric, a number out of range, anything escaped) is taken out, too. These odd lines are few, and
nothing is decided about them here: the caller gives them to Spark's reader, whose word counts. So this module
may be too careful about a line, never too generous.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ddmq_common.metrics.buckets import BUCKETS
from ddmq_common.metrics.catalogue import CATALOGUE
from metrics_job.tables import CORRUPT, PROCESS_METRIC, VERSION, label_names

EXACT = 1 << 53  # below it every whole number is a double
KINDS = {PROCESS_METRIC: "process"} | {metric.name: metric.kind for metric in CATALOGUE.values()}
_WHOLE = ("v", "seq", "from", "to")
_TEXTS = ("process", "instance", "metric")
_ODD_BYTES = re.compile(rb"[\\\r\x00]|" + CORRUPT.encode())
_ENDS = re.compile(rb"\r\n|\n|\r")
_BLANK = b" \t\r\n"


class Odd(NamedTuple):
    """A line that is for Spark's reader; `file` is a position in the files given."""

    file: int
    text: str


class Parsed(NamedTuple):
    """`lines`: a table of line_schema() with `kind` and no odd line."""

    lines: Any
    odd: list[Odd]


@cache
def line_schema() -> Any:
    """metrics_job.tables.line_schema in Arrow's types, without the text of corrupt lines."""
    whole, text = pa.int64(), pa.string()
    labels = pa.struct([(name, text) for name in label_names()])
    kinds = {"v": whole, "process": text, "instance": text, "seq": whole, "from": whole, "to": whole}
    kinds |= {"metric": text, "labels": labels, "value": pa.float64(), "sum": pa.float64()}
    return pa.schema([*kinds.items(), ("buckets", pa.list_(pa.int32())), ("counts", pa.list_(whole))])


def parse(files: Sequence[bytes]) -> Parsed:
    """All lines of these files; an array of objects is as many lines."""
    odd: list[Odd] = []
    lines: list[tuple[int, bytes]] = []
    tables: list[tuple[Any, list[tuple[int, bytes]]]]
    if any(_ODD_BYTES.search(data) for data in files):
        lines, odd = _separated(files)
        table = _read(b"\n".join(text for _, text in lines), len(lines))
    else:
        table = _read(b"\n".join(files), None)
    if table is None:
        lines = lines or [(at, text) for at, data in enumerate(files) for text in _split(data)]
        tables, refused = _halved(lines)
        odd += refused
    else:
        tables = [(table, lines)]
    made = [_checked(table, lines or None, files) for table, lines in tables]
    odd += [one for part in made for one in part.odd]
    good = pa.concat_tables([part.lines for part in made]) if made else _empty()
    return Parsed(good.combine_chunks(), [one for line in odd for one in _elements(line)])


def _empty() -> Any:
    return line_schema().empty_table().append_column("kind", pa.array([], pa.string()))


def _split(data: bytes) -> list[bytes]:
    return [text for text in _ENDS.split(data) if text.strip(_BLANK)]


def _separated(files: Sequence[bytes]) -> tuple[list[tuple[int, bytes]], list[Odd]]:
    """Lines with the position of their file, those with odd bytes apart."""
    plain, odd = [], []
    for at, data in enumerate(files):
        for text in _split(data):
            if _ODD_BYTES.search(text):
                odd.append(_odd(at, text))
            else:
                plain.append((at, text))
    return plain, odd


def _odd(file: int, text: bytes) -> Odd:
    return Odd(file, text.decode(errors="replace"))


def _read(data: bytes, count: int | None) -> Any:
    """The table of these lines; None where Arrow refuses one, or sees not one object in each."""
    if not data.strip(_BLANK):
        return line_schema().empty_table()
    reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = pj.ParseOptions(explicit_schema=line_schema(), unexpected_field_behavior="ignore")
    try:
        data.decode()
        table = pj.read_json(pa.BufferReader(data), read_options=reading, parse_options=parsing)
    except (UnicodeDecodeError, pa.ArrowException):
        return None
    if count is None:
        count = data.count(b"\n") + (not data.endswith(b"\n"))
        if table.num_rows != count:
            count = len(_split(data))
    return table if table.num_rows == count else None


def _halved(lines: list[tuple[int, bytes]]) -> tuple[list[tuple[Any, list[tuple[int, bytes]]]], list[Odd]]:
    """Tables of all lines that can be read, with them; the others."""
    tables, odd, waiting = [], [], [lines] if lines else []
    while waiting:
        part = waiting.pop()
        table = _read(b"\n".join(text for _, text in part), len(part))
        if table is not None:
            tables.append((table, part))
        elif len(part) == 1:
            odd.append(_odd(*part[0]))
        else:
            waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
    return tables, odd


def _checked(table: Any, lines: list[tuple[int, bytes]] | None, files: Sequence[bytes]) -> Parsed:
    """Good lines of a table that was read from these lines (None: all of the files)."""
    table = table.combine_chunks()
    names = pa.array(list(KINDS)), pa.array(list(KINDS.values()))
    table = table.append_column("kind", names[1].take(pc.index_in(column(table, "metric"), names[0])))
    good = _good(table)
    if pc.all(good).as_py() is not False:
        return Parsed(table, [])
    lines = lines or [(at, text) for at, data in enumerate(files) for text in _split(data)]
    refused = pc.indices_nonzero(pc.invert(good)).to_pylist()
    return Parsed(table.filter(good), [_odd(*lines[at]) for at in refused])


def column(table: Any, name: str) -> Any:
    """A column as one array."""
    chunks = table[name].chunks
    return (
        chunks[0]
        if len(chunks) == 1
        else pa.concat_arrays(chunks)
        if chunks
        else table[name].combine_chunks()
    )


def _good(table: Any) -> Any:
    """Whether each line is good beyond doubt; never null."""
    kind, value = column(table, "kind"), column(table, "value")
    there = [pc.is_valid(column(table, name)) for name in (*_TEXTS, "labels", "kind")]
    whole = [_between(column(table, name), 0, EXACT) for name in _WHOLE]
    of_version = pc.equal(column(table, "v"), VERSION)
    number = pc.and_(pc.is_finite(value), pc.or_(pc.equal(kind, "gauge"), pc.greater_equal(value, 0.0)))
    fits = pc.if_else(pc.equal(kind, "histogram"), _good_buckets(table), number)
    good = of_version
    for condition in (*there, *whole, fits):
        good = pc.and_kleene(good, condition)
    return pc.fill_null(good, False)


def _between(values: Any, low: int, end: int) -> Any:
    return pc.and_(pc.greater_equal(values, low), pc.less(values, end))


def _good_buckets(table: Any) -> Any:
    buckets, counts = column(table, "buckets"), column(table, "counts")
    size = pc.list_value_length(buckets)
    fits = pc.and_(pc.equal(size, pc.list_value_length(counts)), pc.greater(size, 0))
    fits = pc.and_(fits, pc.is_finite(column(table, "sum")))
    for lists, low, end in ((buckets, 0, BUCKETS), (counts, 1, EXACT)):
        inside = pc.fill_null(_between(pc.list_flatten(lists), low, end), False)
        if pc.all(inside).as_py() is False:
            bad = pc.unique(pc.list_parent_indices(lists).filter(pc.invert(inside)))
            rows = pa.array(range(len(lists)), pa.int64())
            fits = pc.and_(fits, pc.invert(pc.is_in(rows, bad.cast(pa.int64()))))
    return pc.fill_null(fits, False)


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
