"""The timer queue: one heap for all subscriptions of a proxy, checked on every tick.

Each task has at most one live entry; setting it earlier adds a new one and the old one is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

NEVER = float("inf")


class TimedTask(Protocol):
    """Something with a time. `wake_at` belongs to the queue."""

    wake_at: float

    def due(self, now: float) -> None:
        """Its time has come; it may be set again from here."""


class TimerQueue:
    """Tasks by time, in monotonic seconds. `rest_until`: nobody looks before; `woken` is called when a task
    is set to a time before that."""

    __slots__ = ("_heap", "_sequence", "rest_until", "woken")

    def __init__(self) -> None:
        self.rest_until = -NEVER
        self.woken: Callable[[], None] = _nobody
        self._heap: list[tuple[float, int, TimedTask]] = []
        self._sequence = count()

    def set(self, task: TimedTask, when: float) -> None:
        """Run `task` at `when`, unless it is to run earlier already. NEVER changes nothing."""
        if when < task.wake_at:
            task.wake_at = when
            heappush(self._heap, (when, next(self._sequence), task))
            if when < self.rest_until:
                self.woken()

    @property
    def next_at(self) -> float:
        """No task is to run before."""
        return self._heap[0][0] if self._heap else NEVER

    def run_due(self, now: float) -> None:
        """Run every task whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, task = heappop(heap)
            if task.wake_at == when:
                task.wake_at = NEVER
                task.due(now)


def _nobody() -> None:
    """Do nothing: no heartbeat is at rest."""
