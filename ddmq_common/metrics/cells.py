"""The cells that metrics are counted in, and the one scale of all histograms.

Cells are numbers that their one owner changes on the hub. Nothing locks.

The buckets of histograms are logarithmic and equal everywhere, so that any two merge by adding. Below
SUB_BUCKETS a bucket is one unit wide; above, every power of two is cut into SUB_BUCKETS equal parts, so
that a bucket's edge is at most 12.5 % away from what it holds. The unit is the metric's own (catalogue:
µs, bytes, a count). Sample files and the Spark job hold the indexes of this scale: more buckets may be added
above, any other change is a new version of their format.
"""

from __future__ import annotations

SUB_BUCKETS = 8  # per power of two
OVERFLOW = 40 * SUB_BUCKETS  # what is above all others: from TOP on, 50 days in µs
BUCKETS = OVERFLOW + 1
TOP = float(1 << 42)


def bucket_index(value: float) -> int:
    """Return the index (0 to BUCKETS - 1) of the bucket for `value`. Negative values belong to the first."""
    integer = int(value)
    if integer < SUB_BUCKETS:
        return max(integer, 0)
    shift = integer.bit_length() - 4
    return min((shift + 1) * SUB_BUCKETS + (integer >> shift) - SUB_BUCKETS, OVERFLOW)


def upper_edge(index: int) -> float:
    """Return the exclusive upper bound of a bucket, in the metric's unit; for OVERFLOW a value above TOP."""
    if index >= OVERFLOW:
        return TOP + 1
    if index < SUB_BUCKETS:
        return float(index + 1)
    shift = index // SUB_BUCKETS - 1
    return float((index % SUB_BUCKETS + SUB_BUCKETS + 1) << shift)


class MetricCell:
    """The value of one counter or gauge for one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """A histogram with logarithmic buckets. Histograms are merged by adding their buckets.

    Values are in the metric's unit, mostly µs.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bucket_index(value)] += 1
        self.total += value

    def percentile(self, fraction: float) -> float:
        """Return the upper bound of the bucket that contains the percentile `fraction`; 0.0 if empty."""
        rank = sum(self.counts) * fraction
        below = 0
        for index, count in enumerate(self.counts):
            below += count
            if count and below >= rank:
                return upper_edge(index)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Return count, mean and the upper bounds of the percentiles' buckets, in the metric's unit."""
        count = sum(self.counts)
        return {
            "count": count,
            "mean": self.total / count if count else 0.0,
            "p50": self.percentile(0.5),
            "p99": self.percentile(0.99),
            "max": self.percentile(1.0),
        }
