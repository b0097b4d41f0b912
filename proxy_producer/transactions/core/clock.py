"""The clock by which transactions grow old and are asked about. Pure; both of its sources are arguments.

A step of the wall clock must not end a transaction, nor may the time in which its proxy did not run: nobody
could be asked then. So this clock begins at the wall clock's time and follows the monotonic one from there.
"""

from __future__ import annotations

PAUSE_MS_MAX = 5_000  # that count between two readings; a proxy reads the clock each second


class SteadyClock:
    """Milliseconds that no step of the wall clock moves. Of a pause of the process PAUSE_MS_MAX count."""

    def __init__(self, wall_ms: int, monotonic_s: float) -> None:
        self._now_ms = float(wall_ms)
        self._read_s = monotonic_s

    def read(self, monotonic_s: float) -> int:
        """Return the time now; `monotonic_s` is the monotonic clock's."""
        passed_ms = (monotonic_s - self._read_s) * 1_000
        self._read_s = monotonic_s
        self._now_ms += min(max(passed_ms, 0.0), PAUSE_MS_MAX)
        return int(self._now_ms)
