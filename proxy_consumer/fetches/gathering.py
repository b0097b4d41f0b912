"""Reading for one fetch: queue after queue, until all were looked at or the answer is full.

A queue gives at most `count` messages; all of them together at most `bytes_max` (the first message always
fits). Refused pressure messages, and what a filter does not let through, are passed over. An offset that the
client itself asked for and that is out of range gives nothing and the nearest valid offset; any other start
goes on from there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.completion import Completion
from backend.port import Backend
from backend.records import FLAG_PRESSURE, Bounds, QueueRef, ReadBatch, ReadStatus, StoredRecord
from proxy_consumer.core.queue_feed import Filter
from proxy_consumer.runtime import log

ROUNDS_MAX = 8  # reads of one queue that brought only messages to pass over
MESSAGE_BYTES = 32  # what a message takes in an answer beside its delivery bytes


class Target:
    """One queue of one fetch, and what was found there."""

    __slots__ = (
        "asked", "bounds", "count", "deliveries", "gone", "message_filter", "next_offset", "offset",
        "offsets", "pressure", "qid", "queue", "records", "rounds",
    )  # fmt: skip

    def __init__(
        self,
        queue: QueueRef,
        qid: str,
        offset: int,
        asked: bool,
        count: int,
        pressure: bool,
        message_filter: Filter | None = None,
    ) -> None:
        self.queue = queue
        self.qid = qid
        self.offset = offset
        self.asked = asked
        self.count = count
        self.pressure = pressure
        self.message_filter = message_filter
        self.bounds: Bounds | None = None  # told in the answer where set
        self.next_offset = offset
        self.deliveries: list[bytes] = []
        self.offsets: list[int] = []
        self.records: list[Callable[[], StoredRecord]] = []
        self.rounds = 0
        self.gone = False

    @property
    def moved(self) -> bool:
        """The client has something new to hear of this queue."""
        return bool(self.deliveries) or self.next_offset != self.offset


class _TargetRead(Completion[ReadBatch]):
    __slots__ = ("gathering", "inline")

    def __init__(self, gathering: FetchGathering) -> None:
        super().__init__()
        self.gathering = gathering
        self.inline = True

    def settled(self) -> None:
        if not self.inline:
            self.gathering.went_on(self)


class FetchGathering:
    """Fills `targets`, in their order; `done()` runs once, perhaps before `start` returns."""

    def __init__(
        self,
        backend: Backend,
        targets: Sequence[Target],
        bytes_max: int,
        done: Callable[[], None],
        one_queue: bool = False,
    ) -> None:
        self._backend = backend
        self._targets = targets
        self._left = bytes_max
        self._taken = False
        self._done = done
        self._one_queue = one_queue
        self._at = 0

    def start(self) -> None:
        """Read on until the backend makes us wait."""
        while self._at < len(self._targets) and self._left > 0:
            target, read = self._targets[self._at], _TargetRead(self)
            tags = None if target.message_filter is None else target.message_filter.tags
            self._backend.read(
                target.queue, target.next_offset, target.count, self._left, into=read, tags=tags
            )
            if not read.done:
                read.inline = False
                return
            self._take(read)
        self._done()

    def went_on(self, read: _TargetRead) -> None:
        """A read came back later."""
        self._take(read)
        self.start()

    def _take(self, read: _TargetRead) -> None:
        target = self._targets[self._at]
        target.rounds += 1
        if read.error is not None:
            log.warning("queue not readable", extra={"topic": target.queue.topic, "error": str(read.error)})
            again = False
        else:
            again = self._take_batch(target, read.value)
        if target.deliveries and self._one_queue:
            self._at = len(self._targets)
        elif not again or target.rounds >= ROUNDS_MAX:
            self._at += 1

    def _take_batch(self, target: Target, batch: ReadBatch) -> bool:
        """Take over what was read; True when the queue is to be read again."""
        if batch.status is ReadStatus.DATA:
            self._take_messages(target, batch)
            return not target.deliveries and self._left > 0
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            target.next_offset = nearest(target.next_offset, batch.bounds)
            return not target.asked
        if batch.status is ReadStatus.NONE:
            target.next_offset = max(target.next_offset, batch.next_offset)  # behind what the tags left out
        target.gone = batch.status is ReadStatus.GONE
        return False

    def _take_messages(self, target: Target, batch: ReadBatch) -> None:
        for index, delivery in enumerate(batch.deliveries):
            if batch.flags[index] & FLAG_PRESSURE and not target.pressure:
                continue
            if target.message_filter is not None and target.message_filter.judge(delivery) is not None:
                continue
            size = len(delivery) + MESSAGE_BYTES
            if size > self._left and self._taken:
                self._left = 0
                target.next_offset = batch.offsets[index]
                return
            self._taken = True
            self._left -= size
            target.deliveries.append(delivery)
            target.offsets.append(batch.offsets[index])
            target.records.append(_Record(batch, index))
        target.next_offset = batch.next_offset


class _Record:
    """The whole record behind a delivery, for callers of ours."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ReadBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __call__(self) -> StoredRecord:
        return self._batch.record(self._index)


def nearest(offset: int, bounds: Bounds) -> int:
    """The valid offset that is nearest to `offset`."""
    return min(max(offset, bounds.min), bounds.next)
