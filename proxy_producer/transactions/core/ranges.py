"""Offsets as ranges, as progress holds them. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def ranges_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Convert offsets to ascending ranges `[start, end)` that do not touch."""
    if len(offsets) == 1:  # nearly always
        return [(offsets[0], offsets[0] + 1)]
    ranges: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] >= offset:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges
