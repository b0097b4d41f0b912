"""The records that were read from a queue, and the calls that wait for more of them. Pure.

A stream is one reader's progress through one partition. It begins at an offset, receives records in order,
and is notified of the partition's end when it reaches it. The newest records are kept in a window. So several
groups at similar offsets, and a group that rereads, share the fetched records.

    start ──────────── mark ───────────── next          mark: the records before it were read by some caller
      │ read: may go      │ read ahead       │
      └───────── the window, bytes_max ──────┘

* A read from an offset in [start, next] is served here; other reads need a stream of their own.
* Offsets have gaps (compaction, markers of transactions), so the next offset is never computed by counting.
* A read is answered as empty only at the end, and only if no later record is known to exist: a record that
  this process has appended itself is waited for.
* A full window is paused, and resumes when half of the records read ahead have been read by callers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from backend.completion import Completion
from backend.kafka.records import KafkaRecord
from backend.port import ReadCall, Wait
from backend.records import (
    PASSED_MAX,
    Bounds,
    QueueRef,
    ReadBatch,
    ReadStatus,
    ShortRecord,
    StoredRecord,
)

SEARCH_MAX = 4096  # offsets that a read for tags passes over before it is answered all the same
RECORD_BYTES = 400  # what a record takes beside its delivery bytes


class KafkaQueue(NamedTuple):
    """A queue, with the name and id of its topic in Kafka."""

    queue: QueueRef
    kafka_name: str
    topic_id: bytes


class KafkaBatch(ReadBatch):
    """The records that a read of a queue returned from Kafka, in columns."""

    __slots__ = ("_queue", "_records")

    def __init__(
        self,
        queue: QueueRef,
        status: ReadStatus,
        records: Sequence[KafkaRecord],
        next_offset: int,
        bounds: Bounds | None = None,
    ) -> None:
        self._queue = queue
        self._records = records
        self.status = status
        self.offsets = [record.offset for record in records]
        self.positions = [-1] * len(records)
        self.flags = [record.flags for record in records]
        self.tag_hashes = [record.tag_hash for record in records]
        self.deliveries = [record.delivery for record in records]
        self.next_offset = next_offset
        self.bounds = bounds

    def record(self, index: int) -> StoredRecord:
        """Return the complete record at `index`."""
        return self._records[index].to_stored_record(self._queue.topic, self._queue.queue_id)

    def carried(self, name: str) -> list[ShortRecord]:
        """Return all records in the short form, with the system property `name`."""
        return [record.to_short_record(name) for record in self._records]

    def stored_ms(self, index: int) -> int:
        """Return Kafka's time stamp of the record at `index`."""
        return self._records[index].stored_ms


class PendingRead(NamedTuple):
    """A read that waits for data. `deadline`: when it fails (monotonic seconds)."""

    call: ReadCall
    completion: Completion[ReadBatch]
    deadline: float


class ParkedWait(NamedTuple):
    """A wait for a record at or after `offset`."""

    offset: int
    wait: Wait


class Window:
    """The newest records of one stream, kept for several readers and bounded by size."""

    def __init__(self, start: int, bytes_max: int) -> None:
        self.start = start
        self.next = start
        self.mark = start
        self.at_end = False  # no record followed `next` in the last chunk
        self.bytes = 0
        self._ahead = 0  # bytes behind `mark`
        self._bytes_max = bytes_max
        self._offsets: list[int] = []
        self._records: list[KafkaRecord] = []

    def covers_offset(self, offset: int) -> bool:
        """Return whether the window holds the records from `offset` on, or will receive them next."""
        return self.start <= offset <= self.next

    def add(self, records: Sequence[KafkaRecord]) -> None:
        """Add ascending records; those at or below the last offset are skipped."""
        for record in records:
            if record.offset < self.next:
                continue
            size = len(record.delivery) + RECORD_BYTES
            self._offsets.append(record.offset)
            self._records.append(record)
            self.bytes += size
            self._ahead += size
            self.next = record.offset + 1
            self.at_end = False
        self._drop_read()

    def set_end(self, offset: int) -> None:
        """Note that the partition ended at `offset` when it was read."""
        self.next = max(self.next, offset)
        self.at_end = True

    @property
    def is_full(self) -> bool:
        """Whether fetching should be paused, because enough unread records are buffered."""
        return self._ahead >= self._bytes_max

    @property
    def is_half_empty(self) -> bool:
        """Whether fetching may resume."""
        return self._ahead * 2 <= self._bytes_max

    def has_record_from(self, offset: int) -> bool:
        """Return whether the window holds a record at or after `offset`."""
        return bool(self._offsets) and self._offsets[-1] >= offset

    def take_records(self, call: ReadCall) -> tuple[list[KafkaRecord], int]:
        """Return the records that `call` requests, and the offset at which to continue."""
        at = bisect_left(self._offsets, call.offset)
        end, tags = len(self._offsets), call.tags
        records: list[KafkaRecord] = []
        size = passed = 0
        while at < end and len(records) < call.count_max and passed < PASSED_MAX:
            record = self._records[at]
            if tags is not None and record.tag_hash not in tags:
                passed += 1
            else:
                size += len(record.delivery)
                if records and size > call.bytes_max:
                    break
                records.append(record)
            at += 1
        following = self.next if at == end else self._offsets[at - 1] + 1
        self.mark_read(following)
        return records, following

    def mark_read(self, offset: int) -> None:
        """Mark records before `offset` as read by some caller: they are dropped when space is needed."""
        if offset > self.mark:
            first, last = bisect_left(self._offsets, self.mark), bisect_left(self._offsets, offset)
            self._ahead -= sum(len(one.delivery) + RECORD_BYTES for one in self._records[first:last])
            self.mark = offset
            self._drop_read()

    def _drop_read(self) -> None:
        """Drop the oldest records that some caller has read, while the window is too large."""
        count = 0
        while (
            self.bytes > self._bytes_max and count < len(self._offsets) and self._offsets[count] < self.mark
        ):
            self.bytes -= len(self._records[count].delivery) + RECORD_BYTES
            count += 1
        if count:
            self.start = self._offsets[count - 1] + 1
            del self._offsets[:count], self._records[:count]


class Stream:
    """A continuous read of one partition by one reader thread.

    `serial`: its number among all streams. `move`: while the stream moves to another reader thread, that
    reader and the new serial; records come from both. `last_chunk_at`: when records or an end came last.
    """

    def __init__(self, kafka_queue: KafkaQueue, serial: int, reader: int, start: int, bytes_max: int) -> None:
        self.kafka_queue = kafka_queue
        self.serial = serial
        self.reader = reader
        self.window = Window(start, bytes_max)
        self.pending_reads: list[PendingRead] = []
        self.parked_waits: list[ParkedWait] = []
        self.paused = False
        self.move: tuple[int, int] | None = None
        self.used_at = 0.0
        self.high = 0  # after the partition's last record, open transactions included, when last stated
        self.last_chunk_at = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether the stream is at the end of its partition and no read is pending."""
        return self.window.at_end and not self.pending_reads and not self.paused

    def why_unanswered(self, seconds: float) -> str:
        """Return why a read was not answered for so long."""
        queue, end = self.kafka_queue.queue, self.window.next
        if self.window.at_end and self.high > end:
            return (
                f"{queue}: a transaction has been open for {seconds:g} s or longer; until it ends, no record "
                f"from offset {end} on can be read, and {self.high - end} are there "
                "(`kafka-transactions.sh find-hanging` names its producer)"
            )
        return f"no broker has answered a read of {queue} in {seconds:g} s"

    @property
    def is_idle(self) -> bool:
        """Whether no read and no wait is pending."""
        return not self.pending_reads and not any(
            not one.wait.done and not one.wait.cancelled for one in self.parked_waits
        )

    def answer_read(self, call: ReadCall, next_offset: int) -> KafkaBatch | None:
        """Return the answer to a read, or None while it is unknown.

        `next_offset`: the records below it exist, so the read waits for them.
        """
        window = self.window
        if window.has_record_from(call.offset):
            records, following = window.take_records(call)
            passed = call.tags is not None and following - call.offset >= SEARCH_MAX
            if records or following < window.next or passed:
                return KafkaBatch(call.queue, ReadStatus.DATA, records, following)
        if self._is_at_end(next_offset):
            return KafkaBatch(call.queue, ReadStatus.NONE, (), max(window.next, call.offset))
        window.mark_read(call.offset)  # else a full window would wait for a reader of the earlier records
        return None

    def _is_at_end(self, next_offset: int) -> bool:
        return self.window.at_end and self.window.next >= next_offset

    def take_answerable(self, next_offset: int) -> list[tuple[PendingRead, KafkaBatch]]:
        """Remove and return the pending reads that can be answered now, with their answers."""
        answerable, pending = [], []
        for one in self.pending_reads:
            batch = self.answer_read(one.call, next_offset)
            if batch is None:
                pending.append(one)
            else:
                answerable.append((one, batch))
        self.pending_reads = pending
        return answerable

    def take_arrived(self) -> list[Wait]:
        """Remove and return the waits whose records have arrived; drop cancelled ones."""
        waits = [one.wait for one in self.parked_waits if self.window.has_record_from(one.offset)]
        self.parked_waits = [
            one
            for one in self.parked_waits
            if not one.wait.done and not one.wait.cancelled and not self.window.has_record_from(one.offset)
        ]
        return [wait for wait in waits if not wait.done and not wait.cancelled]
