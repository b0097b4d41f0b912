"""What is asked of the backend for due messages: what a read of a queue came to, which topics are there."""

from __future__ import annotations

from typing import NamedTuple

from backend.completion import Completion
from backend.port import Backend
from backend.records import ReadBatch, ReadStatus, StoredRecord
from ddmq_common.errors import DamagedError, StorageError, TryLaterError

GONE = "topic gone"  # why a message becomes a dead letter
REFUSED = "refused"
UNREADABLE = "unreadable"


class DueRead:
    """The answer to a read from `offset`, in one of its shapes: records, the end, `oldest`, or an error.

    `missing`: offsets passed over that should have had a message; they are damaged. `oldest`: the queue
    begins only there.
    """

    __slots__ = ("at_end", "error", "missing", "next_offset", "offset", "oldest", "records")

    def __init__(self, offset: int, answer: Completion[ReadBatch]) -> None:
        self.offset = self.next_offset = offset
        self.records: list[StoredRecord] = []
        self.missing = 0
        self.at_end = False
        self.oldest: int | None = None
        self.error: Exception | None = answer.error
        if self.error is None:
            self._take(answer.value)

    def _take(self, batch: ReadBatch) -> None:
        if batch.status in (ReadStatus.DATA, ReadStatus.NONE):
            self.at_end = batch.status is ReadStatus.NONE
            self.next_offset = batch.next_offset
            self.missing = batch.next_offset - self.offset - self._records(batch)
        elif batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds and batch.bounds.min > self.offset:
            self.oldest = batch.bounds.min
        elif batch.status is ReadStatus.OUT_OF_RANGE:
            self.error = StorageError(f"a level stands at {self.offset}, its queue has {batch.bounds}")
        else:
            self.error = TryLaterError(f"the level's queue is {batch.status.value}")

    def _records(self, batch: ReadBatch) -> int:
        """Take them; how many there are."""
        for index in range(len(batch.offsets)):
            try:
                record = batch.record(index)
            except DamagedError:
                continue
            self.records.append(record._replace(delivery=bytes(record.delivery)))
        return len(self.records)


class TargetTopic(NamedTuple):
    """A topic that is there. `writable`: it takes messages now, as far as is known."""

    queues: int
    writable: bool


def target_topic(backend: Backend, topic: str) -> TargetTopic | None:
    """What is known of it; None: there is no such topic."""
    info = backend.topic(topic)
    return None if info is None else TargetTopic(info.queues, info.writable)
