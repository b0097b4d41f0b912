"""Waits for data: a commit that brings data settles them, else their deadline; cancelled ones are dropped.

For engines that hold their queues in the process.

A wait is stored at its queue and in a heap by deadline. It is removed from one of them at once, and from the
other lazily, at the latest when half of its waits are settled.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from backend.port import Wait
from backend.records import QueueRef
from ddmq_common.clock import NEVER
from ddmq_common.errors import BoundReachedError, UnknownTopicError

COMPACT_AT = 1024
QUEUE_STALE_MAX = 8

Guard = Callable[..., None]


class WaitedQueue(Protocol):
    """A queue that has parked waits for data."""

    waiting: list[tuple[int, Wait]]  # offset, wait

    @property
    def visible(self) -> int:
        """The offset below which records are visible to readers."""


class Waits:
    """All parked waits of an engine, at most `waits_max`.

    `guard(call, *args)` calls a callback and contains its errors.
    """

    def __init__(self, waits_max: int, guard: Guard) -> None:
        self._waits_max = waits_max
        self._guard = guard
        self._heap: list[tuple[float, int, Wait, WaitedQueue]] = []
        self._order = itertools.count()
        self._compact_at = min(COMPACT_AT, waits_max)
        self._closed_with: Exception | None = None

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> float:
        """The time of the earliest deadline, or an earlier time."""
        return self._heap[0][0] if self._heap else NEVER

    def park(
        self, queue: WaitedQueue | None, ref: QueueRef, offset: int, deadline: float, wait: Wait
    ) -> None:
        """Settle a wait at once, or store it until there is data or the deadline passes. Runs on the hub.

        `queue`: the queue named by `ref`, None if it does not exist.
        """
        if _is_settled(wait):
            return
        if self._closed_with is not None:
            wait.fail(self._closed_with)
        elif queue is None:
            wait.fail(UnknownTopicError(f"queue {ref} does not exist (any more)"))
        elif offset < queue.visible:
            wait.succeed(True)
        elif len(self._heap) >= self._compact_at and self._is_full():
            wait.fail(BoundReachedError(f"{self._waits_max} waits are open; that is the bound"))
        else:
            queue.waiting.append((offset, wait))
            heapq.heappush(self._heap, (deadline, next(self._order), wait, queue))

    def wake(self, queue: WaitedQueue) -> None:
        """Settle a queue's waits for offsets that are visible now."""
        waiting, queue.waiting = queue.waiting, []
        for offset, wait in waiting:
            if wait.cancelled or wait.done:
                continue
            if offset < queue.visible:
                self._guard(wait.succeed, True)
            else:
                queue.waiting.append((offset, wait))

    def fail(self, queue: WaitedQueue, error: Exception) -> None:
        """Fail all waits of one queue."""
        waiting, queue.waiting = queue.waiting, []
        for _, wait in waiting:
            self._settle_wait(wait, wait.fail, error)

    def fail_all(self, error: Exception) -> None:
        """Fail all parked waits, and every later one."""
        self._closed_with = error
        heap, self._heap = self._heap, []
        for _, _, wait, queue in heap:
            queue.waiting = []
            self._settle_wait(wait, wait.fail, error)

    def sweep(self, now: float) -> None:
        """Settle the waits past their deadline."""
        while self._heap and (self._heap[0][0] <= now or _is_settled(self._heap[0][2])):
            _, _, wait, queue = heapq.heappop(self._heap)
            self._settle_wait(wait, wait.succeed, False)
            if len(queue.waiting) > QUEUE_STALE_MAX or (queue.waiting and queue.waiting[0][1] is wait):
                queue.waiting = [item for item in queue.waiting if not _is_settled(item[1])]

    def _settle_wait(self, wait: Wait, how: Callable[..., None], value: Any) -> None:
        if not _is_settled(wait):
            self._guard(how, value)

    def _is_full(self) -> bool:
        """Remove settled waits if the bound is reached; return whether it is still reached."""
        self._heap = [item for item in self._heap if not _is_settled(item[2])]
        heapq.heapify(self._heap)
        self._compact_at = min(max(COMPACT_AT, 2 * len(self._heap)), self._waits_max)
        return len(self._heap) >= self._waits_max


def _is_settled(wait: Wait) -> bool:
    return wait.done or wait.cancelled
