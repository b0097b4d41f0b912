"""Metric cells cheap enough for the hot path, shown to Prometheus when it asks.

A cell is a plain number that its one owner adds to on the hub: `cell.value += 1`. Nothing locks;
prometheus_client only formats. Label sets are bounded: past LABEL_SETS_MAX new ones share one cell
labelled "other", so that no client can grow memory by inventing names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ddmq_common.metrics.catalogue import CATALOGUE, Metric

LABEL_SETS_MAX = 10_000
SUB_BUCKETS = 8  # per power of two: at most 12.5 % error
BUCKETS = 27 * SUB_BUCKETS  # up to 2**27 µs, about 134 s; what is above counts in the last


class Cell:
    """A counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """Counts by logarithmic bucket, mergeable by adding; values in µs."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0.0

    def observe(self, value_us: float) -> None:
        self.counts[bucket(value_us)] += 1
        self.total += value_us

    def percentile(self, fraction: float) -> float:
        """The upper edge of the bucket that holds the given fraction of values; 0.0 when empty."""
        wanted = sum(self.counts) * fraction
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return upper_edge(index)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Count, mean and upper edges of the percentiles' buckets, µs."""
        count = sum(self.counts)
        return {
            "count": count,
            "mean": self.total / count if count else 0.0,
            "p50": self.percentile(0.5),
            "p99": self.percentile(0.99),
            "max": self.percentile(1.0),
        }


def bucket(value_us: float) -> int:
    """Index of the bucket holding `value_us`."""
    whole = int(value_us)
    if whole < SUB_BUCKETS:
        return max(whole, 0)
    shift = whole.bit_length() - 4
    return min((shift + 1) * SUB_BUCKETS + (whole >> shift) - SUB_BUCKETS, BUCKETS - 1)


def upper_edge(index: int) -> float:
    """The first value above the bucket, in µs."""
    if index < SUB_BUCKETS:
        return float(index + 1)
    shift = index // SUB_BUCKETS - 1
    return float((index % SUB_BUCKETS + SUB_BUCKETS + 1) << shift)


C = TypeVar("C", bound=Cell | Histogram)


class _Family(Generic[C]):
    def __init__(self, metric: Metric, kind: type[C]) -> None:
        self.metric = metric
        self.kind = kind
        self.cells: dict[tuple[str, ...], C] = {}

    def cell(self, labels: tuple[str, ...]) -> C:
        found = self.cells.get(labels)
        if found is None:
            if len(self.cells) >= LABEL_SETS_MAX:
                labels = ("other",) * len(labels)
            found = self.cells.setdefault(labels, self.kind())
        return found


class Registry:
    """All cells of one process. Make one in main and hand it down; tests make their own."""

    def __init__(self) -> None:
        self._numbers: dict[str, _Family[Cell]] = {}
        self._histograms: dict[str, _Family[Histogram]] = {}

    def cell(self, metric: Metric, *labels: str) -> Cell:
        """The counter or gauge of that label set; keep it, looking it up costs more than adding."""
        _check(metric, labels)
        return self._numbers.setdefault(metric.name, _Family(metric, Cell)).cell(labels)

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        """The histogram of that label set."""
        _check(metric, labels)
        return self._histograms.setdefault(metric.name, _Family(metric, Histogram)).cell(labels)

    def snapshot(self) -> dict[str, list[dict[str, Any]]]:
        """Every cell as plain data: labels with `value`, or with count, mean, p50, p99 and max in µs."""
        found: dict[str, list[dict[str, Any]]] = {}
        for numbers in self._numbers.values():
            metric = numbers.metric
            found[metric.name] = [
                dict(zip(metric.labels, labels, strict=True)) | {"value": cell.value}
                for labels, cell in numbers.cells.items()
            ]
        for histograms in self._histograms.values():
            metric = histograms.metric
            found[metric.name] = [
                dict(zip(metric.labels, labels, strict=True)) | histogram.summary()
                for labels, histogram in histograms.cells.items()
            ]
        return found

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)  # duck-typed collector
        return generate_latest(registry)

    def collect(self) -> Iterable[Any]:
        """prometheus_client's collector protocol."""
        for numbers in list(self._numbers.values()):
            yield _number_family(numbers)
        for histograms in list(self._histograms.values()):
            yield _histogram_family(histograms)


def _check(metric: Metric, labels: tuple[str, ...]) -> None:
    if CATALOGUE.get(metric.name) is not metric or len(labels) != len(metric.labels):
        raise ValueError(f"metric {metric.name} takes labels {metric.labels}, got {labels}")


def _number_family(family: _Family[Cell]) -> Any:
    metric = family.metric
    kind: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    shown = kind(metric.name, metric.help, labels=metric.labels)
    for labels, cell in list(family.cells.items()):
        shown.add_metric(labels, cell.value)
    return shown


def _histogram_family(family: _Family[Histogram]) -> Any:
    metric = family.metric
    shown = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, histogram in list(family.cells.items()):
        shown.add_metric(labels, _cumulative(histogram.counts), histogram.total)
    return shown


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    pairs: list[tuple[str, float]] = []
    seen = 0
    for index, count in enumerate(counts):
        seen += count
        if index % SUB_BUCKETS == SUB_BUCKETS - 1:
            pairs.append((str(upper_edge(index)), seen))
    return [*pairs, ("+Inf", seen)]
