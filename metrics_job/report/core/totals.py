"""The numbers of the head line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddmq_common.metrics import catalogue
from metrics_job.report.core.material import Counted

STORED = "code=0"


@dataclass(frozen=True, slots=True)
class Totals:
    """Messages over the whole span. `sent`: answered as stored. `refused`: answered with another code."""

    sent: int
    refused: int
    delivered: int
    acked: int
    failed: int
    redelivered: int
    timeouts: int
    dead_lettered: int
    fired: int
    sent_bytes: int

    @property
    def refused_ratio(self) -> float | None:
        answered = self.sent + self.refused
        return self.refused / answered if answered else None


def totals_of(counters: Iterable[Counted]) -> Totals:
    """Of all topics and groups."""
    found: dict[str, float] = {}
    for row in counters:
        name = _name(row)
        found[name] = found.get(name, 0.0) + row.total
    return _totals(found)


def by_topic(counters: Iterable[Counted]) -> dict[str, Totals]:
    """Of each topic that was sent to or consumed, all groups together."""
    found: dict[str, dict[str, float]] = {}
    for row in counters:
        if row.topic:
            of_topic = found.setdefault(row.topic, {})
            of_topic[_name(row)] = of_topic.get(_name(row), 0.0) + row.total
    return {topic: _totals(sums) for topic, sums in found.items()}


def _name(row: Counted) -> str:
    return "refused" if row.metric == catalogue.SENDS.name and row.detail != STORED else row.metric


def _totals(found: Mapping[str, float]) -> Totals:
    def of(*names: str) -> int:
        return round(sum(found.get(name, 0.0) for name in names))

    return Totals(
        sent=of(catalogue.SENDS.name),
        refused=of("refused"),
        delivered=of(catalogue.DELIVERED.name, catalogue.FETCHED.name),
        acked=of(catalogue.ACKED.name),
        failed=of(catalogue.FAILED.name),
        redelivered=of(catalogue.REDELIVERED.name),
        timeouts=of(catalogue.LEASE_TIMEOUTS.name),
        dead_lettered=of(catalogue.DEAD_LETTERS.name),
        fired=of(catalogue.DELAY_FIRED.name, catalogue.LEVELS_FIRED.name),
        sent_bytes=of(catalogue.SEND_BYTES.name),
    )
