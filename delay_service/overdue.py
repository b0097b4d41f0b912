"""How long what is due has not fired, shard by shard: what has stopped firing shows here, and nowhere else.

A shard that cannot be asked (it is being opened, or its claim had anew) counts on from what was known of it;
one of which nothing was known to wait, from when it was first looked at: something may be due in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from delay_service.counts import DelayCounts
from delay_service.shard import Shard


class Overdue:
    """Of one delay service."""

    def __init__(self, counts: DelayCounts) -> None:
        self._counts = counts
        self._first_ms: dict[int, int | None] = {}  # by shard, as last known

    def look(self, shards: Mapping[int, Shard], all_known: bool, wall_ms: int) -> None:
        """`all_known`: what is not among `shards` is another process's."""
        for number, shard in shards.items():
            due_ms = shard.first_due_ms()
            if not shard.why and shard.running:
                self._first_ms[number] = due_ms
            else:
                first_ms = self._first_ms.get(number)
                self._first_ms[number] = wall_ms if first_ms is None else first_ms
        if all_known:
            for number in self._first_ms.keys() - shards.keys():
                del self._first_ms[number]
                self._counts.overdue(number, 0)
        for number, first_ms in self._first_ms.items():
            self._counts.overdue(number, 0 if first_ms is None else max(wall_ms - first_ms, 0))
