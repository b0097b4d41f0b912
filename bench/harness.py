"""How every benchmark is run and told: alternating rounds, a floor in the same run, raw results kept.

A benchmark is a list of Series measured in turn, round after round (so that a machine that slows down
slows all of them), then printed as median and spread with the ratio of each series to its floor, and
written as JSON under bench/results/. It asserts counts, order and checksums, never a time.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5
SERVER_CORE = 0
CLIENT_CORE = 1
VERSIONS = ("gevent", "thrift", "thriftpy2", "google-crc32c")


@dataclass
class Series:
    """One thing measured: `measure()` runs one round and gives named figures, the first is the main one."""

    name: str
    measure: Callable[[], dict[str, float]]
    floor: str | None = None  # name of the series it is compared with
    rounds: list[dict[str, float]] = field(default_factory=list)

    def median(self, figure: str | None = None) -> float:
        """Over the rounds; of the main figure when none is named."""
        figure = figure or next(iter(self.rounds[0]))
        return statistics.median(found[figure] for found in self.rounds)


def run(name: str, title: str, series: list[Series], rounds: int = ROUNDS, **facts: Any) -> None:
    """Measure, print, keep."""
    print(f"== {name}: {title}")
    print(f"   {json.dumps(machine() | facts)}")
    for index in range(rounds):
        for one in series:
            found = one.measure()
            one.rounds.append(found)
            print(f"   round {index + 1} {one.name}: {_figures(found)}", flush=True)
    for one in series:
        print(summary(one, series))
    keep(name, {"title": title, "machine": machine(), "facts": facts, "at": time.strftime("%F %T"),
                "series": {one.name: one.rounds for one in series}})  # fmt: skip


def summary(one: Series, series: list[Series]) -> str:
    """One line: median, spread, ratio to the floor."""
    parts = []
    for figure in one.rounds[0]:
        values = sorted(found[figure] for found in one.rounds)
        parts.append(f"{figure} {_number(one.median(figure))} ({_number(values[0])}–{_number(values[-1])})")
    line = f"   {one.name}: " + ", ".join(parts)
    floor = next((other for other in series if other.name == one.floor), None)
    if floor is not None and floor.median():
        line += f"  = {one.median() / floor.median():.2f} x {floor.name}"
    return line


def keep(name: str, found: dict[str, Any]) -> None:
    """The raw rounds, for whoever wants to compute something else."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What it ran on."""
    versions = {package: importlib.metadata.version(package) for package in VERSIONS}
    return {"cores": os.cpu_count(), "cpu": _cpu(), "python": platform.python_version()} | versions


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _figures(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in found.items())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def pin(core: int | set[int]) -> None:
    """Keep the calling process on these cores (all there are, on a one-core machine)."""
    wanted = {core} if isinstance(core, int) else core
    os.sched_setaffinity(0, (wanted & os.sched_getaffinity(0)) or os.sched_getaffinity(0))


def percentiles(latencies_s: list[float]) -> dict[str, float]:
    """p50, p99, p99.9 in milliseconds."""
    ordered = sorted(latencies_s)
    at = lambda share: ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000  # noqa: E731
    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "p99.9_ms": at(0.999)}
