"""Decide which rules have findings, from what is read of a process's metrics at some moments.

For each rule, the evaluator remembers since when its condition has held for each set of labels, and the
totals of counters at a few earlier moments (marks), against which growth within a window is measured. A mark
is set when a window's SLOTS-th part has passed since the last one, so growth covers the window and at most
one slot and the time between two updates more. A counter that no mark has grew from 0, when the process
started.

A condition that holds at two updates counts as having held between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from ddmq.server.findings.core.measures import Samples, measure_value
from ddmq.server.findings.core.readings import Columns, Labels, Paced, Readings
from ddmq_common.findings.conditions import INSTANCE, FallsBelow, GaugeAbove, NoneOwned, OnlyPrometheus
from ddmq_common.findings.rule import SEVERITIES, FindingRule
from ddmq_common.findings.table import RULES

SLOTS = 5  # of a window of growth
TREND_SLOTS = 60  # of a window whose trend is followed
SERIES_MAX = 2_000  # sets of labels that one rule watches
ITEMS_MAX = 100  # findings of one rule that are listed, the oldest ones
ZEROS: Columns = (0.0, 0.0)


class ClockReading(NamedTuple):
    """A time on both clocks."""

    monotonic_s: float
    wall_ms: int


class Holding(NamedTuple):
    """Since when a condition has held, and the value that was measured last."""

    since: ClockReading
    value: float


class ActiveFinding(NamedTuple):
    """A condition that has held for the duration of its rule. `labels` do not include the instance."""

    rule: FindingRule
    labels: dict[str, str]
    since_ms: int
    value: float


class RuleState:
    """The state of one rule over time.

    `unwatched`: how many sets of labels were left out at the last update. `marks`: earlier readings.
    """

    def __init__(self, rule: FindingRule) -> None:
        self.rule = rule
        self.unwatched = 0
        self.holdings: dict[Labels, Holding] = {}
        condition = rule.condition
        self._window_s = (
            0 if isinstance(condition, GaugeAbove | NoneOwned | OnlyPrometheus) else condition.window_s
        )
        slots = TREND_SLOTS if isinstance(condition, FallsBelow) else SLOTS
        self._mark_interval_s = self._window_s / slots
        self.marks: deque[tuple[float, Readings]] = deque()

    def update(self, moment: ClockReading, readings: Readings, paced: Paced = iter) -> None:
        """Judge the rule's condition by what was read at `moment`, which is not before the last one.

        `paced`: an iterator wrapper that may let other work run between sets of labels.
        """
        self.unwatched = 0
        if self._window_s and len(readings) > SERIES_MAX:
            self.unwatched = len(readings) - SERIES_MAX
            readings = dict(islice(readings.items(), SERIES_MAX))
        self._drop_old_marks(moment.monotonic_s)
        holdings: dict[Labels, Holding] = {}
        for labels, columns in paced(readings.items()):
            samples = self._collect_samples(moment, labels, columns) if self._window_s else ()
            value = measure_value(self.rule.condition, columns, samples)
            if value is None:
                continue
            if len(holdings) >= SERIES_MAX:
                self.unwatched += 1
                continue
            earlier = self.holdings.get(labels)
            holdings[labels] = Holding(moment if earlier is None else earlier.since, value)
        self.holdings = holdings
        self._set_mark(moment.monotonic_s, readings)

    def find_due(self, moment: ClockReading) -> list[tuple[Labels, Holding]]:
        """Return what has held for the rule's duration, the oldest first."""
        due = [
            (labels, holding)
            for labels, holding in self.holdings.items()
            if moment.monotonic_s - holding.since.monotonic_s >= self.rule.for_s
        ]
        return sorted(due, key=lambda row: (row[1].since.monotonic_s, row[0]))

    def _collect_samples(self, moment: ClockReading, labels: Labels, columns: Columns) -> Samples:
        """Return the marks of one set of labels, and what was read now."""
        if isinstance(self.rule.condition, FallsBelow):
            earlier = [(at, marked[labels]) for at, marked in self.marks if labels in marked]
            return [*earlier, (moment.monotonic_s, columns)]
        start = self.marks[0] if self._covers_window(moment.monotonic_s) else None
        baseline = ZEROS if start is None else start[1].get(labels, ZEROS)
        return [(moment.monotonic_s - self._window_s, baseline), (moment.monotonic_s, columns)]

    def _covers_window(self, now: float) -> bool:
        return bool(self.marks) and self.marks[0][0] <= now - self._window_s

    def _drop_old_marks(self, now: float) -> None:
        """Keep the newest mark from before the window, and all in the window."""
        while len(self.marks) > 1 and self.marks[1][0] <= now - self._window_s:
            self.marks.popleft()

    def _set_mark(self, now: float, readings: Readings) -> None:
        if self._window_s and (not self.marks or now - self.marks[-1][0] >= self._mark_interval_s):
            self.marks.append((now, readings))


class Evaluator:
    """The states of all rules of one process."""

    def __init__(self, rules: Sequence[FindingRule] = RULES) -> None:
        self.states = {
            rule.name: RuleState(rule) for rule in rules if not isinstance(rule.condition, OnlyPrometheus)
        }

    def update(self, name: str, moment: ClockReading, readings: Readings, paced: Paced = iter) -> None:
        """Judge the rule `name` by what was read at `moment`."""
        self.states[name].update(moment, readings, paced)

    def list_findings(self, moment: ClockReading) -> tuple[list[ActiveFinding], dict[str, int]]:
        """Return the findings, the most urgent first, and by rule how many more there are than ITEMS_MAX."""
        findings: list[ActiveFinding] = []
        left_out: dict[str, int] = {}
        for name, state in self.states.items():
            due = state.find_due(moment)
            if len(due) > ITEMS_MAX:
                left_out[name] = len(due) - ITEMS_MAX
            findings += [_to_finding(state.rule, *row) for row in due[:ITEMS_MAX]]
        return sort_findings(findings), left_out


def _to_finding(rule: FindingRule, labels: Labels, holding: Holding) -> ActiveFinding:
    names = [label for label in rule.condition.by if label != INSTANCE]
    return ActiveFinding(rule, dict(zip(names, labels, strict=True)), holding.since.wall_ms, holding.value)


def sort_findings(findings: Iterable[ActiveFinding]) -> list[ActiveFinding]:
    """Sort by severity, then by age, the oldest first."""
    return sorted(
        findings,
        key=lambda finding: (
            SEVERITIES.index(finding.rule.severity),
            finding.since_ms,
            finding.rule.name,
            tuple(finding.labels.values()),
        ),
    )
