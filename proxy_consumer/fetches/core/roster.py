"""Who fetches for a group at this proxy, and who of them has which of the proxy's queues. Pure.

The queues are shared averagely: ids in their order, consecutive queues, the first ones get one more when
it does not come out even. A consumer id is released a while after its last fetch, or when it has left;
while a fetch of it is open it stays. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

RELEASE_S = 30.0

T = TypeVar("T")


class _Member:
    __slots__ = ("left", "open", "seen_at")

    def __init__(self) -> None:
        self.open = 0  # fetches not answered yet
        self.seen_at = 0.0
        self.left = False  # it has said that it fetches no more


class Roster:
    """The consumer ids of one group, at most `ids_max`."""

    def __init__(self, ids_max: int, release_s: float = RELEASE_S) -> None:
        self._ids_max = ids_max
        self._release_s = release_s
        self._members: dict[bytes, _Member] = {}
        self._order: list[bytes] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, consumer: bytes) -> bool:
        return consumer in self._members

    @property
    def ids(self) -> Sequence[bytes]:
        """In the order that counts for sharing."""
        return self._order

    def begin(self, consumer: bytes, now: float) -> bool | None:
        """A fetch comes in. True: the id is new, shares have changed. None: the roster is full."""
        member = self._members.get(consumer)
        fresh = member is None
        if member is None:
            if len(self._members) >= self._ids_max:
                return None
            member = self._members[consumer] = _Member()
            self._order = sorted(self._members)
        member.open += 1
        member.left = False
        member.seen_at = now
        return fresh

    def end(self, consumer: bytes, now: float) -> None:
        """A fetch was answered, or its client has gone."""
        member = self._members.get(consumer)
        if member is not None:
            member.open -= 1
            member.seen_at = now

    def leave(self, consumer: bytes) -> None:
        """It fetches no more: `expire` releases it as soon as its last fetch has ended."""
        member = self._members.get(consumer)
        if member is not None:
            member.left = True

    def expire(self, now: float) -> list[bytes]:
        """Release the ids whose last fetch is too long ago; gives them."""
        over = [
            consumer
            for consumer, member in self._members.items()
            if not member.open and (member.left or member.seen_at + self._release_s <= now)
        ]
        for consumer in over:
            del self._members[consumer]
        if over:
            self._order = sorted(self._members)
        return over

    def share(self, consumer: bytes, queues: Sequence[T]) -> Sequence[T]:
        """The part of `queues` (in an order that all calls share) that is this id's."""
        if consumer not in self._members:
            return ()
        at, ids = self._order.index(consumer), len(self._order)
        size, more = divmod(len(queues), ids)
        first = at * size + min(at, more)
        return queues[first : first + size + (at < more)]
