"""Deadlines of many things, looked at in sweeps: no timer and no greenlet per thing. Pure.

Time is cut into slots; a thing lies in the first slot that starts at or after its deadline, so it is
handed out at most one slot late and never early.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


class Wheel(Generic[H]):
    """`slot_s` is the resolution in seconds. Adding and dropping cost O(1), but for a slot's first thing."""

    def __init__(self, slot_s: float) -> None:
        self.slot_s = slot_s
        self._slots: dict[int, set[H]] = {}
        self._order: list[int] = []  # heap of the slots that exist
        self._where: dict[H, int] = {}

    def __len__(self) -> int:
        return len(self._where)

    def add(self, thing: H, deadline: float) -> None:
        """Hand `thing` out at `deadline` (monotonic seconds); a thing is in at most once."""
        self.drop(thing)
        slot = math.ceil(min(deadline, 1e15) / self.slot_s)
        members = self._slots.get(slot)
        if members is None:
            members = self._slots[slot] = set()
            heapq.heappush(self._order, slot)
        members.add(thing)
        self._where[thing] = slot

    def drop(self, thing: H) -> None:
        """Forget it; harmless when it is not in."""
        slot = self._where.pop(thing, None)
        if slot is not None:
            self._slots[slot].discard(thing)

    def due(self, now: float) -> list[H]:
        """Take out everything whose slot has come."""
        found: list[H] = []
        last = math.floor(now / self.slot_s)
        while self._order and self._order[0] <= last:
            members = self._slots.pop(heapq.heappop(self._order))
            for thing in members:
                del self._where[thing]
            found.extend(members)
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._slots.clear()
        self._order.clear()
        self._where.clear()
