"""The complete state of the memory engine and every change to it. Pure: no clock, no hub, no completion.

A change takes effect at once and completely, or raises one of ddmq_common.errors and changes nothing. Other
engines are compared with this model, so it is as simple as possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backend.engine import check_absent, check_change, check_limits, check_settings, check_topics_max
from backend.idempotency import StoredSends, add_topic_name
from backend.port import FindCall, ReadCall, Wait
from backend.progress.group_progress import ProgressTable
from backend.records import (
    PASSED_MAX,
    AppendResult,
    AppendStatus,
    Bounds,
    CommitBatch,
    Durability,
    NewRecord,
    QueueRef,
    ReadBatch,
    ReadStatus,
    StoredRecord,
    TopicInfo,
    tag_hash,
)
from ddmq_common.errors import BoundReachedError, CallerError, DdmqError, UnknownTopicError
from ddmq_common.send_identity import IDENTITY

NO_SYSTEM: Mapping[str, str] = {}


class Entry:
    """One stored record with the hash of its tags."""

    __slots__ = ("key", "record", "tag_hash")

    def __init__(self, record: StoredRecord, new: NewRecord) -> None:
        self.record = record
        self.key = new.key
        self.tag_hash = tag_hash(new.tags)


class MemoryBatch(ReadBatch):
    """The columns of a list of entries."""

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
    """The readable records of one queue, from offset `min` on; a lost record leaves a gap."""

    __slots__ = ("_entries", "min", "waiting")

    def __init__(self) -> None:
        self._entries: list[Entry | None] = []
        self.min = 0
        self.waiting: list[tuple[int, Wait]] = []  # offset, wait

    @property
    def visible(self) -> int:
        """The offset of the next append, below which readers see the records."""
        return self.min + len(self._entries)

    def bounds(self) -> Bounds:
        """Return the oldest readable offset and the next offset."""
        return Bounds(self.min, self.visible)

    def append(self, new: NewRecord, position: int, stored_ms: int) -> int:
        """Store one record; return its offset."""
        offset = self.visible
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

    def read(self, call: ReadCall) -> MemoryBatch:
        """Read records of an existing queue; see Backend.read."""
        _, offset, count_max, bytes_max, tags, _ = call
        if not self.min <= offset <= self.visible:
            return MemoryBatch(ReadStatus.OUT_OF_RANGE, [], offset, self.bounds())
        entries: list[Entry] = []
        size = 0
        end = self.visible if tags is None else min(self.visible, offset + PASSED_MAX)
        while offset < end and len(entries) < count_max:
            entry = self._entries[offset - self.min]
            if entry is not None and (tags is None or entry.tag_hash in tags):
                size += len(entry.record.delivery)
                if entries and size > bytes_max:
                    break
                entries.append(entry)
            offset += 1
        at_end = offset == self.visible
        batch = MemoryBatch(ReadStatus.NONE if at_end and not entries else ReadStatus.DATA, entries, offset)
        batch.at_end = at_end
        return batch

    def offset_for_time(self, wall_ms: int) -> int:
        """Return the first offset stored at or after `wall_ms`, or the next offset."""
        records = [entry.record for entry in self._entries if entry is not None]
        index = bisect_left(records, wall_ms, key=lambda record: record.stored_ms)
        return records[index].offset if index < len(records) else self.visible

    def entries(self) -> list[Entry]:
        """Return all readable entries, ascending."""
        return [entry for entry in self._entries if entry is not None]

    def expire_below(self, offset: int) -> int:
        """Remove the records below `offset`, as retention does; return the delivery bytes freed."""
        count = max(0, min(offset, self.visible) - self.min)
        freed = sum(len(entry.record.delivery) for entry in self._entries[:count] if entry is not None)
        del self._entries[:count]
        self.min += count
        return freed

    def lose_record(self, offset: int) -> None:
        """Make one record unreadable, like damage: its offset becomes a gap."""
        self._entries[offset - self.min] = None


class Topic:
    """One existing topic and its queues."""

    __slots__ = ("info", "queues")

    def __init__(self, info: TopicInfo) -> None:
        self.info = info
        self.queues = [MemoryQueue() for _ in range(info.queues)]


class MemoryStore:
    """Topics, records, settings and progress, bounded by `bytes_max` of delivery bytes."""

    def __init__(self, bytes_max: int, entries_max: int, delivery_bytes_max: int) -> None:
        self.topics: dict[str, Topic] = {}
        self.settings: dict[str, bytes] = {}
        self.progress = ProgressTable()
        self.sends = StoredSends()
        self.last_ms = 0
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._delivery_bytes_max = delivery_bytes_max
        self._bytes = 0
        self._position = 0
        self._incarnation = 0

    # --- topics

    def put_topic(self, info: TopicInfo, topics_max: int | None = None) -> TopicInfo:
        """Create or change a topic whose `info` was checked.

        Raises CallerError, UnknownTopicError, BoundReachedError.
        """
        topic = self.topics.get(info.name)
        if info.incarnation == 0:
            return self._create_topic(info, topics_max) if topic is None else topic.info
        check_change(info, None if topic is None else topic.info)
        assert topic is not None
        topic.queues += [MemoryQueue() for _ in range(info.queues - topic.info.queues)]
        topic.info = info
        return info

    def _create_topic(self, info: TopicInfo, topics_max: int | None) -> TopicInfo:
        check_topics_max(len(self.topics), self._entries_max)
        check_topics_max(len(self.topics), topics_max)
        self._incarnation += 1
        created = replace(info, incarnation=self._incarnation)
        self.topics[info.name] = Topic(created)
        return created

    def delete_topic(self, name: str) -> list[MemoryQueue]:
        """Delete a topic; return its queues. Raises UnknownTopicError."""
        topic = self.topics.pop(name, None)
        if topic is None:
            raise UnknownTopicError(f"topic {name} does not exist")
        self._bytes -= sum(queue.expire_below(queue.visible) for queue in topic.queues)
        self.progress.drop_queues(name, topic.info.incarnation)
        return topic.queues

    def queues_of(self, name: str) -> list[QueueRef]:
        """Return the queues of a topic; none if the topic does not exist."""
        topic = self.topics.get(name)
        return [] if topic is None else topic.info.refs()

    def queue(self, ref: QueueRef) -> MemoryQueue | None:
        """Return a queue, or None if it, its topic or its incarnation does not exist."""
        topic = self.topics.get(ref.topic)
        if topic is None or topic.info.incarnation != ref.incarnation or ref.queue_id >= len(topic.queues):
            return None
        return topic.queues[ref.queue_id]

    # --- writing

    def append(self, records: Sequence[NewRecord], wall_ms: int, now_s: float) -> list[AppendResult]:
        """Store or refuse each record by itself; return their results. `now_s`: monotonic."""
        results = []
        sends_ms = self.sends.stamp(wall_ms, now_s)
        for record in records:
            error = self._find_write_error(record, 0)
            if error is None:
                try:
                    results.append(self._store_once(record, wall_ms, sends_ms))
                    continue
                except DdmqError as rejection:
                    error = add_topic_name(record.topic, rejection)
            results.append(AppendResult(AppendStatus.REFUSED, -1, Durability.WRITTEN, error))
        return results

    def _store_once(self, record: NewRecord, wall_ms: int, sends_ms: int) -> AppendResult:
        """Store a record, unless its identity was stored before.

        Raises what StoredSends.find_first raises.
        """
        identity = record.system.get(IDENTITY) if record.system else None
        if identity is not None:
            info = self.topics[record.topic].info
            first = self.sends.find_first(identity, info.incarnation, sends_ms)
            if first is not None:
                return AppendResult(AppendStatus.STORED, first.offset, info.durability, None, first)
        return self._store_record(record, wall_ms)

    def commit(self, batch: CommitBatch, wall_ms: int, now_s: float) -> list[AppendResult]:
        """Commit all of `batch` or nothing. Raises the errors of Backend.commit."""
        self.sends.stamp(wall_ms, now_s)
        for delta in batch.progress:
            if self.queue(delta.queue) is None:
                raise UnknownTopicError(f"queue {delta.queue} of a progress delta does not exist (any more)")
        self.progress.check(batch.progress, entries_max=self._entries_max)
        size = 0
        for record in batch.records:
            error = self._find_write_error(record, size)
            if error is not None:
                raise error
            size += len(record.delivery)
        is_there = self.settings.__contains__
        check_settings(batch.settings, is_there, len(self.settings), self._entries_max)
        check_limits(batch.limits, batch.settings, is_there, self._count_settings)
        check_absent(self.settings, batch.absent)
        for delta in batch.progress:
            self.progress.apply(delta)
        self._put_settings(batch.settings)
        return [self._store_record(record, wall_ms) for record in batch.records]

    def _count_settings(self, folder: str) -> int:
        return sum(key.startswith(folder) for key in self.settings)

    def _find_write_error(self, record: NewRecord, size_before: int) -> Exception | None:
        topic = self.topics.get(record.topic)
        if topic is None:
            return UnknownTopicError(f"topic {record.topic} does not exist")
        if not 0 <= record.queue_id < len(topic.queues):
            return UnknownTopicError(
                f"topic {record.topic} has no queue {record.queue_id}; it has 0 to {len(topic.queues) - 1}"
            )
        if not topic.info.writable:
            return CallerError(f"topic {record.topic} is not writable")
        size = len(record.delivery)
        if size > self._delivery_bytes_max:
            return CallerError(f"record of {size} bytes; allowed: at most {self._delivery_bytes_max}")
        if self._bytes + size_before + size > self._bytes_max:
            return BoundReachedError(
                f"the memory engine holds {self._bytes} bytes; the bound is {self._bytes_max}"
            )
        return None

    def _store_record(self, record: NewRecord, wall_ms: int) -> AppendResult:
        topic = self.topics[record.topic]
        self.last_ms = max(self.last_ms, wall_ms)
        self._position += 1
        self._bytes += len(record.delivery)
        offset = topic.queues[record.queue_id].append(record, self._position, self.last_ms)
        identity = record.system.get(IDENTITY) if record.system else None
        if identity is not None:
            location = record.message_id, offset, record.queue_id, topic.info.incarnation
            self.sends.restore(identity, *location, self.last_ms)
        return AppendResult(AppendStatus.STORED, offset, topic.info.durability, None)

    def _put_settings(self, settings: Mapping[str, bytes | None]) -> None:
        for key, value in settings.items():
            if value is None:
                self.settings.pop(key, None)
            else:
                self.settings[key] = value

    # --- reading

    def read(self, call: ReadCall) -> MemoryBatch:
        """Read records; see Backend.read. Raises CallerError if the topic is not readable."""
        queue = self.queue(call.queue)
        if queue is None:
            return MemoryBatch(ReadStatus.UNKNOWN_QUEUE, [], call.offset)
        if not self.topics[call.queue.topic].info.readable:
            raise CallerError(f"topic {call.queue.topic} is not readable")
        return queue.read(call)

    def bounds(self, queues: Sequence[QueueRef]) -> list[Bounds | None]:
        """Return the bounds of queues; None for a deleted queue."""
        existing = [self.queue(ref) for ref in queues]
        return [None if queue is None else queue.bounds() for queue in existing]

    def offset_for_time(self, ref: QueueRef, wall_ms: int) -> int:
        """Return the first offset stored at or after a time; see Backend.offset_for_time.

        Raises UnknownTopicError.
        """
        queue = self.queue(ref)
        if queue is None:
            raise UnknownTopicError(f"queue {ref} does not exist (any more)")
        return queue.offset_for_time(wall_ms)

    def find(self, call: FindCall) -> list[StoredRecord]:
        """Find records by key or message id, newest first. Raises UnknownTopicError."""
        topic, key, message_id, count_max = call
        state = self.topics.get(topic)
        if state is None:
            raise UnknownTopicError(f"topic {topic} does not exist")

        def matches(entry: Entry) -> bool:
            return entry.key == key if key is not None else entry.record.message_id == message_id

        hits = [entry.record for queue in state.queues for entry in queue.entries() if matches(entry)]
        hits.sort(key=lambda record: record.position, reverse=True)
        return hits[:count_max]

    def expire_below(self, ref: QueueRef, offset: int) -> None:
        """Remove the records of a queue below `offset`, as retention does. Raises UnknownTopicError."""
        queue = self.queue(ref)
        if queue is None:
            raise UnknownTopicError(f"queue {ref} does not exist (any more)")
        self._bytes -= queue.expire_below(offset)
