"""The page of metrics. One that was hard to make is given again for a while, so that scrapers cost little."""

from __future__ import annotations

import math
import time

import gevent
from gevent.lock import BoundedSemaphore

from ddmq.server.http.pace import breathe
from ddmq.server.http.routing import Text
from ddmq_common.clock import Clock
from ddmq_common.metrics.registry import ANSWERS_S, Registry

PAGE_CHEAP_S = 0.05  # processor time; a page that takes less is made anew each time
PAGE_RESTS = 10  # others after so many times what they took
PAGE_KEPT_S = 10.0  # at most


class MetricsPage:
    """The page as Prometheus reads it. It is made by one greenlet at a time."""

    def __init__(self, metrics: Registry, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._making = BoundedSemaphore()
        self._made, self._kept_until = Text("text/plain", b""), -math.inf

    def text(self) -> Text:
        """The page, made now or a short while ago."""
        with self._making:
            if self._kept_until <= self._clock.monotonic():
                began = time.thread_time()
                self._metrics.fill()
                spent = time.thread_time() - began
                gevent.sleep(ANSWERS_S)
                payload, more = self._exposition()
                self._made = Text("text/plain; version=0.0.4", payload)
                self._kept_until = self._clock.monotonic() + _kept_s(spent + more)
            return self._made

    def _exposition(self) -> tuple[bytes, float]:
        """The page and the processor time it took; others run between its pieces, which may be many."""
        parts, spent, began = [], 0.0, time.thread_time()
        for part in self._metrics.exposition_pieces():
            parts.append(part)
            spent += time.thread_time() - began
            breathe()
            began = time.thread_time()
        return b"".join(parts), spent


def _kept_s(spent_s: float) -> float:
    return 0.0 if spent_s < PAGE_CHEAP_S else min(spent_s * PAGE_RESTS, PAGE_KEPT_S)
