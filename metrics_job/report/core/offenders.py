"""Who has most of what nobody wants: refusals, failures, dead letters, blocked keys, slow places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.metric import Metric
from metrics_job.report.core import behind, words
from metrics_job.report.core.material import (
    STORED,
    Counted,
    Material,
    added,
    merged,
    percentiles,
    stored_by_topic,
)


class Offender(NamedTuple):
    """One place, its number as shown, the number for comparing, and what belongs to it."""

    name: str
    shown: str
    value: float
    note: str


@dataclass(frozen=True, slots=True)
class Offenders:
    """One list, the worst first; `none` says so when there is none."""

    title: str
    rows: list[Offender]
    none: str


def offenders(material: Material, end_ms: int) -> list[Offenders]:
    """All lists, also empty ones; `end_ms`: until when anything was sampled."""
    counters = material.now.counters
    delivered = _by_place(counters, catalogue.DELIVERED)

    def shares(metric: Metric) -> list[Offender]:
        found = _by_place(counters, metric).items()
        return [_counted(place, total, delivered.get(place, 0.0)) for place, total in found]

    send, wait = catalogue.SEND_LATENCY.name, catalogue.QUEUE_WAIT.name
    return [
        _list("Sends refused", _refused(counters), "No send was refused."),
        _list("Failed by consumers", shares(catalogue.FAILED), "No message was failed."),
        _list("Not acknowledged in time", shares(catalogue.LEASE_TIMEOUTS), "Every lease ended in time."),
        _list("Delivered again", shares(catalogue.REDELIVERED), "Every delivery was the first."),
        _list("Dead letters", _dead(counters), "No message died."),
        _list("Blocked keys", _blocked(material, end_ms), "No order key was blocked."),
        _list("Slowest sends (p99)", _slowest(material, send), "No send was measured."),
        _list("Longest waits (p99)", _slowest(material, wait), "No wait was measured."),
    ]


def _list(title: str, found: Iterable[Offender], none: str) -> Offenders:
    return Offenders(title, sorted(found, key=lambda row: (-row.value, row.name)), none)


def _by_place(counters: Iterable[Counted], metric: Metric) -> dict[str, float]:
    of_metric = (row for row in counters if row.metric == metric.name and row.total)
    return added(of_metric, lambda row: words.place(row.group, row.topic))


def _by_detail(rows: Iterable[Counted], name: Callable[[Counted], str]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (place, detail), total in added(rows, lambda row: (name(row), row.detail)).items():
        if total:
            found.setdefault(place, {})[detail] = total
    return found


def _refused(counters: Sequence[Counted]) -> list[Offender]:
    refused = (row for row in counters if row.metric == catalogue.SENDS.name and row.detail != STORED)
    stored = stored_by_topic(counters)
    return [
        _counted(
            topic or "(no topic)", sum(by.values()), sum(by.values()) + stored.get(topic, 0.0), _details(by)
        )
        for topic, by in _by_detail(refused, lambda row: row.topic).items()
    ]


def _counted(name: str, value: float, of: float, note: str = "") -> Offender:
    share = f"{words.percent(value / of)} of {words.short(of)}" if of else ""
    return Offender(name, words.count(value), value, "; ".join(part for part in (share, note) if part))


def _details(by: Mapping[str, float]) -> str:
    """`code 11: 20, code 5: 3`."""
    ordered = sorted(by, key=lambda detail: (-by[detail], detail))
    shown = (detail.removeprefix("reason=").replace("code=", "code ", 1) for detail in ordered)
    return words.listed(
        [f"{name}: {words.count(by[detail])}" for name, detail in zip(shown, ordered, strict=True)]
    )


def _dead(counters: Iterable[Counted]) -> list[Offender]:
    dead = (row for row in counters if row.metric == catalogue.DEAD_LETTERS.name)
    reasons = _by_detail(dead, lambda row: words.place(row.group, row.topic))
    return [
        Offender(name, words.count(sum(by.values())), sum(by.values()), _details(by))
        for name, by in reasons.items()
    ]


def _blocked(material: Material, end_ms: int) -> list[Offender]:
    return [
        Offender(
            words.place(row.group, row.topic),
            words.count(row.blocked_keys_max),
            row.blocked_keys_max,
            f"longest {words.milliseconds(row.blocked_key_age_ms_max)}; "
            + behind.add_time(f"{words.count(row.blocked_keys)} at the end", row, end_ms),
        )
        for row in material.waiting
        if row.blocked_keys_max
    ]


def _slowest(material: Material, metric: str) -> list[Offender]:
    by: dict[str, list[Mapping[int, int]]] = {}
    for row in material.now.times:
        if row.metric == metric:
            by.setdefault(words.place(row.group, row.topic), []).append(row.buckets)
    found = []
    for name, many in by.items():
        values = percentiles(merged(many))
        if values is not None:
            note = f"p50 {words.milliseconds(values.p50 / 1000)}, {words.short(values.measured)} measured"
            found.append(Offender(name, words.milliseconds(values.p99 / 1000), values.p99, note))
    return found
