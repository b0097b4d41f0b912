"""The service's one timer on the hub: it rings once, and is set again for every sleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gevent


class Alarm(Protocol):
    """What the service needs of a timer; tests have one that rings by hand."""

    def set(self, seconds: float, ring: Callable[[], None]) -> None:
        """Ring once after `seconds`, instead of when it was set before."""

    def stop(self) -> None:
        """Ring no more. May be called twice."""


class HubAlarm:
    """On the hub of the thread that made it; it keeps no loop alive."""

    def __init__(self) -> None:
        self._loop: Any = gevent.get_hub().loop
        self._timer: Any = None

    def set(self, seconds: float, ring: Callable[[], None]) -> None:
        self.stop()
        self._timer = self._loop.timer(max(seconds, 0.0), ref=False)
        self._timer.start(ring)

    def stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
