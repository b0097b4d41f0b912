"""The two clocks, as an argument: deadlines on the monotonic one, due and store times on the wall.

Cores take plain numbers; shells hold a Clock. Tests hold a ManualClock and move it.
"""

import time
from typing import Protocol

NEVER = float("inf")
"""A deadline that does not come."""


class Clock(Protocol):
    """The monotonic clock and the wall clock of a process."""

    def monotonic(self) -> float:
        """Return the monotonic time in seconds. It never goes back.

        Every `deadline` in this project is on this clock.
        """

    def wall_ms(self) -> int:
        """Return the wall time in milliseconds since the epoch.

        It may step when an operator or NTP changes it.
        """


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()
    monotonic = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock for tests that stands still until moved.

    `advance` moves both clocks, `step_wall` only the wall clock.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic: float = 1_000.0) -> None:
        self._wall_ms = float(wall_ms)
        self._monotonic = monotonic

    def monotonic(self) -> float:
        return self._monotonic

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def advance(self, seconds: float) -> None:
        self._monotonic += seconds
        self._wall_ms += seconds * 1000

    def step_wall(self, seconds: float) -> None:
        self._wall_ms += seconds * 1000
