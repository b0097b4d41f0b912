"""The heartbeat of a proxy: it ticks every few milliseconds while a call waits, otherwise rarely.

An idle tick costs some 100 µs of processor time with the wake-up it needs: two hundred per second are 3 % of
an otherwise idle core.
"""

from __future__ import annotations

from collections.abc import Callable

from ddmq_common.clock import NEVER, Clock
from ddmq_common.hub_timer import HubTimer
from proxy_consumer.core.timer_queue import TimerQueue

QUIET = 10  # ticks without a waiting call, before it rests
REST_S = 0.25  # the longest rest, and so the accuracy of checks without a timer


class Heartbeat:
    """Ticks from `start` until `stop`.

    A call that begins to wait for a tick calls `wake_up`; a timer of `timers` that is set to a time before
    the end of a rest does so by itself.
    """

    def __init__(self, tick_s: float, clock: Clock, timers: TimerQueue) -> None:
        self._tick_s = tick_s
        self._clock = clock
        self._timers = timers
        timers.woken = self.wake_up
        self._timer = HubTimer(ref=False)
        self._tick: Callable[[], bool] = _has_no_waiters
        self._resting = self._stopped = False
        self._quiet = 0

    def start(self, tick: Callable[[], bool]) -> None:
        """Start to call `tick()`: it does the work that is due and returns whether a call waits for the next
        tick."""
        self._tick = tick
        self._timer.every(self._tick_s, self._run_tick)

    def wake_up(self) -> None:
        """Start to tick often, because a call waits."""
        if self._resting:
            self._tick_often()

    def stop(self) -> None:
        """Stop the timer that calls `tick`, permanently."""
        self._stopped, self._resting = True, False
        self._timer.stop()

    def _tick_often(self) -> None:
        self._resting, self._quiet = False, 0
        self._timers.rest_until = -NEVER
        self._timer.every(self._tick_s, self._run_tick)

    def _run_tick(self) -> None:
        self._quiet = 0 if self._tick() else self._quiet + 1
        if self._quiet >= QUIET and not self._stopped:
            self._begin_rest()

    def _begin_rest(self) -> None:
        rest_s = min(self._timers.next_at - self._clock.monotonic(), REST_S)
        if rest_s > QUIET * self._tick_s:
            self._resting = True
            self._timers.rest_until = self._clock.monotonic() + rest_s
            self._timer.once(rest_s, self._end_rest)

    def _end_rest(self) -> None:
        self._tick_often()  # also when this tick fails
        if not self._tick() and not self._stopped:
            self._begin_rest()


def _has_no_waiters() -> bool:
    return False
