"""Waits for what is to come. Only a failing test meets the deadline, so it suits a busy machine."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

import gevent

from backend.completion import Completion

T = TypeVar("T")
PATIENCE_S = 60.0
BUSY_CHECK_S = 0.01  # for so long the condition is checked after every iteration of the hub
PAUSE_S_MAX = 0.01  # between two later checks


def soon() -> float:
    """Return a deadline in monotonic seconds that only a failing test reaches."""
    return time.monotonic() + PATIENCE_S


def done(completion: Completion[T]) -> T:
    """Return the answer of a call to the backend. Raises its error."""
    return completion.wait(PATIENCE_S)


def until(
    condition: Callable[[], T | None], what: str | Callable[[], object] = "", seconds: float = PATIENCE_S
) -> T:
    """Run the hub, other threads and processes until `condition` returns a true value; return that value.

    AssertionError after `seconds`, with `what` was waited for (a function is asked then), or else with the
    condition as its test states it.
    """
    start = time.monotonic()
    while not (result := condition()):
        waited = time.monotonic() - start
        assert waited < seconds, f"in {seconds:g} s not seen: {describe(condition, what)}"
        gevent.sleep(0 if waited < BUSY_CHECK_S else min(waited / 10, PAUSE_S_MAX))
    return result


def describe(condition: Callable[[], object], what: str | Callable[[], object]) -> object:
    """Return what was waited for: `what`, what it returns, or the condition's own text."""
    if what:
        return what() if callable(what) else what
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return condition
