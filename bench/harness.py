"""How every benchmark is run and told: alternating rounds, a floor in the same run, raw results kept.

A benchmark is a list of Series measured in turn, round after round (so that a machine that slows down
slows all of them), then printed as median and spread with the ratio of each series to its floor, and
written as JSON under bench/results/. It asserts counts, order and checksums, never a time.

`--quick` (or DDMQ_BENCH_QUICK=1) runs one small round that proves the benchmark right and measures
nothing; its results are not kept. DDMQ_BENCH_ROUNDS changes the number of rounds.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ddmq_common.compiled import STATE

RESULTS = Path(__file__).parent / "results"
ARGUMENTS = [each for each in sys.argv[1:] if each != "--quick"]  # what a benchmark itself is told
QUICK = len(ARGUMENTS) < len(sys.argv[1:]) or os.environ.get("DDMQ_BENCH_QUICK") == "1"
ROUNDS = 1 if QUICK else int(os.environ.get("DDMQ_BENCH_ROUNDS", "5"))
CORES = frozenset(os.sched_getaffinity(0))  # taken once, before anything is pinned
SERVER_CORE, CLIENT_CORE = min(CORES), max(CORES)
T = TypeVar("T")
VERSIONS = ("gevent", "thrift", "thriftpy2", "google-crc32c")


def sized(full: T, quick: T) -> T:
    """A size: of a real run, or of one that only shows that the benchmark works."""
    return quick if QUICK else full


@dataclass
class Series:
    """One thing measured: `measure()` runs one round and gives named figures, the first is the main one."""

    name: str
    measure: Callable[[], dict[str, float]]
    floor: str | None = None  # name of the series it is compared with
    reach: str = ""  # what it is to reach, for the report
    rounds: list[dict[str, float]] = field(default_factory=list)

    def median(self, figure: str | None = None) -> float:
        """Over the rounds; of the main figure when none is named."""
        figure = figure or next(iter(self.rounds[0]))
        return statistics.median(figures[figure] for figures in self.rounds)


def run(name: str, title: str, series: list[Series], rounds: int = ROUNDS, **facts: Any) -> None:
    """Measure, print, keep."""
    print(f"== {title.strip()}")
    print(f"   {json.dumps(machine() | facts)}")
    for index in range(rounds):
        for one in series:
            figures = one.measure()
            one.rounds.append(figures)
            print(f"   round {index + 1} {one.name}: {_figures(figures)}", flush=True)
    for one in series:
        print(summary(one, series))
    if not QUICK:
        keep(name, title, facts, series)


def summary(one: Series, series: list[Series]) -> str:
    """One line: median, spread, ratio to the floor."""
    texts = []
    for key in one.rounds[0]:
        values = sorted(figures[key] for figures in one.rounds)
        texts.append(f"{key} {figure(one.median(key))} ({figure(values[0])}–{figure(values[-1])})")
    line = f"   {one.name}: " + ", ".join(texts)
    floor = next((other for other in series if other.name == one.floor), None)
    if floor is not None and floor.median():
        line += f"  = {one.median() / floor.median():.2f} x {floor.name}"
    return line


def keep(name: str, title: str, facts: dict[str, Any], series: list[Series]) -> None:
    """The raw rounds, for the report and whoever wants to compute something else."""
    rows = {one.name: {"floor": one.floor, "reach": one.reach, "rounds": one.rounds} for one in series}
    header = {"title": title.strip().splitlines()[0], "at": time.strftime("%F %T"), "machine": machine()}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(header | {"facts": facts, "series": rows}, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def machine() -> dict[str, Any]:
    """What it ran on."""
    versions = {package: importlib.metadata.version(package) for package in VERSIONS}
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "code": str(STATE),
    } | versions


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in figures.items())


def figure(value: float) -> str:
    """For people: three digits, thousands in groups."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def pin(core: int) -> None:
    """Keep the calling process on this core."""
    os.sched_setaffinity(0, {core})


def percentiles(latencies_s: list[float]) -> dict[str, float]:
    """p50, p99, p99.9 in milliseconds."""
    ordered = sorted(latencies_s)

    def at(share: float) -> float:
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "p99.9_ms": at(0.999)}
