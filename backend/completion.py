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
    """An answer that is settled once, by `succeed` or `fail`; its callbacks then run in the order added.

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
        """Run once, right after settling; the default runs the callbacks of `then`."""
        callbacks, self._callbacks = self._callbacks, None
        if callbacks:
            for callback in callbacks:
                callback(self)

    def then(self, callback: Callable[[Completion[T]], Any]) -> None:
        """Call `callback(self)` when this is settled; at once if it is already."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def result(self) -> T:
        """Return the value, or raise the error. Raises RuntimeError while this is pending."""
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
    """Return a completion that is settled with `value`."""
    completion: Completion[T] = Completion() if into is None else into
    completion.succeed(value)
    return completion


def failed(error: Exception, into: Completion[T] | None = None) -> Completion[T]:
    """Return a completion that is settled with `error`."""
    completion: Completion[T] = Completion() if into is None else into
    completion.fail(error)
    return completion


def when_all(completions: Collection[Completion[Any]], then: Callable[[], None]) -> None:
    """Call `then` when all completions are settled, with a value or an error; at once if they are already."""
    pending = 1 + len(completions)

    def count_down(_: object) -> None:
        nonlocal pending
        pending -= 1
        if pending == 0:
            then()

    for completion in completions:
        completion.then(count_down)
    count_down(None)


def gather_results(completions: Sequence[Completion[T]]) -> Completion[list[T]]:
    """Wait until all are settled, then answer with their values in order, or with the first error."""
    values: Completion[list[T]] = Completion()

    def settle_all() -> None:
        error = next((completion.error for completion in completions if completion.error is not None), None)
        if error is not None:
            values.fail(error)
        else:
            values.succeed([completion.value for completion in completions])

    when_all(completions, settle_all)
    return values


def relay(source: Completion[T], target: Completion[T]) -> None:
    """Settle `target` like `source` when that is settled, unless `target` already is."""

    def settle(_: object) -> None:
        if target.done:
            return
        if source.error is None:
            target.succeed(source.value)
        else:
            target.fail(source.error)

    source.then(settle)


def guarded(settle: Callable[..., object], *args: Any) -> None:
    """Call `settle` and log any exception of a caller's callback, so that the next completion is settled
    too."""
    try:
        settle(*args)
    except Exception:
        log.exception("a callback of an answered request failed")


def followed(first: Completion[Any], then: Callable[[], Completion[T]]) -> Completion[T]:
    """Call `then` when `first` has succeeded and answer like it; answer with the error if `first` failed."""
    outcome: Completion[T] = Completion()

    def begin(first: Completion[Any]) -> None:
        try:
            relay(then() if first.error is None else failed(first.error), outcome)
        except DdmqError as error:
            outcome.fail(error)

    first.then(begin)
    return outcome


def all_of(completions: Sequence[Completion[Any]]) -> Completion[None]:
    """Wait until all are settled, then succeed, or fail with the first error."""
    outcome: Completion[None] = Completion()
    values = gather_results(completions)
    values.then(lambda _: outcome.succeed(None) if values.error is None else outcome.fail(values.error))
    return outcome
