"""Sorted, disjoint ranges `[start, end)` of whole numbers that merge as soon as they touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Runs:
    """A set of whole numbers kept as ranges; adding costs a search and a list insert."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """How many ranges, not how many numbers."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def add(self, start: int, end: int) -> None:
        """Put `[start, end)` in; an empty range changes nothing."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        after = bisect_right(self._starts, end)
        if first < after:
            start = min(start, self._starts[first])
            end = max(end, self._ends[after - 1])
        self._starts[first:after] = [start]
        self._ends[first:after] = [end]

    def end_of(self, number: int) -> int:
        """Where the range that holds `number` ends; `number` itself when none holds it."""
        index = bisect_right(self._starts, number) - 1
        if index >= 0 and number < self._ends[index]:
            return self._ends[index]
        return number

    def drop_below(self, number: int) -> None:
        """Forget everything below `number`."""
        gone = bisect_right(self._ends, number)
        del self._starts[:gone], self._ends[:gone]
        if self._starts and self._starts[0] < number:
            self._starts[0] = number

    def clear(self) -> None:
        """Forget everything."""
        self._starts.clear()
        self._ends.clear()
