"""Waiters for data: woken by the commit that brings it, ended by their deadline, dropped when cancelled.

A waiter sits at its queue, and in a heap by deadline; leaving one of them is enough, the other forgets
it lazily, at the latest when half of what it holds is settled.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from backend.file_log.state import LogQueue
from backend.port import Wait
from ddmq_common.errors import BoundReachedError

COMPACT_AT = 1024
QUEUE_STALE_MAX = 8

Guard = Callable[..., None]


class Waits:
    """All parked waits, at most `waits_max`. `guard(call, *args)` keeps callers' errors from others."""

    def __init__(self, waits_max: int, guard: Guard) -> None:
        self._waits_max = waits_max
        self._guard = guard
        self._heap: list[tuple[float, int, Wait, LogQueue]] = []
        self._order = itertools.count()
        self._compact_at = COMPACT_AT

    def __len__(self) -> int:
        return len(self._heap)

    def park(self, queue: LogQueue, offset: int, deadline: float, wait: Wait) -> None:
        """Keep it until there is data or the deadline. Raises BoundReachedError when full."""
        if len(self._heap) >= self._compact_at:
            self._compact()
        if len(self._heap) >= self._waits_max:
            raise BoundReachedError(f"{self._waits_max} waits are parked; that is the bound")
        queue.waiting.append((offset, wait))
        heapq.heappush(self._heap, (deadline, next(self._order), wait, queue))

    def wake(self, queue: LogQueue) -> None:
        """Settle whoever waits for an offset that is visible now."""
        waiting, queue.waiting = queue.waiting, []
        for offset, wait in waiting:
            if wait.cancelled or wait.done:
                continue
            if offset < queue.visible:
                self._guard(wait.succeed, True)
            else:
                queue.waiting.append((offset, wait))

    def fail(self, queue: LogQueue, error: Exception) -> None:
        """Fail everyone at one queue."""
        waiting, queue.waiting = queue.waiting, []
        for _, wait in waiting:
            self._settle(wait, wait.fail, error)

    def fail_all(self, error: Exception) -> None:
        """Fail everyone."""
        heap, self._heap = self._heap, []
        for _, _, wait, queue in heap:
            queue.waiting = []
            self._settle(wait, wait.fail, error)

    def sweep(self, now: float) -> None:
        """Settle whoever is past the deadline."""
        while self._heap and (self._heap[0][0] <= now or _over(self._heap[0][2])):
            _, _, wait, queue = heapq.heappop(self._heap)
            self._settle(wait, wait.succeed, False)
            if len(queue.waiting) > QUEUE_STALE_MAX or (queue.waiting and queue.waiting[0][1] is wait):
                queue.waiting = [one for one in queue.waiting if not _over(one[1])]

    def _settle(self, wait: Wait, how: Callable[..., None], value: Any) -> None:
        if not _over(wait):
            self._guard(how, value)

    def _compact(self) -> None:
        self._heap = [one for one in self._heap if not _over(one[2])]
        heapq.heapify(self._heap)
        self._compact_at = max(COMPACT_AT, min(2 * len(self._heap), self._waits_max))


def _over(wait: Wait) -> bool:
    return wait.done or wait.cancelled
