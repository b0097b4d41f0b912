"""The offsets of a broadcasting instance in each queue. Pure; callers lock.

Each queue has two offsets. The next fetch reads at `ahead`. A restart can resume at the safe offset without
missing a message: that is the lowest offset that arrived and is not settled, or `ahead` if there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

Offsets = dict[str, dict[str, int]]  # topic → queue → offset


class _QueueProgress:
    __slots__ = ("ahead", "done", "open")

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.open: list[int] = []  # a heap of the offsets that arrived
        self.done: set[int] = set()  # settled offsets above the lowest open one

    def safe_offset(self) -> int:
        while self.open and self.open[0] in self.done:
            self.done.discard(heappop(self.open))
        return self.open[0] if self.open else self.ahead


class InstanceOffsets:
    """The offsets of one broadcasting instance in all queues.

    Its size is bounded by the unsettled messages and the number of queues.
    """

    def __init__(self, offsets: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self._queues: dict[tuple[str, str], _QueueProgress] = {}
        self.start(offsets or {})

    def __len__(self) -> int:
        return len(self._queues)

    def start(self, offsets: Mapping[str, Mapping[str, int]]) -> None:
        """Set the stored offsets from which to continue."""
        for topic, queues in offsets.items():
            for queue, offset in queues.items():
                self._queues[topic, queue] = _QueueProgress(offset)

    def record_arrival(self, topic: str, queue: str, offsets: Iterable[int], next_offset: int) -> None:
        """Record the messages of an answer; the next fetch reads at `next_offset`."""
        progress = self._queues.get((topic, queue))
        if progress is None:
            progress = self._queues[topic, queue] = _QueueProgress(next_offset)
        progress.ahead = next_offset
        for offset in offsets:
            heappush(progress.open, offset)

    def record_settled(self, topic: str, queue: str, offset: int) -> None:
        """Record that the application is done with a message, with any outcome."""
        progress = self._queues.get((topic, queue))
        if progress is not None:
            progress.done.add(offset)
            progress.safe_offset()

    def next_offsets(self) -> Offsets:
        """Return the offsets from which the next fetch begins."""
        return self._by_topic(lambda progress: progress.ahead)

    def safe_offsets(self) -> Offsets:
        """Return the offsets to store, from which a restart misses no message."""
        return self._by_topic(_QueueProgress.safe_offset)

    def _by_topic(self, offset: Callable[[_QueueProgress], int]) -> Offsets:
        topics: Offsets = {}
        for (topic, queue), progress in self._queues.items():
            topics.setdefault(topic, {})[queue] = offset(progress)
        return topics
