"""The seam for who looks on: an object that a client calls when it sends and when it hands out messages.

    Producer(..., observer=observer)        Consumer(..., observer=observer)

`ddmq_client.opentelemetry` has one. A client without an observer calls nothing. An observer of your own has
the three methods of ClientObserver. They are called from whatever thread or task sends or handles, must not
block and must not raise: a call of theirs stands in the way of the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from ddmq_client.errors import OptionError
from ddmq_client.outgoing import OutgoingMessage, SendResult
from ddmq_client.received import Message

_METHODS = ("sending", "handed_out", "handling")


@dataclass(frozen=True, slots=True)
class SendCall:
    """One call of the application that sends, with all that is sent again for it.

    batch        it is a send_batch, also of one message
    transaction  id of the transaction that the messages are of; they go in one request then
    """

    client_id: str
    batch: bool = False
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class HandleCall:
    """One call of the application's handler. `batch`: it is a batch_handler, also with one message."""

    client_id: str
    batch: bool = False


class ObservedSend(Protocol):
    """One call that sends. It is told once how that ended."""

    messages: Sequence[OutgoingMessage]
    """What is sent: as many as the application gave, in their order, perhaps with more properties."""

    def ended(self, results: Sequence[SendResult]) -> None:
        """There is a result for each message; none at all of what is sent one way."""

    def failed(self, error: BaseException) -> None:
        """It raised."""


class ObservedHandling(AbstractContextManager[object], Protocol):
    """One call of a handler, which runs in the block; its messages are settled as it ends, if at all."""

    def raised(self, error: BaseException) -> None:
        """The handler did; the block does not."""


class ClientObserver(Protocol):
    """What an observer is called for."""

    def sending(self, messages: Sequence[OutgoingMessage], call: SendCall) -> ObservedSend:
        """The application sends."""

    def handed_out(self, messages: Sequence[Message], client_id: str, asked_ns: int | None) -> None:
        """The application gets messages: those that it asked for by `pull` or a loop (`asked_ns`: since when,
        epoch nanoseconds), or its handler will be called with (None)."""

    def handling(self, messages: Sequence[Message], call: HandleCall) -> ObservedHandling:
        """The application's handler is called."""


def check_observer(observer: object) -> None:
    """OptionError unless it is one, or None."""
    if observer is None or (
        not isinstance(observer, type) and all(callable(getattr(observer, name, None)) for name in _METHODS)
    ):
        return
    raise OptionError(
        f"observer={observer!r}; allowed: an object with the methods {', '.join(_METHODS)}, or None"
    )


@contextmanager
def told(send: ObservedSend) -> Iterator[ObservedSend]:
    """A block that sends `send.messages` and says `ended`; what it raises is told, too."""
    try:
        yield send
    except BaseException as error:
        send.failed(error)
        raise
