"""What the lanes of a scope have buffered, put in the order of their log positions, a piece at a time.

A piece ends with the last message of one lane that it looks at, so that nothing in it can come after a
message that it does not hold. Sorting rows of a few ascending columns costs a tenth of a heap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy_consumer.core.order.lane import OrderedLane

Row = tuple[int, int, int, bytes, int]
"""Log position, number of the part, offset, delivery bytes, index in the batch that was read."""


class Part:
    """What one lane has buffered: `at` of `end` messages are placed."""

    __slots__ = ("_first", "at", "batch", "busy", "end", "faulty", "key_of", "lane", "out", "ready", "run")

    def __init__(self, lane: OrderedLane) -> None:
        self.run, self._first = lane.state.feed.current()
        self.lane = lane
        self.batch = self.run.batch
        self.key_of = lane.key_of
        self.busy = lane.busy
        self.ready = lane.deliverable
        self.faulty = lane.state.faulty
        self.out = lane.state.jobs.out
        self.at = self._first
        self.end = len(self.run.offsets)

    def rows(self, number: int, stop: int) -> list[Row]:
        """The messages from `at` up to the place `stop`."""
        run, part = self.run, slice(self.at, stop)
        positions = map(self.batch.positions.__getitem__, run.indexes[part])
        return list(
            zip(positions, repeat(number), run.offsets[part], run.deliveries[part], run.indexes[part])
        )

    def position(self, at: int) -> int:
        """Where the message at a place stands in the log."""
        return self.batch.positions[self.run.indexes[at]]

    def stop(self, horizon: int, last: int) -> int:
        """The place after the last message, of those up to `last`, that does not stand behind `horizon`."""
        return bisect_right(
            self.run.indexes, horizon, self.at, last + 1, key=self.batch.positions.__getitem__
        )

    def settle(self) -> None:
        """Take what was placed out of the feed."""
        if self.at > self._first:
            self.lane.state.feed.consume(self.at - self._first)


def alone(part: Part, count: int) -> list[Row]:
    """The next rows of a single lane; its log positions are not looked at."""
    run, piece = part.run, slice(part.at, part.at + count)
    return list(zip(repeat(0), repeat(0), run.offsets[piece], run.deliveries[piece], run.indexes[piece]))


def merged(parts: Sequence[Part], count: int) -> list[Row]:
    """The next rows in order: at most `count` of each lane, all of them of at least one."""
    lasts = [min(part.at + count, part.end) - 1 for part in parts]
    horizon = min(part.position(last) for part, last in zip(parts, lasts, strict=True))
    rows: list[Row] = []
    for number, (part, last) in enumerate(zip(parts, lasts, strict=True)):
        rows += part.rows(number, part.stop(horizon, last))
    rows.sort()
    return rows
