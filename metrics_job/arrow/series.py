"""Which series each line of a table belongs to: a number for each different set of names, and the names once.

The columns of names are taken apart into small numbers (one for each different text), and those are put
together into one number by line. Only for its different values are the names looked up and the ids made.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from metrics_job.arrow.ids import spark_hash
from metrics_job.arrow.parse import KINDS, column
from metrics_job.tables import label_names

CACHED = 100_000  # series that a worker remembers


class Series(NamedTuple):
    """The kind, ids and names of one series, as metrics_job.slices has them."""

    kind: str
    series: int
    lane: int
    merged: int
    metric: str
    process: str
    instance: str
    topic: str
    group: str
    detail: str


def series_of(lines: Any) -> tuple[Any, list[Series]]:
    """Of a table of parse.Parsed: for every line a position in the list (int32), and the list."""
    labels = column(lines, "labels")
    columns = [column(lines, name) for name in ("instance", "process", "metric")]
    columns += [pc.struct_field(labels, name) for name in label_names()]
    codes, known = None, [()]
    for one in columns:
        codes, known = _with(codes, known, one)
    return codes, [_series(*names) for names in known]


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


@lru_cache(CACHED)
def _series(instance: str, process: str, metric: str, *labels: str | None) -> Series:
    who = (metric, *labels)
    named = {name: value for name, value in zip(label_names(), labels, strict=True) if value is not None}
    topic, group = named.pop("topic", ""), named.pop("group", "")
    detail = ",".join(f"{name}={value}" for name, value in named.items())
    return Series(
        KINDS[metric],
        spark_hash((instance, process, *who)),
        spark_hash((process, *who)),
        spark_hash(who),
        *(metric, process, instance, topic, group, detail),
    )
