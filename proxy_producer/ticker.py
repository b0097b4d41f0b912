"""The sweep's heartbeat on the hub: one libev timer, running only while the flow asks for it."""

from __future__ import annotations

from collections.abc import Callable

from ddmq_common.hub_timer import HubTimer


class HubTicker:
    """Calls back every `period_s` seconds between start and stop; on the hub, so it must not block."""

    __slots__ = ("_period_s", "_timer")

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._timer = HubTimer(ref=False)

    def start(self, sweep: Callable[[], None]) -> None:
        """Idempotent."""
        if not self._timer.active:
            self._timer.every(self._period_s, sweep)

    def stop(self) -> None:
        """Idempotent."""
        self._timer.stop()
