"""What stands next in the due order, in memory: what was read together with what was due before it.

Messages that are due every few milliseconds fire a few at a time. Were the due order searched anew for each
slice, and again for the moment to wake at, most of the delay service's time would go into that: RocksDB's
iterators cost as much as reading some thirty messages.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from ddmq_common.rocks.database import Pair

PAIRS_MAX = 64
BYTES_MAX = 256 << 10


class DueAhead:
    """All pairs that live in [start, end), at most `PAIRS_MAX` and about `BYTES_MAX` of them."""

    __slots__ = ("_end", "_pairs", "_start")

    def __init__(self) -> None:
        self._start = self._end = b""
        self._pairs: list[Pair] = []

    @property
    def end(self) -> bytes:
        """What lives from here on is not known."""
        return self._end

    def covers(self, key: bytes) -> bool:
        """Is it known what lives there?"""
        return self._start <= key < self._end

    def hold(self, start: bytes, end: bytes, pairs: list[Pair]) -> None:
        """A scan found that these, and no others, live in [start, end)."""
        self._start, self._end, self._pairs = start, end, pairs
        self._cut()

    def first(self, start: bytes) -> bytes | None:
        """The first key from `start` on, which it covers; None when all of them stand behind `end`."""
        place = bisect_left(self._pairs, (start,))
        return self._pairs[place][0] if place < len(self._pairs) else None

    def take(self, start: bytes, end: bytes, limit: int) -> list[Pair]:
        """What lives in [start, end), from a `start` on that it covers, as far as it is known; at most
        `limit`. What stands up to there is not held any more."""
        first = bisect_left(self._pairs, (start,))
        last = min(bisect_left(self._pairs, (end,), first), first + limit)
        found = self._pairs[first:last]
        if found:
            del self._pairs[:last]
            self._start = found[-1][0] + b"\0"
        return found

    def add(self, pairs: list[Pair]) -> None:
        """These live from now on."""
        fresh = [pair for pair in pairs if self._start <= pair[0] < self._end]
        if len(fresh) <= PAIRS_MAX:
            for pair in fresh:
                insort(self._pairs, pair)
        else:
            self._pairs = sorted(self._pairs + fresh)
        if fresh:
            self._cut()

    def remove(self, keys: list[bytes]) -> None:
        """These are gone."""
        for key in keys:
            if self._start <= key < self._end:
                place = bisect_left(self._pairs, (key,))
                if place < len(self._pairs) and self._pairs[place][0] == key:
                    del self._pairs[place]

    def _cut(self) -> None:
        """Hold no more than allowed: of what is behind that nothing is known."""
        left = BYTES_MAX
        for place, (_, value) in enumerate(self._pairs):
            if place == PAIRS_MAX or left <= 0:
                self._end = self._pairs[place][0]
                del self._pairs[place:]
                return
            left -= len(value)
