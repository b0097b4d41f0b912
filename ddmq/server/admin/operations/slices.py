"""Work of operations in short slices of processor time, between which other greenlets run.

The code calls `yield_if_long` or `paced` as the answer to a request does. Unlike a request, the work is
charged to no address, so it never waits for a debt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gevent.event import AsyncResult

from ddmq.server.http.pace import Account, PacedGreenlet

T = TypeVar("T")


class _SlicingAccount(Account):
    """An account without a debt: its greenlet lets others run after each slice, and never waits longer."""

    @property
    def debt_s(self) -> float:
        return 0.0

    def charge(self, seconds: float) -> None:
        """Ignore the used processor time."""

    def pause(self) -> None:
        """Return at once, because there is no debt."""


def spawn_sliced(function: Callable[..., T], *arguments: Any) -> Any:
    """Return a greenlet that calls the function in short slices of processor time."""
    greenlet = PacedGreenlet(function, *arguments)
    greenlet.account = _SlicingAccount()
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
