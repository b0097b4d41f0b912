"""Placing: puts the buffered messages of a scope's streams, in log order, into replies or into their chains.

A message either becomes ready for a reply or waits in its chain. Messages are processed in chunks: a chunk
ends with the last examined message of one stream, so that no message in it can come after a message outside
it. Sorting rows of a few ascending columns costs a tenth of a heap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat

from proxy_consumer.core.order.chains import Chain, QueueStream, ReadyMessage, ScopeLedger
from proxy_consumer.core.subscribed_queue import SubscribedQueue

Row = tuple[int, int, int, bytes, int]
"""(log position, index of the stream, offset, delivery bytes, index in its batch)."""


class ReadAhead:
    """The buffered messages of one queue stream; `at` is the index of the next one to place, `end` the
    end."""

    __slots__ = (
        "_first",
        "at",
        "batch",
        "busy",
        "end",
        "faulty",
        "key_of",
        "out",
        "queue",
        "ready",
        "run",
        "stream",
        "used_up",
    )  # fmt: skip

    def __init__(self, stream: QueueStream, queue: SubscribedQueue) -> None:
        self.run, self._first = stream.feed.current_slice()
        self.stream = stream
        self.queue = queue
        self.batch = self.run.batch
        self.key_of = stream.key_of
        self.busy = stream.busy
        self.ready = stream.deliverable
        self.faulty = stream.faulty
        self.out = queue.out
        self.used_up = queue.used_up
        self.at = self._first
        self.end = len(self.run.offsets)

    def rows_until(self, number: int, stop: int) -> list[Row]:
        """Return the rows of the messages with indexes from `at` to below `stop`."""
        run, columns = self.run, slice(self.at, stop)
        positions = map(self.batch.positions.__getitem__, run.indexes[columns])
        return list(
            zip(
                positions, repeat(number), run.offsets[columns], run.deliveries[columns], run.indexes[columns]
            )
        )

    def log_position(self, at: int) -> int:
        """Return the log position of the message at index `at`."""
        return self.batch.positions[self.run.indexes[at]]

    def stop(self, horizon: int, last: int) -> int:
        """Return the index after the last message, of those up to `last`, whose log position is at most
        `horizon`."""
        return bisect_right(
            self.run.indexes, horizon, self.at, last + 1, key=self.batch.positions.__getitem__
        )

    def consume_placed(self) -> None:
        """Remove the placed messages from the feed."""
        if self.at > self._first:
            self.stream.feed.consume_messages(self.at - self._first)


def rows_alone(source: ReadAhead, count: int) -> list[Row]:
    """Return the next `count` rows of a single stream, whose log positions need no comparison."""
    run, columns = source.run, slice(source.at, source.at + count)
    return list(
        zip(repeat(0), repeat(0), run.offsets[columns], run.deliveries[columns], run.indexes[columns])
    )


def merge_rows(ahead: Sequence[ReadAhead], count: int) -> list[Row]:
    """Return the next rows in log order: at most `count` of each stream, and `count` (or all) of at least
    one."""
    lasts = [min(source.at + count, source.end) - 1 for source in ahead]
    horizon = min(source.log_position(last) for source, last in zip(ahead, lasts, strict=True))
    rows: list[Row] = []
    for number, (source, last) in enumerate(zip(ahead, lasts, strict=True)):
        rows += source.rows_until(number, source.stop(horizon, last))
    rows.sort()
    return rows


def place_rows(
    ledger: ScopeLedger,
    rows: Iterable[Row],
    ahead: Sequence[ReadAhead],
    deliverable: deque[ReadyMessage],
    enough: int,
) -> int:
    """Place rows in the order of `merge_rows` until `enough` messages are `deliverable`; return how many
    were placed.

    The loop is the fast path for messages whose key is free. Messages without a key are counted and delivered
    without order; heads of parked keys are parked.
    """
    table, parked, placed = ledger.table, ledger.parked_keys, 0
    chains, message = table.chains, tuple.__new__
    for _, number, offset, delivery, index in rows:
        source = ahead[number]
        placed += 1
        key = source.key_of(delivery)
        if parked or source.faulty or source.out or source.used_up or key is None:
            _place_special(ledger, source, ReadyMessage(offset, delivery, source.batch, index, None), key)
        elif key not in chains:
            source.busy[offset] = chain = chains[key] = Chain(key, source.stream, offset)
            source.ready.append(message(ReadyMessage, (offset, delivery, source.batch, index, chain)))
        elif (existing := table.add_arrival(key, source.stream, offset)) is not None:
            source.busy[offset] = existing
            source.ready.append(message(ReadyMessage, (offset, delivery, source.batch, index, existing)))
        elif not chains[key].unindexed:
            source.queue.cached.cache_message(source.queue.reread, offset, source.batch, index)
        if len(deliverable) >= enough:
            break
    return placed


def _place_special(ledger: ScopeLedger, source: ReadAhead, message: ReadyMessage, key: str | None) -> None:
    """Place one message whose key is missing or parked, that is faulty, leased or exhausted: the slow
    path."""
    offset, queue = message.offset, source.queue
    faulty = offset in source.faulty
    source.faulty.discard(offset)  # the filter is applied again when its chain reaches it
    if key is None:
        source.stream.unkeyed.value += 1
    else:
        chain = ledger.table.add_arrival(key, source.stream, offset)
        if chain is None:
            return
        source.busy[offset] = chain
        if offset in source.out:
            chain.open = False
        elif queue.exhaust_used_up(offset):
            return
        elif key in ledger.parked_keys:
            queue.park_unread(offset)
            return
        message = message._replace(chain=chain)
    if offset in source.out:
        source.out.discard(offset)  # a client has it
    elif faulty:
        queue.table.release(offset)  # it is read and filtered again, and fails then
    else:
        source.ready.append(message)
