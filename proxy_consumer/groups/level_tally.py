"""Counts of the messages that wait in one delay level for their retry, by group and topic. Pure.

A level is a queue of SCHEDULE_TOPIC: what waits in it are the offsets that its scheduler has not finished.
They are counted in blocks of BLOCK offsets, so that a look reads what is new, and again only those blocks of
which something was finished since; a block takes the same memory whatever it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

BLOCK = 1_024
Name = tuple[str, str]  # group, topic


class RetryWaiting(NamedTuple):
    """Messages of one subscription that are on the retry path. `since_ms`: when the first of them was
    put on the retry path; `due_ms`: when the next is due; epoch milliseconds."""

    messages: int
    since_ms: int
    due_ms: int

    def added_to(self, other: RetryWaiting) -> RetryWaiting:
        """Return the sum of both, as of the earlier moment."""
        return RetryWaiting(
            self.messages + other.messages, min(self.since_ms, other.since_ms), min(self.due_ms, other.due_ms)
        )


class OffsetSpan(NamedTuple):
    """Offsets `[offset, end)` to be read and counted."""

    offset: int
    end: int


class _Block:
    """`[start, counted)` without what was finished; `left` says how many of its offsets were not."""

    __slots__ = ("counted", "left", "rows", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.left = 0
        self.begin(start)

    def begin(self, offset: int) -> None:
        """Count again from `offset`; what lies before is finished."""
        self.counted = offset
        self.rows: dict[Name, RetryWaiting] = {}


class LevelTally:
    """One level. Call `take_progress` with what the backend says, then feed what `missing` asks for to
    `add`."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._finished: Sequence[tuple[int, int]] = ()
        self._next = 0

    def take_progress(self, committed: int, finished: Sequence[tuple[int, int]], next_offset: int) -> None:
        """The scheduler has finished all below `committed` and the ranges `finished` above it; the level
        ends before `next_offset`. Counts that this makes untrue are dropped."""
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

    def missing_span(self) -> OffsetSpan | None:
        """The next offsets to read; None when all is counted."""
        for number, block in self._blocks.items():
            end = min((number + 1) * BLOCK, self._next)
            if block.counted < end:
                return OffsetSpan(block.counted, end)
        return None

    def add(self, span: OffsetSpan, rows: Iterable[tuple[int, Name, RetryWaiting]]) -> None:
        """`span` was read: its messages on a retry path, each with its offset."""
        block = self._blocks.get(span.offset // BLOCK)
        if block is None or block.counted != span.offset:
            return
        for offset, name, waiting in rows:
            if not any(start <= offset < end for start, end in self._finished):
                row = block.rows.get(name)
                block.rows[name] = waiting if row is None else row.added_to(waiting)
        block.counted = span.end
        block.left = self._count_unfinished(block)

    def count_waiting(self) -> Mapping[Name, RetryWaiting]:
        """Return the counts so far."""
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
