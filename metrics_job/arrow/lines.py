"""Bytes of sample files into columns of lines that are good beyond doubt, and the text of all others.

A line counts as good when every field has exactly its type and lies in its range, and nothing in it is
escaped. Any other is odd. Odd lines are few, and nothing is decided about them here: the caller gives them to
Spark's reader, whose word counts. So this module may be too careful about a line, never too generous.

msgspec decodes, because it checks types and ranges while it reads: a third of what Arrow's own JSON reader
takes for lines like these (decisions/0013). Which series a line belongs to is a number for each different set
of names, and the names once.
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

EXACT = 1 << 53  # below it every whole number is a double
Whole = Annotated[int, msgspec.Meta(ge=0, lt=EXACT)]


class Line(msgspec.Struct, gc=False, rename={"start": "from"}):
    """One line as docs/formats-samples.md has it; other fields are passed over."""

    v: Literal[1]
    process: str
    instance: str
    seq: Whole
    start: Whole
    to: Whole
    metric: str
    labels: msgspec.Raw
    value: float | None = None
    sum: float | None = None
    buckets: list[Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]] | None = None
    counts: list[Annotated[int, msgspec.Meta(ge=1, lt=EXACT)]] | None = None


KINDS = {PROCESS_METRIC: "process"} | {metric.name: metric.kind for metric in CATALOGUE.values()}
UNKNOWN = 0  # the number of lines whose names are odd
_LABEL_NAMES = label_names()
_LABELS = msgspec.json.Decoder(dict[str, str])
_HEAD = attrgetter("instance", "process", "metric")


class Series(NamedTuple):
    """The kind and names of one series, as metrics_job.minutes has them; and its labels as they are."""

    kind: str
    metric: str
    process: str
    instance: str
    topic: str
    group: str
    detail: str
    is_last: bool  # the line that says that its process stopped
    labels: tuple[tuple[str, str], ...]


class Known(dict[tuple[Any, ...], int]):
    """Numbers of series, by their names as they stand in lines: the same for the life of this object."""

    def __init__(self) -> None:
        super().__init__()
        self.series = [Series("", "", "", "", "", "", "", False, ())]
        self.runs: list[tuple[str, str]] = []  # process, instance
        self._numbers: dict[Series, int] = {}
        self._run_numbers: dict[tuple[str, str], int] = {}
        self._columns: dict[str, Any] = {}

    def codes(self, lines: Iterable[Line]) -> list[int]:
        """The number of each line; UNKNOWN where the metric is not in the catalogue or a label is no text."""
        return [self[_HEAD(line), bytes(line.labels)] for line in lines]

    def __missing__(self, key: tuple[Any, ...]) -> int:
        (instance, process, metric), labels = key
        made = _series(instance, process, metric, labels)
        code = UNKNOWN if made is None else self._numbers.setdefault(made, len(self.series))
        if made is not None and code == len(self.series):
            self.series.append(made)
            self._columns = {}
        self[key] = code
        return code

    def column(self, name: str, codes: Any) -> Any:
        """A field of Series for each of these numbers."""
        if name not in self._columns:
            self._columns[name] = pa.array([getattr(one, name) for one in self.series])
        return self._columns[name].take(codes)

    def columns(self, names: Iterable[str], codes: Any) -> dict[str, Any]:
        return {name: self.column(name, codes) for name in names}

    def run(self, codes: Any) -> Any:
        """A number for the run of a process, a position in `runs`."""
        if "run" not in self._columns:
            of = self._run_numbers
            numbers = [of.setdefault((one.process, one.instance), len(of)) for one in self.series]
            self.runs, self._columns["run"] = list(of), pa.array(numbers, pa.int64())
        return self._columns["run"].take(codes)


def _series(instance: str, process: str, metric: str, text: bytes) -> Series | None:
    kind = KINDS.get(metric)
    try:
        labels = _LABELS.decode(text)
    except msgspec.DecodeError:
        return None
    if kind is None or not labels.keys() <= set(_LABEL_NAMES):
        return None
    named = {name: labels[name] for name in _LABEL_NAMES if name in labels}
    rest = {name: value for name, value in named.items() if name not in ("topic", "group")}
    detail = ",".join(f"{name}={value}" for name, value in rest.items())
    is_last = kind == "process" and rest.get(STATE_LABEL) == LAST
    topic, group = named.get("topic", ""), named.get("group", "")
    return Series(kind, metric, process, instance, topic, group, detail, is_last, tuple(named.items()))


def codes_of(columns: list[Any]) -> tuple[Any, list[Any]]:
    """For every row a number for its texts (int64), and the texts by number."""
    codes: Any = None
    known: list[Any] = [()]
    for one in columns:
        codes, known = _with(codes, known, one)
    return codes.cast(pa.int64()), known


def _with(codes: Any, known: list[Any], texts: Any) -> tuple[Any, list[Any]]:
    """The numbers and names with one more column."""
    encoded = texts.dictionary_encode(null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    if codes is None or len(values) == 1:
        both = [(*former, value) for former in known for value in values]
        return (encoded.indices if codes is None else codes), both
    mixed = pc.add(pc.multiply(codes.cast(pa.int64()), len(values)), encoded.indices)
    again = mixed.dictionary_encode()
    pairs = (divmod(number, len(values)) for number in again.dictionary.to_pylist())
    return again.indices, [(*known[former], values[value]) for former, value in pairs]


_ODD_BYTES = (b"\\", b"\r", b"\x00", CORRUPT.encode())
_ENDS = re.compile(rb"\r\n|\n|\r")
_BLANK = b" \t\r\n"


class Odd(NamedTuple):
    """A line that is for Spark's reader; `file` is a position in the files given."""

    file: int
    text: str

    @classmethod
    def of(cls, file: int, text: bytes) -> Odd:
        return cls(file, text.decode(errors="replace"))


class Parsed(NamedTuple):
    """`lines`: columns `code` (of Known), seq, from, to, number (value or sum), buckets and counts."""

    lines: Any
    odd: list[Odd]


_DECODER = msgspec.json.Decoder(Line)
_APART_BYTES = 4_096  # so much is decoded line by line


class Chunk(NamedTuple):
    """Lines that were decoded together: the position of their file, what they were, what they are."""

    file: int
    text: bytes
    lines: list[Line]


def parse(files: Sequence[bytes], known: Known) -> Parsed:
    """All lines of these files; an array of objects is as many lines."""
    odd: list[Odd] = []
    chunks = [chunk for at, data in enumerate(files) for chunk in _chunks(at, data, odd)]
    table, good = _columns(list(chain.from_iterable(chunk.lines for chunk in chunks)), known)
    if good is not None:
        places = [(chunk.file, text) for chunk in chunks for text in _split(chunk.text)]
        odd += [Odd.of(*places[at]) for at in pc.indices_nonzero(pc.invert(good)).to_pylist()]
        table = table.filter(good)
    return Parsed(table.combine_chunks(), [one for line in odd for one in _elements(line)])


def _chunks(at: int, data: bytes, odd: list[Odd]) -> Iterator[Chunk]:
    """What is good, in pieces as large as may be; a piece with an odd line is halved until little is left."""
    lines = _at_once(data)
    if lines is not None:
        yield Chunk(at, data, lines)
        return
    middle = data.find(b"\n", len(data) // 2, -1) + 1 or data.rfind(b"\n", 0, len(data) // 2) + 1
    if middle and len(data) > _APART_BYTES:
        for half in (data[:middle], data[middle:]):
            yield from _chunks(at, half, odd)
    else:
        yield from _one_by_one(at, data, odd)


def _is_odd(data: bytes) -> bool:
    return any(odd in data for odd in _ODD_BYTES)


def _split(data: bytes) -> list[bytes]:
    lines = _ENDS.split(data) if b"\r" in data else data.split(b"\n")
    return [text for text in lines if text.strip(_BLANK)]


def _at_once(data: bytes) -> list[Line] | None:
    """None when a line is odd, or when it is not one object on each line."""
    if _is_odd(data):
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


def _one_by_one(at: int, data: bytes, odd: list[Odd]) -> Iterator[Chunk]:
    for text in _split(data):
        try:
            if _is_odd(text):
                raise ValueError
            text.decode()
            yield Chunk(at, text, [_DECODER.decode(text)])
        except ValueError:  # msgspec's errors are some, too
            odd.append(Odd.of(at, text))


def _columns(lines: list[Line], known: Known) -> tuple[Any, Any]:
    """The columns, and which lines are good: None when all are."""
    codes = pa.array(known.codes(lines), pa.int64())
    made = {"code": codes}
    for name, field in (("seq", "seq"), ("from", "start"), ("to", "to")):
        made[name] = pa.array(list(map(attrgetter(field), lines)), pa.int64())
    kinds = known.column("kind", codes)
    is_histogram = pc.equal(kinds, "histogram")
    value, total = (pa.array(list(map(attrgetter(name), lines)), pa.float64()) for name in ("value", "sum"))
    made["number"] = pc.if_else(is_histogram, total, value)
    for name, kind in (("buckets", pa.int32()), ("counts", pa.int64())):
        made[name] = pa.array(list(map(attrgetter(name), lines)), pa.list_(kind))
    table = pa.table(made)
    sizes = pc.list_value_length(made["buckets"])
    fits = pc.and_(pc.equal(sizes, pc.list_value_length(made["counts"])), pc.greater(sizes, 0))
    fits = pc.if_else(is_histogram, fits, pc.or_(pc.equal(kinds, "gauge"), pc.greater_equal(value, 0.0)))
    good = pc.and_(
        pc.and_(pc.not_equal(codes, UNKNOWN), pc.is_valid(made["number"])), pc.fill_null(fits, False)
    )
    return table, good if pc.all(good).as_py() is False else None


def column(table: Any, name: str) -> Any:
    """A column as one array."""
    chunks = table[name].chunks
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else table[name].combine_chunks()


def filled(columns: dict[str, Any], schema: Any) -> Any:
    """A table of this schema; null where nothing is given."""
    rows = len(next(iter(columns.values())))
    made = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.table(made, schema=schema)


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
