"""A receiver that answers errno 1000000 asks for less: its next R sends take ten permits each.

R is the present rate: the limit of the subscription where it has one, else what was sent in the last full
second. Without such an answer a send takes one permit, which the subscription's own rate has given already.
"""

from __future__ import annotations

COST = 10


class Permits:
    """When the next send may go. Time is monotonic seconds."""

    __slots__ = ("_next", "_rate", "_second", "_seen", "_seen_before", "_slow_left")

    def __init__(self) -> None:
        self._slow_left = 0
        self._rate = 1
        self._next = 0.0
        self._second = 0
        self._seen = 0
        self._seen_before = 0

    def slot(self, now: float) -> float:
        """The moment of one more send; never before now."""
        self._count(now)
        if self._slow_left == 0:
            return now
        self._slow_left -= 1
        self._next = max(now, self._next + COST / self._rate)
        return self._next

    def slow_down(self, now: float, rate_max: int) -> None:
        """The receiver asked for it; `rate_max` of the subscription, 0 = none."""
        self._roll(now)
        if self._slow_left == 0:
            self._rate = rate_max or max(self._seen_before, self._seen, 1)
            self._next = now
        self._slow_left = self._rate

    def _count(self, now: float) -> None:
        self._roll(now)
        self._seen += 1

    def _roll(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._seen_before = self._seen if second == self._second + 1 else 0
            self._second, self._seen = second, 0
