"""How many messages a subscription may hand out a second."""

from __future__ import annotations

from proxy_consumer.core.timer_queue import NEVER


class Rate:
    """A token bucket of one second; `per_s` 0 = no limit. Time is monotonic seconds."""

    __slots__ = ("_kept_back", "_per_s", "_tokens", "_when")

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._tokens = float(per_s)
        self._when = 0.0
        self._kept_back = False  # somebody was told to wait

    def change(self, per_s: int) -> None:
        """Another limit, from now on."""
        self._per_s = per_s
        self._tokens = min(self._tokens, float(per_s))
        self._kept_back = self._kept_back and per_s > 0

    def room(self, count: int, now: float) -> int:
        """How many of `count` may go now."""
        if not self._per_s:
            return count
        self._tokens = min(float(self._per_s), self._tokens + max(0.0, now - self._when) * self._per_s)
        self._when = now
        self._kept_back = self._tokens < 1
        return min(count, int(self._tokens))

    def spend(self, count: int) -> None:
        """So many went, of those that `room` allowed."""
        if self._per_s:
            self._tokens -= count

    def next_time(self) -> float:
        """When there is room again for who was kept back; NEVER when nobody was."""
        if not self._kept_back:
            return NEVER
        return self._when + (1 - self._tokens) / self._per_s + 1e-6
