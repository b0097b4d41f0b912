"""Alarms of the delay services that ring when a test says so."""

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


class HandAlarms:
    """Makes alarms, and rings all that were made."""

    def __init__(self) -> None:
        self.created: list[HandAlarm] = []

    def __call__(self) -> HandAlarm:
        self.created.append(HandAlarm())
        return self.created[-1]

    @property
    def seconds(self) -> float | None:
        """What the next to ring was set to, None when none is set."""
        return min((alarm.seconds for alarm in self.created if alarm.seconds is not None), default=None)

    def ring(self) -> None:
        """All of them, as if their time had come."""
        for alarm in list(self.created):
            alarm.ring()
