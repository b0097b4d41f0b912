"""What was read of a queue, and who waits for more of it. Pure.

A stream is one reader's way through one partition: it was begun at an offset, gets records in order, and is
told where the partition ended when it came there. The newest of them are kept in a window, so that several
groups at nearly the same place, and one that reads again, share what was fetched.

    start ──────────── mark ───────────── next          mark: up to here somebody has taken
      │ taken: may go     │ read ahead       │
      └───────── the window, bytes_max ──────┘

* Whoever asks for an offset in [start, next] is served here; others need a stream of their own.
* Offsets have gaps (compaction, markers of transactions): the next one is never found by counting.
* That there is nothing yet is known at the end alone, and only where no later record is known to be there:
  one that this process has appended itself is waited for.
* A full window is paused, and goes on when half of what is ahead has been taken.
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


class KafkaPlace(NamedTuple):
    """A queue, and where Kafka has it."""

    queue: QueueRef
    kafka_name: str
    topic_id: bytes


class KafkaBatch(ReadBatch):
    """Records in columns."""

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
        """The record in full."""
        return self._records[index].stored(self._queue.topic, self._queue.queue_id)

    def carried(self, name: str) -> list[ShortRecord]:
        """All of them in short."""
        return [record.short(name) for record in self._records]

    def stored_ms(self, index: int) -> int:
        """Kafka's time stamp."""
        return self._records[index].stored_ms


class Asked(NamedTuple):
    """A read that waits for data. `deadline`: monotonic seconds, when it is given up."""

    call: ReadCall
    completion: Completion[ReadBatch]
    deadline: float


class Parked(NamedTuple):
    """Somebody waits for a record at or past `offset`."""

    offset: int
    wait: Wait


class Window:
    """The newest records of one stream."""

    def __init__(self, start: int, bytes_max: int) -> None:
        self.start = start
        self.next = start
        self.mark = start
        self.at_end = False  # nothing lay behind `next` when last heard
        self.bytes = 0
        self._ahead = 0  # bytes behind `mark`
        self._bytes_max = bytes_max
        self._offsets: list[int] = []
        self._records: list[KafkaRecord] = []

    def covers(self, offset: int) -> bool:
        """Whether what lies from `offset` on is, or comes, here."""
        return self.start <= offset <= self.next

    def add(self, records: Sequence[KafkaRecord]) -> None:
        """Records that came, ascending; none twice."""
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
        self._drop_taken()

    def ended(self, offset: int) -> None:
        """The partition ends here for now."""
        self.next = max(self.next, offset)
        self.at_end = True

    @property
    def full(self) -> bool:
        """Whether nothing more should be fetched."""
        return self._ahead >= self._bytes_max

    @property
    def roomy(self) -> bool:
        """Whether fetching may go on."""
        return self._ahead * 2 <= self._bytes_max

    def has(self, offset: int) -> bool:
        """Whether a record at or past `offset` is here."""
        return bool(self._offsets) and self._offsets[-1] >= offset

    def take(self, call: ReadCall) -> tuple[list[KafkaRecord], int]:
        """The records that the call asks for, and where to go on; none where none is wanted so far."""
        at = bisect_left(self._offsets, call.offset)
        end, tags = len(self._offsets), call.tags
        taken: list[KafkaRecord] = []
        size = passed = 0
        while at < end and len(taken) < call.count_max and passed < PASSED_MAX:
            record = self._records[at]
            if tags is not None and record.tag_hash not in tags:
                passed += 1
            else:
                size += len(record.delivery)
                if taken and size > call.bytes_max:
                    break
                taken.append(record)
            at += 1
        following = self.next if at == end else self._offsets[at - 1] + 1
        self.taken(following)
        return taken, following

    def taken(self, offset: int) -> None:
        """Somebody goes on from here: what lies before may go when there is no room."""
        if offset > self.mark:
            first, last = bisect_left(self._offsets, self.mark), bisect_left(self._offsets, offset)
            self._ahead -= sum(len(one.delivery) + RECORD_BYTES for one in self._records[first:last])
            self.mark = offset
            self._drop_taken()

    def _drop_taken(self) -> None:
        """Let go of the oldest that somebody has taken, while there is too much."""
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
    """One reader's way through one partition. `serial`: which of those that its reader ever had."""

    def __init__(self, place: KafkaPlace, serial: int, reader: int, start: int, bytes_max: int) -> None:
        self.place = place
        self.serial = serial
        self.reader = reader
        self.window = Window(start, bytes_max)
        self.asked: list[Asked] = []
        self.parked: list[Parked] = []
        self.paused = False
        self.used_at = 0.0

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything here."""
        return not self.asked and not any(not one.wait.done and not one.wait.cancelled for one in self.parked)

    def answer(self, call: ReadCall, known_next: int) -> KafkaBatch | None:
        """What the call gets now; None while that is not known. `known_next`: there are records up to it."""
        window = self.window
        if window.has(call.offset):
            records, following = window.take(call)
            passed = call.tags is not None and following - call.offset >= SEARCH_MAX
            if records or following < window.next or passed:
                return KafkaBatch(call.queue, ReadStatus.DATA, records, following)
        if self._ends(known_next):
            return KafkaBatch(call.queue, ReadStatus.NONE, (), max(window.next, call.offset))
        window.taken(call.offset)  # else a full window would wait for somebody who takes what lies before
        return None

    def _ends(self, known_next: int) -> bool:
        return self.window.at_end and self.window.next >= known_next

    def answerable(self, known_next: int) -> list[tuple[Asked, KafkaBatch]]:
        """Take out the reads that can be answered by now."""
        found, kept = [], []
        for one in self.asked:
            batch = self.answer(one.call, known_next)
            if batch is None:
                kept.append(one)
            else:
                found.append((one, batch))
        self.asked = kept
        return found

    def arrived(self) -> list[Wait]:
        """Take out who waits for what is here by now; forget the cancelled."""
        found = [one.wait for one in self.parked if self.window.has(one.offset)]
        self.parked = [
            one
            for one in self.parked
            if not one.wait.done and not one.wait.cancelled and not self.window.has(one.offset)
        ]
        return [wait for wait in found if not wait.done and not wait.cancelled]
