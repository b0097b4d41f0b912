"""Offsets as ranges, as progress holds them. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def ranges_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets as ranges `[start, end)`, ascending and not touching."""
    if len(offsets) == 1:  # as nearly all are
        return [(offsets[0], offsets[0] + 1)]
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] >= offset:
            found[-1] = found[-1][0], max(found[-1][1], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
