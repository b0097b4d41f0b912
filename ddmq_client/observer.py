"""The seam for who looks on: an object that a client calls when it sends and when it hands out messages.

    Producer(..., observer=observer)        Consumer(..., observer=observer)

`ddmq_client.opentelemetry` has one. A client without an observer calls nothing. An observer of your own has
the three methods of ClientObserver. They are called from whatever thread or task sends or handles, must not
block and must not raise: a call of theirs stands in the way of the message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

from ddmq_client.callables import check_function, check_result, function_kind
from ddmq_client.errors import OptionError
from ddmq_client.outgoing import OutgoingMessage, SendResult
from ddmq_client.received import Message

_log = logging.getLogger("ddmq_client.observer")
_METHODS = ("sending", "handed_out", "handling")


@dataclass(frozen=True, slots=True)
class SendCall:
    """One call of the application that sends messages, including its resends.

    batch        whether it is a send_batch, even of one message
    transaction  the id of the messages' transaction, if any; they are then sent in one request
    """

    client_id: str
    batch: bool = False
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class HandleCall:
    """One call of the application's handler.

    `batch`: the handler is a batch_handler, even with one message.
    """

    client_id: str
    batch: bool = False


class ObservedSend(Protocol):
    """Observes one call that sends. Exactly one of its methods is called at the end."""

    messages: Sequence[OutgoingMessage]
    """What is sent: as many as the application gave, in their order, perhaps with more properties."""

    def ended(self, results: Sequence[SendResult]) -> None:
        """Receive the results, one per message in order; none for a oneway send."""

    def failed(self, error: BaseException) -> None:
        """Receive the error that the send raised."""


class ObservedHandling(AbstractContextManager[object], Protocol):
    """A context manager that observes one call of a message handler.

    When the handler ends, its messages are settled, if at all.
    """

    def raised(self, error: BaseException) -> None:
        """Receive the error that the handler raised. The `with` block does not re-raise it."""


class ClientObserver(Protocol):
    """Observes the sends and the handled messages of clients."""

    def sending(self, messages: Sequence[OutgoingMessage], call: SendCall) -> ObservedSend:
        """Begin to observe a call that sends; return its observer."""

    def handed_out(self, messages: Sequence[Message], client_id: str, asked_ns: int | None) -> None:
        """Observe messages that the application receives.

        By `pull` or a loop: they were requested at `asked_ns` (epoch nanoseconds). For a handler: `asked_ns`
        is None.
        """

    def handling(self, messages: Sequence[Message], call: HandleCall) -> ObservedHandling:
        """Begin to observe a call of the handler; return its observer."""


def check_observer(observer: object) -> None:
    """Raise OptionError unless it is None, or has the methods of a ClientObserver as plain functions."""
    if observer is None:
        return
    if isinstance(observer, type) or not all(callable(getattr(observer, name, None)) for name in _METHODS):
        raise OptionError(
            f"observer={observer!r}; allowed: an object with the methods {', '.join(_METHODS)}, or None"
        )
    for name in _METHODS:
        check_function(f"observer.{name}", getattr(observer, name))


@contextmanager
def observe_send(send: ObservedSend) -> Iterator[ObservedSend]:
    """Wrap a block that sends and then calls `send.ended`; report an error of the block to `send.failed`."""
    _check_observed("sending", send, "ended", "failed")
    try:
        yield send
    except BaseException as error:
        send.failed(error)
        raise


def notify_handed_out(
    observer: ClientObserver, messages: Sequence[Message], client_id: str, requested_ns: int | None
) -> None:
    """Call the observer's `handed_out`; log an error if it returned a coroutine or the like."""
    hand_out: Callable[..., object] = observer.handed_out
    try:
        check_result("observer.handed_out", hand_out(messages, client_id, requested_ns), ends=False)
    except OptionError as error:
        _log.error("%s", error)


def observe_handling(
    observer: ClientObserver, messages: Sequence[Message], call: HandleCall
) -> ObservedHandling | None:
    """Call the observer's `handling`; return its result.

    Returns None if that raised, or returned an object in which no handler can run: the messages then fail.
    """
    try:
        handling = observer.handling(messages, call)
        _check_observed("handling", handling, "raised", "__enter__", "__exit__")
    except Exception as error:
        _log.exception("the observer failed before the handler of %s", ", ".join(map(repr, messages[:3])))
        for message in messages:
            message.fail(reason=error)
        return None
    return handling


def _check_observed(method: str, observed: object, *methods: str) -> None:
    """Raise OptionError unless the result of the observer's `method` has `methods` as plain functions."""
    check_result(f"observer.{method}", observed)
    error = _find_method_error(cast(Any, type(observed)), methods)
    if error:
        raise OptionError(f"observer.{method} returned {observed!r}, {error}")


@lru_cache(maxsize=64)
def _find_method_error(kind: Any, methods: Sequence[str]) -> str:
    """Describe which required method an observer lacks or defines as `async`; "" if all are fine."""
    for name in methods:
        method = getattr(kind, name, None)
        if method is None and name.startswith("__"):  # others may be found by the object's __getattr__
            return f"which has no method {name}; allowed: an ObservedHandling"
        if unrun := function_kind(method):
            return f"whose method {name} is {unrun}; allowed: a plain function"
    return ""
