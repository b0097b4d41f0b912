"""Messages into requests: those of a list are cut into batches, those that wait for a worker gathered. Pure.

Order is kept. A batch has at most so many members and encoded bytes (which is an upper bound of their
bodies). A message that is alone over that gets a batch of its own: whether the frame can take it was
checked when it was encoded.

A worker takes what is waiting, up to a batch; what arrives meanwhile makes the next one. A message that may
ask for a delay goes alone (a proxy refuses it inside a batch), as does one whose time is nearly up: a batch
has its oldest member's deadline, and would otherwise fail for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from ddmq_client.idl.codes import DELAY_DIALECT_PROPERTIES, DELAY_PROPERTY
from ddmq_client.outgoing import OutgoingMessage, SendResult

BATCH_BYTES_MAX = 4 * 1024 * 1024
BATCH_MESSAGES_MAX = 500


def split_batches(sizes: Sequence[int], bytes_max: int, messages_max: int) -> Iterator[range]:
    """Yield the ranges of indexes [start, end), one for each batch, that cover `sizes` in order."""
    start = total = 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > bytes_max or at - start >= messages_max):
            yield range(start, at)
            start, total = at, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


T = TypeVar("T")
HURRY_SHARE = 4  # less than a quarter of its time is left: goes alone


class QueuedSend(NamedTuple, Generic[T]):
    """One send that waits for a worker."""

    encoded: bytes
    deadline: float  # monotonic seconds
    send_alone_at: float
    alone: bool
    future: T
    on_done: Callable[[SendResult], None] | None
    keyed: bool = False  # it has an idempotency key


def has_level(message: OutgoingMessage) -> bool:
    """Return whether the message asks for a delay level."""
    return DELAY_PROPERTY in (message.properties or ())


def needs_own_request(message: OutgoingMessage) -> bool:
    """Return whether the message must have a request of its own, because it may ask for a delay."""
    names = message.properties
    if not names:
        return False
    return DELAY_PROPERTY in names or not DELAY_DIALECT_PROPERTIES.isdisjoint(names)


class Pipeline(Generic[T]):
    """The sends that wait for workers. `in_flight` counts them and those that workers have taken."""

    def __init__(self, in_flight_max: int, batch_bytes: int, batch_messages: int) -> None:
        self._in_flight_max = in_flight_max
        self._batch_bytes = batch_bytes
        self._batch_messages = batch_messages
        self._waiting: deque[QueuedSend[T]] = deque()
        self.in_flight = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no further send can be added now."""
        return self.in_flight >= self._in_flight_max

    def put(self, waiting: QueuedSend[T]) -> None:
        """Add a send; the caller has checked `is_full`."""
        self._waiting.append(waiting)
        self.in_flight += 1

    def take_batch(self, now: float) -> list[QueuedSend[T]]:
        """Remove and return the next batch, in order; at least one send if any waits.

        Call `complete_sends` afterwards.
        """
        if not self._waiting:
            return []
        first = self._waiting.popleft()
        batch, size = [first], len(first.encoded)
        if first.alone or now >= first.send_alone_at:
            return batch
        while self._waiting and len(batch) < self._batch_messages:
            following = self._waiting[0]
            size += len(following.encoded)
            if following.alone or now >= following.send_alone_at or size > self._batch_bytes:
                break
            batch.append(self._waiting.popleft())
        return batch

    def complete_sends(self, count: int) -> None:
        """Stop counting `count` sends as in flight, because they have their results."""
        self.in_flight -= count
