"""The time that the event loop was busy between two polls: `ddmq_hub_blocked_us`.

While callbacks run, nothing else does: no frame is read, no timer fires, no commit is answered. So each
turn of the loop is one value of the histogram, from the end of a poll to the start of the next. The loop
tells both moments itself: `check` watchers run first after a poll, and a `prepare` watcher of the lowest
priority runs last before one, behind gevent's own, in which greenlets are switched to.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import gevent

from ddmq_common.metrics.catalogue import HUB_BLOCKED
from ddmq_common.metrics.registry import Registry

FIRST, LAST = 2, -2  # priorities of watchers: those with the higher number go before


class HubWatch:
    """Measures how long each turn of this thread's event loop (hub) blocks it, from `start` until `stop`."""

    def __init__(self, metrics: Registry) -> None:
        loop = gevent.get_hub().loop
        self._observe = metrics.histogram(HUB_BLOCKED).observe
        self._woken = 0.0
        self._check: Any = loop.check(ref=False, priority=FIRST)
        self._prepare: Any = loop.prepare(ref=False, priority=LAST)

    def start(self) -> None:
        """Start measuring the turns of the event loop.

        The present turn is included only if it has not passed the loop's `prepare` step.
        """
        self._woken = perf_counter()
        self._check.start(self._after_poll)
        self._prepare.start(self._before_poll)

    def _after_poll(self) -> None:
        self._woken = perf_counter()

    def _before_poll(self) -> None:
        self._observe((perf_counter() - self._woken) * 1e6)

    def stop(self) -> None:
        """Stop measuring the turns of the event loop. May be called twice."""
        for watcher in (self._check, self._prepare):
            watcher.stop()
            watcher.close()
