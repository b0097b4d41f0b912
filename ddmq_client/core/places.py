"""The offsets of a broadcasting instance in each queue. Pure; callers lock.

Two offsets a queue: `ahead`, where the next fetch goes on, and `safe`, where a restart may go on without
leaving out a message: the lowest one that came and is not settled, else `ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

Offsets = dict[str, dict[str, int]]  # topic → queue → offset


class _Place:
    __slots__ = ("ahead", "done", "open")

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.open: list[int] = []  # a heap of what came
        self.done: set[int] = set()  # of those, settled ones above the lowest open one

    def safe_offset(self) -> int:
        while self.open and self.open[0] in self.done:
            self.done.discard(heappop(self.open))
        return self.open[0] if self.open else self.ahead


class Places:
    """The offsets of one broadcasting instance in all queues.

    Its size is bounded by the unsettled messages and the number of queues.
    """

    def __init__(self, offsets: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self._places: dict[tuple[str, str], _Place] = {}
        self.start(offsets or {})

    def __len__(self) -> int:
        return len(self._places)

    def start(self, offsets: Mapping[str, Mapping[str, int]]) -> None:
        """Set the stored offsets from which to continue."""
        for topic, queues in offsets.items():
            for queue, offset in queues.items():
                self._places[topic, queue] = _Place(offset)

    def record_arrival(self, topic: str, queue: str, offsets: Iterable[int], next_offset: int) -> None:
        """Record the messages of an answer; the next fetch reads at `next_offset`."""
        place = self._places.get((topic, queue))
        if place is None:
            place = self._places[topic, queue] = _Place(next_offset)
        place.ahead = next_offset
        for offset in offsets:
            heappush(place.open, offset)

    def record_settled(self, topic: str, queue: str, offset: int) -> None:
        """Record that the application is done with a message, with any outcome."""
        place = self._places.get((topic, queue))
        if place is not None:
            place.done.add(offset)
            place.safe_offset()

    def next_offsets(self) -> Offsets:
        """Return the offsets from which the next fetch begins."""
        return self._by_topic(lambda place: place.ahead)

    def safe_offsets(self) -> Offsets:
        """Return the offsets to store, from which a restart misses no message."""
        return self._by_topic(_Place.safe_offset)

    def _by_topic(self, offset: Callable[[_Place], int]) -> Offsets:
        topics: Offsets = {}
        for (topic, queue), place in self._places.items():
            topics.setdefault(topic, {})[queue] = offset(place)
        return topics
