"""Counts the messages that wait in one delay level for their retry, by group and topic. Pure.

A level is a queue of SCHEDULE_TOPIC: the offsets that its scheduler has not finished are waiting. They are
counted in blocks of BLOCK offsets, so that a refresh reads only new messages, and again only those blocks in
which messages were finished since; a block takes the same memory whatever it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

BLOCK = 1_024
Name = tuple[str, str]  # group, topic


class RetryWaiting(NamedTuple):
    """The number and times of a subscription's messages on the retry path.

    `since_ms`: when the first of them entered the retry path; `due_ms`: when the next is due; epoch
    milliseconds.
    """

    messages: int
    since_ms: int
    due_ms: int

    def added_to(self, other: RetryWaiting) -> RetryWaiting:
        """Return the sum of both counts, with the earlier of both times."""
        return RetryWaiting(
            self.messages + other.messages, min(self.since_ms, other.since_ms), min(self.due_ms, other.due_ms)
        )


class LevelRange(NamedTuple):
    """The offsets `[offset, end)`, to be read and counted."""

    offset: int
    end: int


class _Block:
    """The counts of the unfinished offsets in `[start, counted)`; `left`: how many these are."""

    __slots__ = ("counted", "left", "rows", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.left = 0
        self.begin(start)

    def begin(self, offset: int) -> None:
        """Start to count again from `offset`; everything before it is finished."""
        self.counted = offset
        self.rows: dict[Name, RetryWaiting] = {}


class LevelTally:
    """Counts the messages that wait for their retry in one delay level: a queue whose messages all wait
    equally long.

    Call `take_progress`, then read the offsets of `missing_range` and pass them to `add`.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._finished: Sequence[tuple[int, int]] = ()
        self._next = 0

    def take_progress(self, committed: int, finished: Sequence[tuple[int, int]], next_offset: int) -> None:
        """Set the scheduler's progress and the end of the level, and drop counts that this makes wrong.

        Everything below `committed` and in the ranges `finished` above it is finished.
        """
        self._finished = [(0, committed), *finished]
        self._next = next_offset
        first = committed // BLOCK
        starts = range(first, -(-next_offset // BLOCK) if next_offset > committed else first)
        self._blocks = {
            number: self._blocks.get(number) or _Block(max(number * BLOCK, committed)) for number in starts
        }
        for block in self._blocks.values():
            if block.left != self._count_unfinished(block):
                block.begin(max(block.start, committed))
                block.left = self._count_unfinished(block)

    def missing_range(self) -> LevelRange | None:
        """Return the next offsets to read; None if everything is counted."""
        for number, block in self._blocks.items():
            end = min((number + 1) * BLOCK, self._next)
            if block.counted < end:
                return LevelRange(block.counted, end)
        return None

    def add(self, offsets: LevelRange, rows: Iterable[tuple[int, Name, RetryWaiting]]) -> None:
        """Count the `offsets`, which were read; `rows`: its messages on a retry path, each with its
        offset."""
        block = self._blocks.get(offsets.offset // BLOCK)
        if block is None or block.counted != offsets.offset:
            return
        for offset, name, waiting in rows:
            if not any(start <= offset < end for start, end in self._finished):
                row = block.rows.get(name)
                block.rows[name] = waiting if row is None else row.added_to(waiting)
        block.counted = offsets.end
        block.left = self._count_unfinished(block)

    def count_waiting(self) -> Mapping[Name, RetryWaiting]:
        """Return the messages counted up to now, by group and topic."""
        rows: dict[Name, RetryWaiting] = {}
        for block in self._blocks.values():
            for name, waiting in block.rows.items():
                row = rows.get(name)
                rows[name] = waiting if row is None else row.added_to(waiting)
        return rows

    def _count_unfinished(self, block: _Block) -> int:
        """Return how many of the block's counted offsets are not finished."""
        finished = sum(
            max(0, min(end, block.counted) - max(start, block.start)) for start, end in self._finished
        )
        return block.counted - block.start - finished
