"""What a report is made of: sums read from the tables, small however large the tables are.

Plain data, made by reading.py or by hand in a test. Times are epoch milliseconds UTC, `step` is where a step
of the span begins. Names of metrics are the catalogue's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from metrics_job.report.core.buckets import Buckets
from metrics_job.report.core.span import Span

Row = Mapping[str, Any]
STUCK_AGE_MS = 60_000  # a younger lag is what every consumer has
STUCK_MINUTES = 3
DRAIN_FROM_S = 600.0  # a subscription that needs longer than this is told


class Counted(NamedTuple):
    """A counter over the whole span, all processes together."""

    metric: str
    topic: str
    group: str
    detail: str  # the other labels as "name=value,name=value"
    total: float


class Timed(NamedTuple):
    """A histogram over the whole span, all processes together."""

    metric: str
    topic: str
    group: str
    detail: str
    buckets: Buckets


class Waiting(NamedTuple):
    """A subscription: how it stands at the end of the span, and the worst of the span."""

    group: str
    topic: str
    lag: float
    lag_age_ms: float
    finished_per_s: float
    arrived_per_s: float
    time_to_drain_s: float | None  # None: never at present rates
    blocked_keys: float
    blocked_key_age_ms: float
    lag_max: float
    blocked_keys_max: float
    blocked_key_age_ms_max: float
    lag_before: float = 0.0  # STUCK_MINUTES ago

    @property
    def stuck(self) -> bool:
        """For minutes not getting fewer, and the oldest of them waits for long."""
        late = self.lag > 0 and self.lag_age_ms >= STUCK_AGE_MS
        return late and self.time_to_drain_s is None and self.lag >= self.lag_before

    @property
    def slow(self) -> bool:
        """Getting fewer, but not soon."""
        late = self.lag > 0 and self.lag_age_ms >= STUCK_AGE_MS
        return late and (self.time_to_drain_s or 0) > DRAIN_FROM_S


@dataclass(frozen=True, slots=True)
class Sums:
    """Counters and times of one span."""

    counters: Sequence[Counted] = ()
    times: Sequence[Timed] = ()


@dataclass(frozen=True, slots=True)
class Material:
    """Everything a report tells."""

    span: Span
    now: Sums = Sums()
    before: Sums = Sums()  # of the same span a week earlier
    # metric, or metric{detail} of sends → step → total
    counted: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    # metric → step → buckets, over all topics and groups
    timed: Mapping[str, Mapping[int, Buckets]] = field(default_factory=dict)
    # (group, topic) → step → the largest lag of the step; only the largest ones, the others under ("", "")
    lag: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)
    waiting: Sequence[Waiting] = ()
    hours: Mapping[int, float] = field(default_factory=dict)  # start of the hour → messages sent
    slo: Sequence[Row] = ()
    processes: Sequence[Row] = ()  # with first_seen and last_seen in ms
    anomalies: Sequence[Row] = ()  # with start in ms
    rejects: Sequence[Row] = ()
