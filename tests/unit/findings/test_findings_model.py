"""The evaluator says of each moment what a list of all samples says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.findings.core import evaluator
from ddmq.server.findings.core.evaluator import SLOTS, ClockReading, Evaluator, RuleState
from ddmq.server.findings.core.readings import read_columns
from ddmq_common.findings.conditions import (
    GaugeAbove,
    Grown,
    NotConsumed,
    QuantileAbove,
    Selector,
    ShareAbove,
)
from ddmq_common.findings.rule import CRITICAL, INFO, WARNING, FindingRule
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

WINDOW_S, FOR_S = 60, 30
GROUPS = ("a", "b")
BY = ("group", "topic")
CODES = ("0", "11", "12")
START_MS = 1_700_000_000_000


def build_rule(name: str, severity: str, condition: Any) -> FindingRule:
    return FindingRule(name, "p", severity, condition, "{value}", "", "", "", for_s=FOR_S)


RULES = (
    build_rule("blocked", WARNING, GaugeAbove(catalogue.BLOCKED_KEY_AGE, 10, BY, unless=catalogue.PAUSED)),
    build_rule("stalled", CRITICAL, GaugeAbove(catalogue.STALLED_QUEUES, 3, ("topic",), total=True)),
    build_rule("dead", INFO, Grown((Selector(catalogue.DEAD_LETTERS),), WINDOW_S, ("group",))),
    build_rule(
        "fail",
        WARNING,
        ShareAbove(
            Selector(catalogue.SENDS, without={"code": ("0",)}),
            Selector(catalogue.SENDS, {"code": ("0", "11")}),
            0.5,
            WINDOW_S,
            ("topic",),
        ),
    ),
    build_rule(
        "idle",
        WARNING,
        NotConsumed(catalogue.LAG, (catalogue.DELIVERED, catalogue.FETCHED), WINDOW_S, ("group",)),
    ),
    build_rule(
        "idle unless paused",
        WARNING,
        NotConsumed(catalogue.BLOCKED_KEY_AGE, (catalogue.DELIVERED,), WINDOW_S, BY, unless=catalogue.PAUSED),
    ),
    build_rule("slow", CRITICAL, QuantileAbove(catalogue.SEND_LATENCY, 0.9, 1000, WINDOW_S, ("topic",))),
)
Sample = dict[tuple[str, ...], float]  # metric and labels → value


class AllSamples:
    """Every sample that was ever taken, and what follows from them for the last moment."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, Sample]] = []

    def value(self, at: int, name: str, labels: tuple[str, ...]) -> float:
        return self.samples[at][1].get((name, *labels), 0.0)

    def mark_before(self, at: int) -> int | None:
        """The newest sample from before the window of sample `at` that is a mark."""
        marks: list[int] = []
        for index in range(at):
            if not marks or self.samples[index][0] - self.samples[marks[-1]][0] >= WINDOW_S / SLOTS:
                marks.append(index)
        earlier = [index for index in marks if self.samples[index][0] <= self.samples[at][0] - WINDOW_S]
        return earlier[-1] if earlier else None

    def growth(self, at: int, name: str, labels: tuple[str, ...]) -> float:
        mark = self.mark_before(at)
        before = 0.0 if mark is None else self.value(mark, name, labels)
        return self.value(at, name, labels) - before

    def holds(self, at: int, rule: str, key: str) -> bool:
        topics = GROUPS
        age = self.value(at, catalogue.BLOCKED_KEY_AGE.name, (key, key))
        paused = self.value(at, catalogue.PAUSED.name, (key, key)) > 0
        if rule == "blocked":
            return age > 10 and not paused
        if rule == "idle unless paused":
            return age > 0 and not paused and not self.growth(at, catalogue.DELIVERED.name, (key, key))
        if rule == "stalled":
            return sum(self.value(at, catalogue.STALLED_QUEUES.name, (group, key)) for group in GROUPS) > 3
        if rule == "dead":
            return any(
                self.growth(at, catalogue.DEAD_LETTERS.name, (key, topic, why)) > 0
                for topic in topics
                for why in CODES
            )
        if rule == "fail":
            sends = {code: self.growth(at, catalogue.SENDS.name, (key, code)) for code in CODES}
            failed, whole = sends["11"] + sends["12"], sends["0"] + sends["11"]
            return failed > 0 and (whole == 0 or failed / whole > 0.5)
        if rule == "slow":
            above = self.growth(at, "above", (key,))
            return above > 0 and above / self.growth(at, "all", (key,)) > 0.1
        flows = [
            self.growth(at, name, (key, topic))
            for name in (catalogue.DELIVERED.name, catalogue.FETCHED.name)
            for topic in topics
        ]
        lag = sum(self.value(at, catalogue.LAG.name, (key, topic)) for topic in topics)
        return lag > 0 and not any(flows)

    def since(self, rule: str, key: str) -> float | None:
        """Since when the rule has held at every sample, if it holds now."""
        at = len(self.samples) - 1
        if not self.holds(at, rule, key):
            return None
        while at and self.holds(at - 1, rule, key):
            at -= 1
        return self.samples[at][0]

    def findings(self) -> set[tuple[str, str, int]]:
        now = self.samples[-1][0]
        rows = set()
        for rule in RULES:
            for key in GROUPS:
                since = self.since(rule.name, key)
                if since is not None and now - since >= FOR_S:
                    rows.add((rule.name, key, START_MS + int(since)))
        return rows


def change(registry: Registry, sample: Sample, kind: int, key: str, amount: int) -> None:
    """One thing that happens in a process, to its metrics and to the sample."""

    def add(metric: Any, *labels: str) -> None:
        registry.cell(metric, *labels).value += amount
        name = (metric.name, *labels)
        sample[name] = sample.get(name, 0.0) + amount

    def put(metric: Any, *labels: str) -> None:
        registry.cell(metric, *labels).value = amount
        sample[metric.name, *labels] = amount

    if kind < 3:
        add(catalogue.SENDS, key, CODES[kind])
    elif kind < 6:
        add(catalogue.DEAD_LETTERS, key, GROUPS[kind % 2], CODES[kind - 3])
    elif kind == 6:
        add(catalogue.DELIVERED, key, "a")
    elif kind == 7:
        add(catalogue.FETCHED, key, "b")
    elif kind < 10:
        put(catalogue.LAG, key, GROUPS[kind % 2])
    elif kind == 10:
        put(catalogue.BLOCKED_KEY_AGE, key, key)
    elif kind < 13:
        put(catalogue.STALLED_QUEUES, GROUPS[kind % 2], key)
    elif kind == 15:
        put(catalogue.PAUSED, key, key)
    else:
        for _ in range(amount):
            registry.histogram(catalogue.SEND_LATENCY, key).observe(10 if kind == 13 else 5_000)
        for name in ("all", "above")[: kind - 12]:
            sample[name, key] = sample.get((name, key), 0.0) + amount


STEPS = st.lists(
    st.tuples(
        st.integers(0, 40),  # seconds since the last sample
        st.lists(st.tuples(st.integers(0, 15), st.sampled_from(GROUPS), st.integers(0, 20)), max_size=4),
    ),
    min_size=1,
    max_size=30,
)


@given(STEPS)
def test_findings_are_those_of_all_samples(steps: list[tuple[int, list[tuple[int, str, int]]]]) -> None:
    registry, history, judge, now = Registry(), AllSamples(), Evaluator(RULES), 0.0
    sample: Sample = {}
    for seconds, changes in steps:
        now += seconds
        for kind, key, amount in changes:
            change(registry, sample, kind, key, amount)
        history.samples.append((now, dict(sample)))
        moment = ClockReading(now, START_MS + int(now))
        for rule in RULES:
            judge.update(rule.name, moment, read_columns(rule.condition, registry))
        findings, left_out = judge.list_findings(moment)
        named = [(each.rule.name, next(iter(each.labels.values())), each.since_ms) for each in findings]
        assert set(named) == history.findings()
        assert len(named) == len(set(named))
        assert left_out == {}
        order = [
            (each.rule.severity != CRITICAL, each.rule.severity == INFO, each.since_ms) for each in findings
        ]
        assert order == sorted(order)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=60))
def test_growth_covers_the_window_and_little_more(steps: list[tuple[int, int]]) -> None:
    rule = build_rule("dead", INFO, Grown((Selector(catalogue.DEAD_LETTERS),), WINDOW_S, ()))
    state, total, now = RuleState(rule), 0, 0.0
    totals = [(0.0, 0)]
    gap = max(seconds for seconds, _ in steps)
    for seconds, amount in steps:
        now, total = now + seconds, total + amount
        totals.append((now, total))
        state.update(ClockReading(now, 0), {(): (float(total),)} if total else {})

        def grown(over_s: float, now: float = now, total: int = total) -> int:
            return total - max((value for at, value in totals if at <= now - over_s), default=0)

        measured = state.holdings[()].value if () in state.holdings else 0
        assert grown(WINDOW_S) <= measured <= grown(WINDOW_S + WINDOW_S / SLOTS + gap)
        assert len(state.marks) <= SLOTS + 2


def test_sets_of_labels_are_bounded_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "SERIES_MAX", 5)
    monkeypatch.setattr(evaluator, "ITEMS_MAX", 3)
    judge = Evaluator(RULES)
    for at in (0, FOR_S):
        moment = ClockReading(at, START_MS + at)
        judge.update("blocked", moment, {(str(n), "t"): (99.0, 0.0) for n in range(7)})
        judge.update("dead", moment, {(str(n),): (1.0,) for n in range(4)})
    findings, left_out = judge.list_findings(moment)
    assert [each.labels["group"] for each in findings if each.rule.name == "blocked"] == ["0", "1", "2"]
    assert left_out == {"blocked": 2, "dead": 1}
    assert judge.states["blocked"].unwatched == 2
    assert judge.states["dead"].unwatched == 0
