"""What the Spark job has to compute, in plain Python: slow, short, and written without looking at its code.

`read` takes the lines of a directory apart as docs/formats-samples.md says; every other function gives one
table as a dict from its key to its values, so that a comparison names the row that differs. Times are epoch
ms; an interval belongs to the minute and hour of its end.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeGuard

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.cells import BUCKETS, upper_edge

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
PROCESS_METRIC = "ddmq_process"
HEAD = ("process", "instance", "seq", "from", "to", "metric", "labels")


class Line(NamedTuple):
    """One good line."""

    process: str
    instance: str
    seq: int
    from_ms: int
    to_ms: int
    metric: str
    topic: str
    group: str
    detail: str
    value: float = 0.0
    sum: float = 0.0
    buckets: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def series(self) -> tuple[str, str, str, str, str]:
        return (self.metric, self.process, self.topic, self.group, self.detail)


@dataclass
class ParsedSamples:
    """What a directory holds."""

    lines: list[Line] = field(default_factory=list)  # different ones
    duplicates: Counter[tuple[int, str]] = field(default_factory=Counter)  # (day, instance) -> lines
    rejects: Counter[tuple[str, str]] = field(default_factory=Counter)  # (file name, reason) -> lines


def read(directory: Path) -> ParsedSamples:
    """Every file whose name does not start with a dot."""
    samples, line_keys = ParsedSamples(), set()
    for path in sorted(directory.rglob("*.jsonl")):
        if path.name.startswith("."):
            continue
        for raw in path.read_bytes().split(b"\n"):
            if not raw.strip():
                continue
            line = parse(raw)
            if isinstance(line, str):
                samples.rejects[path.name, line] += 1
                continue
            key = (line.instance, line.seq, line.series)
            if key in line_keys:
                samples.duplicates[line.to_ms // DAY_MS, line.instance] += 1
                continue
            line_keys.add(key)
            samples.lines.append(line)
    return samples


def parse(raw: bytes) -> Line | str:
    """The line, or the reason why it is none."""
    try:
        fields = json.loads(raw)
    except ValueError:
        return "corrupt"
    if not isinstance(fields, dict) or "v" not in fields:
        return "corrupt"
    if fields["v"] != 1:
        return "unknown version"
    if any(name not in fields for name in HEAD):
        return "corrupt"
    kind = "process" if fields["metric"] == PROCESS_METRIC else _kind(fields["metric"])
    if kind is None:
        return "unknown metric"
    return _typed(fields, kind)


def _kind(metric: str) -> str | None:
    return CATALOGUE[metric].kind if metric in CATALOGUE else None


def _typed(fields: dict[str, Any], kind: str) -> Line | str:
    labels = dict(fields["labels"])
    topic, group = labels.pop("topic", ""), labels.pop("group", "")
    detail = ",".join(f"{name}={labels[name]}" for name in sorted(labels))
    process, instance, seq, from_ms, to_ms, metric = (fields[name] for name in HEAD[:6])
    head = Line(process, instance, seq, from_ms, to_ms, metric, topic, group, detail)
    if kind == "histogram":
        if not _is_histogram(*(fields.get(name) for name in ("sum", "buckets", "counts"))):
            return "bad value"
        buckets, counts = tuple(fields["buckets"]), tuple(fields["counts"])
        return head._replace(sum=fields["sum"], buckets=buckets, counts=counts)
    value = fields.get("value")
    if not _is_number(value) or (kind != "gauge" and float(value) < 0):
        return "bad value"
    return head._replace(value=float(value))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_histogram(total: Any, buckets: Any, counts: Any) -> bool:
    return (
        _is_number(total)
        and isinstance(buckets, list)
        and isinstance(counts, list)
        and 0 < len(buckets) == len(counts)
        and all(isinstance(index, int) and 0 <= index < BUCKETS for index in buckets)
        and all(isinstance(count, int) and count > 0 for count in counts)
    )


def _of(lines: Iterable[Line], kind: str) -> Iterable[Line]:
    return (line for line in lines if line.metric != PROCESS_METRIC and _kind(line.metric) == kind)


def covered(lines: Iterable[Line], period_ms: int) -> dict[tuple[int, str], float]:
    """(period, process) -> seconds that its intervals cover; one that ends before it begins covers none."""
    intervals = {(line.process, line.instance, line.seq, line.from_ms, line.to_ms) for line in lines}
    seconds: dict[tuple[int, str], float] = defaultdict(float)
    for process, _, _, from_ms, to_ms in intervals:
        seconds[to_ms // period_ms * period_ms, process] += max(0, to_ms - from_ms) / 1000
    return seconds


def counters(lines: list[Line], period_ms: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """(start, metric, process, topic, group, detail) -> (total, seconds, per_s)."""
    totals: dict[tuple[Any, ...], float] = defaultdict(float)
    for line in _of(lines, "counter"):
        totals[line.to_ms // period_ms * period_ms, *line.series] += line.value
    seconds = covered(lines, period_ms)
    return {
        key: (total, spent := seconds[key[0], key[2]], total / spent if spent else None)
        for key, total in totals.items()
    }


def gauges(lines: list[Line], period_ms: int) -> dict[tuple[Any, ...], tuple[float, ...]]:
    """(start, metric, process, topic, group, detail) -> (last, max, min, mean); the mean over an hour is that
    of its minutes' means, so that a minute with more intervals does not weigh more."""
    lines_of: dict[tuple[Any, ...], list[Line]] = defaultdict(list)
    for line in _of(lines, "gauge"):
        lines_of[line.to_ms // period_ms * period_ms, *line.series].append(line)
    return {
        key: (
            max(some, key=lambda line: (line.to_ms, line.seq)).value,
            max(line.value for line in some),
            min(line.value for line in some),
            _mean_of_minutes(some),
        )
        for key, some in lines_of.items()
    }


def _mean_of_minutes(lines: list[Line]) -> float:
    minutes: dict[int, list[float]] = defaultdict(list)
    for line in lines:
        minutes[line.to_ms // MINUTE_MS].append(line.value)
    return fmean(fmean(values) for values in minutes.values())


def latencies(lines: list[Line], period_ms: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """(start, metric, process or "", topic, group, detail) ->
    (count, sum, buckets, counts, p50, p90, p99, p999, max)."""
    merged: dict[tuple[Any, ...], Counter[int]] = defaultdict(Counter)
    sums: dict[tuple[Any, ...], float] = defaultdict(float)
    for line in _of(lines, "histogram"):
        start = line.to_ms // period_ms * period_ms
        metric, process, *labels = line.series
        for whose in (process, ""):
            key = (start, metric, whose, *labels)
            sums[key] += line.sum
            for index, count in zip(line.buckets, line.counts, strict=True):
                merged[key][index] += count
    return {key: _latency(counts, sums[key]) for key, counts in merged.items()}


def _latency(counts: Counter[int], total: float) -> tuple[Any, ...]:
    indexes = sorted(counts)
    many = sum(counts.values())
    edges = (percentile(counts, share) for share in (0.5, 0.9, 0.99, 0.999, 1.0))
    return (many, total, tuple(indexes), tuple(counts[index] for index in indexes), *edges)


def percentile(counts: Counter[int], share: float) -> float:
    """The upper edge of the bucket that holds the value at this share."""
    rank, counted = sum(counts.values()) * share, 0
    for index in sorted(counts):
        counted += counts[index]
        if counted >= rank:
            return upper_edge(index)
    raise ValueError("nothing was observed")


def processes(samples: ParsedSamples) -> dict[tuple[int, str, str], tuple[Any, ...]]:
    """(day, process, instance) -> (samples, files, missing, duplicates, longest_gap_s, clock_steps)."""
    runs: dict[tuple[int, str, str], list[Line]] = defaultdict(list)
    for line in samples.lines:
        runs[line.to_ms // DAY_MS, line.process, line.instance].append(line)
    rows = {}
    for key, lines in runs.items():
        intervals = sorted({(line.seq, line.from_ms, line.to_ms) for line in lines})
        numbers = [seq for seq, _, _ in intervals]
        gaps = [(after[1] - one[2]) / 1000 for one, after in pairwise(intervals)]
        rows[key] = (
            len(lines),
            len(numbers),
            numbers[-1] - numbers[0] + 1 - len(numbers),
            samples.duplicates[key[0], key[2]],
            max(0.0, *gaps, 0.0),
            sum(to_ms < from_ms for _, from_ms, to_ms in intervals),
        )
    return rows
