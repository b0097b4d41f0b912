"""What is known of the beginning of a sorted range of keys, so that it is never searched twice. Pure.

Messages leave the due order at its beginning, in storms. A search that starts where they stood walks over
what they left behind (a tenth of a second for some 100,000), so the store remembers where the first live
key is, and removes whole ranges instead of keys. Rules:
* `start`: every live key is at or behind it.
* Known keys: the live ones in [start, horizon), in order, as scans found them; those removed out of their
  turn are remembered as dead until everything before them is gone too.
* A removal of the first so and so many keys is one range up to the next live key, when that is worth a
  range (RocksDB looks at every range whenever it reads, so they must be few).
* At most `KNOWN_MAX` keys are known; behind them keys are removed one by one. Knowing less is never wrong.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

KNOWN_MAX = 65_536
RANGE_MIN = 64
FEW = 16  # keys that are put into their places one by one
_COMPACT_AT = 4_096


class Removal(NamedTuple):
    """What is to be deleted: a range `[start, end)`, or none, and single keys."""

    start: bytes
    end: bytes
    keys: list[bytes]

    @property
    def is_range(self) -> bool:
        """Is there one?"""
        return self.start < self.end


class Front:
    """The beginning of the keys from `start` on."""

    __slots__ = ("_dead", "_head", "_horizon", "_known", "start")

    def __init__(self, start: bytes) -> None:
        self.start = start
        self._horizon = start
        self._known: list[bytes] = []
        self._head = 0
        self._dead: set[bytes] = set()

    @property
    def first(self) -> bytes | None:
        """The first live key, when it is known."""
        return self._known[self._head] if self._head < len(self._known) else None

    @property
    def known(self) -> int:
        """How many keys it holds."""
        return len(self._known) - self._head

    def found(self, begin: bytes, keys: list[bytes]) -> None:
        """A scan from `begin` came upon these live keys first, all of them, in order."""
        if begin > self._horizon or not keys or keys[-1] < self._horizon:
            return
        fresh = keys[bisect_left(keys, self._horizon) :] if keys[0] < self._horizon else keys
        room = KNOWN_MAX - self.known
        fresh = fresh[:room]
        if fresh:
            if self._head == len(self._known):
                self.start = fresh[0]
            self._known += fresh
            self._horizon = fresh[-1] + b"\0"

    def add(self, keys: list[bytes]) -> None:
        """These keys live from now on."""
        if not keys or min(keys) >= self._horizon:
            return
        fresh = sorted(key for key in keys if key < self._horizon)
        self._dead.difference_update(fresh)
        place = bisect_left(self._known, fresh[0], self._head)
        if place == bisect_right(self._known, fresh[-1], place):
            self._known[place:place] = fresh  # side by side, as a storm comes in
        elif len(fresh) < FEW:
            for key in fresh:
                self._insert(key)
        else:
            self._known = sorted({*self._known[self._head :], *fresh})
            self._head = 0
        self.start = min(self.start, self._known[self._head])
        if self.known > KNOWN_MAX:
            self.forget()

    def _insert(self, key: bytes) -> None:
        place = bisect_left(self._known, key, self._head)
        if place == len(self._known) or self._known[place] != key:
            self._known.insert(place, key)

    def forget(self) -> None:
        """Know the start and nothing else; always right."""
        self._horizon = self.start
        self._known, self._head, self._dead = [], 0, set()

    def remove(self, keys: list[bytes]) -> Removal:
        """These live keys are gone, and are to be deleted as the answer says."""
        begin, count = self.start, self._gone(keys)
        if count < RANGE_MIN:
            return Removal(b"", b"", keys)
        end = self.start
        return Removal(begin, end, [key for key in keys if not begin <= key < end])

    def _gone(self, keys: list[bytes]) -> int:
        """Mark them dead and step over the dead at the beginning; how many of them were stepped over."""
        known, head = self._known, self._head
        if known[head : head + len(keys)] == keys and not self._dead:
            self._head += len(keys)
            stepped = len(keys)
        else:
            self._dead.update(key for key in keys if key < self._horizon)
            stepped = self._step()
        if stepped:
            self.start = known[self._head] if self._head < len(known) else self._horizon
            self._shrink()
        return stepped

    def _step(self) -> int:
        known, dead, place = self._known, self._dead, self._head
        while place < len(known) and known[place] in dead:
            dead.discard(known[place])
            place += 1
        stepped, self._head = place - self._head, place
        return stepped

    def _shrink(self) -> None:
        if self._head >= _COMPACT_AT and 2 * self._head >= len(self._known):
            del self._known[: self._head]
            self._head = 0
