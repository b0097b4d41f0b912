"""An alarm of the delay services that rings when a test says so."""

from __future__ import annotations

from collections.abc import Callable


class HandAlarm:
    """Rings when told to; `seconds` is what it was set to last, None when it is not set."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._ring: Callable[[], None] = lambda: None

    def once(self, seconds: float, ring: Callable[[], None]) -> None:
        self.seconds, self._ring = seconds, ring

    def stop(self) -> None:
        self.seconds = None

    def ring(self) -> None:
        if self.seconds is not None:
            self.seconds = None
            self._ring()
