"""Promises kept or not, and processes with their restarts and gaps: rows of days made one row each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metrics_job.report.core.material import Row

VANISHED = "vanished"
STOPPED = "last"


@dataclass(frozen=True, slots=True)
class SloFacts:
    """One objective at one place over the days of the span."""

    name: str
    topic: str
    group: str
    target: float
    good: int
    total: int
    days: int
    days_missed: list[str]

    @property
    def compliance(self) -> float | None:
        return self.good / self.total if self.total else None

    @property
    def met(self) -> bool:
        return not self.days_missed


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process under its name; each start is an instance of its own."""

    name: str
    first_ms: int
    last_ms: int
    starts: int
    vanished_ms: list[int]  # when instances that ended without saying so were last seen
    missing: int  # sample files that should be there
    duplicates: int
    longest_gap_s: float
    clock_steps: int
    ended: str  # how its last instance stands: last (it stopped), vanished, running

    @property
    def vanished(self) -> int:
        return len(self.vanished_ms)

    @property
    def restarts(self) -> int:
        return self.starts - 1


def slos(rows: Iterable[Row]) -> list[SloFacts]:
    """Missed ones first, the furthest from its target first."""
    by: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["total"]:
            by.setdefault((row["slo"], row["topic"] or "", row["group"] or ""), []).append(row)
    found = [_slo(*key, days) for key, days in by.items()]
    return sorted(found, key=lambda slo: (slo.met, (slo.compliance or 0) - slo.target, slo.name, slo.topic))


def _slo(name: str, topic: str, group: str, days: list[Row]) -> SloFacts:
    return SloFacts(
        name,
        topic,
        group,
        target=float(days[-1]["target"]),
        good=sum(int(row["good"]) for row in days),
        total=sum(int(row["total"]) for row in days),
        days=len(days),
        days_missed=sorted(str(row["day"]) for row in days if not row["met"]),
    )


def processes(rows: Iterable[Row]) -> list[ProcessFacts]:
    """By name."""
    by: dict[str, list[Row]] = {}
    for row in rows:
        by.setdefault(row["process"], []).append(row)
    return [_process(name, by[name]) for name in sorted(by)]


def _process(name: str, rows: list[Row]) -> ProcessFacts:
    ends: dict[str, Row] = {}  # the last row of each instance says how it ended
    for row in sorted(rows, key=lambda row: int(row["last_seen"])):
        ends[row["instance"]] = row
    return ProcessFacts(
        name,
        first_ms=min(row["first_seen"] for row in rows),
        last_ms=max(row["last_seen"] for row in rows),
        starts=len(ends),
        vanished_ms=[row["last_seen"] for row in ends.values() if _vanished(row, ends.values())],
        missing=sum(int(row["missing"] or 0) for row in rows),
        duplicates=sum(int(row["duplicates"] or 0) for row in rows),
        longest_gap_s=max(float(row["longest_gap_s"] or 0) for row in rows),
        clock_steps=sum(int(row.get("clock_steps") or 0) for row in rows),
        ended=list(ends.values())[-1]["ended"],
    )


def _vanished(row: Row, all_of_name: Iterable[Row]) -> bool:
    """Said so, or started again under the same name without having said that it stops."""
    if row["ended"] == STOPPED:
        return False
    return row["ended"] == VANISHED or any(other["first_seen"] >= row["last_seen"] for other in all_of_name)
