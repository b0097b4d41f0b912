"""Read from a registry what a condition compares: a few numbers for each set of labels.

The numbers of a set, its columns, are in the order that measures.py expects. Columns that only grow (counters
and counts of histograms) are totals since the process started. A set whose totals are all 0 may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ddmq_common.findings.conditions import (
    INSTANCE,
    Condition,
    FallsBelow,
    GaugeAbove,
    Grown,
    NoneOwned,
    NotConsumed,
    OnlyPrometheus,
    QuantileAbove,
    Selector,
    ShareAbove,
)
from ddmq_common.metrics.cells import Histogram, MetricCell, bucket_index
from ddmq_common.metrics.metric import Metric

Labels = tuple[str, ...]
Columns = tuple[float, ...]
Readings = dict[Labels, Columns]
Totals = dict[Labels, float]
Paced = Callable[[Iterable[Any]], Iterable[Any]]


class Cells(Protocol):
    """The metrics of a process, as Registry has them."""

    def cells_of(self, metric: Metric) -> Mapping[Labels, MetricCell]:
        """Return the cells of a counter or gauge, by their labels."""
        ...

    def histograms_of(self, metric: Metric) -> Mapping[Labels, Histogram]:
        """Return the cells of a histogram, by their labels."""
        ...


def read_columns(condition: Condition, cells: Cells, paced: Paced = iter) -> Readings:
    """Return the columns of each set of labels.

    `paced`: an iterator wrapper that may let other work run between cells.
    """
    by = condition.by
    match condition:
        case OnlyPrometheus():
            return {}
        case NoneOwned():
            return {(): (sum(cell.value for cell in cells.cells_of(condition.metric).values()),)}
        case GaugeAbove():
            combine = _add if condition.total else max
            totals = _combine_cells(Selector(condition.metric), by, cells, paced, combine)
            return _add_exemptions({labels: (value,) for labels, value in totals.items()}, condition, cells)
        case FallsBelow():
            lowest = _combine_cells(Selector(condition.metric), by, cells, paced, min)
            return {labels: (value,) for labels, value in lowest.items()}
        case Grown():
            grown = _sum_cells(condition.series, by, cells, paced)
            return {labels: (value,) for labels, value in grown.items() if value}
        case ShareAbove():
            parts = _sum_cells((condition.part,), by, cells, paced)
            wholes = _sum_cells((condition.whole,), by, cells, paced)
            return _pair_columns(parts, wholes)
        case QuantileAbove():
            return _count_above(condition, cells, paced)
        case NotConsumed():
            flows = _sum_cells([Selector(flow) for flow in condition.flows], by, cells, paced)
            lags = _sum_cells((Selector(condition.lag),), by, cells, paced)
            return _add_exemptions(_pair_columns(flows, lags), condition, cells)


def _pair_columns(first: Totals, second: Totals) -> Readings:
    return {labels: (first.get(labels, 0.0), second.get(labels, 0.0)) for labels in {**second, **first}}


def _add_exemptions(readings: Readings, condition: GaugeAbove | NotConsumed, cells: Cells) -> Readings:
    """Return the readings with a last column that is above 0 where the condition does not apply."""
    if condition.unless is None:
        return {labels: (*columns, 0.0) for labels, columns in readings.items()}
    gauges = cells.cells_of(condition.unless)
    exempt = {labels for labels, cell in list(gauges.items()) if cell.value > 0}
    return {labels: (*columns, float(labels in exempt)) for labels, columns in readings.items()}


def _add(one: float, other: float) -> float:
    return one + other


def _sum_cells(selectors: Iterable[Selector], by: tuple[str, ...], cells: Cells, paced: Paced) -> Totals:
    totals: Totals = {}
    for selector in selectors:
        for labels, value in _combine_cells(selector, by, cells, paced, _add).items():
            totals[labels] = totals.get(labels, 0.0) + value
    return totals


def _combine_cells(
    selector: Selector,
    by: tuple[str, ...],
    cells: Cells,
    paced: Paced,
    combine: Callable[[float, float], float],
) -> Totals:
    """Combine the selected cells that have the same values of the labels `by`."""
    metric, totals = selector.metric, dict[Labels, float]()
    if by == metric.labels and not selector.only and not selector.without:
        return {labels: cell.value for labels, cell in paced(list(cells.cells_of(metric).items()))}
    indexes = find_indexes(metric, by)
    only = [(metric.labels.index(label), values) for label, values in selector.only.items()]
    without = [(metric.labels.index(label), values) for label, values in selector.without.items()]
    for labels, cell in paced(list(cells.cells_of(metric).items())):
        if any(labels[at] not in values for at, values in only):
            continue
        if any(labels[at] in values for at, values in without):
            continue
        key = tuple([labels[at] for at in indexes])
        before = totals.get(key)
        totals[key] = cell.value if before is None else combine(before, cell.value)
    return totals


def _count_above(condition: QuantileAbove, cells: Cells, paced: Paced) -> Readings:
    """Count the observations in the buckets above the threshold, and all observations."""
    indexes = find_indexes(condition.metric, condition.by)
    first_above = bucket_index(condition.above)
    counts: Readings = {}
    for labels, histogram in paced(list(cells.histograms_of(condition.metric).items())):
        key = tuple([labels[at] for at in indexes])
        above, total = counts.get(key, (0.0, 0.0))
        above_here = sum(histogram.counts[first_above:])
        counts[key] = (above + above_here, total + above_here + sum(histogram.counts[:first_above]))
    return counts


def find_indexes(metric: Metric, by: tuple[str, ...]) -> list[int]:
    """Return where the labels `by` are among the metric's labels, which do not include the instance."""
    return [metric.labels.index(label) for label in by if label != INSTANCE]
