"""The numbers by which a proxy recognises messages that this producer resends. Pure.

A message takes the next number with its first attempt and uses it in every further attempt. When its send is
completed, with any outcome, it gives the number back. `lowest` is the lowest number in use; proxies may
forget all numbers below it. They remember at most OPEN_MAX numbers of one producer, so a number that far
above the lowest is not issued; the message is then sent without a number.

A request takes and gives back its numbers as one range. The cost depends neither on the number of its
messages nor on how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

OPEN_MAX = 65_536


class Sequences:
    """The sequence numbers of one producer. Safe for many threads."""

    __slots__ = ("_lock", "_new_producer", "_next", "_released", "lowest", "producer")

    def __init__(self, new_producer: Callable[[], bytes], lock: AbstractContextManager[object]) -> None:
        """Create the numbers.

        `new_producer` returns the producer's id; it is called when the first number is taken, so that a
        process forked before that has another id.
        """
        self._new_producer = new_producer
        self._lock = lock
        self._next = 0
        self._released: dict[int, int] = {}  # start → end of the ranges given back above the lowest
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

    def give_back(self, numbers: range) -> None:
        """Return numbers whose messages will not be resent, so that proxies may forget them.

        They are not reused.
        """
        with self._lock:
            if numbers.start != self.lowest:
                self._released[numbers.start] = numbers.stop
                return
            end = numbers.stop
            while end in self._released:
                end = self._released.pop(end)
            self.lowest = end
