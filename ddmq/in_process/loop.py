"""An event loop that its owner runs by hand: callbacks in the order of their calls, timers by a manual clock.

Time passes only in `move_to`. A timer that becomes due rings once per move, however far the time moves; a
repeating timer then counts from the new time, as on a machine that was suspended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from ddmq_common.clock import NEVER, ManualClock
from ddmq_common.event_loop import LoopByHand

STEPS_MAX = 1_000_000  # callbacks and timers of one `run`: more than that is a loop without an end


class ManualTimer:
    """A timer that rings when its ManualLoop advances to `rings_at`, in monotonic seconds; NEVER if it is not
    set."""

    __slots__ = ("_after", "_callback", "_loop", "_repeat", "rings_at")

    def __init__(self, loop: ManualLoop, after: float, repeat: float) -> None:
        self._loop = loop
        self._after = after
        self._repeat = repeat
        self._callback: Callable[[], object] | None = None
        self.rings_at = NEVER

    def start(self, callback: Callable[[], object]) -> None:
        """Set the timer, so that it calls `callback` when its time has passed."""
        self._callback = callback
        self._set(self._after)

    def stop(self) -> None:
        """Unset the timer until `start` is called again."""
        self._callback, self.rings_at = None, NEVER

    def close(self) -> None:
        """Stop the timer permanently."""
        self.stop()

    def ring_now(self) -> None:
        """Call the timer's callback at once. A repeating timer is set again first."""
        callback, self.rings_at = self._callback, NEVER
        if self._repeat > 0:
            self._set(self._repeat)
        if callback is not None:
            callback()

    def _set(self, seconds: float) -> None:
        self.rings_at = self._loop.clock.monotonic() + seconds
        self._loop.put_timer(self)


class ManualLoop(LoopByHand):
    """An event loop that runs callbacks and timers only when its owner calls `run`, `run_until` or
    `move_to`."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._numbers = count()

    def run_callback(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run `callback` later; callbacks run in the order in which they were passed."""
        self._ready.append((callback, arguments))

    def timer(self, after: float, repeat: float = 0.0, ref: bool = True) -> ManualTimer:
        """Return a timer that rings `after` seconds after its start, and then every `repeat` seconds unless
        that is 0."""
        return ManualTimer(self, after, repeat)

    def put_timer(self, timer: ManualTimer) -> None:
        """Add a timer that was set to the loop's queue."""
        heappush(self._timers, (timer.rings_at, next(self._numbers), timer))

    def run(self) -> None:
        """Run every callback that is ready, and every timer that is due now."""
        for _ in range(STEPS_MAX):
            if not self._run_one() and not self._ring_due():
                return
        raise RuntimeError(f"the server in this process does not come to rest in {STEPS_MAX} steps")

    def run_until(self, condition: Callable[[], bool]) -> bool:
        """Run ready callbacks and due timers until the condition is true or none is left; return whether it
        is true."""
        for _ in range(STEPS_MAX):
            if condition():
                return True
            if not self._run_one() and not self._ring_due():
                return condition()
        return False

    def move_to(self, moment: float) -> None:
        """Set the time to `moment` (monotonic seconds), and run all timers that are due then."""
        self.clock.advance(max(0.0, moment - self.clock.monotonic()))
        self.run()

    def next_ring(self) -> float:
        """Return when the next timer rings, in monotonic seconds; NEVER if none is set."""
        while self._timers and self._timers[0][2].rings_at != self._timers[0][0]:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else NEVER

    def _run_one(self) -> bool:
        if not self._ready:
            return False
        callback, arguments = self._ready.popleft()
        callback(*arguments)
        return True

    def _ring_due(self) -> bool:
        """Ring the timers that are due; return whether any rang. Timers that are set meanwhile wait for the
        next call."""
        now, due = self.clock.monotonic(), []
        while self._timers and self._timers[0][0] <= now:
            rings_at, _, timer = heappop(self._timers)
            if timer.rings_at == rings_at:
                due.append(timer)
        for timer in due:
            if timer.rings_at <= now:
                timer.ring_now()
        return bool(due)
