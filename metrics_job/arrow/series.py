"""Which series lines belong to: a number for each different set of names, and the names once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ddmq_common.metrics.catalogue import CATALOGUE
from metrics_job.arrow.line import Line
from metrics_job.tables import LAST, PROCESS_METRIC, STATE_LABEL, label_names

KINDS = {PROCESS_METRIC: "process"} | {metric.name: metric.kind for metric in CATALOGUE.values()}
UNKNOWN = 0  # the number of lines whose names are odd
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
        """Several."""
        return {name: self.column(name, codes) for name in names}

    def run(self, codes: Any) -> Any:
        """A number for the run of a process, a position in `runs`."""
        if "run" not in self._columns:
            of = self._run_numbers
            numbers = [of.setdefault((one.process, one.instance), len(of)) for one in self.series]
            self.runs, self._columns["run"] = list(of), pa.array(numbers, pa.int64())
        return self._columns["run"].take(codes)


@cache
def known_labels() -> frozenset[str]:
    """What a line may be told apart by."""
    return frozenset(label_names())


def _series(instance: str, process: str, metric: str, text: bytes) -> Series | None:
    kind = KINDS.get(metric)
    try:
        labels = _LABELS.decode(text)
    except msgspec.DecodeError:
        return None
    if kind is None:
        return None
    if not labels.keys() <= known_labels():
        return None
    named = {name: labels[name] for name in label_names() if name in labels}
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
