"""The sweep's heartbeat on the hub: one libev timer, running only while the flow asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent


class HubTicker:
    """Calls back every `period_s` seconds between start and stop; on the hub, so it must not block."""

    __slots__ = ("_period_s", "_timer")

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._timer: Any = None

    def start(self, sweep: Callable[[], None]) -> None:
        """Idempotent."""
        if self._timer is None:
            self._timer = gevent.get_hub().loop.timer(self._period_s, self._period_s, ref=False)
            self._timer.start(sweep)

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None
