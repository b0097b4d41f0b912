"""How long the heads of the levels have been due, level by level: a level that has stopped shows here.

A level that cannot be asked (its progress or its queue is being read, again and again where that fails)
counts on from what was known of it, or from when it was first looked at: something may be due in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from delay_service.levels.core.level import Level
from delay_service.levels.counts import Counts


class LevelsOverdue:
    """Of one level service."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._first_ms: dict[int, int | None] = {}  # by level, as last known

    def look(self, levels: Iterable[Level], unloaded: Iterable[int], member: bool, clock_ms: int) -> None:
        """`unloaded`: numbers of levels that are ours, of which nothing is known yet. `member`: what is
        neither is another process's."""
        known = {level.queue.queue_id + 1: level for level in levels}
        for number, level in known.items():
            if level.knows_head:
                self._first_ms[number] = level.first_due_ms
            else:
                self._first_ms.setdefault(number, clock_ms)
        waiting = set(unloaded)
        for number in waiting:
            self._first_ms.setdefault(number, clock_ms)
        if member:
            for number in self._first_ms.keys() - known.keys() - waiting:
                del self._first_ms[number]
                self._counts.overdue(number, 0)
        for number, first_ms in self._first_ms.items():
            self._counts.overdue(number, 0 if first_ms is None else max(clock_ms - first_ms, 0))
