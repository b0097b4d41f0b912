"""Times as counts by bucket: what merges exactly, and the percentiles of what was merged.

A percentile is the upper edge of the bucket that holds it, at most 12.5 % above the value itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddmq_common.metrics.cells import OVERFLOW, TOP, upper_edge

Buckets = Mapping[int, int]  # bucket number → count


class AtLeast(float):
    """A value of which only this much is known: it lies above all buckets."""

    def __truediv__(self, by: float) -> AtLeast:
        return AtLeast(float(self) / by)


class Percentiles(NamedTuple):
    """Upper edges, in the metric's unit; `measured` is how many there were."""

    measured: int
    p50: float
    p99: float
    p999: float
    max: float


def percentiles(buckets: Buckets) -> Percentiles | None:
    """None when nothing was measured."""
    total = sum(buckets.values())
    if not total:
        return None
    at = iter(_edges(buckets, [total * share for share in (0.5, 0.99, 0.999, 1.0)]))
    return Percentiles(total, next(at), next(at), next(at), next(at))


def _edges(buckets: Buckets, wanted: list[float]) -> list[float]:
    found: list[float] = []
    seen = 0
    for index in sorted(buckets):
        seen += buckets[index]
        while len(found) < len(wanted) and buckets[index] and seen >= wanted[len(found)]:
            found.append(AtLeast(TOP) if index >= OVERFLOW else upper_edge(index))
    return found


def merged(many: Iterable[Buckets]) -> dict[int, int]:
    """The sum of all."""
    found: dict[int, int] = {}
    for buckets in many:
        for index, counted in buckets.items():
            found[index] = found.get(index, 0) + counted
    return found
