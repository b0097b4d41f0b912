"""Work of operations in short slices of processor time, between which other greenlets run.

While those need the processor, an operation gets 8 % of it, and its commits take about as much again. The
code calls `yield_if_long` or `paced` as the answer to a request does. Unlike a request, the work is charged
to no address, so it never waits for a debt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
from gevent.event import AsyncResult

from ddmq.server.http.pace import SLICE_S, YIELD_S, Account, PacedGreenlet

SHARE_S = 0.08  # of each second in which others need the processor
REST_S = 0.0005  # after which the need of others is measured again
T = TypeVar("T")


class SlicingAccount(Account):
    """An account without a debt: its greenlet rests after each slice, for longer while others need the
    processor."""

    def __init__(self) -> None:
        super().__init__()
        self._spent_s = 0.0  # since the last rest, until the last switch to others

    def rest_if_long(self, spent_s: float) -> None:
        """Let others run until this greenlet has had no more than its share, or they need less than half of
        the time."""
        spent_s += self._spent_s
        if spent_s <= SLICE_S:
            return
        rest_s = YIELD_S
        until = time.monotonic() + spent_s * (1 / SHARE_S - 1)
        while (start := time.monotonic()) < until:
            used_s = time.thread_time()
            gevent.sleep(rest_s)
            if time.thread_time() - used_s < (time.monotonic() - start) / 2:
                break
            rest_s = REST_S
        self._spent_s = 0.0

    @property
    def debt_s(self) -> float:
        return 0.0

    def charge(self, seconds: float) -> None:
        """Add used processor time to that of the slice."""
        self._spent_s += seconds

    def pause(self) -> None:
        """Return at once, because there is no debt."""


def spawn_sliced(function: Callable[..., T], *arguments: Any) -> Any:
    """Return a greenlet that calls the function in short slices of processor time."""
    greenlet = PacedGreenlet(function, *arguments)
    greenlet.account = SlicingAccount()
    greenlet.start()
    return greenlet


def wait_sliced(function: Callable[..., T], *arguments: Any) -> T:
    """Call the function in short slices of processor time, and return its result or raise its error."""
    answer: AsyncResult[T] = AsyncResult()

    def call() -> None:
        try:
            answer.set(function(*arguments))
        except Exception as error:
            answer.set_exception(error)

    greenlet = spawn_sliced(call)
    try:
        result: T = answer.get()
        return result
    finally:
        greenlet.kill(block=False)
