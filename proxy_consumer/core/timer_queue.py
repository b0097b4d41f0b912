"""The timer queue: one heap for all subscriptions of a proxy, checked on every tick.

Each task has at most one live entry; setting it earlier adds a new entry, and the old one is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

NEVER = float("inf")


class TimedTask(Protocol):
    """A task that a TimerQueue runs. `wake_at` is managed by the queue."""

    wake_at: float

    def due(self, now: float) -> None:
        """Run the task, whose time has come; it may be set again from here."""


class TimerQueue:
    """Tasks by time, in monotonic seconds.

    `rest_until`: the heartbeat does not check the queue before this time; `woken` is called if a task is set
    to an earlier time.
    """

    __slots__ = ("_heap", "_sequence", "rest_until", "woken")

    def __init__(self) -> None:
        self.rest_until = -NEVER
        self.woken: Callable[[], None] = _ignore_wake_up
        self._heap: list[tuple[float, int, TimedTask]] = []
        self._sequence = count()

    def set(self, task: TimedTask, when: float) -> None:
        """Run `task` at `when`, unless it is already set to run earlier. NEVER changes nothing."""
        if when < task.wake_at:
            task.wake_at = when
            heappush(self._heap, (when, next(self._sequence), task))
            if when < self.rest_until:
                self.woken()

    @property
    def next_at(self) -> float:
        """The time of the next task, or an earlier time; NEVER if there is none."""
        return self._heap[0][0] if self._heap else NEVER

    def run_due(self, now: float) -> None:
        """Run every task whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, task = heappop(heap)
            if task.wake_at == when:
                task.wake_at = NEVER
                task.due(now)


def _ignore_wake_up() -> None:
    """Do nothing: the heartbeat is not resting."""
