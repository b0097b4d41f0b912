"""List the changes since last week: the time range against the same hours seven days before.

Compared are totals, shares and p99s. When nothing was counted a week before there is nothing to compare, and
the list is empty, which the page says in words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ddmq_common.metrics import catalogue
from metrics_job.report.core import words
from metrics_job.report.core.material import (
    Material,
    Sums,
    Totals,
    compute_percentiles,
    merge_buckets,
    stored_by_topic,
    totals_of,
)

TOPICS_SHOWN = 5
WORSE_FROM = 1.25  # a rise of what should not rise, from which on it counts as worse


class Change(NamedTuple):
    """One measure now and a week ago, formatted. `worse`: it needs attention."""

    what: str
    now: str
    before: str
    change: str
    worse: bool


def list_changes(material: Material) -> list[Change]:
    """List the changes within a week: totals and percentiles, then the topics that changed most."""
    if not any(row.total for row in material.before.counters):
        return []
    now, before = totals_of(material.now.counters), totals_of(material.before.counters)
    return [*_compare_totals(now, before), *_compare_percentiles(material), *_compare_topics(material)]


def _compare_totals(now: Totals, before: Totals) -> list[Change]:
    rows = [
        _build_change(name, getattr(now, field), getattr(before, field), words.format_count, bad=bad)
        for name, field, bad in (
            ("messages sent", "sent", False),
            ("messages delivered", "delivered", False),
            ("messages acknowledged", "acked", False),
            ("sends refused", "failed_sends", True),
            ("messages failed by consumers", "failed", True),
            ("messages delivered again", "redelivered", True),
            ("dead letters", "dead_lettered", True),
            ("delayed messages fired", "fired", False),
        )
    ]
    return [change for change in rows if (change.now, change.before) != ("0", "0")]


def _compare_percentiles(material: Material) -> list[Change]:
    rows = []
    for name, metric in (
        ("send latency p99", catalogue.SEND_LATENCY.name),
        ("queue wait p99", catalogue.QUEUE_WAIT.name),
        ("delay lateness p99", catalogue.DELAY_LATENESS.name),
    ):
        now, before = _p99_ms(material.now, metric), _p99_ms(material.before, metric)
        if now is not None and before is not None:
            rows.append(_build_change(name, now, before, words.format_ms, bad=True))
    return rows


def _p99_ms(sums: Sums, metric: str) -> float | None:
    values = compute_percentiles(merge_buckets(row.buckets for row in sums.times if row.metric == metric))
    return None if values is None else values.p99 / 1000


def _compare_topics(material: Material) -> list[Change]:
    now, before = map(stored_by_topic, (material.now.counters, material.before.counters))
    moved = sorted(
        (topic for topic in {*now, *before} if now.get(topic, 0) != before.get(topic, 0)),
        key=lambda topic: (-abs(now.get(topic, 0) - before.get(topic, 0)), topic),
    )
    rows = [
        _build_change(
            f"sent to {topic}", now.get(topic, 0), before.get(topic, 0), words.format_count, bad=False
        )
        for topic in moved[:TOPICS_SHOWN]
    ]
    if len(moved) > TOPICS_SHOWN:
        more = words.format_plural(len(moved) - TOPICS_SHOWN, "more topic")
        rows.append(Change(f"sent to {more}, each changed by less", "", "", "", worse=False))
    return rows


def _build_change(
    what: str, now: float, before: float, shown: Callable[[float], str], *, bad: bool
) -> Change:
    worse = bad and now > before * WORSE_FROM
    return Change(what, shown(now), shown(before), words.describe_change(now, before), worse)
