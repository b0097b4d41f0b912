"""The next pairs of the due order, kept in memory: they were read together with the ones before them.

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
    """A cache of all due pairs in [start, end), at most `PAIRS_MAX` of them and about `BYTES_MAX`."""

    __slots__ = ("_end", "_pairs", "_start")

    def __init__(self) -> None:
        self._start = self._end = b""
        self._pairs: list[Pair] = []

    @property
    def end(self) -> bytes:
        """Return the end of the cached range (exclusive)."""
        return self._end

    def covers_key(self, key: bytes) -> bool:
        """Return whether the key is in the cached range."""
        return self._start <= key < self._end

    def hold_range(self, start: bytes, end: bytes, pairs: list[Pair]) -> None:
        """Replace the cache by the result of a scan: all pairs that exist in [start, end)."""
        self._start, self._end, self._pairs = start, end, pairs
        self._trim_to_bounds()

    def first_key(self, start: bytes) -> bytes | None:
        """Return the first cached key at or after `start`, which must be covered; None if there is none."""
        index = bisect_left(self._pairs, (start,))
        return self._pairs[index][0] if index < len(self._pairs) else None

    def take_range(self, start: bytes, end: bytes, limit: int) -> list[Pair]:
        """Remove and return at most `limit` cached pairs in [start, end). `start` must be covered."""
        first_key = bisect_left(self._pairs, (start,))
        last = min(bisect_left(self._pairs, (end,), first_key), first_key + limit)
        pairs = self._pairs[first_key:last]
        if pairs:
            del self._pairs[:last]
            self._start = pairs[-1][0] + b"\0"
        return pairs

    def add(self, pairs: list[Pair]) -> None:
        """Add written pairs that lie in the cached range."""
        fresh = [pair for pair in pairs if self._start <= pair[0] < self._end]
        if len(fresh) <= PAIRS_MAX:
            for pair in fresh:
                insort(self._pairs, pair)
        else:
            self._pairs = sorted(self._pairs + fresh)
        if fresh:
            self._trim_to_bounds()

    def remove(self, keys: list[bytes]) -> None:
        """Remove deleted keys from the cache."""
        for key in keys:
            if self._start <= key < self._end:
                index = bisect_left(self._pairs, (key,))
                if index < len(self._pairs) and self._pairs[index][0] == key:
                    del self._pairs[index]

    def _trim_to_bounds(self) -> None:
        """Drop the pairs beyond the bounds, and move `end` to the first of them."""
        remaining_bytes = BYTES_MAX
        for index, (_, value) in enumerate(self._pairs):
            if index == PAIRS_MAX or remaining_bytes <= 0:
                self._end = self._pairs[index][0]
                del self._pairs[index:]
                return
            remaining_bytes -= len(value)
