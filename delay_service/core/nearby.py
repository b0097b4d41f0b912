"""Where messages that came in lately stand in the due order, by topic: the way past a storm.

A storm can be scanned no faster than a million messages a second, so whoever stands in the middle of one
cannot be found by reading on. Of each topic the keys that were added are therefore remembered, in memory, as
far as there is room: when there is too much, the topic with the most goes, which is the storm's. It may
know too little (what came in before the process started), and keys where nothing stands any more; never more.
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heappush

from delay_service.store.port import DueKey


class Nearby:
    """At most `keys_max` keys."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._topics: dict[str, list[DueKey]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, topic: str, key: DueKey) -> None:
        """A message waits there from now on."""
        if self._count >= self._keys_max:
            largest = max(self._topics, key=lambda one: len(self._topics[one]))
            self._count -= len(self._topics.pop(largest))
        heappush(self._topics.setdefault(topic, []), key)
        self._count += 1

    def due(self, now_ms: int, without: Container[str], limit: int) -> list[DueKey]:
        """Keys that are due, of topics that are not in `without`, a fair share each; forgotten herewith."""
        found: list[DueKey] = []
        share = max(limit // max(len(self._topics), 1), 1)
        for topic in list(self._topics):
            if topic in without:
                continue
            keys = self._topics[topic]
            taken = 0
            while keys and keys[0].due_ms <= now_ms and taken < share and len(found) < limit:
                found.append(heappop(keys))
                taken += 1
            self._count -= taken
            self._topics.pop(topic)
            if keys:
                self._topics[topic] = keys  # behind the others, whose turn comes first then
            if len(found) >= limit:
                break
        return found

    def trim(self, to: DueKey) -> None:
        """Nothing waits up to `to` that is not being fired."""
        for topic, keys in list(self._topics.items()):
            if keys and keys[0] <= to:
                left = [key for key in keys if key > to]
                self._count -= len(keys) - len(left)
                heapify(left)
                keys[:] = left
            if not keys:
                del self._topics[topic]
