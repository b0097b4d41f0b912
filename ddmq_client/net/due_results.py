# Generated from ddmq_client/aio/due_results.py by tools/unasync.py: change that one.
"""Results that must be submitted separately, because no pull will carry them in time.

Each proxy's flusher waits for them. The coordinator's lock guards everything here: every caller holds it.
"""

from __future__ import annotations

from collections.abc import Callable

from ddmq_client.core.acks import AckBatch
from ddmq_client.core.prefetch_buffer import PrefetchBuffer, ProxyConnection
from ddmq_client.net.sync import Condition, Lock, get_clock

IDLE_WAKE_S = 60.0
LEAVE_REPEAT_S = 0.2  # a pull on its way may have reached the proxy after the first request to leave


class DueResults:
    """The pending results of one consumer, with a condition per proxy on which its flusher waits."""

    def __init__(self, lock: Lock, buffer: PrefetchBuffer, leaving: Callable[[], bool]) -> None:
        """Create the waits.

        `leaving` returns whether the consumer stops while pulls still wait at proxies.
        """
        self._lock = lock
        self._buffer = buffer
        self._leaving = leaving
        self._clock = get_clock()
        self._due: dict[ProxyConnection, Condition] = {}
        self._stopped = False

    def add(self, proxy: ProxyConnection) -> None:
        """Register a proxy, whose flusher will wait for its results."""
        self._due.setdefault(proxy, Condition(self._lock))

    def remove(self, proxy: ProxyConnection) -> None:
        """Remove a proxy whose flusher ends."""
        self._due.pop(proxy).notify_all()

    def wake_flusher(self, proxy: ProxyConnection) -> None:
        """Wake the proxy's flusher if the results just added must be submitted now."""
        if proxy.idle or proxy.prompt or proxy.pending.urgent:
            proxy.idle = False
            self._due[proxy].notify()

    def wake_all(self) -> None:
        """Wake the flushers of all proxies."""
        for due in self._due.values():
            due.notify_all()

    def stop(self) -> None:
        """End the waits of all flushers."""
        self._stopped = True
        self.wake_all()

    def wait(self, proxy: ProxyConnection) -> AckBatch | None:
        """Wait for results that must be submitted now.

        Returns None after `stop`, or if the proxy was removed.
        """
        due = self._due.get(proxy)
        while due is not None and not self._is_stopped(proxy):
            if self._should_leave(proxy):
                return self._buffer.take_results(proxy) or []
            wait = self._buffer.submit_due(proxy)
            if wait == 0.0:
                acks = self._buffer.take_results(proxy)
                if acks is not None:
                    return acks
            proxy.idle = wait is None
            due.wait(LEAVE_REPEAT_S if self._leaving() else wait or IDLE_WAKE_S)
        return None

    def pause_flusher(self, proxy: ProxyConnection, seconds: float) -> None:
        """Wait after a failed submit; returns early after `stop`, or if the proxy was removed."""
        until = self._clock() + seconds
        while not self._is_stopped(proxy) and self._clock() < until:
            self._due[proxy].wait(until - self._clock())

    def _is_stopped(self, proxy: ProxyConnection) -> bool:
        return self._stopped or proxy.failover is not None

    def _should_leave(self, proxy: ProxyConnection) -> bool:
        """Return whether to request now that this proxy answer the pulls that wait there."""
        now = self._clock()
        if not (self._leaving() and proxy.settles and proxy.leave_at <= now):
            return False
        proxy.leave_at = now + LEAVE_REPEAT_S
        return True
