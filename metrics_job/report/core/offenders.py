"""Who has most of what nobody wants: refusals, failures, dead letters, blocked keys, slow places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.catalogue import Metric
from metrics_job.report.core import words
from metrics_job.report.core.material import STORED, Counted, Material, merged, percentiles


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


def offenders(material: Material) -> list[Offenders]:
    """All lists, also empty ones."""
    counters = material.now.counters
    delivered = _by_place(counters, catalogue.DELIVERED.name)

    def shares(metric: Metric) -> list[Offender]:
        return _shares(counters, metric.name, delivered)

    send, wait = catalogue.SEND_LATENCY.name, catalogue.QUEUE_WAIT.name
    return [
        _list("Sends refused", _refused(counters), "No send was refused."),
        _list("Failed by consumers", shares(catalogue.FAILED), "No message was failed."),
        _list("Not acknowledged in time", shares(catalogue.LEASE_TIMEOUTS), "Every lease ended in time."),
        _list("Delivered again", shares(catalogue.REDELIVERED), "Every delivery was the first."),
        _list("Dead letters", _dead(counters), "No message died."),
        _list("Blocked keys", _blocked(material), "No order key was blocked."),
        _list("Slowest sends (p99)", _slowest(material, send), "No send was measured."),
        _list("Longest waits (p99)", _slowest(material, wait), "No wait was measured."),
    ]


def _list(title: str, found: Iterable[Offender], none: str) -> Offenders:
    return Offenders(title, sorted(found, key=lambda row: (-row.value, row.name)), none)


def _by_place(counters: Iterable[Counted], metric: str) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for row in counters:
        if row.metric == metric:
            found[row.group, row.topic] = found.get((row.group, row.topic), 0.0) + row.total
    return found


def _refused(counters: Iterable[Counted]) -> list[Offender]:
    stored: dict[str, float] = {}
    codes: dict[str, dict[str, float]] = {}
    for row in counters:
        if row.metric != catalogue.SENDS.name:
            continue
        if row.detail == STORED:
            stored[row.topic] = stored.get(row.topic, 0.0) + row.total
        elif row.total:
            of_topic = codes.setdefault(row.topic, {})
            of_topic[row.detail] = of_topic.get(row.detail, 0.0) + row.total
    return [
        _counted(
            topic or "(no topic)", sum(by.values()), sum(by.values()) + stored.get(topic, 0.0), _details(by)
        )
        for topic, by in codes.items()
    ]


def _counted(name: str, value: float, of: float, note: str = "") -> Offender:
    share = f"{words.percent(value / of)} of {words.short(of)}" if of else ""
    return Offender(name, words.count(value), value, "; ".join(part for part in (share, note) if part))


def _details(by: Mapping[str, float]) -> str:
    """`code 11: 20, code 5: 3`."""
    ordered = sorted(by, key=lambda detail: (-by[detail], detail))
    return words.listed(
        [f"{detail.replace('code=', 'code ', 1)}: {words.count(by[detail])}" for detail in ordered]
    )


def _shares(
    counters: Iterable[Counted], metric: str, delivered: Mapping[tuple[str, str], float]
) -> list[Offender]:
    return [
        _counted(words.place(*place), total, delivered.get(place, 0.0), "")
        for place, total in _by_place(counters, metric).items()
        if total
    ]


def _dead(counters: Iterable[Counted]) -> list[Offender]:
    reasons: dict[str, dict[str, float]] = {}
    for row in counters:
        if row.metric == catalogue.DEAD_LETTERS.name and row.total:
            by = reasons.setdefault(words.place(row.group, row.topic), {})
            reason = row.detail.removeprefix("reason=")
            by[reason] = by.get(reason, 0.0) + row.total
    return [
        Offender(name, words.count(sum(by.values())), sum(by.values()), _details(by))
        for name, by in reasons.items()
    ]


def _blocked(material: Material) -> list[Offender]:
    return [
        Offender(
            words.place(row.group, row.topic),
            words.count(row.blocked_keys_max),
            row.blocked_keys_max,
            f"longest {words.milliseconds(row.blocked_key_age_ms_max)}; "
            f"{words.count(row.blocked_keys)} at the end",
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
