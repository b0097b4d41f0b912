"""Prometheus' text format, made in pieces, so that a page of many label sets does not hold the event loop.

The text is what prometheus_client makes of Registry.collect, byte for byte (a test compares them), at a
fraction of the time. A histogram that has seen nothing yet is left out: its 41 lines would say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from prometheus_client import utils

from ddmq_common.metrics.buckets import OVERFLOW, SUB_BUCKETS, upper_edge
from ddmq_common.metrics.catalogue import Metric
from ddmq_common.metrics.cells import Histogram, MetricCell

NUMBERS_PER_PIECE = 1_000
HISTOGRAMS_PER_PIECE = 28
EDGES = [
    (first, first + SUB_BUCKETS, str(upper_edge(first + SUB_BUCKETS - 1)))
    for first in range(0, OVERFLOW, SUB_BUCKETS)
]  # first bucket, first one behind, upper edge
_number: Callable[[float], str] = utils.floatToGoString
Labels = tuple[str, ...]
C = TypeVar("C")


def pieces(
    numbers: Iterable[tuple[Metric, Mapping[Labels, MetricCell]]],
    histograms: Iterable[tuple[Metric, Mapping[Labels, Histogram]]],
) -> Iterator[bytes]:
    """The page, in order. Cells may change and be added between two pieces; a cell's lines stay together."""
    for metric, cells in numbers:
        name = metric.name.removesuffix("_total") + "_total" if metric.kind == "counter" else metric.name
        yield _head(metric, name)
        for some in _batches(cells, NUMBERS_PER_PIECE):
            lines = [
                f"{name}{_shown(_pairs(metric, labels))} {_number(cell.value)}\n" for labels, cell in some
            ]
            yield "".join(lines).encode()
    for metric, seen in histograms:
        yield _head(metric, metric.name)
        for part in _batches(seen, HISTOGRAMS_PER_PIECE):
            yield "".join([_lines(metric, labels, one) for labels, one in part if any(one.counts)]).encode()


def _head(metric: Metric, name: str) -> bytes:
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n".encode()


def _batches(cells: Mapping[Labels, C], size: int) -> Iterator[list[tuple[Labels, C]]]:
    each = iter(list(cells.items()))
    while batch := list(islice(each, size)):
        yield batch


def _pairs(metric: Metric, labels: Labels) -> list[str]:
    """`name="value"` of each label, by name."""
    return [f'{name}="{_escaped(value)}"' for name, value in sorted(zip(metric.labels, labels, strict=True))]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _shown(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _lines(metric: Metric, labels: Labels, histogram: Histogram) -> str:
    name, pairs = metric.name, _pairs(metric, labels)
    counts, seen = histogram.counts, 0
    before = "".join([f"{one}," for one in pairs if one < "le"])
    after = "".join([f",{one}" for one in pairs if one > "le"])
    lines = []
    for first, behind, edge in EDGES:
        seen += sum(counts[first:behind])
        lines.append(f'{name}_bucket{{{before}le="{edge}"{after}}} {_number(seen)}\n')
    seen += counts[OVERFLOW]
    count, shown = _number(seen), _shown(pairs)
    lines.append(f'{name}_bucket{{{before}le="+Inf"{after}}} {count}\n')
    lines.append(f"{name}_count{shown} {count}\n{name}_sum{shown} {_number(histogram.total)}\n")
    return "".join(lines)
