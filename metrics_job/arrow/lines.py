"""Parse sample files into columns of lines that are certainly good, and the text of all other lines.

A line is good when every field has exactly its type and is in its range, and nothing in it is escaped. Any
other line stays undecoded. Such lines are few, and this module decides nothing about them: the caller passes
them to Spark's reader. So a good line may stay undecoded, but a bad one is never classified as good.

msgspec decodes, because it checks types and ranges while it reads, in a third of the time of Arrow's JSON
reader for such lines (decisions/0013). The series of a line is a number; its names are stored once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.cells import BUCKETS
from metrics_job.tables import CORRUPT, LAST, PROCESS_METRIC, STATE_LABEL, label_names

EXACT = 1 << 53  # below it every integer is exact as a double
ExactInt = Annotated[int, msgspec.Meta(ge=0, lt=EXACT)]


class Line(msgspec.Struct, gc=False, rename={"start": "from"}):
    """One sample line as docs/formats-samples.md defines it. Unknown fields are ignored."""

    v: Literal[1]
    process: str
    instance: str
    seq: ExactInt
    start: ExactInt
    to: ExactInt
    metric: str
    labels: msgspec.Raw
    value: float | None = None
    sum: float | None = None
    buckets: list[Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]] | None = None
    counts: list[Annotated[int, msgspec.Meta(ge=1, lt=EXACT)]] | None = None


KINDS = {PROCESS_METRIC: "process"} | {metric.name: metric.kind for metric in CATALOGUE.values()}
UNKNOWN = 0  # the number of lines with unknown names
_LABEL_NAMES = label_names()
_LABELS = msgspec.json.Decoder(dict[str, str])
_HEAD = attrgetter("instance", "process", "metric")


class Series(NamedTuple):
    """One time series in the samples: its kind, metric, reporting process and labels.

    Fields have the names of the columns of metrics_job.minutes.
    """

    kind: str
    metric: str
    process: str
    instance: str
    topic: str
    group: str
    detail: str
    is_last: bool  # the line with which a process reports that it stopped
    labels: tuple[tuple[str, str], ...]


class SeriesCodes(dict[tuple[Any, ...], int]):
    """Assigns a number to each series, by its names in the lines. A number stays valid for the life of this
    object."""

    def __init__(self) -> None:
        super().__init__()
        self.series = [Series("", "", "", "", "", "", "", False, ())]
        self.runs: list[tuple[str, str]] = []  # process, instance
        self._numbers: dict[Series, int] = {}
        self._run_numbers: dict[tuple[str, str], int] = {}
        self._columns: dict[str, Any] = {}

    def encode_lines(self, lines: Iterable[Line]) -> list[int]:
        """Return the series number of each line; UNKNOWN for an unknown metric or an invalid label."""
        return [self[_HEAD(line), bytes(line.labels)] for line in lines]

    def __missing__(self, key: tuple[Any, ...]) -> int:
        (instance, process, metric), labels = key
        series = _parse_series(instance, process, metric, labels)
        code = UNKNOWN if series is None else self._numbers.setdefault(series, len(self.series))
        if series is not None and code == len(self.series):
            self.series.append(series)
            self._columns = {}
        self[key] = code
        return code

    def field_column(self, name: str, codes: Any) -> Any:
        """Return the column of one Series field for these series numbers."""
        if name not in self._columns:
            self._columns[name] = pa.array([getattr(one, name) for one in self.series])
        return self._columns[name].take(codes)

    def field_columns(self, names: Iterable[str], codes: Any) -> dict[str, Any]:
        return {name: self.field_column(name, codes) for name in names}

    def run_numbers(self, codes: Any) -> Any:
        """Return the index into `runs` (process, instance) for these series numbers."""
        if "run" not in self._columns:
            by_name = self._run_numbers
            numbers = [by_name.setdefault((one.process, one.instance), len(by_name)) for one in self.series]
            self.runs, self._columns["run"] = list(by_name), pa.array(numbers, pa.int64())
        return self._columns["run"].take(codes)


def _parse_series(instance: str, process: str, metric: str, text: bytes) -> Series | None:
    kind = KINDS.get(metric)
    try:
        labels = _LABELS.decode(text)
    except msgspec.DecodeError:
        return None
    if kind is None or not labels.keys() <= set(_LABEL_NAMES):
        return None
    present_labels = {name: labels[name] for name in _LABEL_NAMES if name in labels}
    rest = {name: value for name, value in present_labels.items() if name not in ("topic", "group")}
    detail = ",".join(f"{name}={value}" for name, value in rest.items())
    is_last = kind == "process" and rest.get(STATE_LABEL) == LAST
    topic, group = present_labels.get("topic", ""), present_labels.get("group", "")
    return Series(
        kind, metric, process, instance, topic, group, detail, is_last, tuple(present_labels.items())
    )


def encode_texts(columns: list[Any]) -> tuple[Any, list[Any]]:
    """Dictionary-encode the combination of several text columns: return a number per row (int64), and the
    texts by number.
    """
    codes: Any = None
    names: list[Any] = [()]
    for one in columns:
        codes, names = _encode_next_column(codes, names, one)
    return codes.cast(pa.int64()), names


def _encode_next_column(codes: Any, names: list[Any], texts: Any) -> tuple[Any, list[Any]]:
    """Combine `codes` with one more column: return the new number per row, and `names` extended by its
    texts."""
    encoded = texts.dictionary_encode(null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    if codes is None or len(values) == 1:
        both = [(*former, value) for former in names for value in values]
        return (encoded.indices if codes is None else codes), both
    mixed = pc.add(pc.multiply(codes.cast(pa.int64()), len(values)), encoded.indices)
    renumbered = mixed.dictionary_encode()
    pairs = (divmod(number, len(values)) for number in renumbered.dictionary.to_pylist())
    return renumbered.indices, [(*names[former], values[value]) for former, value in pairs]


_UNDECODABLE_BYTES = (b"\\", b"\r", b"\x00", CORRUPT.encode())
_ENDS = re.compile(rb"\r\n|\n|\r")
_BLANK = b" \t\r\n"


class UndecodedLine(NamedTuple):
    """A line that the fast decoder cannot decode, so that Spark's reader must parse it. `file`: the index of
    its file."""

    file: int
    text: str

    @classmethod
    def from_bytes(cls, file: int, text: bytes) -> UndecodedLine:
        return cls(file, text.decode(errors="replace"))


class Parsed(NamedTuple):
    """The parsed lines of some files.

    `lines`: a table with `code` (of SeriesCodes), seq, from, to, number (value or sum), buckets and counts.
    `undecoded`: the lines that Spark's reader must parse.
    """

    lines: Any
    undecoded: list[UndecodedLine]


_DECODER = msgspec.json.Decoder(Line)
_APART_BYTES = 4_096  # a chunk of at most this size is decoded line by line


class Chunk(NamedTuple):
    """Lines that were decoded together: the index of their file, their text, and the decoded lines."""

    file: int
    text: bytes
    lines: list[Line]


def parse(files: Sequence[bytes], series_codes: SeriesCodes) -> Parsed:
    """Parse all lines of these files. An array of objects counts as one line per object."""
    undecoded: list[UndecodedLine] = []
    chunks = [chunk for at, data in enumerate(files) for chunk in _decode_chunks(at, data, undecoded)]
    table, good = _build_columns(list(chain.from_iterable(chunk.lines for chunk in chunks)), series_codes)
    if good is not None:
        line_texts = [(chunk.file, text) for chunk in chunks for text in _split_lines(chunk.text)]
        undecoded += [
            UndecodedLine.from_bytes(*line_texts[at])
            for at in pc.indices_nonzero(pc.invert(good)).to_pylist()
        ]
        table = table.filter(good)
    return Parsed(table.combine_chunks(), [one for line in undecoded for one in _split_array(line)])


def _decode_chunks(at: int, data: bytes, undecoded: list[UndecodedLine]) -> Iterator[Chunk]:
    """Decode lines in the largest possible chunks.

    A chunk with an undecodable line is halved until it is small.
    """
    lines = _decode_at_once(data)
    if lines is not None:
        yield Chunk(at, data, lines)
        return
    middle = data.find(b"\n", len(data) // 2, -1) + 1 or data.rfind(b"\n", 0, len(data) // 2) + 1
    if middle and len(data) > _APART_BYTES:
        for half in (data[:middle], data[middle:]):
            yield from _decode_chunks(at, half, undecoded)
    else:
        yield from _one_by_one(at, data, undecoded)


def _is_undecodable(data: bytes) -> bool:
    return any(sequence in data for sequence in _UNDECODABLE_BYTES)


def _split_lines(data: bytes) -> list[bytes]:
    lines = _ENDS.split(data) if b"\r" in data else data.split(b"\n")
    return [text for text in lines if text.strip(_BLANK)]


def _decode_at_once(data: bytes) -> list[Line] | None:
    """Decode all lines in one call; None if a line is undecodable or is not exactly one object."""
    if _is_undecodable(data):
        return None
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


def _one_by_one(at: int, data: bytes, undecoded: list[UndecodedLine]) -> Iterator[Chunk]:
    for text in _split_lines(data):
        try:
            if _is_undecodable(text):
                raise ValueError
            text.decode()
            yield Chunk(at, text, [_DECODER.decode(text)])
        except ValueError:  # msgspec's errors are ValueErrors, too
            undecoded.append(UndecodedLine.from_bytes(at, text))


def _build_columns(lines: list[Line], series_codes: SeriesCodes) -> tuple[Any, Any]:
    """Return the table of decoded lines, and a mask of the valid ones (None if all are valid)."""
    codes = pa.array(series_codes.encode_lines(lines), pa.int64())
    columns = {"code": codes}
    for name, field in (("seq", "seq"), ("from", "start"), ("to", "to")):
        columns[name] = pa.array(list(map(attrgetter(field), lines)), pa.int64())
    kinds = series_codes.field_column("kind", codes)
    is_histogram = pc.equal(kinds, "histogram")
    value, total = (pa.array(list(map(attrgetter(name), lines)), pa.float64()) for name in ("value", "sum"))
    columns["number"] = pc.if_else(is_histogram, total, value)
    for name, kind in (("buckets", pa.int32()), ("counts", pa.int64())):
        columns[name] = pa.array(list(map(attrgetter(name), lines)), pa.list_(kind))
    table = pa.table(columns)
    sizes = pc.list_value_length(columns["buckets"])
    fits = pc.and_(pc.equal(sizes, pc.list_value_length(columns["counts"])), pc.greater(sizes, 0))
    fits = pc.if_else(is_histogram, fits, pc.or_(pc.equal(kinds, "gauge"), pc.greater_equal(value, 0.0)))
    good = pc.and_(
        pc.and_(pc.not_equal(codes, UNKNOWN), pc.is_valid(columns["number"])), pc.fill_null(fits, False)
    )
    return table, good if pc.all(good).as_py() is False else None


def column_array(table: Any, name: str) -> Any:
    """Return a table's column as one Arrow array."""
    chunks = table[name].chunks
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else table[name].combine_chunks()


def fill_table(columns: dict[str, Any], schema: Any) -> Any:
    """Return a table with this schema; missing columns are null."""
    rows = len(next(iter(columns.values())))
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _split_array(line: UndecodedLine) -> Iterator[UndecodedLine]:
    """Yield a line for each object of an array; yield any other line unchanged."""
    try:
        elements = json.loads(line.text) if line.text.lstrip().startswith("[") else None
    except ValueError:
        elements = None
    if isinstance(elements, list) and all(isinstance(one, dict) for one in elements):
        for one in elements:
            yield UndecodedLine(line.file, json.dumps(one))
    else:
        yield line
