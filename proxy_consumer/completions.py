"""Several completions as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from backend.completion import Completion, failed
from ddmq_common.errors import DdmqError

T = TypeVar("T")


def gather(parts: Sequence[Completion[T]]) -> Completion[list[T]]:
    """All values in order once all are settled, or the first error."""
    whole: Completion[list[T]] = Completion()
    left = len(parts)
    if not left:
        whole.succeed([])

    def one(_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            error = next((part.error for part in parts if part.error is not None), None)
            if error is not None:
                whole.fail(error)
            else:
                whole.succeed([part.value for part in parts])

    for part in parts:
        part.then(one)
    return whole


def followed(first: Completion[Any], then: Callable[[], Completion[T]]) -> Completion[T]:
    """What `then` comes to, begun when `first` has succeeded; or the error of the first."""
    done: Completion[T] = Completion()

    def pass_on(second: Completion[T]) -> None:
        if second.error is None:
            done.succeed(second.value)
        else:
            done.fail(second.error)

    def begin(found: Completion[Any]) -> None:
        try:
            (then() if found.error is None else failed(found.error)).then(pass_on)
        except DdmqError as error:
            done.fail(error)

    first.then(begin)
    return done


def all_of(parts: Sequence[Completion[Any]]) -> Completion[None]:
    """The same without the values."""
    whole: Completion[None] = Completion()
    done = gather(parts)
    done.then(lambda _: whole.succeed(None) if done.error is None else whole.fail(done.error))
    return whole
