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
TURNS_S = 0.01  # so long the condition is looked at after each turn of the hub
PAUSE_S_MAX = 0.01  # between two looks after that


def soon() -> float:
    """A deadline that is not meant to pass, monotonic seconds."""
    return time.monotonic() + PATIENCE_S


def done(completion: Completion[T]) -> T:
    """The answer of a call to the backend."""
    return completion.wait(PATIENCE_S)


def until(
    condition: Callable[[], T | None], what: str | Callable[[], object] = "", seconds: float = PATIENCE_S
) -> T:
    """Let the hub, and other threads and processes, go on until `condition` gives a true value; returns it.

    AssertionError after `seconds`, with `what` was waited for (a function is asked then), or else with the
    condition as its test states it.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"in {seconds:g} s not seen: {describe(condition, what)}"
        gevent.sleep(0 if waited < TURNS_S else min(waited / 10, PAUSE_S_MAX))
    return found


def describe(condition: Callable[[], object], what: str | Callable[[], object]) -> object:
    """Return what was waited for: `what`, what it returns, or the condition's own text."""
    if what:
        return what() if callable(what) else what
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return condition
