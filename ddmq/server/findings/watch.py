"""The findings of this process, and of the other processes of its server, for GET /findings.

A process judges its own metrics by the table of findings every TICK_S, because conditions must hold for a
while, and before an answer if the last time was FRESH_S ago. The work is done in slices, between which other
greenlets run.

The public admin port of `ddmq serve --processes` adds the findings of the other processes to its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import gevent
from gevent.lock import BoundedSemaphore

from backend.port import Health
from ddmq.server.findings.core.evaluator import ITEMS_MAX, ActiveFinding, ClockReading, Evaluator
from ddmq.server.findings.core.readings import Readings, read_columns
from ddmq.server.http.pace import SLICE_S, YIELD_S
from ddmq_common.clock import Clock
from ddmq_common.findings.conditions import INSTANCE, Condition, NoneOwned, OnlyPrometheus
from ddmq_common.findings.rule import SEVERITIES
from ddmq_common.findings.table import RULES
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.registry import ANSWERS_S, Registry

TICK_S = 15.0
FRESH_S = 5.0
CHECKED_TOGETHER = 50  # cells, of about 2 µs each
FindingsAnswer = dict[str, Any]
T = TypeVar("T")
log = logging.getLogger("ddmq.findings")


def _report_owned() -> Health:
    return Health(True, "")


class FindingsWatch:
    """The findings of one process.

    `instance`: how people know the process, its admin address. `scheduler`: whether some process owns the
    delay levels, for a process that owns none.
    """

    def __init__(
        self,
        metrics: Registry,
        clock: Clock,
        instance: str = "this process",
        scheduler: Callable[[], Health] = _report_owned,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._instance = instance
        self._scheduler = scheduler
        self._evaluator = Evaluator()
        self._lock = BoundedSemaphore()
        self._evaluated_at = float("-inf")
        self._timer = HubTimer(ref=False)

    def start(self) -> None:
        """Evaluate the rules every TICK_S from now on."""
        self._timer.every(TICK_S, lambda: gevent.spawn(self.evaluate_rules))

    def stop(self) -> None:
        """Evaluate the rules no longer, except for requests."""
        self._timer.stop()

    def evaluate_rules(self) -> None:
        """Evaluate all rules, unless that was done within FRESH_S. Lets other greenlets run meanwhile."""
        with self._lock:
            if self._clock.monotonic() - self._evaluated_at < FRESH_S:
                return
            self._metrics.run_collectors()
            gevent.sleep(ANSWERS_S)
            now = self._read_clock()
            for name, state in self._evaluator.states.items():
                self._evaluator.update(name, now, self._read(state.rule.condition), iterate_sliced)
            self._evaluated_at = now.monotonic_s

    def answer(self) -> FindingsAnswer:
        """Return the findings of this process, as GET /findings has them."""
        self.evaluate_rules()
        findings, left_out = self._evaluator.list_findings(self._read_clock())
        return {
            "items": [self._to_item(finding) for finding in findings],
            "missing": [],
            "left_out": left_out,
            "unevaluated": [*_only_prometheus(), *self._list_unwatched()],
        }

    def _read_clock(self) -> ClockReading:
        return ClockReading(self._clock.monotonic(), self._clock.wall_ms())

    def _read(self, condition: Condition) -> Readings:
        readings = read_columns(condition, self._metrics, iterate_sliced)
        if isinstance(condition, NoneOwned) and readings[()][0] < 1 and self._scheduler().ready:
            return {}
        return readings

    def _to_item(self, finding: ActiveFinding) -> dict[str, Any]:
        rule = finding.rule
        labels = finding.labels
        if INSTANCE in rule.condition.by:
            labels = {INSTANCE: self._instance} | labels
        return {
            "id": rule.name,
            "severity": rule.severity,
            "since_ms": finding.since_ms,
            "labels": labels,
            "text": rule.build_text(labels, finding.value),
            "page": rule.build_page(labels),
            "command": rule.build_command(labels),
            "action": rule.action,
            "runbook": rule.runbook,
        }

    def _list_unwatched(self) -> Iterator[dict[str, str]]:
        for name, state in self._evaluator.states.items():
            if state.unwatched:
                yield {"id": name, "why": f"{state.unwatched} sets of labels are too many to be watched"}


def _only_prometheus() -> Iterator[dict[str, str]]:
    for rule in RULES:
        if isinstance(rule.condition, OnlyPrometheus):
            yield {"id": rule.name, "why": rule.condition.reason}


def iterate_sliced(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and let other greenlets run after each SLICE_S of processor time."""
    start, remaining = time.thread_time(), iter(items)
    while batch := list(islice(remaining, CHECKED_TOGETHER)):
        yield from batch
        if time.thread_time() - start > SLICE_S:
            gevent.sleep(YIELD_S)
            start = time.thread_time()


def merge_findings(own: FindingsAnswer, others: Iterable[FindingsAnswer], silent: Mapping[str, str]) -> Any:
    """Merge the findings of several processes.

    Of findings with the same rule and labels, the oldest one stays. `silent`: the processes that did not
    answer, with their admin addresses.
    """
    answers = [own, *others]
    items: dict[Any, dict[str, Any]] = {}
    left_out: dict[str, int] = {}
    unevaluated: dict[tuple[str, str], dict[str, str]] = {}
    for answer in answers:
        for item in answer["items"]:
            key = item["id"], tuple(sorted(item["labels"].items()))
            if key not in items or item["since_ms"] < items[key]["since_ms"]:
                items[key] = item
        for name, count in answer["left_out"].items():
            left_out[name] = left_out.get(name, 0) + count
        for row in answer["unevaluated"]:
            unevaluated[row["id"], row["why"]] = row
    return {
        "items": _limit_items(sorted(items.values(), key=_rank_item), left_out),
        "missing": [{"name": name, "admin": address} for name, address in sorted(silent.items())],
        "left_out": left_out,
        "unevaluated": list(unevaluated.values()),
    }


def _limit_items(items: list[dict[str, Any]], left_out: dict[str, int]) -> list[dict[str, Any]]:
    """Return at most ITEMS_MAX items of each rule, and count the others in `left_out`."""
    counts: dict[str, int] = {}
    first: list[dict[str, Any]] = []
    for item in items:
        name = item["id"]
        counts[name] = counts.get(name, 0) + 1
        if counts[name] <= ITEMS_MAX:
            first.append(item)
        else:
            left_out[name] = left_out.get(name, 0) + 1
    return first


def _rank_item(item: Mapping[str, Any]) -> tuple[int, int, str, tuple[str, ...]]:
    return SEVERITIES.index(item["severity"]), item["since_ms"], item["id"], tuple(item["labels"].values())
