"""Bridge: calls from native threads to the hub, run in the order in which they were made.

librdkafka's objects belong to native threads; their results are plain data in a deque, and one asynchronous
watcher wakes the loop, however many calls there are. Outside the hub's thread nothing of gevent is touched
but that watcher's `send`, which is made for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent

BATCH_S = 0.01  # of one iteration of the hub is filled with calls; the others wait for the next one


class Bridge:
    """Runs functions, called from any thread, on the hub that created the bridge."""

    def __init__(self) -> None:
        hub: Any = gevent.get_hub()
        self._loop = hub.loop
        self._handle_error = hub.handle_error
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._wake: Any = self._loop.async_(ref=False)
        self._wake.start(self._run_calls)
        self._is_woken = False
        self._closed = False

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` on the hub, soon; from any thread. Does nothing once closed."""
        self._calls.append((function, args))
        if not self._is_woken and not self._closed:
            self._is_woken = True
            self._wake.send()

    def _run_calls(self) -> None:
        self._is_woken = False
        calls, end = self._calls, time.monotonic() + BATCH_S
        while calls:
            function, args = calls.popleft()
            try:
                function(*args)
            except Exception as error:  # a bug of one caller must not prevent the other calls
                self.report_error(function, error)
            if calls and time.monotonic() >= end:
                self._is_woken = True
                self._wake.send()
                return

    def report_error(self, function: object, error: Exception) -> None:
        """Print the traceback of an exception that a function raised on the hub."""
        self._handle_error(function, type(error), error, error.__traceback__)

    def close(self) -> None:
        """Drop all further calls; must be called on the hub. May be called twice."""
        if not self._closed:
            self._closed = True
            self._calls.clear()
            self._wake.stop()
            self._wake.close()
