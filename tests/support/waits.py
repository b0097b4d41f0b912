"""Waits for what is to come. Only a failing test meets the deadline, so it suits a busy machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from backend.testing.waits import PATIENCE_S, describe, done, soon, until

__all__ = ["PATIENCE_S", "done", "loop_until", "soon", "until"]

T = TypeVar("T")


async def loop_until(condition: Callable[[], T], seconds: float = PATIENCE_S) -> T:
    """The same for a task: its loop goes on meanwhile."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"in {seconds:g} s not seen: {describe(condition, '')}"
        await asyncio.sleep(0.002)
    return value
