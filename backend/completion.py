"""An answer that comes later, on the hub.

The RPC server has no greenlet per request, so nothing behind the port may block one: a call that may
wait returns a Completion. It is settled exactly once, always on the hub's thread, with a value or an
error. Callers subclass it to carry their request's own state, so that one request is one object.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeVar

from mypy_extensions import mypyc_attr

from ddmq_common.errors import DdmqError
from ddmq_common.event_loop import loop_by_hand

T = TypeVar("T")
log = logging.getLogger(__name__)


@mypyc_attr(allow_interpreted_subclasses=True)
class Completion(Generic[T]):
    """Settled once, by `succeed` or `fail`; `then` callbacks run at once, in the order added.

    A subclass may override `settled` instead of adding callbacks (the cheapest way: no closure).
    """

    __slots__ = ("_callbacks", "done", "error", "value")

    value: T
    error: Exception | None

    def __init__(self) -> None:
        self.done = False
        self.error = None
        self._callbacks: list[Callable[[Completion[T]], Any]] | None = None

    def succeed(self, value: T) -> None:
        if self.done:
            raise RuntimeError("a completion was settled twice")
        self.value = value
        self.done = True
        self.settled()

    def fail(self, error: Exception) -> None:
        if self.done:
            raise RuntimeError(f"a completion was settled twice, now with: {error}")
        self.error = error
        self.done = True
        self.settled()

    def settled(self) -> None:
        """Runs once, right after settling; the default runs the callbacks of `then`."""
        callbacks, self._callbacks = self._callbacks, None
        if callbacks:
            for callback in callbacks:
                callback(self)

    def then(self, callback: Callable[[Completion[T]], Any]) -> None:
        """Call `callback(self)` once settled; at once if it is already."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def result(self) -> T:
        """The value, or raises the error; only once done."""
        if not self.done:
            raise RuntimeError("not settled yet")
        if self.error is not None:
            raise self.error
        return self.value

    def wait(self, timeout_s: float | None = None) -> T:
        """Block the calling greenlet (never the hub) until settled; for start-up, tools and tests.

        Raises TimeoutError after `timeout_s`; the completion itself stays pending.
        """
        if not self.done and (loop := loop_by_hand()) is not None:
            if not loop.run_until(lambda: self.done):
                raise TimeoutError("no answer, and nothing more to run")
        elif not self.done:
            from gevent.event import Event

            event = Event()
            self.then(lambda _: event.set())
            if not event.wait(timeout_s):
                raise TimeoutError(f"no answer within {timeout_s} s")
        return self.result()


def succeeded(value: T, into: Completion[T] | None = None) -> Completion[T]:
    """A completion settled with `value`."""
    completion: Completion[T] = Completion() if into is None else into
    completion.succeed(value)
    return completion


def failed(error: Exception, into: Completion[T] | None = None) -> Completion[T]:
    """A completion settled with `error`."""
    completion: Completion[T] = Completion() if into is None else into
    completion.fail(error)
    return completion


def when_all(parts: Collection[Completion[Any]], then: Callable[[], None]) -> None:
    """Call `then` once all are settled, with a value or an error; at once if they are already."""
    left = 1 + len(parts)

    def one(_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            then()

    for part in parts:
        part.then(one)
    one(None)


def gather(parts: Sequence[Completion[T]]) -> Completion[list[T]]:
    """All values in order once all are settled, or the first error."""
    whole: Completion[list[T]] = Completion()

    def settle() -> None:
        error = next((part.error for part in parts if part.error is not None), None)
        if error is not None:
            whole.fail(error)
        else:
            whole.succeed([part.value for part in parts])

    when_all(parts, settle)
    return whole


def relay(source: Completion[T], target: Completion[T]) -> None:
    """Settle `target` as `source` is settled, unless it is by then."""

    def settle(_: object) -> None:
        if target.done:
            return
        if source.error is None:
            target.succeed(source.value)
        else:
            target.fail(source.error)

    source.then(settle)


def guarded(settle: Callable[..., object], *args: Any) -> None:
    """Settle one of several: what its caller's callback raises is logged, and the others go on."""
    try:
        settle(*args)
    except Exception:
        log.exception("a callback of an answered request failed")


def followed(first: Completion[Any], then: Callable[[], Completion[T]]) -> Completion[T]:
    """What `then` comes to, begun when `first` has succeeded; or the error of the first."""
    done: Completion[T] = Completion()

    def begin(found: Completion[Any]) -> None:
        try:
            relay(then() if found.error is None else failed(found.error), done)
        except DdmqError as error:
            done.fail(error)

    first.then(begin)
    return done


def all_of(parts: Sequence[Completion[Any]]) -> Completion[None]:
    """Once all are settled: success, or the first error."""
    whole: Completion[None] = Completion()
    done = gather(parts)
    done.then(lambda _: whole.succeed(None) if done.error is None else whole.fail(done.error))
    return whole
