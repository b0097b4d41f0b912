"""The service's one timer on the hub: it rings once, and is set again for every sleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ddmq_common.hub_timer import HubTimer


class Alarm(Protocol):
    """What the service needs of a timer; tests have one that rings by hand."""

    def set(self, seconds: float, ring: Callable[[], None]) -> None:
        """Ring once after `seconds`, instead of when it was set before."""

    def stop(self) -> None:
        """Ring no more. May be called twice."""


class HubAlarm:
    """On the hub of the thread that made it; it keeps no loop alive."""

    def __init__(self) -> None:
        self._timer = HubTimer(ref=False)

    def set(self, seconds: float, ring: Callable[[], None]) -> None:
        self._timer.once(seconds, ring)

    def stop(self) -> None:
        self._timer.stop()
