"""Make a report from Material, as plain data. No Parquet, no HTML, no clock: all of it is tested.

Rates are totals over the time the proxies were seen in a step, so that a run of 20 seconds does not look
like a third of its speed. Times are in milliseconds. What was not measured is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.metric import Metric
from metrics_job.report.core import changes, health, offenders
from metrics_job.report.core.behind import describe_outlook, sort_worst_first
from metrics_job.report.core.changes import Change
from metrics_job.report.core.health import NOTHING_INTENDED, Finding, Intended, ProcessFacts, SloFacts
from metrics_job.report.core.material import (
    HOUR_MS,
    Buckets,
    Material,
    Percentiles,
    Row,
    Tallies,
    TimeRange,
    Totals,
    Waiting,
    by_topic,
    compute_percentiles,
    date_of,
    merge_buckets,
    totals_of,
)
from metrics_job.report.core.offenders import Offenders
from metrics_job.report.core.order import OrderPicture

Points = list[tuple[int, float | None]]  # (start of the step in ms, value or None where nothing ran)
PER_MS = {"us": 1000.0, "ms": 1.0}


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart: its name in the legend, and its points."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Times:
    """A measured time: the lines of its p50, p99 and p99.9, the percentiles over the entire range, and its
    worst step."""

    title: str
    meaning: str
    lines: list[ChartLine]
    overall: Percentiles | None
    worst: tuple[int, float] | None


@dataclass(frozen=True, slots=True)
class Heat:
    """The data of a heat map of messages sent per hour. Rows are weekdays (the mean of several weeks) or
    dates (counts), columns are hours."""

    rows: list[str]
    cells: list[list[float | None]]
    mean: bool


@dataclass(frozen=True, slots=True)
class Report:
    """All data of a report. `covered`: the time from the first to the last sample; None without samples."""

    time_range: TimeRange
    covered: tuple[int, int] | None
    totals: Totals
    topics: dict[str, Totals]
    findings: list[Finding]
    throughput: list[ChartLine]
    times: list[Times]
    lag: list[ChartLine]
    waiting: list[Waiting]
    heat: Heat | None
    offenders: list[Offenders]
    slo: list[SloFacts]
    processes: list[ProcessFacts]
    changes: list[Change]
    anomalies: list[Row]
    rejects: list[Row]
    measured: list[tuple[str, str, Percentiles]] = field(default_factory=list)  # name, unit, values
    tallies: Tallies = field(default_factory=Tallies)  # how much there is of what the lists hold the first of
    remarks: list[str] = field(default_factory=list)  # on purpose, or shortened: nothing to look at
    order: OrderPicture | None = None  # of a client that watched its own messages
    console: str = ""  # where the console is, to which the page links; empty: no links

    @property
    def is_well(self) -> bool:
        """Return whether the report has no findings."""
        return not self.findings


def report_of(
    material: Material, sampled_ms: int | None = None, intended: Intended = NOTHING_INTENDED
) -> Report:
    """Build the report. `sampled_ms`: until when the material is complete; None: until its last row."""
    covered, running = _covered_range(material), _running_steps(material)
    totals, slo = totals_of(material.now.counters), health.to_slo_facts(material.slo)
    processes = health.to_process_facts(material.processes, sampled_ms, intended.kills_ms)
    return Report(
        time_range=material.time_range,
        covered=covered,
        totals=totals,
        topics=by_topic(material.now.counters),
        findings=health.list_findings(material, covered, slo, processes, intended),
        throughput=_throughput_lines(material, covered, running),
        times=_measured_times(material),
        lag=_lag_lines(material, running),
        waiting=list(material.waiting),
        heat=_build_heat(material.hours, material.time_range),
        offenders=offenders.list_offenders(material, covered[1] if covered else material.time_range.end_ms),
        slo=slo,
        processes=processes,
        changes=changes.list_changes(material),
        anomalies=list(material.anomalies),
        rejects=list(material.rejects),
        measured=_measured_histograms(material),
        tallies=material.tallies,
        remarks=[
            *health.intended_remarks(material.now.counters, processes, intended),
            *_describe_shortened_lists(material),
        ],
    )


def _describe_shortened_lists(material: Material) -> list[str]:
    """Return a sentence for each list that contains only its first rows. The numbers of the report include
    all rows."""
    tallies = material.tallies
    lists = (
        ("promises", "worst", len(material.slo), tallies.promises_kept + tallies.promises_missed),
        ("unusual hours", "furthest from what is usual", len(material.anomalies), tallies.anomalies),
        ("kinds of lines left out", "newest", len(material.rejects), tallies.rejects),
    )
    return [
        f"Of {count:,} {name} the {listed:,} {which} are listed; all are counted."
        for name, which, listed, count in lists
        if count > listed
    ]


# --- time


def _covered_range(material: Material) -> tuple[int, int] | None:
    """Return the times of the first and last sample in the range; without processes, those of the first and
    last step.
    """
    time_range = material.time_range
    sampled = [row for row in material.processes if row["first_seen"] is not None]
    if sampled:
        first = max(min(row["first_seen"] for row in sampled), time_range.start_ms)
        last = min(max(row["last_seen"] for row in sampled), time_range.end_ms)
        if first < last:
            return first, last
    steps = _running_steps(material)
    return (
        (max(min(steps), time_range.start_ms), min(max(steps) + time_range.step_ms, time_range.end_ms))
        if steps
        else None
    )


def _running_steps(material: Material) -> set[int]:
    """Return the steps in which anything was counted or measured. Only in these a missing value means 0."""
    lines: list[Mapping[int, object]] = [*material.counted.values(), *material.lag.values()]
    lines += material.timed.values()
    return {step for line in lines for step in line}


# --- lines


def _throughput_lines(
    material: Material, covered: tuple[int, int] | None, running: set[int]
) -> list[ChartLine]:
    sends = catalogue.SENDS.name
    names = {
        "sent": [sends],
        "delivered": [catalogue.DELIVERED.name, catalogue.FETCHED.name],
        "acked": [catalogue.ACKED.name],
        "fired later": [catalogue.DELAY_FIRED.name, catalogue.LEVELS_FIRED.name],
        "refused": [f"{sends}{{refused}}"],
    }
    lines = []
    for name, metrics in names.items():
        present = [material.counted[metric] for metric in metrics if metric in material.counted]
        if covered and any(any(line.values()) for line in present):
            lines.append(ChartLine(name, _rate_points(present, material.time_range, covered, running)))
    return lines


def _rate_points(
    lines: Sequence[Mapping[int, float]], time_range: TimeRange, covered: tuple[int, int], running: set[int]
) -> Points:
    points: Points = []
    for step in time_range.step_starts():
        seconds = (min(step + time_range.step_ms, covered[1]) - max(step, covered[0])) / 1000
        total = sum(line.get(step, 0.0) for line in lines)
        is_covered = step in running and seconds > 0
        points.append((step, total / seconds if is_covered else None))
    return points


def _lag_lines(material: Material, running: set[int]) -> list[ChartLine]:
    """Return a line per subscription, the largest lag first. A missing value is 0 in the steps `running`."""
    order = {(row.group, row.topic): index for index, row in enumerate(material.waiting)}
    names = sorted(material.lag, key=lambda name: order.get(name, len(order)))
    several = {group for group, _ in names if sum(other == group for other, _ in names) > 1}
    return [
        ChartLine(
            _lag_name(name, name[0] in several, len(material.waiting) - len(names) + 1),
            [
                (step, material.lag[name].get(step, 0.0) if step in running else None)
                for step in material.time_range.step_starts()
            ],
        )
        for name in names
        if any(material.lag[name].values())
    ]


def _lag_name(name: tuple[str, str], with_topic: bool, others: int) -> str:
    group, topic = name
    if not group and not topic:
        return f"{others:,} others together"
    return f"{group} on {topic}" if with_topic else group


# --- times


def _measured_times(material: Material) -> list[Times]:
    panels = (
        ("Send latency", "From a complete request to its answer, stored durably in between. Measured once "
         "for each request and topic in it, however many messages it has.", [catalogue.SEND_LATENCY]),
        ("Queue wait", "From stored to handed to a consumer for the first time. Measured once for each "
         "answer to a pull, of its oldest message.", [catalogue.QUEUE_WAIT]),
        ("Work of consumers", "From handed out to acknowledged. Measured once for each acknowledged lease, "
         "however many messages it has.", [catalogue.PROCESS]),
        ("Lateness of delays", "From the due time of a delayed message to its arrival in its topic. Measured "
         "for each message.", [catalogue.DELAY_LATENESS, catalogue.LEVELS_LATENESS]),
    )  # fmt: skip
    return [_build_times(material, *panel) for panel in panels]


def _build_times(material: Material, title: str, meaning: str, metrics: list[Metric]) -> Times:
    per_ms = PER_MS[metrics[0].unit]
    present = [material.timed[metric.name] for metric in metrics if metric.name in material.timed]
    by_step = {
        step: _scaled_percentiles(merge_buckets(line.get(step, {}) for line in present), per_ms)
        for step in material.time_range.step_starts()
    }
    measured_steps = {step: values for step, values in by_step.items() if values is not None}
    lines = [
        ChartLine(
            name, [(step, getattr(values, field) if values else None) for step, values in by_step.items()]
        )
        for name, field in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"))
    ]
    worst = max(
        ((step, values.p99) for step, values in measured_steps.items()), key=lambda one: one[1], default=None
    )
    overall = _scaled_percentiles(
        merge_buckets(buckets for line in present for buckets in line.values()), per_ms
    )
    return Times(title, meaning, lines if measured_steps else [], overall, worst)


def _scaled_percentiles(buckets: Buckets, per_ms: float) -> Percentiles | None:
    values = compute_percentiles(buckets)
    return values and Percentiles(values.measured, *(edge / per_ms for edge in values[1:]))


def _measured_histograms(material: Material) -> list[tuple[str, str, Percentiles]]:
    """Return every histogram over the entire range, in ms for times, else in its own unit."""
    histograms = []
    for metric in sorted(material.timed):
        unit = CATALOGUE[metric].unit if metric in CATALOGUE else ""
        values = _scaled_percentiles(merge_buckets(material.timed[metric].values()), PER_MS.get(unit, 1.0))
        if values is not None:
            histograms.append((metric, "ms" if unit in PER_MS else unit, values))
    return histograms


# --- hours


def _build_heat(hours: Mapping[int, float], time_range: TimeRange) -> Heat | None:
    """Return messages by hour: by weekday for two weeks or more, else by date.

    None for less than three hours.
    """
    if len(hours) < 3:
        return None
    weekdays = time_range.length_ms >= 14 * 24 * HOUR_MS
    cells: dict[str, list[list[float]]] = {}
    for hour in sorted(hours):
        row = cells.setdefault(_row_name(hour, weekdays), [[] for _ in range(24)])
        row[hour // HOUR_MS % 24].append(hours[hour])
    names = [name for name in WEEKDAYS if name in cells] if weekdays else list(cells)
    return Heat(names, [[_mean_of(cell) for cell in cells[name]] for name in names], weekdays)


WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _row_name(hour: int, weekdays: bool) -> str:
    day = hour // (24 * HOUR_MS)
    weekday = WEEKDAYS[(day + 3) % 7]  # the epoch began on a Thursday
    return weekday if weekdays else f"{weekday[:3]} {date_of(hour)}"


def _mean_of(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def to_summary(report: Report) -> dict[str, Any]:
    """Convert a report to plain data. Times are epoch ms; durations are in the units of their names.

    `ok`: the verdict.
    """
    return {
        "ok": report.is_well,
        "from_ms": report.time_range.start_ms,
        "to_ms": report.time_range.end_ms,
        "covered_from_ms": report.covered[0] if report.covered else None,
        "covered_to_ms": report.covered[1] if report.covered else None,
        "findings": [finding.text for finding in report.findings],
        "finding_rules": [finding.rule for finding in report.findings],
        "finding_severities": [finding.severity for finding in report.findings],
        "remarks": report.remarks,
        "totals": asdict(report.totals),
        "topics": {topic: asdict(totals) for topic, totals in report.topics.items()},
        "times_ms": {times.title: times.overall._asdict() for times in report.times if times.overall},
        "subscriptions": [
            {**row._asdict(), "outlook": describe_outlook(row)} for row in sort_worst_first(report.waiting)
        ],
        "slo": [{**asdict(row), "compliance": row.compliance, "met": row.is_met} for row in report.slo],
        "processes": [{**asdict(row), "restarts": row.restarts} for row in report.processes],
        "offenders": {
            ranking.title: [
                {"name": row.name, "value": row.value, "note": row.details} for row in ranking.rows
            ]
            for ranking in report.offenders
        },
        "changes": [row._asdict() for row in report.changes],
        "anomalies": [{**row, "date": str(row.get("date"))} for row in report.anomalies],
        "rejects": [{**row, "date": str(row.get("date"))} for row in report.rejects],
    }
