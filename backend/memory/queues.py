"""One queue of the memory engine, and what a read of it gives. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from backend.records import PASSED_MAX, Bounds, NewRecord, ReadBatch, ReadStatus, StoredRecord, tag_hash

NO_SYSTEM: Mapping[str, str] = {}


class Entry:
    """One stored record and the hash of its tags."""

    __slots__ = ("key", "record", "tag_hash")

    def __init__(self, record: StoredRecord, new: NewRecord) -> None:
        self.record = record
        self.key = new.key
        self.tag_hash = tag_hash(new.tags)


class MemoryBatch(ReadBatch):
    """Columns over entries."""

    __slots__ = ("_entries",)

    def __init__(
        self, status: ReadStatus, entries: list[Entry], next_offset: int, bounds: Bounds | None = None
    ) -> None:
        self._entries = entries
        self.status = status
        self.next_offset = next_offset
        self.bounds = bounds
        self.offsets = [entry.record.offset for entry in entries]
        self.positions = [entry.record.position for entry in entries]
        self.flags = [entry.record.flags for entry in entries]
        self.tag_hashes = [entry.tag_hash for entry in entries]
        self.deliveries = [entry.record.delivery for entry in entries]

    def record(self, index: int) -> StoredRecord:
        return self._entries[index].record


class MemoryQueue:
    """Records by offset from `min` on; a lost one leaves a gap."""

    __slots__ = ("_entries", "min")

    def __init__(self) -> None:
        self._entries: list[Entry | None] = []
        self.min = 0

    @property
    def next(self) -> int:
        """Where the next append lands."""
        return self.min + len(self._entries)

    def bounds(self) -> Bounds:
        """Oldest readable offset and next offset."""
        return Bounds(self.min, self.next)

    def append(self, new: NewRecord, position: int, stored_ms: int) -> int:
        """Store one record; gives its offset."""
        offset = self.next
        record = StoredRecord(
            new.topic,
            new.queue_id,
            offset,
            position,
            new.message_id,
            new.born_ms,
            stored_ms,
            new.flags,
            new.due_ms if new.due_ms >= 0 else stored_ms - new.due_ms,
            new.delivery,
            dict(new.system) if new.system else NO_SYSTEM,
        )
        self._entries.append(Entry(record, new))
        return offset

    def read(
        self, offset: int, count_max: int, bytes_max: int, tags: frozenset[int] | None = None
    ) -> MemoryBatch:
        """As Backend.read, for a queue that is there."""
        if not self.min <= offset <= self.next:
            return MemoryBatch(ReadStatus.OUT_OF_RANGE, [], offset, self.bounds())
        found: list[Entry] = []
        size = 0
        end = self.next if tags is None else min(self.next, offset + PASSED_MAX)
        while offset < end and len(found) < count_max:
            entry = self._entries[offset - self.min]
            if entry is not None and (tags is None or entry.tag_hash in tags):
                size += len(entry.record.delivery)
                if found and size > bytes_max:
                    break
                found.append(entry)
            offset += 1
        return MemoryBatch(ReadStatus.DATA if found or offset < self.next else ReadStatus.NONE, found, offset)

    def offset_for_time(self, wall_ms: int) -> int:
        """The first offset stored at or after `wall_ms`, or the next offset."""
        kept = [entry.record for entry in self._entries if entry is not None]
        index = bisect_left(kept, wall_ms, key=lambda record: record.stored_ms)
        return kept[index].offset if index < len(kept) else self.next

    def entries(self) -> list[Entry]:
        """All that can be read, ascending."""
        return [entry for entry in self._entries if entry is not None]

    def expire(self, offset: int) -> int:
        """Remove what is below `offset`, as retention does; gives the delivery bytes freed."""
        count = max(0, min(offset, self.next) - self.min)
        freed = sum(len(entry.record.delivery) for entry in self._entries[:count] if entry is not None)
        del self._entries[:count]
        self.min += count
        return freed

    def lose(self, offset: int) -> None:
        """Make one record unreadable, as damage does: its offset becomes a gap."""
        self._entries[offset - self.min] = None
