"""Rank topics and groups by refused sends, failures, dead letters, blocked keys and slow sends or waits."""

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
    add_totals,
    compute_percentiles,
    merge_buckets,
    stored_by_topic,
)


class Offender(NamedTuple):
    """One row of a list of problems: its name, its number as text, the number for comparisons, and
    details."""

    name: str
    value_text: str
    value: float
    details: str


@dataclass(frozen=True, slots=True)
class Offenders:
    """A list of the worst topics, groups or processes in one respect, the worst first.

    `none`: the text for an empty list.
    """

    title: str
    rows: list[Offender]
    none: str


def list_offenders(material: Material, end_ms: int) -> list[Offenders]:
    """Return one list of the worst topics or groups for each kind of problem (refused sends, dead letters,
    slow sends …). A kind without a problem has an empty list. `end_ms`: the time of the last sample."""
    counters = material.now.counters
    delivered = _sum_by_subscription(counters, catalogue.DELIVERED)

    def share_of_delivered(metric: Metric) -> list[Offender]:
        totals = _sum_by_subscription(counters, metric).items()
        return [_to_offender(name, total, delivered.get(name, 0.0)) for name, total in totals]

    send, wait = catalogue.SEND_LATENCY.name, catalogue.QUEUE_WAIT.name
    return [
        _sort_offenders("Sends refused", _refused_sends(counters), "No send was refused."),
        _sort_offenders(
            "Failed by consumers", share_of_delivered(catalogue.FAILED), "No message was failed."
        ),
        _sort_offenders(
            "Not acknowledged in time",
            share_of_delivered(catalogue.LEASE_TIMEOUTS),
            "Every lease ended in time.",
        ),
        _sort_offenders(
            "Delivered again", share_of_delivered(catalogue.REDELIVERED), "Every delivery was the first."
        ),
        _sort_offenders("Dead letters", _dead_letters(counters), "No message died."),
        _sort_offenders("Blocked keys", _blocked_keys(material, end_ms), "No order key was blocked."),
        _sort_offenders(
            "Slowest sends (p99)", _slowest_subscriptions(material, send), "No send was measured."
        ),
        _sort_offenders(
            "Longest waits (p99)", _slowest_subscriptions(material, wait), "No wait was measured."
        ),
    ]


def _sort_offenders(title: str, rows: Iterable[Offender], none: str) -> Offenders:
    return Offenders(title, sorted(rows, key=lambda row: (-row.value, row.name)), none)


def _sum_by_subscription(counters: Iterable[Counted], metric: Metric) -> dict[str, float]:
    of_metric = (row for row in counters if row.metric == metric.name and row.total)
    return add_totals(of_metric, lambda row: words.name_subscription(row.group, row.topic))


def _by_detail(rows: Iterable[Counted], name: Callable[[Counted], str]) -> dict[str, dict[str, float]]:
    details: dict[str, dict[str, float]] = {}
    for (row_name, detail), total in add_totals(rows, lambda row: (name(row), row.detail)).items():
        if total:
            details.setdefault(row_name, {})[detail] = total
    return details


def _refused_sends(counters: Sequence[Counted]) -> list[Offender]:
    refused = (row for row in counters if row.metric == catalogue.SENDS.name and row.detail != STORED)
    stored = stored_by_topic(counters)
    return [
        _to_offender(
            topic or "(no topic)",
            sum(by.values()),
            sum(by.values()) + stored.get(topic, 0.0),
            _describe_details(by),
        )
        for topic, by in _by_detail(refused, lambda row: row.topic).items()
    ]


def _to_offender(name: str, value: float, of: float, details: str = "") -> Offender:
    share = f"{words.format_percent(value / of)} of {words.format_short(of)}" if of else ""
    return Offender(
        name, words.format_count(value), value, "; ".join(text for text in (share, details) if text)
    )


def _describe_details(by: Mapping[str, float]) -> str:
    """Format details such as `code 11: 20, code 5: 3`."""
    ordered = sorted(by, key=lambda detail: (-by[detail], detail))
    labels = (detail.removeprefix("reason=").replace("code=", "code ", 1) for detail in ordered)
    return words.list_names(
        [f"{name}: {words.format_count(by[detail])}" for name, detail in zip(labels, ordered, strict=True)]
    )


def _dead_letters(counters: Iterable[Counted]) -> list[Offender]:
    dead = (row for row in counters if row.metric == catalogue.DEAD_LETTERS.name)
    reasons = _by_detail(dead, lambda row: words.name_subscription(row.group, row.topic))
    return [
        Offender(name, words.format_count(sum(by.values())), sum(by.values()), _describe_details(by))
        for name, by in reasons.items()
    ]


def _blocked_keys(material: Material, end_ms: int) -> list[Offender]:
    return [
        Offender(
            words.name_subscription(row.group, row.topic),
            words.format_count(row.blocked_keys_max),
            row.blocked_keys_max,
            f"longest {words.format_ms(row.blocked_key_age_ms_max)}; "
            + behind.add_time(f"{words.format_count(row.blocked_keys)} at the end", row, end_ms),
        )
        for row in material.waiting
        if row.blocked_keys_max
    ]


def _slowest_subscriptions(material: Material, metric: str) -> list[Offender]:
    by: dict[str, list[Mapping[int, int]]] = {}
    for row in material.now.times:
        if row.metric == metric:
            by.setdefault(words.name_subscription(row.group, row.topic), []).append(row.buckets)
    slowest = []
    for name, many in by.items():
        values = compute_percentiles(merge_buckets(many))
        if values is not None:
            details = (
                f"p50 {words.format_ms(values.p50 / 1000)}, {words.format_short(values.measured)} measured"
            )
            slowest.append(Offender(name, words.format_ms(values.p99 / 1000), values.p99, details))
    return slowest
