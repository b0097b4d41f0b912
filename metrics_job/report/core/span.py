"""The time a report covers, and the steps its charts go in: at most POINTS_MAX of them, of round lengths.

Ranges are [start, end) in epoch milliseconds; steps begin at whole multiples of their length (UTC).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

POINTS_MAX = 500
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
MINUTES_UP_TO_MS = 3 * DAY_MS  # longer spans are told from the tables of hours
_STEPS = [
    *(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_MS for days in (1, 2, 7, 14, 28, 56, 112)),
]


@dataclass(frozen=True, slots=True)
class Span:
    """[start_ms, end_ms) in steps of step_ms."""

    start_ms: int
    end_ms: int
    step_ms: int

    @property
    def period(self) -> str:
        """Which tables tell it: `minute` or `hour`."""
        return "hour" if self.step_ms >= HOUR_MS else "minute"

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms

    def steps(self) -> range:
        """Where each step begins, the first at or before the start."""
        return range(self.start_ms - self.start_ms % self.step_ms, self.end_ms, self.step_ms)

    def earlier(self, by_ms: int = WEEK_MS) -> Span:
        """As long, so much before."""
        return Span(self.start_ms - by_ms, self.end_ms - by_ms, self.step_ms)

    def dates(self) -> tuple[str, str]:
        """The first and the last UTC date it touches, as the tables' partitions are named."""
        return date_of(self.start_ms), date_of(self.end_ms - 1)


def span_of(start_ms: int, end_ms: int) -> Span:
    """The span with its step; both ends are moved out to whole minutes, or hours where hours tell it."""
    length = max(end_ms - start_ms, 1)
    fitting = [step for step in _STEPS if length <= step * (POINTS_MAX - 1)]
    step = fitting[0] if fitting else _STEPS[-1]
    if length > MINUTES_UP_TO_MS:
        step = max(step, HOUR_MS)
    grain = HOUR_MS if step >= HOUR_MS else MINUTE_MS
    return Span(start_ms - start_ms % grain, max(end_ms + -end_ms % grain, start_ms + grain), step)


def moment(wall_ms: int) -> datetime:
    """As an aware UTC time."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def date_of(wall_ms: int) -> str:
    """`2026-11-22`, UTC."""
    return moment(wall_ms).date().isoformat()
