"""Blocking work off the hub: gevent's native threads, with errors handed back instead of printed.

gevent's pool makes who gives it work wait while all its threads are busy, and a callback of the hub cannot
wait: the call would be lost with an exception. So what callbacks give away has threads of its own, as many as
are counted here, and a line in front of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ddmq_common.event_loop import loop_by_hand

T = TypeVar("T")
Done = Callable[[Any, Exception | None], None]
THREADS = 10  # that work at once for one hub; more is taken in the order it came


class Threads:
    """The native threads that the callbacks of one hub give work to."""

    def __init__(self, hub: Any, size: int = THREADS) -> None:
        from gevent.threadpool import ThreadPool

        self.pool = ThreadPool(size, hub=hub)
        self._free = size
        self._line: deque[tuple[Callable[..., Any], Done, tuple[object, ...]]] = deque()

    def run(self, call: Callable[..., Any], on_done: Done, arguments: tuple[object, ...]) -> None:
        """Run `call` in a thread, now or once one is free; never blocks."""
        self._line.append((call, on_done, arguments))
        self._start()

    def _start(self) -> None:
        while self._free and self._line:
            call, on_done, arguments = self._line.popleft()
            self._free -= 1
            self.pool.spawn(_run, call, arguments).rawlink(
                lambda result, on_done=on_done: self._on_call_done(result, on_done)
            )

    def _on_call_done(self, result: Any, on_done: Done) -> None:
        self._free += 1
        self._start()
        on_done(*result.get())


def off_hub(call: Callable[..., Any], done: Done, *arguments: object) -> None:
    """Run `call(*arguments)` in a native thread; `done(value, error)` follows on the hub, later. Never waits
    itself, so callbacks of the hub may use it."""
    if (loop := loop_by_hand()) is not None:
        loop.run_callback(lambda: done(*_run(call, arguments)))
        return
    _hub_threads().run(call, done, arguments)


def _hub_threads() -> Threads:
    import gevent

    hub: Any = gevent.get_hub()
    try:
        threads: Threads = hub.ddmq_threads
    except AttributeError:
        threads = hub.ddmq_threads = Threads(hub)
    return threads


def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Run `call(*arguments)` in a native thread; this greenlet waits. Raises what it raises."""
    if loop_by_hand() is not None:
        return call(*arguments)
    import gevent

    value, error = gevent.get_hub().threadpool.apply(_run, (call, arguments))
    if error is not None:
        raise error
    result: T = value
    return result


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
    import gevent

    pools = (gevent.get_hub().threadpool, _hub_threads().pool)
    give_up = time.monotonic() + timeout_s
    while any(map(len, pools)):
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.001)
    return True


def ignore_outcome(_: Any, error: Exception | None) -> None:
    """Ignore the outcome of native work; a callback for `off_hub`."""
