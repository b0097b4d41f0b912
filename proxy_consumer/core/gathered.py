"""Messages of several reads as one batch, for an answer made of redeliveries or of heads of chains."""

from __future__ import annotations

from collections.abc import Sequence

from backend.records import ReadBatch, ReadStatus, StoredRecord
from proxy_consumer.core.queue_feed import Slice


class Gathered(ReadBatch):
    """Columns picked out of other batches; only what a delivery needs."""

    __slots__ = ("_parts",)

    def __init__(self, offsets: Sequence[int], parts: Sequence[tuple[ReadBatch, int]]) -> None:
        self._parts = parts
        self.status = ReadStatus.DATA
        self.offsets = offsets
        self.deliveries = [batch.deliveries[index] for batch, index in parts]
        self.positions = self.flags = self.tag_hashes = ()
        self.next_offset = offsets[-1] + 1 if offsets else 0
        self.bounds = None

    def record(self, index: int) -> StoredRecord:
        batch, at = self._parts[index]
        return batch.record(at)

    def stored_ms(self, index: int) -> int:
        batch, at = self._parts[index]
        return batch.stored_ms(at)


def gather(offsets: Sequence[int], parts: Sequence[tuple[ReadBatch, int]]) -> Slice:
    """A slice of `parts`, ascending by offset; no copy when all are of one batch."""
    first = parts[0][0]
    if all(batch is first for batch, _ in parts):
        indexes = [index for _, index in parts]
        return Slice(first, offsets, [first.deliveries[index] for index in indexes], indexes)
    batch = Gathered(offsets, parts)
    return Slice(batch, offsets, batch.deliveries, range(len(offsets)))
