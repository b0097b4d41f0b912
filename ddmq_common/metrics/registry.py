"""Metric cells cheap enough for the hot path, shown to Prometheus when it asks.

A cell is a plain number that its one owner adds to on the hub: `cell.value += 1`. Nothing locks. Label sets
are bounded: past LABEL_SETS_MAX, or HISTOGRAM_LABEL_SETS_MAX of a histogram, new ones share one cell labelled
"other", so that no client can grow memory by inventing names. What has to be computed is filled in by
collectors, just before somebody looks.

Prometheus' text format is made in pieces, so that a page of many label sets does not hold the event loop.
The text is what prometheus_client makes of the same cells, byte for byte (a test compares them), at a
fraction of the time. A histogram that has seen nothing yet is left out: its 41 lines would say nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

from prometheus_client import utils

from ddmq_common.metrics.catalogue import CATALOGUE, COLLECT_FAILED
from ddmq_common.metrics.cells import OVERFLOW, SUB_BUCKETS, Histogram, MetricCell, upper_edge
from ddmq_common.metrics.metric import Metric

LABEL_SETS_MAX = 10_000  # of one counter or gauge
HISTOGRAM_LABEL_SETS_MAX = 1_000  # of one histogram, whose cells are a hundred times the size
ANSWERS_S = 0.05  # after `fill` most of what collectors had to ask for is there
log = logging.getLogger("ddmq.metrics")

C = TypeVar("C", bound=MetricCell | Histogram)


class _Family(Generic[C]):
    def __init__(self, metric: Metric, kind: type[C], label_sets_max: int) -> None:
        self.metric = metric
        self.kind = kind
        self.label_sets_max = label_sets_max
        self.cells: dict[tuple[str, ...], C] = {}

    def cell(self, labels: tuple[str, ...]) -> C:
        found = self.cells.get(labels)
        if found is None:
            if len(self.cells) >= self.label_sets_max:
                labels = ("other",) * len(labels)
            found = self.cells.setdefault(labels, self.kind())
        return found


class Registry:
    """All cells of one process. Make one in main and hand it down; tests make their own."""

    def __init__(self) -> None:
        self._numbers: dict[str, _Family[MetricCell]] = {}
        self._histograms: dict[str, _Family[Histogram]] = {}
        self._collectors: list[Callable[[], None]] = []

    def cell(self, metric: Metric, *labels: str) -> MetricCell:
        """The counter or gauge of that label set; keep it, looking it up costs more than adding."""
        _check(metric, labels)
        family = self._numbers.get(metric.name)
        if family is None:
            family = self._numbers[metric.name] = _Family(metric, MetricCell, LABEL_SETS_MAX)
        return family.cell(labels)

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        """The histogram of that label set."""
        _check(metric, labels)
        family = self._histograms.get(metric.name)
        if family is None:
            family = self._histograms[metric.name] = _Family(metric, Histogram, HISTOGRAM_LABEL_SETS_MAX)
        return family.cell(labels)

    def add_collector(self, fill: Callable[[], None]) -> None:
        """Have `fill` called before every look at the cells, to set gauges that must be computed.

        It runs on the hub and must be quick and not yield. One that raises is counted
        (ddmq_collect_failed_total), logged the first time, and called again the next time.
        """
        self._collectors.append(fill)

    def fill(self) -> None:
        """Call the collectors: whoever reads cells by `numbers`, `histograms` or `exposition_pieces` does so
        first, and then waits for ANSWERS_S where that can be."""
        for collector in self._collectors:
            try:
                collector()
            except Exception:
                failed = self.cell(COLLECT_FAILED)
                if not failed.value:
                    log.exception("a metrics collector failed; its gauges keep their last values")
                failed.value += 1

    def numbers(self) -> list[tuple[Metric, Mapping[tuple[str, ...], MetricCell]]]:
        """The counters and gauges by family: the live cells, by the values of the metric's labels."""
        return [(family.metric, family.cells) for family in self._numbers.values()]

    def histograms(self) -> list[tuple[Metric, Mapping[tuple[str, ...], Histogram]]]:
        """The histograms by family: the live ones, by the values of the metric's labels."""
        return [(family.metric, family.cells) for family in self._histograms.values()]

    def snapshot(
        self, paced: Callable[[Iterable[Any]], Iterable[Any]] = iter
    ) -> dict[str, list[dict[str, Any]]]:
        """Every cell as plain data: labels with `value`, or with count, mean, p50, p99 and max.

        With `paced`, which goes through cells, others may run meanwhile.
        """
        self.fill()
        found: dict[str, list[dict[str, Any]]] = {}
        for metric, cells in self.numbers():
            found[metric.name] = [
                dict(zip(metric.labels, labels, strict=True)) | {"value": cell.value}
                for labels, cell in paced(list(cells.items()))
            ]
        for metric, seen in self.histograms():
            found[metric.name] = [
                dict(zip(metric.labels, labels, strict=True)) | histogram.summary()
                for labels, histogram in paced(list(seen.items()))
            ]
        return found

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        self.fill()
        return b"".join(self.exposition_pieces())

    def exposition_pieces(self) -> Iterator[bytes]:
        """Return the exposition in pieces, as it was filled: whoever may yield lets others run in between."""
        yield from pieces(self.numbers(), self.histograms())


def _check(metric: Metric, labels: tuple[str, ...]) -> None:
    if CATALOGUE.get(metric.name) is not metric or len(labels) != len(metric.labels):
        raise ValueError(f"metric {metric.name} takes labels {metric.labels}, got {labels}")


NUMBERS_PER_PIECE = 1_000
HISTOGRAMS_PER_PIECE = 28
EDGES = [
    (first, first + SUB_BUCKETS, str(upper_edge(first + SUB_BUCKETS - 1)))
    for first in range(0, OVERFLOW, SUB_BUCKETS)
]  # first bucket, first one behind, upper edge
_number: Callable[[float], str] = utils.floatToGoString
Labels = tuple[str, ...]


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
