"""The data of a report: the time range it covers, sums read from the tables, and their totals.

Plain data, built by reading.py or by a test, small however large the tables are. Ranges are
[start, end) in epoch milliseconds UTC; charts go in steps, at most POINTS_MAX of them, which begin at
multiples of their length; `step` is where one begins. Names of metrics are the catalogue's. Times are counts
by bucket, which merge exactly; a percentile is the upper edge of the bucket that holds it, at most 12.5 %
above the value itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import OVERFLOW, TOP, upper_edge

POINTS_MAX = 500
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
MINUTES_UP_TO_MS = 3 * DAY_MS  # longer ranges are read from the tables of hours
_STEPS = [
    *(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_MS for days in (1, 2, 7, 14, 28, 56, 112)),
]


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A time range [start_ms, end_ms), divided into steps of step_ms."""

    start_ms: int
    end_ms: int
    step_ms: int

    @property
    def period(self) -> str:
        """Return the suffix of the tables to read for this range: `minute` or `hour`."""
        return "hour" if self.step_ms >= HOUR_MS else "minute"

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms

    def step_starts(self) -> range:
        """Return the start of each step; the first is at or before `start_ms`."""
        return range(self.start_ms - self.start_ms % self.step_ms, self.end_ms, self.step_ms)

    def shift_back(self, by_ms: int = WEEK_MS) -> TimeRange:
        """Return the range of the same length `by_ms` earlier."""
        return TimeRange(self.start_ms - by_ms, self.end_ms - by_ms, self.step_ms)

    def first_and_last_date(self) -> tuple[str, str]:
        """Return the first and last UTC date of the range, in the format of the tables' partitions."""
        return date_of(self.start_ms), date_of(self.end_ms - 1)


def build_time_range(start_ms: int, end_ms: int) -> TimeRange:
    """Build a range with a suitable step; both ends are widened to full minutes or hours."""
    length = max(end_ms - start_ms, 1)
    fitting = [step for step in _STEPS if length <= step * (POINTS_MAX - 1)]
    step = fitting[0] if fitting else _STEPS[-1]
    if length > MINUTES_UP_TO_MS:
        step = max(step, HOUR_MS)
    grain = HOUR_MS if step >= HOUR_MS else MINUTE_MS
    return TimeRange(start_ms - start_ms % grain, max(end_ms + -end_ms % grain, start_ms + grain), step)


def to_utc_time(wall_ms: int) -> datetime:
    """Convert epoch ms to an aware UTC datetime."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def date_of(wall_ms: int) -> str:
    """Return the UTC date of a time, as in `2026-11-22`."""
    return to_utc_time(wall_ms).date().isoformat()


Buckets = Mapping[int, int]  # bucket number → count


class AtLeast(float):
    """A value of which only a lower bound is known, because it lies above all buckets."""

    def __truediv__(self, by: float) -> AtLeast:
        return AtLeast(float(self) / by)


class Percentiles(NamedTuple):
    """Percentiles as upper bucket bounds, in the metric's unit. `measured`: the number of values."""

    measured: int
    p50: float
    p99: float
    p999: float
    max: float


def compute_percentiles(buckets: Buckets) -> Percentiles | None:
    total = sum(buckets.values())
    if not total:
        return None
    at = iter(_upper_edges(buckets, [total * share for share in (0.5, 0.99, 0.999, 1.0)]))
    return Percentiles(total, next(at), next(at), next(at), next(at))


def _upper_edges(buckets: Buckets, ranks: list[float]) -> list[float]:
    edges: list[float] = []
    counted = 0
    for index in sorted(buckets):
        counted += buckets[index]
        while len(edges) < len(ranks) and buckets[index] and counted >= ranks[len(edges)]:
            edges.append(AtLeast(TOP) if index >= OVERFLOW else upper_edge(index))
    return edges


def merge_buckets(many: Iterable[Buckets]) -> dict[int, int]:
    sums: dict[int, int] = {}
    for buckets in many:
        for index, counted in buckets.items():
            sums[index] = sums.get(index, 0) + counted
    return sums


Row = Mapping[str, Any]
Key = TypeVar("Key")
STUCK_AGE_MS = 60_000  # a younger lag is what every consumer has
STUCK_MINUTES = 3
DRAIN_FROM_S = 600.0  # a subscription that needs longer than this is a finding


class Counted(NamedTuple):
    """The value of a counter, summed over the time range and all processes."""

    metric: str
    topic: str
    group: str
    detail: str  # the other labels as "name=value,name=value"
    total: float


class Timed(NamedTuple):
    """The buckets of a histogram, summed over the time range and all processes."""

    metric: str
    topic: str
    group: str
    detail: str
    buckets: Buckets


class Waiting(NamedTuple):
    """The waiting messages of one subscription: their number and age at the end of the time range, and the
    worst values in it."""

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
    seen_ms: int = 0  # the minute in which its lag was last reported
    consumed: bool = True  # False: messages wait, and nothing was handed out lately
    paused: bool = False  # by an operator: then nothing about it is wrong

    @property
    def is_stuck(self) -> bool:
        """Return whether the lag has not fallen for minutes and the oldest message is old."""
        return self._is_late and self.time_to_drain_s is None and self.lag >= self.lag_before

    @property
    def _is_late(self) -> bool:
        return self.lag > 0 and self.lag_age_ms >= STUCK_AGE_MS and not self.paused

    @property
    def is_slow(self) -> bool:
        return self._is_late and (self.time_to_drain_s or 0) > DRAIN_FROM_S


@dataclass(frozen=True, slots=True)
class Sums:
    counters: Sequence[Counted] = ()
    times: Sequence[Timed] = ()


@dataclass(frozen=True, slots=True)
class Tallies:
    """The number of all rows for each list of the material that contains only its first rows."""

    promises_kept: int = 0
    promises_missed: int = 0
    starts_left_out: int = 0  # older starts of processes, of which this report has no data
    anomalies: int = 0
    rejects: int = 0
    rejected_lines: int = 0


@dataclass(frozen=True, slots=True)
class Material:
    """All data from which a report is built."""

    time_range: TimeRange
    now: Sums = Sums()
    before: Sums = Sums()  # of the same range a week earlier
    # metric, or metric{detail} of sends → step → total
    counted: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    # metric → step → buckets, over all topics and groups
    timed: Mapping[str, Mapping[int, Buckets]] = field(default_factory=dict)
    # (group, topic) → step → the largest lag of the step; only the largest ones, the others under ("", "")
    lag: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)
    waiting: Sequence[Waiting] = ()
    hours: Mapping[int, float] = field(default_factory=dict)  # start of the hour → messages sent
    slo: Sequence[Row] = ()  # one for each promise, added up over its days, the worst first
    processes: Sequence[Row] = ()  # one for each start of a process, first_seen and last_seen in ms
    anomalies: Sequence[Row] = ()  # with start in ms
    rejects: Sequence[Row] = ()
    tallies: Tallies = field(default_factory=Tallies)


STORED, STOPPING = "code=0", "code=20"  # STOPPING: a proxy that stops; the client sends to another one


@dataclass(frozen=True, slots=True)
class Totals:
    """Message totals over the time range.

    `sent`: answered as stored. `refused`: answered with another code, `sent_elsewhere` of them by a stopping
    proxy, so that the client sends to another one.
    """

    sent: int
    refused: int
    sent_elsewhere: int
    delivered: int
    acked: int
    failed: int
    redelivered: int
    timeouts: int
    dead_lettered: int
    fired: int
    sent_bytes: int

    @property
    def failed_sends(self) -> int:
        """Return the sends that were refused for another reason than a planned stop."""
        return self.refused - self.sent_elsewhere

    @property
    def refused_ratio(self) -> float | None:
        answered = self.sent + self.failed_sends
        return self.failed_sends / answered if answered else None


def add_totals(counters: Iterable[Counted], key: Callable[[Counted], Key]) -> dict[Key, float]:
    """Sum the counters, grouped by the result of `key`."""
    totals: dict[Key, float] = {}
    for row in counters:
        totals[key(row)] = totals.get(key(row), 0.0) + row.total
    return totals


def totals_of(counters: Iterable[Counted]) -> Totals:
    """Return the totals over all topics and groups."""
    return _build_totals(add_totals(counters, _total_name))


def by_topic(counters: Iterable[Counted]) -> dict[str, Totals]:
    """Return the totals of each topic that was sent to or consumed, with all groups together."""
    counters_of_topic: dict[str, list[Counted]] = {}
    for row in counters:
        if row.topic:
            counters_of_topic.setdefault(row.topic, []).append(row)
    return {topic: totals_of(rows) for topic, rows in counters_of_topic.items()}


def stored_by_topic(counters: Iterable[Counted]) -> dict[str, float]:
    stored = (row for row in counters if row.metric == catalogue.SENDS.name and row.detail == STORED)
    return add_totals(stored, lambda row: row.topic)


def _total_name(row: Counted) -> str:
    if row.metric != catalogue.SENDS.name or row.detail == STORED:
        return row.metric
    return "sent elsewhere" if row.detail == STOPPING else "refused"


def _build_totals(sums: Mapping[str, float]) -> Totals:
    def sum_of(*names: str) -> int:
        return round(sum(sums.get(name, 0.0) for name in names))

    return Totals(
        sent=sum_of(catalogue.SENDS.name),
        refused=sum_of("refused", "sent elsewhere"),
        sent_elsewhere=sum_of("sent elsewhere"),
        delivered=sum_of(catalogue.DELIVERED.name, catalogue.FETCHED.name),
        acked=sum_of(catalogue.ACKED.name),
        failed=sum_of(catalogue.FAILED.name),
        redelivered=sum_of(catalogue.REDELIVERED.name),
        timeouts=sum_of(catalogue.LEASE_TIMEOUTS.name),
        dead_lettered=sum_of(catalogue.DEAD_LETTERS.name),
        fired=sum_of(catalogue.DELAY_FIRED.name, catalogue.LEVELS_FIRED.name),
        sent_bytes=sum_of(catalogue.SEND_BYTES.name),
    )
