"""Timers of the hub. Nothing else asks the event loop for one.

A libev timer that is started again goes on with the rest of its last period: with nothing, if it has rung,
so it rings at once. Each start here begins a watcher of its own, and with it the whole period.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddmq_common.event_loop import current_loop, loop_by_hand


class HubTimer:
    """A timer on the event loop that can be set again at any time. `ring`, the function that it calls, runs
    on the hub and must not block.

    `active`: whether the timer is set. `ref` False: the timer does not keep the loop alive. `loop` None: the
    loop of the thread that sets the timer.
    """

    __slots__ = ("_loop", "_ref", "_ring", "_watcher", "active")

    def __init__(self, *, ref: bool = True, loop: Any = None) -> None:
        self._loop = loop
        self._ref = ref
        self._ring: Callable[[], object] | None = None
        self._watcher: Any = None
        self.active = False

    def once(self, seconds: float, ring: Callable[[], object]) -> None:
        """Call `ring` once after `seconds`. This replaces an earlier setting."""
        self.stop()
        self._ring = ring
        self._begin(max(seconds, 0.0), 0.0, self._on_rung)

    def every(self, seconds: float, ring: Callable[[], object]) -> None:
        """Call `ring` every `seconds`. This replaces an earlier setting."""
        self.stop()
        self._begin(seconds, seconds, ring)

    def _begin(self, first: float, repeat: float, ring: Callable[[], object]) -> None:
        loop = current_loop() if self._loop is None else self._loop
        self._watcher = loop.timer(first, repeat, ref=self._ref)
        self.active = True
        self._watcher.start(ring)

    def _on_rung(self) -> None:
        ring = self._ring
        self.stop()
        if ring is not None:
            ring()

    def stop(self) -> None:
        """Cancel the timer. May be called twice."""
        if self.active:
            watcher, self._watcher, self._ring = self._watcher, None, None
            self.active = False
            watcher.stop()
            watcher.close()


def spawn_later(seconds: float, call: Callable[..., object], *arguments: Any) -> None:
    """Run `call` in a greenlet after `seconds`. On a loop that is run by hand (LoopByHand), which has no
    greenlets, run it as a callback."""
    if loop_by_hand() is not None:
        HubTimer().once(seconds, lambda: call(*arguments))
        return
    import gevent

    gevent.spawn_later(seconds, call, *arguments)
