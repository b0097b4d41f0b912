"""Blocking work off the hub: gevent's native threads, with errors handed back instead of printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import gevent

T = TypeVar("T")
Done = Callable[[Any, Exception | None], None]


def off_hub(call: Callable[..., Any], done: Done, *arguments: object) -> None:
    """Run `call(*arguments)` in a native thread; `done(value, error)` follows on the hub, later."""

    gevent.get_hub().threadpool.spawn(_run, call, arguments).rawlink(lambda result: done(*result.get()))


def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Run `call(*arguments)` in a native thread; this greenlet waits. Raises what it raises."""
    value, error = gevent.get_hub().threadpool.apply(_run, (call, arguments))
    if error is not None:
        raise error
    found: T = value
    return found


def _run(call: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[Any, Exception | None]:
    try:
        return call(*arguments), None
    except Exception as error:  # whatever it is: who asked decides
        return None, error


def wait_for_native_work(timeout_s: float) -> bool:
    """Block this thread, hub and all, until no native thread works any more; False when time ran out.

    For the moment before a directory is given to someone else: nothing of ours may be renamed, written or
    removed in it afterwards.
    """
    pool = gevent.get_hub().threadpool
    give_up = time.monotonic() + timeout_s
    while len(pool):
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.001)
    return True


def nothing(_: Any, error: Exception | None) -> None:
    """For work whose outcome changes nothing."""
