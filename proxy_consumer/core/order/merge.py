"""What the queue streams of a scope have buffered, in the order of their log positions, a piece at a time.

A piece ends with the last message of one stream that it looks at, so that nothing in it can come after a
message that it does not hold. Sorting rows of a few ascending columns costs a tenth of a heap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat

from proxy_consumer.core.order.queue_stream import QueueStream
from proxy_consumer.core.steps import QueueState

Row = tuple[int, int, int, bytes, int]
"""Log position, number of the stream, offset, delivery bytes, index in the batch that was read."""


class ReadAhead:
    """What one queue stream has buffered: `at` of `end` messages are placed."""

    __slots__ = (
        "_first", "at", "batch", "busy", "end", "faulty", "key_of", "out", "ready", "run", "state", "stream",
    )  # fmt: skip

    def __init__(self, stream: QueueStream, state: QueueState) -> None:
        self.run, self._first = stream.feed.current()
        self.stream = stream
        self.state = state
        self.batch = self.run.batch
        self.key_of = stream.key_of
        self.busy = stream.busy
        self.ready = stream.deliverable
        self.faulty = stream.faulty
        self.out = state.jobs.out
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

    def consume_placed(self) -> None:
        """Take what was placed out of the feed."""
        if self.at > self._first:
            self.stream.feed.consume(self.at - self._first)


def alone(part: ReadAhead, count: int) -> list[Row]:
    """The next rows of a single stream; its log positions are not looked at."""
    run, piece = part.run, slice(part.at, part.at + count)
    return list(zip(repeat(0), repeat(0), run.offsets[piece], run.deliveries[piece], run.indexes[piece]))


def merged(ahead: Sequence[ReadAhead], count: int) -> list[Row]:
    """The next rows in order: at most `count` of each stream, all of them of at least one."""
    lasts = [min(part.at + count, part.end) - 1 for part in ahead]
    horizon = min(part.position(last) for part, last in zip(ahead, lasts, strict=True))
    rows: list[Row] = []
    for number, (part, last) in enumerate(zip(ahead, lasts, strict=True)):
        rows += part.rows(number, part.stop(horizon, last))
    rows.sort()
    return rows
