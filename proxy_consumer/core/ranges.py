"""Offsets as clients list them, as ranges `[start, end)`."""

from __future__ import annotations

from collections.abc import Sequence

Range = tuple[int, int]


def ranges_of(offsets: Sequence[int]) -> list[Range]:
    """Ascending disjoint ranges that hold exactly `offsets`, which may repeat and come in any order."""
    if not offsets:
        return []
    first, count = offsets[0], len(offsets)
    if offsets[-1] - first == count - 1 and list(offsets) == list(range(first, first + count)):
        return [(first, first + count)]
    return ascending_ranges(sorted(set(offsets)))


def ascending_ranges(offsets: Sequence[int]) -> list[Range]:
    """The same for offsets that ascend without repeating; a straight run costs one comparison."""
    if not offsets:
        return []
    start, last = offsets[0], offsets[-1]
    if last - start == len(offsets) - 1:
        return [(start, last + 1)]
    found: list[Range] = []
    end = start
    for offset in offsets:
        if offset != end:
            found.append((start, end))
            start = offset
        end = offset + 1
    found.append((start, end))
    return found


def between(start: int, end: int, kept: Sequence[Range]) -> list[Range]:
    """What of `[start, end)` lies outside `kept`, ascending disjoint ranges inside it."""
    found: list[Range] = []
    for first, after in kept:
        if first > start:
            found.append((start, first))
        start = after
    if start < end:
        found.append((start, end))
    return found
