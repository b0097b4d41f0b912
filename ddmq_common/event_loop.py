"""The event loop of the calling thread: gevent's hub, or a loop that its owner runs by hand.

A process that serves sockets runs on gevent. A server inside a test runs on a `LoopByHand` (`use_loop`): it
does nothing until it is told to, no greenlet is switched, and gevent is not even imported. Code that needs
"later" asks here, when it is made, and works on both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Timer(Protocol):
    """A timer of an event loop, with the methods of gevent's timers that are used here."""

    def start(self, callback: Callable[[], object]) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class LoopByHand(Protocol):
    """An event loop that its owner runs by hand, in tests and in the in-process server: the part of gevent's
    loop that is used here, and `run_until`, which replaces the switching between greenlets."""

    def run_callback(self, callback: Callable[..., object], *arguments: Any) -> object:
        """Call `callback` with the arguments later; callbacks run in the order in which they were passed."""

    def timer(self, after: float, repeat: float = 0.0, ref: bool = True) -> Timer:
        """Return a timer that rings `after` seconds after its start, and then every `repeat` seconds unless
        that is 0."""

    def run_until(self, condition: Callable[[], bool]) -> bool:
        """Run ready callbacks until the condition is true or none is left; return whether it is true."""


class _Loops(threading.local):
    by_hand: LoopByHand | None = None


_loops = _Loops()
_get_hub: Callable[[], Any] | None = None  # gevent's, once it is needed


@contextmanager
def use_loop(loop: LoopByHand) -> Iterator[None]:
    """Make `loop` the event loop of the calling thread in the block."""
    before, _loops.by_hand = _loops.by_hand, loop
    try:
        yield
    finally:
        _loops.by_hand = before


def loop_by_hand() -> LoopByHand | None:
    """Return the loop that `use_loop` set for this thread; None if the thread runs on gevent."""
    return _loops.by_hand


def current_loop() -> Any:
    """Return the event loop that runs the callbacks and timers of this thread."""
    if _loops.by_hand is not None:
        return _loops.by_hand
    global _get_hub
    if _get_hub is None:  # an import statement in this place would cost each timer half a microsecond
        from gevent import get_hub

        _get_hub = get_hub
    return _get_hub().loop


def spawn(call: Callable[..., object], *arguments: Any) -> None:
    """Run `call` in a greenlet. On a loop that is run by hand, which has no greenlets, run it as a callback;
    where it waits, it runs the loop itself."""
    if _loops.by_hand is not None:
        _loops.by_hand.run_callback(call, *arguments)
        return
    import gevent

    gevent.spawn(call, *arguments)


def sleep(seconds: float) -> None:
    """Suspend this greenlet for so many seconds. Must not be called on a loop that is run by hand."""
    import gevent

    gevent.sleep(seconds)
