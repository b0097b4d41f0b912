"""The one scale of all histograms: logarithmic buckets, equal everywhere, so that any two merge by adding.

Below SUB_BUCKETS a bucket is one unit wide; above, every power of two is cut into SUB_BUCKETS equal parts, so
that a bucket's edge is at most 12.5 % away from what it holds. The unit is the metric's own (catalogue:
µs, bytes, a count). Sample files and the Spark job hold the indexes of this scale: more buckets may be added
above, any other change is a new version of their format.
"""

from __future__ import annotations

SUB_BUCKETS = 8  # per power of two
OVERFLOW = 40 * SUB_BUCKETS  # what is above all others: from TOP on, 50 days in µs
BUCKETS = OVERFLOW + 1
TOP = float(1 << 42)


def bucket(value: float) -> int:
    """Index of the bucket holding `value`, 0 to BUCKETS - 1; below 0 counts in the first."""
    whole = int(value)
    if whole < SUB_BUCKETS:
        return max(whole, 0)
    shift = whole.bit_length() - 4
    return min((shift + 1) * SUB_BUCKETS + (whole >> shift) - SUB_BUCKETS, OVERFLOW)


def upper_edge(index: int) -> float:
    """The first value above the bucket, in the metric's unit; of OVERFLOW, which has none, one above TOP."""
    if index >= OVERFLOW:
        return TOP + 1
    if index < SUB_BUCKETS:
        return float(index + 1)
    shift = index // SUB_BUCKETS - 1
    return float((index % SUB_BUCKETS + SUB_BUCKETS + 1) << shift)
