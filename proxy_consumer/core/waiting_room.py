"""Pulls that wait for messages: first come, first served, per group; and when they give up.

A waiter waits for one topic or for any of its group. `WaitingRoom` is one group's; `LingerWheel` holds
the deadlines of all waiters of a proxy in buckets of one tick, so that a thousand waiting clients cost
one look per tick. A waiter that is answered or whose client goes is taken out of both at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import count

_SEQUENCE = count()


class Waiter:
    """One waiting pull. `topic` None: any. Subclassed by the shell's request."""

    __slots__ = ("bucket", "sequence", "topic")

    def __init__(self, topic: str | None) -> None:
        self.topic = topic
        self.sequence = -1
        self.bucket: set[Waiter] | None = None


class WaitingRoom:
    """The waiters of one group, oldest first."""

    __slots__ = ("_lines", "count")

    def __init__(self) -> None:
        self._lines: dict[str | None, OrderedDict[Waiter, None]] = {}
        self.count = 0

    def __iter__(self) -> Iterator[Waiter]:
        """All of them, no particular order; a copy."""
        return iter([waiter for line in self._lines.values() for waiter in line])

    def enter(self, waiter: Waiter) -> None:
        """Wait at the end of the line."""
        waiter.sequence = next(_SEQUENCE)
        line = self._lines.get(waiter.topic)
        if line is None:
            line = self._lines[waiter.topic] = OrderedDict()
        line[waiter] = None
        self.count += 1

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting; harmless when it does not wait."""
        line = self._lines.get(waiter.topic)
        if line is not None and waiter in line:
            del line[waiter]
            self.count -= 1
            if not line:
                del self._lines[waiter.topic]

    def oldest(self, topic: str) -> Waiter | None:
        """Who has waited longest for messages of `topic`."""
        own, anyone = self._head(topic), self._head(None)
        if own is None or anyone is None:
            return own or anyone
        return own if own.sequence < anyone.sequence else anyone

    def waiting_for(self, topic: str) -> int:
        """How many would take messages of `topic`."""
        return len(self._lines.get(topic, ())) + len(self._lines.get(None, ()))

    def _head(self, topic: str | None) -> Waiter | None:
        line = self._lines.get(topic)
        return next(iter(line)) if line else None


class LingerWheel:
    """Deadlines of waiters, exact to one tick (never early)."""

    __slots__ = ("_buckets", "_done", "_tick_s", "count")

    def __init__(self, tick_s: float, now: float) -> None:
        self._tick_s = tick_s
        self._done = int(now / tick_s)
        self._buckets: dict[int, set[Waiter]] = {}
        self.count = 0

    def add(self, waiter: Waiter, deadline: float) -> None:
        """Give up at `deadline`."""
        slot = max(int(deadline / self._tick_s) + 1, self._done + 1)
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._buckets[slot] = set()
        bucket.add(waiter)
        waiter.bucket = bucket
        self.count += 1

    def remove(self, waiter: Waiter) -> None:
        """No deadline any more; harmless when it has none."""
        bucket = waiter.bucket
        if bucket is not None:
            waiter.bucket = None
            bucket.discard(waiter)
            self.count -= 1

    def over(self, now: float) -> list[Waiter]:
        """Those whose deadline has come, in order of arrival; they are in the wheel no more."""
        slot = int(now / self._tick_s)
        if slot - self._done > len(self._buckets):
            slots = sorted(known for known in self._buckets if known <= slot)
        else:
            slots = [known for known in range(self._done + 1, slot + 1) if known in self._buckets]
        self._done = max(self._done, slot)
        found: list[Waiter] = []
        for known in slots:
            found += sorted(self._buckets.pop(known), key=_by_arrival)
        for waiter in found:
            waiter.bucket = None
        self.count -= len(found)
        return found


def _by_arrival(waiter: Waiter) -> int:
    return waiter.sequence
