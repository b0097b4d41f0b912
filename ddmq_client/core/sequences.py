"""The numbers by which a proxy recognises what this producer sends a second time. Pure.

A message takes the next number with its first attempt and keeps it in every other. However its send ends, it
gives the number back: it is not sent again. `lowest` is the lowest one that is still out: proxies may forget
all below. They remember no more than OPEN_MAX of one producer, so no number is given that is as far above
the lowest; the message goes without.

Numbers are taken and given back by request, a range at a time: the cost does not grow with its messages, nor
with how long one of the requests takes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

OPEN_MAX = 65_536


class Sequences:
    """The sequence numbers of one producer. Safe for many threads."""

    __slots__ = ("_ended", "_lock", "_new_producer", "_next", "lowest", "producer")

    def __init__(self, new_producer: Callable[[], bytes], lock: AbstractContextManager[object]) -> None:
        """Create the numbers.

        `new_producer` returns the producer's id; it is called when the first number is taken, so that a
        process forked before that has another id.
        """
        self._new_producer = new_producer
        self._lock = lock
        self._next = 0
        self._ended: dict[int, int] = {}  # start → end of what was given back above the lowest
        self.producer = b""
        self.lowest = 0

    def take_numbers(self, count: int) -> range | None:
        """Take the next `count` sequence numbers; None if proxies would not remember so many open ones."""
        with self._lock:
            start = self._next
            if start + count - self.lowest > OPEN_MAX:
                return None
            if not self.producer:
                self.producer = self._new_producer()
            self._next = start + count
            return range(start, start + count)

    def give_back(self, taken: range) -> None:
        """Return numbers whose messages will not be resent, so that proxies may forget them.

        They are not reused.
        """
        with self._lock:
            if taken.start != self.lowest:
                self._ended[taken.start] = taken.stop
                return
            end = taken.stop
            while end in self._ended:
                end = self._ended.pop(end)
            self.lowest = end
