"""Compare what was read of a process's metrics with the conditions of the rules.

`samples` are the earlier columns of one set of labels with their times, the oldest first, and the present
ones. Growth is measured between the first and the last of them, a trend through all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddmq.server.findings.core.readings import Columns
from ddmq_common.findings.conditions import (
    Condition,
    FallsBelow,
    GaugeAbove,
    Grown,
    NoneOwned,
    NotConsumed,
    OnlyPrometheus,
    QuantileAbove,
    ShareAbove,
)

Samples = Sequence[tuple[float, Columns]]
DIGITS = 9  # of a share: 1 - 0.99 is not quite 0.01


def measure_value(condition: Condition, columns: Columns, samples: Samples) -> float | None:
    """Return the value of a condition that holds now, in the unit of its rule; None if it does not hold."""
    match condition:
        case OnlyPrometheus():
            return None
        case GaugeAbove():
            value, exemption = columns
            return value if value > condition.above and not exemption else None
        case NoneOwned():
            return columns[0] if columns[0] < 1 else None
        case Grown():
            growth = _measure_growth(samples, 0)
            return growth if growth > 0 else None
        case ShareAbove():
            return _share_above(_measure_growth(samples, 0), _measure_growth(samples, 1), condition.above)
        case QuantileAbove():
            limit = round(1 - condition.quantile, DIGITS)
            return _share_above(_measure_growth(samples, 0), _measure_growth(samples, 1), limit)
        case NotConsumed():
            _, lag, exemption = columns
            return lag if lag > 0 and not exemption and _measure_growth(samples, 0) <= 0 else None
        case FallsBelow():
            slope = fit_slope([(at, each[0]) for at, each in samples])
            if slope is None:
                return None
            ahead = columns[0] + condition.ahead_s * slope
            return max(0.0, ahead) if ahead < condition.below else None


def _measure_growth(samples: Samples, column: int) -> float:
    return samples[-1][1][column] - samples[0][1][column]


def _share_above(part: float, whole: float, limit: float) -> float | None:
    """Return part / whole if it is above the limit. A part without a whole is all of it."""
    if part <= 0:
        return None
    share = part / whole if whole > 0 else 1.0
    return share if share > limit else None


def fit_slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of the straight line that fits the points best; None if they do not differ in time."""
    if len(points) < 2:
        return None
    mean_at = sum(at for at, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    if not spread:
        return None
    return sum((at - mean_at) * (value - mean) for at, value in points) / spread
