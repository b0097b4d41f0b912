"""Metric cells cheap enough for the hot path, shown to Prometheus when it asks.

A cell is a plain number that its one owner adds to on the hub: `cell.value += 1`. Nothing locks. Label sets
are bounded: past LABEL_SETS_MAX, or HISTOGRAM_LABEL_SETS_MAX of a histogram, new ones share one cell
labelled "other", so that no client can grow memory by inventing names. What has to be computed is filled in
by collectors, just before somebody looks.

Prometheus' text format is written in chunks, so that a page of many label sets does not hold the event loop.
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
ANSWERS_S = 0.05  # after `run_collectors` most of the figures that collectors request are there
log = logging.getLogger("ddmq.metrics")

C = TypeVar("C", bound=MetricCell | Histogram)


class _Family(Generic[C]):
    def __init__(self, metric: Metric, kind: type[C], label_sets_max: int) -> None:
        self.metric = metric
        self.kind = kind
        self.label_sets_max = label_sets_max
        self.cells: dict[tuple[str, ...], C] = {}

    def get_cell(self, labels: tuple[str, ...]) -> C:
        cell = self.cells.get(labels)
        if cell is None:
            if len(self.cells) >= self.label_sets_max:
                labels = ("other",) * len(labels)
            cell = self.cells.setdefault(labels, self.kind())
        return cell


class Registry:
    """All metric cells of one process. Create one in main and pass it on; tests create their own."""

    def __init__(self) -> None:
        self._numbers: dict[str, _Family[MetricCell]] = {}
        self._histograms: dict[str, _Family[Histogram]] = {}
        self._collectors: list[Callable[[], None]] = []

    def cell(self, metric: Metric, *labels: str) -> MetricCell:
        """Return the counter or gauge with these labels. Keep it: a lookup costs more than an update."""
        _check(metric, labels)
        family = self._numbers.get(metric.name)
        if family is None:
            family = self._numbers[metric.name] = _Family(metric, MetricCell, LABEL_SETS_MAX)
        return family.get_cell(labels)

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        """Return the histogram with these labels."""
        _check(metric, labels)
        family = self._histograms.get(metric.name)
        if family is None:
            family = self._histograms[metric.name] = _Family(metric, Histogram, HISTOGRAM_LABEL_SETS_MAX)
        return family.get_cell(labels)

    def add_collector(self, fill: Callable[[], None]) -> None:
        """Register a function that is called before cells are read, to set gauges that must be computed.

        It runs on the hub, must be quick and must not yield. If it raises, that is counted
        (ddmq_collect_failed_total) and logged the first time, and it is called again the next time.
        """
        self._collectors.append(fill)

    def run_collectors(self) -> None:
        """Let all collectors update their metrics.

        Call this before `numbers`, `histograms` or `exposition_chunks`, then wait for ANSWERS_S if possible,
        because some collectors request their values.
        """
        for collector in self._collectors:
            try:
                collector()
            except Exception:
                failed = self.cell(COLLECT_FAILED)
                if not failed.value:
                    log.exception("a metrics collector failed; its gauges keep their last values")
                failed.value += 1

    def numbers(self) -> list[tuple[Metric, Mapping[tuple[str, ...], MetricCell]]]:
        """Return the live cells of counters and gauges by metric and label values."""
        return [(family.metric, family.cells) for family in self._numbers.values()]

    def cells_of(self, metric: Metric) -> Mapping[tuple[str, ...], MetricCell]:
        """Return the live cells of one counter or gauge by label values; empty if it has none yet."""
        family = self._numbers.get(metric.name)
        return {} if family is None else family.cells

    def histograms_of(self, metric: Metric) -> Mapping[tuple[str, ...], Histogram]:
        """Return the live histograms of one metric by label values; empty if it has none yet."""
        family = self._histograms.get(metric.name)
        return {} if family is None else family.cells

    def histograms(self) -> list[tuple[Metric, Mapping[tuple[str, ...], Histogram]]]:
        """Return the live histograms by metric and label values."""
        return [(family.metric, family.cells) for family in self._histograms.values()]

    def snapshot(
        self, paced: Callable[[Iterable[Any]], Iterable[Any]] = iter
    ) -> dict[str, list[dict[str, Any]]]:
        """Return every cell as plain data: labels with `value`, or with count, mean, p50, p99 and max.

        `paced`: an iterator wrapper that may yield to other greenlets between cells.
        """
        self.run_collectors()
        figures: dict[str, list[dict[str, Any]]] = {}
        for metric, cells in self.numbers():
            figures[metric.name] = [
                dict(zip(metric.labels, labels, strict=True)) | {"value": cell.value}
                for labels, cell in paced(list(cells.items()))
            ]
        for metric, family in self.histograms():
            figures[metric.name] = [
                dict(zip(metric.labels, labels, strict=True)) | histogram.summary()
                for labels, histogram in paced(list(family.items()))
            ]
        return figures

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        self.run_collectors()
        return b"".join(self.exposition_chunks())

    def exposition_chunks(self) -> Iterator[bytes]:
        """Yield the exposition in chunks. A caller may let other greenlets run between two of them."""
        yield from build_exposition(self.numbers(), self.histograms())


def _check(metric: Metric, labels: tuple[str, ...]) -> None:
    if CATALOGUE.get(metric.name) is not metric or len(labels) != len(metric.labels):
        raise ValueError(f"metric {metric.name} takes labels {metric.labels}, got {labels}")


NUMBERS_PER_CHUNK = 1_000
HISTOGRAMS_PER_CHUNK = 28
EDGES = [
    (first, first + SUB_BUCKETS, str(upper_edge(first + SUB_BUCKETS - 1)))
    for first in range(0, OVERFLOW, SUB_BUCKETS)
]  # first bucket, first one behind, upper edge
_number: Callable[[float], str] = utils.floatToGoString
Labels = tuple[str, ...]


def build_exposition(
    numbers: Iterable[tuple[Metric, Mapping[Labels, MetricCell]]],
    histograms: Iterable[tuple[Metric, Mapping[Labels, Histogram]]],
) -> Iterator[bytes]:
    """Yield the Prometheus page in chunks.

    Cells may change between two chunks; the lines of one cell stay together.
    """
    for metric, cells in numbers:
        name = metric.name.removesuffix("_total") + "_total" if metric.kind == "counter" else metric.name
        yield _family_head(metric, name)
        for some in _split_batches(cells, NUMBERS_PER_CHUNK):
            lines = [
                f"{name}{_labels_text(_label_pairs(metric, labels))} {_number(cell.value)}\n"
                for labels, cell in some
            ]
            yield "".join(lines).encode()
    for metric, family in histograms:
        yield _family_head(metric, metric.name)
        for batch in _split_batches(family, HISTOGRAMS_PER_CHUNK):
            yield "".join(
                [
                    _histogram_lines(metric, labels, histogram)
                    for labels, histogram in batch
                    if any(histogram.counts)
                ]
            ).encode()


def _family_head(metric: Metric, name: str) -> bytes:
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n".encode()


def _split_batches(cells: Mapping[Labels, C], size: int) -> Iterator[list[tuple[Labels, C]]]:
    items = iter(list(cells.items()))
    while batch := list(islice(items, size)):
        yield batch


def _label_pairs(metric: Metric, labels: Labels) -> list[str]:
    """Return `name="value"` for each label, sorted by name."""
    return [
        f'{name}="{_escape_value(value)}"' for name, value in sorted(zip(metric.labels, labels, strict=True))
    ]


def _escape_value(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _labels_text(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _histogram_lines(metric: Metric, labels: Labels, histogram: Histogram) -> str:
    name, pairs = metric.name, _label_pairs(metric, labels)
    counts, cumulative = histogram.counts, 0
    before = "".join([f"{pair}," for pair in pairs if pair < "le"])
    after = "".join([f",{pair}" for pair in pairs if pair > "le"])
    lines = []
    for first, behind, edge in EDGES:
        cumulative += sum(counts[first:behind])
        lines.append(f'{name}_bucket{{{before}le="{edge}"{after}}} {_number(cumulative)}\n')
    cumulative += counts[OVERFLOW]
    count, labels_text = _number(cumulative), _labels_text(pairs)
    lines.append(f'{name}_bucket{{{before}le="+Inf"{after}}} {count}\n')
    lines.append(f"{name}_count{labels_text} {count}\n{name}_sum{labels_text} {_number(histogram.total)}\n")
    return "".join(lines)
