"""One queue that is fetched from: where a fetch starts, and what an ack finishes. Pure.

A client's own offset goes first, then the stored one, then the newest: that is the end of the queue when
it was taken over, remembered, so that nothing which comes afterwards is passed by. An ack names the next
offset to consume; everything from the stored one up to it is finished. It never moves backwards and never
past what the queue holds: a message that is still to come cannot be done.

After a reset of offsets (a new generation) what clients held before says nothing any more: until an id has
fetched anew its own offset is passed over and its acks are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.records import ProgressDelta, QueueRef


class Start(NamedTuple):
    """Where to read. `asked`: the client said so, and hears where it could go when it is out of range."""

    offset: int
    asked: bool


class Position:
    """A group's place in one queue that this proxy holds."""

    __slots__ = ("_fetched", "committed", "epoch", "generation", "newest", "qid", "queue", "resets")

    def __init__(
        self, queue: QueueRef, qid: str, epoch: int, generation: int, committed: int | None, newest: int
    ) -> None:
        self.queue = queue
        self.qid = qid
        self.epoch = epoch
        self.generation = generation
        self.committed = committed
        self.newest = newest
        self.resets = 0  # seen since it was taken over
        self._fetched: dict[bytes, int] = {}  # consumer id → resets it knows of

    def start(self, consumer: bytes, asked: int | None) -> Start:
        """Where a fetch of `consumer` begins."""
        if asked is not None and asked >= 0 and self._fetched.get(consumer, 0) == self.resets:
            return Start(asked, True)
        return Start(self.newest if self.committed is None else self.committed, False)

    def answered(self, consumer: bytes) -> None:
        """A fetch of `consumer` was answered from here: what it says from now on counts."""
        if self.resets:
            self._fetched[consumer] = self.resets

    def forget(self, consumers: Sequence[bytes]) -> None:
        """These ids were released."""
        for consumer in consumers:
            self._fetched.pop(consumer, None)

    def ack(self, consumer: bytes, offset: int, next_offset: int) -> tuple[int, int] | None:
        """The range that an ack of `offset` finishes; None when it changes nothing."""
        if self._fetched.get(consumer, 0) != self.resets:
            return None
        first, end = self.committed or 0, min(offset, next_offset)
        return (first, end) if end > first else None

    def delta(self, group: str, finished: tuple[int, int]) -> ProgressDelta:
        """The range as the backend takes it."""
        return ProgressDelta(group, self.queue, self.epoch, self.generation, finished=(finished,))

    def stored(self, finished: tuple[int, int], generation: int) -> None:
        """It is durable."""
        if generation == self.generation:
            self.committed = max(self.committed or 0, finished[1])

    def reread(self, committed: int | None, generation: int, newest: int) -> bool:
        """The stored progress was read again; True when it had been reset."""
        reset = generation != self.generation
        if reset:
            self.generation = generation
            self.resets += 1
            self.newest = newest
        self.committed = committed
        return reset
