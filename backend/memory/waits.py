"""Waiters for data, per queue. Whoever is taken out is settled, unless its caller cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from backend.port import Wait
from backend.records import QueueRef
from ddmq_common.errors import BoundReachedError


class _Parked(NamedTuple):
    offset: int
    deadline: float
    wait: Wait


_Test = Callable[[_Parked], bool]


class WaitTable:
    """Parked waits, at most `waits_max`; cancelled ones are dropped at the next sweep.

    `later` runs a function from the hub: each is settled by itself, so that what one does hurts no other.
    """

    def __init__(self, waits_max: int, later: Callable[..., object]) -> None:
        self._waits_max = waits_max
        self._later = later
        self._parked: dict[QueueRef, list[_Parked]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def park(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        """Keep `wait` until there is data or the deadline. Raises BoundReachedError when full."""
        if self._count >= self._waits_max:
            raise BoundReachedError(f"{self._waits_max} waits are parked; that is the bound")
        self._parked.setdefault(queue, []).append(_Parked(offset, deadline, wait))
        self._count += 1

    def wake(self, queue: QueueRef, next_offset: int) -> None:
        """Settle whoever waits for an offset below `next_offset`."""
        for parked in self._take(queue, lambda parked: parked.offset < next_offset):
            self._later(_settle, parked.wait, True)

    def sweep(self, now: float) -> None:
        """Settle whoever is past the deadline, at `now` on the monotonic clock; drop the cancelled."""
        for queue in list(self._parked):
            for parked in self._take(queue, lambda parked: parked.deadline <= now):
                self._later(_settle, parked.wait, False)

    def fail(self, queue: QueueRef, error: Exception) -> None:
        """Fail everyone who waits on one queue."""
        for parked in self._take(queue, lambda _: True):
            self._later(_settle, parked.wait, error)

    def queues(self) -> list[QueueRef]:
        """Where someone waits."""
        return list(self._parked)

    def _take(self, queue: QueueRef, due: _Test) -> list[_Parked]:
        """Take out those that are due and still wanted, and forget the cancelled."""
        here = self._parked.get(queue)
        if here is None:
            return []
        wanted = [parked for parked in here if not parked.wait.cancelled and not parked.wait.done]
        taken = [parked for parked in wanted if due(parked)]
        kept = [parked for parked in wanted if not due(parked)]
        self._count -= len(here) - len(kept)
        if kept:
            self._parked[queue] = kept
        else:
            del self._parked[queue]
        return taken


def _settle(wait: Wait, outcome: bool | Exception) -> None:
    if wait.cancelled or wait.done:
        return
    if isinstance(outcome, Exception):
        wait.fail(outcome)
    else:
        wait.succeed(outcome)
