"""The messages read from one queue and not delivered yet, and the offset where reading continues.

A feed is in one of five states:

    READABLE  a read may find messages
    READING   a read is in progress (at most one per queue)
    TAIL      the end of the queue was reached; the proxy waits for new messages
    STALLED   the last read failed; the proxy reads again a little later
    CLOSED    the topic was deleted, or this proxy lost the queue

arrivals.py decides which messages of a read enter a feed. A filter is everything that decides about a message
before its delivery: tags, SQL, actions. It has no side effects and is fast; it sees the stored delivery bytes
(ddmq_common.delivery) and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from backend.records import ReadBatch, ReadStatus, StoredRecord
from proxy_consumer.core.tally import Counter

Reads = dict[int, tuple[ReadBatch, int]]  # by offset: the batch and the index in it
CACHED_BATCHES_MAX = 16  # batches whose messages stay in memory while they wait in chains; per queue
CACHED_BYTES_MAX = 32 << 20  # of all subscriptions, with what is read ahead; then no more are cached


class Rejection:
    """The reason why a message is not delivered.

    With an empty `error` the message was filtered out and counts as finished. Otherwise the filter failed on
    it: it becomes a failed job with this error, and is retried like any other.
    """

    __slots__ = ("error",)

    def __init__(self, error: str = "") -> None:
        self.error = error


FILTERED = Rejection()


class Filter(Protocol):
    """Decides for each message whether it is delivered. `tags`: only messages with these tag hashes are read;
    None: all."""

    tags: frozenset[int] | None

    def find_rejection(self, delivery: bytes) -> Rejection | None:
        """Return why the message must not be delivered; None if it passes. Never raises."""


class FeedState(Enum):
    """The states of a queue's read-ahead, as the top of this module describes them."""

    READABLE = "readable"
    READING = "reading"
    TAIL = "tail"
    STALLED = "stalled"
    CLOSED = "closed"


class Slice:
    """A part of a read batch that is to be delivered, stored as columns; `indexes` are the positions in
    `batch`."""

    __slots__ = ("batch", "deliveries", "indexes", "offsets", "size")

    def __init__(
        self, batch: ReadBatch, offsets: Sequence[int], deliveries: Sequence[bytes], indexes: Sequence[int]
    ) -> None:
        self.batch = batch
        self.offsets = offsets
        self.deliveries = deliveries
        self.indexes = indexes
        self.size = sum(map(len, deliveries))

    def slice_range(self, first: int, after: int) -> Slice:
        """Return the messages at `[first, after)` of this slice."""
        return Slice(
            self.batch, self.offsets[first:after], self.deliveries[first:after], self.indexes[first:after]
        )

    def pick_messages(self, rows: Sequence[int]) -> Slice:
        """Return the messages in these rows of the columns."""
        return Slice(
            self.batch,
            [self.offsets[at] for at in rows],
            [self.deliveries[at] for at in rows],
            [self.indexes[at] for at in rows],
        )

    def fit_bytes(self, bytes_max: int) -> Slice:
        """Return the first messages that fit into `bytes_max`, at least one."""
        if self.size <= bytes_max:
            return self
        size = len(self.deliveries[0])
        count = 1
        while count < len(self.deliveries) and size + len(self.deliveries[count]) <= bytes_max:
            size += len(self.deliveries[count])
            count += 1
        return self.slice_range(0, count)


class ReadPlan:
    """The rules by which a subscription reads new messages.

    `ahead(n)`: how many records and bytes to read for a pull of `n` messages. `tags`: passed to the backend's
    read. `ack_span_max`: how far past the committed offset. `filtered`: whether a filter decides about each.
    """

    __slots__ = ("ack_span_max", "ahead", "filtered", "tags")

    def __init__(self, ahead: Callable[[int], tuple[int, int]], ack_span_max: int) -> None:
        self.ahead = ahead
        self.ack_span_max = ack_span_max
        self.tags: frozenset[int] | None = None
        self.filtered = False


class CachedBatches:
    """The newest batches of one queue some of whose messages wait in chains.

    A message in them need not be read again when its chain releases it. The whole batch stays in memory with
    it, so it counts among the bytes read ahead, which bound all subscriptions.
    """

    __slots__ = ("_batches", "_read_bytes")

    def __init__(self, read_bytes: Counter) -> None:
        self._batches: deque[tuple[ReadBatch, int, list[int]]] = deque()  # with its bytes, and offsets
        self._read_bytes = read_bytes

    def cache_message(self, reads: Reads, offset: int, batch: ReadBatch, index: int) -> None:
        """Add a message to `reads`, unless there are too many bytes; drop those of the oldest batch."""
        batches = self._batches
        if not batches or batches[-1][0] is not batch:
            if self._read_bytes.value >= CACHED_BYTES_MAX:
                return
            size = sum(map(len, batch.deliveries))
            batches.append((batch, size, []))
            self._read_bytes.value += size
            if len(batches) > CACHED_BATCHES_MAX:
                self._drop_oldest(reads)
        batches[-1][2].append(offset)
        reads[offset] = (batch, index)

    def _drop_oldest(self, reads: Reads) -> None:
        batch, size, offsets = self._batches.popleft()
        self._read_bytes.value -= size
        for offset in offsets:
            read = reads.get(offset)
            if read is not None and read[0] is batch:
                del reads[offset]

    def clear(self) -> None:
        """Release all batches; the caller forgets their messages."""
        self._read_bytes.value -= sum(size for _, size, _ in self._batches)
        self._batches.clear()


class QueueFeed:
    """The read position in one queue, and the messages that were read ahead and not delivered."""

    __slots__ = ("_at", "_read", "_read_bytes", "cursor", "finished_until", "state")

    def __init__(self, cursor: int, finished_until: int, read_bytes: Counter) -> None:
        """Create a feed that reads from `cursor` on.

        `read_bytes` counts the bytes of messages read and not delivered, over all subscriptions.
        """
        self._read_bytes = read_bytes
        self.cursor = cursor  # where the next read starts
        self.finished_until = finished_until  # below it offsets may be finished already
        self.state = FeedState.READABLE
        self._read: Slice | None = None
        self._at = 0

    @property
    def has_messages(self) -> bool:
        return self._read is not None

    def put(self, read: Slice | None, next_offset: int) -> None:
        """Buffer the messages of a read; the next read starts at `next_offset`."""
        self.cursor = next_offset
        self.state = FeedState.READABLE
        self._at = 0
        if read is not None and read.offsets:
            self._read = read
            self._read_bytes.value += read.size

    def next_offset(self) -> int:
        """Return the first offset not yet delivered."""
        return self.cursor if self._read is None else self._read.offsets[self._at]

    def take_messages(self, count: int, bytes_max: int) -> Slice | None:
        """Remove and return up to `count` messages within `bytes_max`; None if nothing is buffered."""
        read = self._read
        if read is None:
            return None
        first, last = self._at, len(read.offsets)
        if first == 0 and last <= count:
            messages = read.fit_bytes(bytes_max)
        else:
            messages = read.slice_range(first, min(first + count, last)).fit_bytes(bytes_max)
        self._at = first + len(messages.offsets)
        if self._at >= last:
            self._drop_slice(read)
        return messages

    def current_slice(self) -> tuple[Slice, int]:
        """Return the buffered slice and the index of its first undelivered message. Requires
        `has_messages`."""
        assert self._read is not None
        return self._read, self._at

    def consume_messages(self, count: int) -> None:
        """Remove the first `count` messages from `current_slice`."""
        read, at = self.current_slice()
        self._at = at + count
        if self._at >= len(read.offsets):
            self._drop_slice(read)

    def drop_read_ahead(self) -> None:
        """Drop the undelivered messages; they are read again when needed."""
        if self._read is not None:
            self.cursor = self.next_offset()
            self._drop_slice(self._read)
            if self.state is FeedState.TAIL:
                self.state = FeedState.READABLE

    def _drop_slice(self, read: Slice) -> None:
        self._read = None
        self._read_bytes.value -= read.size


class Gathered(ReadBatch):
    """A batch of messages collected from other batches; it has only the columns that a delivery needs."""

    __slots__ = ("_sources",)

    def __init__(self, offsets: Sequence[int], sources: Sequence[tuple[ReadBatch, int]]) -> None:
        self._sources = sources
        self.status = ReadStatus.DATA
        self.offsets = offsets
        self.deliveries = [batch.deliveries[index] for batch, index in sources]
        self.positions = self.flags = self.tag_hashes = ()
        self.next_offset = offsets[-1] + 1 if offsets else 0
        self.bounds = None

    def record(self, index: int) -> StoredRecord:
        batch, at = self._sources[index]
        return batch.record(at)

    def stored_ms(self, index: int) -> int:
        batch, at = self._sources[index]
        return batch.stored_ms(at)


def gather_slice(offsets: Sequence[int], sources: Sequence[tuple[ReadBatch, int]]) -> Slice:
    """Build a slice of messages given as (batch, index), ascending by offset; no copy if all are of one
    batch."""
    first = sources[0][0]
    if all(batch is first for batch, _ in sources):
        indexes = [index for _, index in sources]
        return Slice(first, offsets, [first.deliveries[index] for index in indexes], indexes)
    batch = Gathered(offsets, sources)
    return Slice(batch, offsets, batch.deliveries, range(len(offsets)))
