"""The proxy's one timer on the hub: runs only while somebody waits or something is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent


class HubTicker:
    """Calls `tick` every `period_s` seconds between `start` and `stop`; both may be called twice."""

    def __init__(self, period_s: float, tick: Callable[[], None]) -> None:
        self._period_s = period_s
        self._tick = tick
        self._timer: Any = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = gevent.get_hub().loop.timer(self._period_s, self._period_s, ref=False)
            self._timer.start(self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None
