"""When a failed or timed-out job comes again, and when it has come often enough."""

from __future__ import annotations

from collections.abc import Sequence


class RetryPolicy:
    """The intervals of one subscription, in the form the rules of SubscriptionDefaults give them."""

    __slots__ = ("_for_ever", "_intervals_ms", "_timeouts_max")

    def __init__(self, intervals_ms: Sequence[int], max_timeout_redeliveries: int) -> None:
        plain = list(intervals_ms)
        if plain and plain[0] == -1:
            plain = []
        self._for_ever = bool(plain) and plain[-1] == -1
        self._intervals_ms = plain[:-1] if self._for_ever else plain
        self._timeouts_max = max_timeout_redeliveries

    def after_fail(self, fails: int) -> int | None:
        """Milliseconds to wait after the `fails`-th failure (from 1); None when retries are spent."""
        if fails <= len(self._intervals_ms):
            return self._intervals_ms[fails - 1]
        return self._intervals_ms[-1] if self._for_ever else None

    def again_after_timeout(self, timeouts: int) -> bool:
        """Whether the `timeouts`-th time-out (from 1) is followed by another delivery."""
        return self._timeouts_max < 0 or timeouts <= self._timeouts_max
