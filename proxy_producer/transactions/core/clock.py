"""The clock by which transactions grow old and are asked about. Pure; both of its sources are arguments.

A step of the wall clock must not end a transaction. Neither may a pause of its proxy, because no group can be
asked meanwhile. So this clock begins at the wall clock's time and follows the monotonic clock from there.
"""

from __future__ import annotations

PAUSE_MS_MAX = 5_000  # that count between two readings; a proxy reads the clock each second


class SteadyClock:
    """A millisecond clock that ignores steps of the wall clock.

    A pause of the process counts at most PAUSE_MS_MAX.
    """

    def __init__(self, wall_ms: int, monotonic_s: float) -> None:
        self._now_ms = float(wall_ms)
        self._read_s = monotonic_s

    def read(self, monotonic_s: float) -> int:
        """Return the current time in milliseconds. `monotonic_s`: the monotonic clock's time."""
        passed_ms = (monotonic_s - self._read_s) * 1_000
        self._read_s = monotonic_s
        self._now_ms += min(max(passed_ms, 0.0), PAUSE_MS_MAX)
        return int(self._now_ms)
