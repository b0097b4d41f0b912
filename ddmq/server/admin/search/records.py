"""A bounded walk over the stored records of several queues, which another request can continue.

A request examines at most SCANNED_MAX records and works for SEARCH_S. The ranges have a rank, which is the
same in every request, so a cursor names the rank and the offset from which the next request continues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from backend.port import Backend
from backend.records import QueueRef, ReadStatus, StoredRecord
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.pace import paced
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DamagedError

SCANNED_MAX = 10_000
SEARCH_S = 3.0
BATCH, BATCH_BYTES = 256, 1 << 20
_NUMBERS = 3


class ScanPosition(NamedTuple):
    """The position from which a walk continues: the kind and number of a queue, and an offset in it."""

    kind: int
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.queue_id}.{self.offset}"


class ScannedRange(NamedTuple):
    """Offsets `[start, end)` of a queue, without those in `finished` (ascending ranges)."""

    kind: int
    queue: QueueRef
    start: int
    end: int
    finished: Sequence[tuple[int, int]] = ()

    @property
    def rank(self) -> tuple[int, int]:
        return self.kind, self.queue.queue_id

    def contains(self, offset: int) -> bool:
        """Return whether an offset from `start` on belongs to the range."""
        index = bisect_right(self.finished, offset, key=itemgetter(0))
        return offset < self.end and not (index and offset < self.finished[index - 1][1])


def read_cursor(text: str | None) -> ScanPosition | None:
    """Parse `after` of a request. Raises CallerError."""
    if text is None:
        return None
    numbers = text.split(".")
    if len(numbers) != _NUMBERS or not all(
        each.isdecimal() and each.isascii() and len(each) <= 18 for each in numbers
    ):
        raise CallerError(f"after is {text[:120]!r}; allowed: the `next` of an earlier answer")
    return ScanPosition(*map(int, numbers))


class RecordScan:
    """One walk over ranges in the order of their ranks. `scanned`: the number of examined records. `next`:
    where another walk continues; None: this one reached the end."""

    def __init__(
        self, backend: Backend, clock: Clock, ranges: Sequence[ScannedRange], after: ScanPosition | None
    ) -> None:
        self.scanned = 0
        self.next: ScanPosition | None = None
        self._backend = backend
        self._clock = clock
        self._stop_at = clock.monotonic() + SEARCH_S
        self._full = False
        self._ranges = sorted(ranges, key=lambda each: each.rank)
        if after is not None:
            rank = after.kind, after.queue_id
            self._ranges = [each for each in self._ranges if each.rank >= rank]
            if self._ranges and self._ranges[0].rank == rank:
                first = self._ranges[0]
                self._ranges[0] = first._replace(start=max(first.start, after.offset))

    def stop(self) -> None:
        """End the walk after the record that `walk_records` has yielded last."""
        self._full = True

    def walk_records(self) -> Iterator[StoredRecord]:
        """Yield the records of the ranges until the limits or `stop` end the walk."""
        for each in self._ranges:
            at = each.start
            while at < each.end:
                if self._must_end():
                    self.next = ScanPosition(each.kind, each.queue.queue_id, at)
                    return
                records, following = self._read_batch(each, at)
                for record in paced(records):
                    self.scanned += 1
                    yield record
                    if self._full:
                        following = record.offset + 1
                        break
                at = following

    def _must_end(self) -> bool:
        is_late = self._clock.monotonic() >= self._stop_at
        return self._full or is_late or self.scanned >= SCANNED_MAX

    def _read_batch(self, each: ScannedRange, at: int) -> tuple[list[StoredRecord], int]:
        """Return the next records of a range, and the offset after them."""
        count = min(BATCH, each.end - at)
        batch = self._backend.read(each.queue, at, count, BATCH_BYTES).wait(WAIT_S)
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            return [], max(at + 1, min(batch.bounds.min, each.end))
        if batch.status is not ReadStatus.DATA:
            return [], each.end
        records = []
        for index, offset in enumerate(batch.offsets):
            if each.contains(offset):
                try:
                    records.append(batch.record(index))
                except DamagedError:
                    continue
        return records, max(batch.next_offset, at + 1)
