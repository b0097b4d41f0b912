"""A reader of PromQL that knows its grammar and our catalogue: what it takes, Prometheus takes, too.

It is for the expressions of the dashboard and the alert rules, so it is strict: metrics must be in the
catalogue, matchers and groupings may only use labels that the metric has, a histogram may only be used by its
series, a counter only under rate or increase, or to ask whether it has begun (`x unless x offset 15m`).
`faults(expression)` says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ddmq_common.metrics.catalogue import CATALOGUE, Metric

TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]))|(?P<duration>\d+(?:ms|s|m|h|d|w)|\$__\w+)
    |(?P<name>[A-Za-z_:][\w:]*)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<op>==|!=|>=|<=|=~|!~|[-+*/%^<>=(){}\[\],:@]))""",
    re.VERBOSE,
)
AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "group", "quantile", "stddev"}
OVER_RANGE = {
    "rate", "irate", "increase", "delta", "deriv", "changes", "resets", "avg_over_time", "max_over_time",
    "min_over_time", "sum_over_time", "count_over_time", "last_over_time",
}  # fmt: skip
OF_COUNTERS = {"rate", "irate", "increase", "resets"}
FUNCTIONS = OVER_RANGE | {
    "histogram_quantile", "clamp_min", "clamp_max", "clamp", "abs", "ceil", "floor", "round", "absent",
    "scalar", "vector", "time", "label_replace", "sort", "sort_desc", "sgn",
}  # fmt: skip
BINARY = ("or", "and", "unless", "==", "!=", ">=", "<=", ">", "<", "+", "-", "*", "/", "%", "^")
ALWAYS = {"job", "instance"}  # labels that Prometheus gives to every series
OF_PROMETHEUS = {"up": ()}  # series of its own
SERIES = {"_bucket": ("le",), "_sum": (), "_count": ()}  # of a histogram


class Fault(Exception):
    """An expression is wrong, and says how."""


@dataclass
class Selector:
    """A use of a series: its metric, the labels it has, and the functions around it, innermost last."""

    series: str
    metric: Metric | None
    labels: set[str]
    matched: set[str]
    ranged: bool
    moved: bool  # offset
    begun: bool = False  # only asked whether it has begun
    inside: tuple[str, ...] = field(default=())


def faults(expression: str) -> list[str]:
    """Return what is wrong, empty when nothing is."""
    try:
        list(selectors(expression))
    except Fault as fault:
        return [f"{fault} in {expression!r}"]
    return []


def selectors(expression: str) -> list[Selector]:
    """Every use of a series; Fault when the expression is not one, or uses what is not there."""
    parser = _Parser(list(_tokens(expression)))
    parser.expression()
    if parser.at < len(parser.tokens):
        raise Fault(f"{parser.peek()!r} is left over")
    for each in parser.found:
        counts = each.metric is not None and each.metric.kind != "gauge"
        if counts and not each.begun and not OF_COUNTERS & set(each.inside):
            raise Fault(f"{each.series} only ever grows: take its rate or increase")
    return parser.found


def series_of(name: str, catalogue: Mapping[str, Metric] = CATALOGUE) -> tuple[Metric | None, set[str]]:
    """The metric behind a series, and its labels; Fault when there is none."""
    if name in OF_PROMETHEUS:
        return None, {*ALWAYS, *OF_PROMETHEUS[name]}
    for suffix, more in SERIES.items():
        metric = catalogue.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if metric is not None and metric.kind == "histogram":
            return metric, {*ALWAYS, *metric.labels, *more}
    metric = catalogue.get(name)
    if metric is None:
        raise Fault(f"metric {name} is not in the catalogue")
    if metric.kind == "histogram":
        raise Fault(f"{name} is a histogram: use {name}_bucket, {name}_sum or {name}_count")
    return metric, {*ALWAYS, *metric.labels}


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at, text = 0, expression.rstrip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise Fault(f"{text[at : at + 10]!r} is no PromQL")
        at = found.end()
        kind = found.lastgroup or ""
        yield kind, found[kind]


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.at = 0
        self.found: list[Selector] = []
        self._around: list[str] = []

    # --- tokens

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, *allowed: str, kind: str = "") -> str:
        if self.at >= len(self.tokens):
            raise Fault(f"it ends where {' or '.join(allowed) or kind} should come")
        found_kind, text = self.tokens[self.at]
        if (allowed and text not in allowed) or (kind and found_kind != kind):
            raise Fault(f"{text!r} stands where {' or '.join(allowed) or kind} should")
        self.at += 1
        return text

    def accept(self, *allowed: str) -> str:
        return self.take(*allowed) if self.peek() in allowed else ""

    # --- grammar

    def expression(self) -> None:
        first = len(self.found)
        self.unary()
        while operator := self.accept(*BINARY):
            self.accept("bool")
            if self.accept("on", "ignoring"):
                self.labels()
                if self.accept("group_left", "group_right") and self.peek() == "(":
                    self.labels()
            second = len(self.found)
            self.unary()
            if operator == "unless":
                self.begun(self.found[first:second], self.found[second:])

    @staticmethod
    def begun(now: list[Selector], before: list[Selector]) -> None:
        """`now unless before`: series that are there now and were not at an offset."""
        for selector in now:
            for other in before:
                if other.moved and other.series == selector.series:
                    selector.begun = other.begun = True

    def unary(self) -> None:
        while self.accept("-", "+"):
            pass
        if self.accept("("):
            self.expression()
            self.take(")")
            return
        if self.at >= len(self.tokens):
            raise Fault("it ends where an operand should come")
        kind, text = self.tokens[self.at]
        if kind in ("number", "text"):
            self.at += 1
        elif text in AGGREGATIONS:
            self.aggregation(self.take())
        elif kind == "name" and self.at + 1 < len(self.tokens) and self.tokens[self.at + 1][1] == "(":
            self.call(self.take())
        else:
            self.selector(self.take(kind="name"))

    def aggregation(self, name: str) -> None:
        first = len(self.found)
        kept = self.grouping()
        self.arguments(name)
        kept = self.grouping() if kept is None else kept
        for selector in self.found[first:]:
            for label in sorted((kept or set()) - selector.labels):
                raise Fault(f"{selector.series} has no label {label} to group by")

    def grouping(self) -> set[str] | None:
        """The labels that are kept; None when that is not said by name."""
        if self.accept("by"):
            return self.labels()
        if self.accept("without"):
            self.labels()
        return None

    def labels(self) -> set[str]:
        found: set[str] = set()
        self.take("(")
        while not self.accept(")"):
            found.add(self.take(kind="name"))
            if self.peek() != ")":
                self.take(",")
        return found

    def call(self, name: str) -> None:
        if name not in FUNCTIONS:
            raise Fault(f"function {name} is not known")
        first = len(self.found)
        self.arguments(name)
        for selector in self.found[first:]:
            if name in OVER_RANGE and selector.inside[-1] == name and not selector.ranged:
                raise Fault(f"{name} needs a range: {selector.series}[5m]")
            if name == "histogram_quantile" and not selector.series.endswith("_bucket"):
                raise Fault(f"histogram_quantile needs buckets, not {selector.series}")

    def arguments(self, name: str) -> None:
        self._around.append(name)
        self.take("(")
        while not self.accept(")"):
            self.expression()
            if self.peek() != ")":
                self.take(",")
        self._around.pop()

    def selector(self, name: str) -> None:
        metric, labels = series_of(name)
        matched: set[str] = set()
        if self.accept("{"):
            while not self.accept("}"):
                matched.add(self.take(kind="name"))
                self.take("=", "!=", "=~", "!~")
                self.take(kind="text")
                if self.peek() != "}":
                    self.take(",")
        ranged = bool(self.accept("["))
        if ranged:
            self.take(kind="duration")
            self.take("]")
        moved = bool(self.accept("offset"))
        if moved:
            self.take(kind="duration")
        for label in sorted(matched - labels):
            raise Fault(f"{name} has no label {label}; it has {', '.join(sorted(labels))}")
        inside = tuple(self._around)
        if ranged != bool(inside and inside[-1] in OVER_RANGE):
            raise Fault(f"{name}: a range and a function over time belong together")
        self.found.append(Selector(name, metric, labels, matched, ranged, moved, inside=inside))
