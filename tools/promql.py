"""What the expressions of the dashboard and the alert rules may say: PromQL over our catalogue.

A library parses them as Prometheus does, types of arguments included. Here stands what only we know: metrics
must be in the catalogue, matchers and groupings may only use labels that the metric has, a histogram may only
be used by its series, a counter only under rate or increase, or to ask whether it has begun
(`x unless x offset 15m`). `find_errors(expression)` says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser as promql

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.metric import Metric

OF_COUNTERS = {"rate", "irate", "increase", "resets"}
ALWAYS = {"job", "instance"}  # labels that Prometheus gives to every series
OF_PROMETHEUS = {"up"}  # series of its own
SERIES = {"_bucket": ("le",), "_sum": (), "_count": ()}  # of a histogram
OF_GRAFANA = re.compile(r"\$__\w+")  # a duration that it puts in before Prometheus sees it


class ExpressionError(Exception):
    """The expression is not valid for this catalogue."""


@dataclass
class Selector:
    """A use of a series: its metric, the labels it has; `rated`: a function for counters is around it."""

    series: str
    metric: Metric | None
    labels: set[str]
    rated: bool
    moved: bool  # offset
    begun: bool = False  # only asked whether it has begun


def find_errors(expression: str) -> list[str]:
    """Return the errors in an expression; an empty list if it is valid."""
    try:
        selectors(expression)
    except ExpressionError as error:
        return [f"{error} in {expression!r}"]
    return []


def selectors(expression: str) -> list[Selector]:
    """Return every use of a series. Raises ExpressionError if one is used wrongly."""
    try:
        tree = promql.parse(OF_GRAFANA.sub("5m", expression))
    except ValueError as error:
        raise ExpressionError(str(error)) from error
    if isinstance(tree, promql.MatrixSelector):
        raise ExpressionError(f"{tree}: a range has no value without a function over time")
    uses = list(_uses(tree, ()))
    for each in uses:
        counts = each.metric is not None and each.metric.kind != "gauge"
        if counts and not each.begun and not each.rated:
            raise ExpressionError(f"{each.series} only ever grows: take its rate or increase")
    return uses


def series_of(name: str, catalogue: Mapping[str, Metric] = CATALOGUE) -> tuple[Metric | None, set[str]]:
    """Return the metric behind a series, and its labels. Raises ExpressionError if there is none."""
    if name in OF_PROMETHEUS:
        return None, ALWAYS
    for suffix, more in SERIES.items():
        metric = catalogue.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if metric is not None and metric.kind == "histogram":
            return metric, {*ALWAYS, *metric.labels, *more}
    metric = catalogue.get(name)
    if metric is None:
        raise ExpressionError(f"metric {name} is not in the catalogue")
    if metric.kind == "histogram":
        raise ExpressionError(f"{name} is a histogram: use {name}_bucket, {name}_sum or {name}_count")
    return metric, {*ALWAYS, *metric.labels}


def _uses(node: Any, inside: tuple[str, ...]) -> Iterator[Selector]:
    """Of a part of a tree (a number has none); `inside`: the functions around it."""
    if isinstance(node, promql.VectorSelector):
        yield _selector(node, inside)
    elif isinstance(node, promql.MatrixSelector):
        yield _selector(node.vector_selector, inside)
    elif isinstance(node, promql.Call):
        uses = [use for each in node.args for use in _uses(each, (*inside, node.func.name))]
        for use in uses:
            if node.func.name == "histogram_quantile" and not use.series.endswith("_bucket"):
                raise ExpressionError(f"histogram_quantile needs buckets, not {use.series}")
        yield from uses
    elif isinstance(node, promql.AggregateExpr):
        by = node.modifier if node.modifier and node.modifier.type == promql.AggModifierType.By else None
        for use in _uses(node.expr, inside):
            for label in sorted({*by.labels} - use.labels if by else ()):
                raise ExpressionError(f"{use.series} has no label {label} to group by")
            yield use
        yield from _uses(node.param, inside)
    elif isinstance(node, promql.BinaryExpr):
        now, before = list(_uses(node.lhs, inside)), list(_uses(node.rhs, inside))
        if str(node.op) == "unless":
            _begun(now, before)
        yield from (*now, *before)
    elif isinstance(node, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        yield from _uses(node.expr, inside)


def _begun(now: list[Selector], before: list[Selector]) -> None:
    """`now unless before`: series that are there now and were not at an offset."""
    for use in now:
        for other in before:
            if other.moved and other.series == use.series:
                use.begun = other.begun = True


def _selector(node: promql.VectorSelector, inside: tuple[str, ...]) -> Selector:
    metric, labels = series_of(node.name or "")
    for label in sorted({each.name for each in node.matchers.matchers} - labels):
        raise ExpressionError(f"{node.name} has no label {label}; it has {', '.join(sorted(labels))}")
    rated = not OF_COUNTERS.isdisjoint(inside)
    return Selector(node.name or "", metric, labels, rated, node.offset is not None)
