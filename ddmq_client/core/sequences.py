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
    """The numbers of one producer. Safe for many threads, by the lock."""

    __slots__ = ("_ended", "_lock", "_new_producer", "_next", "lowest", "producer")

    def __init__(self, new_producer: Callable[[], bytes], lock: AbstractContextManager[object]) -> None:
        """`new_producer` names the producer, as a message says it, when the first number is taken: a fork
        before that is another one."""
        self._new_producer = new_producer
        self._lock = lock
        self._next = 0
        self._ended: dict[int, int] = {}  # start → end of what was given back above the lowest
        self.producer = b""
        self.lowest = 0

    def take_numbers(self, count: int) -> range | None:
        """Return the next `count` numbers; None where proxies would not remember them."""
        with self._lock:
            start = self._next
            if start + count - self.lowest > OPEN_MAX:
                return None
            if not self.producer:
                self.producer = self._new_producer()
            self._next = start + count
            return range(start, start + count)

    def give_back(self, taken: range) -> None:
        """The messages that `take_numbers` gave these to are not sent again."""
        with self._lock:
            if taken.start != self.lowest:
                self._ended[taken.start] = taken.stop
                return
            end = taken.stop
            while end in self._ended:
                end = self._ended.pop(end)
            self.lowest = end
