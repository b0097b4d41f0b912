"""The cells that metrics are counted in: numbers that their one owner changes on the hub. Nothing locks."""

from __future__ import annotations

from ddmq_common.metrics.buckets import BUCKETS, bucket, upper_edge


class MetricCell:
    """A counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """Counts by logarithmic bucket, mergeable by adding; values in the metric's unit, mostly µs."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bucket(value)] += 1
        self.total += value

    def percentile(self, fraction: float) -> float:
        """The upper edge of the bucket that holds the given fraction of values; 0.0 when empty."""
        wanted = sum(self.counts) * fraction
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return upper_edge(index)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Count, mean and upper edges of the percentiles' buckets, in the metric's unit."""
        count = sum(self.counts)
        return {
            "count": count,
            "mean": self.total / count if count else 0.0,
            "p50": self.percentile(0.5),
            "p99": self.percentile(0.99),
            "max": self.percentile(1.0),
        }
