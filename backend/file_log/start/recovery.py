"""Opening the log: what counts, what is damaged, what is cut; and the views brought up to it.

Order: the newest sound checkpoint; from its position on the log is walked twice, first for the highest
proven durable position and the first frame above it that is not whole (everything from there is the torn
tail, cut and synced before anything else), then to apply what stands before. Entries of consume queues
below the checkpoint are taken as they are, unless files are missing: then they are added from the log.
Everything here blocks and runs before the log answers anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from backend.file_log.consume_queue import QueueFiles
from backend.file_log.core import names
from backend.file_log.core.frame import Frame
from backend.file_log.core.record import (
    ENTRY_BYTES,
    FLAG_DELETED,
    GAP_ENTRY,
    Kind,
    Record,
    entry_is_sound,
    pack_entry,
)
from backend.file_log.core.scan import Bad, frames, is_whole, walk
from backend.file_log.damage import Damage
from backend.file_log.options import FileLogOptions
from backend.file_log.segments import Segment, SegmentSet
from backend.file_log.start.checkpoint import Checkpoint, load_checkpoint
from backend.file_log.state import LogState, QueueState, decode_topic
from backend.file_log.storage import Storage
from backend.progress.codec import decode_delta
from backend.records import QueueRef, TopicInfo
from ddmq_common.errors import DamagedError, StorageError
from ddmq_common.names import QUEUES_DEFAULT

log = logging.getLogger(__name__)
FLUSH_BYTES = 1 << 20
TAIL_KEPT_MAX = 16 << 20  # of a torn tail, copied aside
ENTRY_POSITION = 8  # bytes of an entry that hold the position


class Recovered(NamedTuple):
    """What opening found. Positions are log positions."""

    state: LogState
    end: int  # everything below counts and is durable
    checkpoint: int  # the log was read from here
    torn_bytes: int
    damaged_pieces: int
    rebuilt_queues: int


class Recovery:
    """One opening of one directory."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        segments: SegmentSet,
        files: QueueFiles,
        damage: Damage,
        options: FileLogOptions,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._segments = segments
        self._files = files
        self._damage = damage
        self._options = options
        self._state = LogState()
        self._unflushed = 0
        self._torn = 0
        self._bad: list[Bad] = []
        self._headless = False  # the log's beginning was deleted, and what it said is in no checkpoint
        self._known = 0  # incarnations up to this one were given before the checkpoint
        self._deleted: set[int] = set()  # incarnations deleted since

    def run(self) -> Recovered:
        """All of it. Raises StorageError when the directory cannot be used."""
        self._prepare_folders()
        checkpoint = self._load_checkpoint()
        self._segments.load()
        if not self._segments.segments:
            start = 0 if checkpoint is None else checkpoint.position
            self._segments.add(self._segments.create(start, self._options.segment_bytes))
        start = self._segments.first_position
        self._headless = checkpoint is None and start > 0
        if self._headless:
            self._report_headless(start)
        if checkpoint is not None:
            self._state = checkpoint.state
            start = max(start, checkpoint.position)
        end = self._cut_tail(start, start if checkpoint is not None else 0)
        self._known = self._state.last_incarnation
        rebuilt = self._rebuild_missing(min(start, end))
        self._apply(start, end)
        self._finish_queues()
        self._segments.date(self._state.last_ms)
        self._state.writer_epoch += 1
        return Recovered(self._state, end, start, self._torn, len(self._bad), rebuilt)

    def _report_headless(self, start: int) -> None:
        text = (
            f"there is no sound checkpoint, and the log begins at {start}: settings, groups and progress from"
            " before are lost; topics are made again with default settings for the messages that are left"
        )
        self._damage.found("checkpoint", start, 0, text)

    def _prepare_folders(self) -> None:
        for folder in (self._directory, self._segments.folder, f"{self._directory}/{names.CONSUME_QUEUE}"):
            self._storage.make_folder(folder)
        self._storage.sync_folder(self._directory)
        for name in self._storage.list(self._segments.folder):
            if name.endswith(names.UNFINISHED):
                self._storage.remove(f"{self._segments.folder}/{name}")

    def _load_checkpoint(self) -> Checkpoint | None:
        checkpoint, faults = load_checkpoint(self._storage, self._directory)
        for fault in faults:
            self._damage.found("checkpoint", len(fault), 0, fault)
        if faults and faults[0].startswith(f"{names.CHECKPOINT}:"):
            self._storage.make_folder(f"{self._directory}/{names.DAMAGED}")
            self._storage.rename(
                f"{self._directory}/{names.CHECKPOINT}",
                f"{self._directory}/{names.DAMAGED}/{names.CHECKPOINT}",
            )
        return checkpoint

    # --- the tail

    def _cut_tail(self, start: int, proven: int) -> int:
        """Find where the log ends, and cut what follows, durably; gives the end."""
        ends = self._data_ends(start)
        for segment, end in ends:
            begin = max(start, segment.start)
            for item in frames(segment.view(end), segment.start, begin, end) if begin < end else ():
                if isinstance(item, Frame):
                    proven = max(proven, item.durable)
        cut = self._first_torn(ends, start, proven)
        self._torn = self._cut_at(cut, ends)
        return cut

    def _data_ends(self, start: int) -> list[tuple[Segment, int]]:
        """Segments from a position on, each with the end of what may be other than zero."""
        found = []
        for segment in self._segments.segments:
            if segment.end > start or segment is self._segments.last:
                inside = max(start - segment.start, 0)
                data_end = segment.start + segment.file.data_end(min(inside, segment.file.size()))
                found.append((segment, min(segment.end, data_end)))
        return found

    def _first_torn(self, ends: list[tuple[Segment, int]], start: int, proven: int) -> int:
        """The first position at or above `proven` where no whole frame starts."""
        at = max(start, proven)
        for segment, end in ends:
            last = segment is self._segments.last
            while segment.start <= at < end:
                view = segment.view(end)
                item = next(frames(view, segment.start, at, end))
                if not isinstance(item, Frame) or not is_whole(view, segment.start, item):
                    return at
                at = item.end
            if segment.start <= at < segment.end and not last:
                return at  # the segment is shorter than it should be, and nothing proves what follows
        return at

    def _cut_at(self, cut: int, ends: list[tuple[Segment, int]]) -> int:
        torn = 0
        while self._segments.last.start > cut and len(self._segments.segments) > 1:
            torn += self._keep_tail(self._segments.last, self._segments.last.start, ends)
            self._remove_last()
        last = self._segments.last
        if cut < last.start:
            raise StorageError(f"the log ends at {cut}, before its first segment {last.path}")
        torn += self._keep_tail(last, cut, ends)
        self._segments.reopen_last(cut, self._options.segment_bytes)
        if torn:
            log.warning("a torn tail of %d bytes was cut at log position %d", torn, cut)
        return torn

    def _keep_tail(self, segment: Segment, start: int, ends: list[tuple[Segment, int]]) -> int:
        """Copy aside what is cut from a segment; gives how many bytes that is, zeros at the end apart."""
        end = {one.start: end for one, end in ends}.get(segment.start, start)
        if end <= start:
            return 0
        data = segment.pread(start, min(end - start, TAIL_KEPT_MAX)).rstrip(b"\0")
        self._damage.copy_tail(segment.start, start, data)
        return len(data)

    def _remove_last(self) -> None:
        segment = self._segments.segments.pop()
        self._segments.starts.pop()
        segment.close()
        self._storage.remove(segment.path)
        self._storage.sync_folder(self._segments.folder)

    # --- applying what counts

    def _apply(self, start: int, end: int) -> None:
        for item in self.items(start, end):
            if isinstance(item, Record):
                self._apply_record(item)
            elif isinstance(item, Frame):
                self._state.batch_id = item.batch_id + 1
                self._state.writer_epoch = max(self._state.writer_epoch, item.writer_epoch)
            else:
                self._bad.append(item)
                self._damage.found_in_log(item.start, item.end - item.start, "no sound header")

    def items(self, start: int, end: int) -> Iterator[Frame | Record | Bad]:
        """What the log holds in `[start, end)`, over all segments."""
        for segment in self._segments.segments:
            low, high = max(start, segment.start), min(end, segment.end)
            if low < high:
                yield from walk(segment.view(high), segment.start, low, high)

    def _apply_record(self, record: Record) -> None:
        state = self._state
        try:
            if record.kind == Kind.MESSAGE:
                self._apply_message(record)
            elif record.kind == Kind.PROGRESS:
                delta = decode_delta(self._delivery(record))
                self._queue(delta.queue)
                state.apply_delta(delta)
            elif record.kind == Kind.SETTING:
                deleted = record.flags & FLAG_DELETED
                state.apply_setting(record.key.decode(), None if deleted else self._delivery(record))
            elif record.kind == Kind.TOPIC and record.flags & FLAG_DELETED:
                self._deleted.add(record.incarnation)
                state.apply_topic_deleted(record.topic, record.incarnation)
            elif record.kind == Kind.TOPIC:
                data = self._delivery(record)
                state.apply_topic(decode_topic(record.topic, record.incarnation, data))
        except DamagedError as error:
            self._bad.append(Bad(record.position, record.end))
            self._damage.found_in_log(record.position, record.size, str(error))

    def _delivery(self, record: Record) -> bytes:
        segment = self._segments.locate(record.position)
        assert segment is not None
        data = segment.pread(record.position + record.meta_bytes, record.size - record.meta_bytes)
        if not record.delivery_is(data):
            raise DamagedError("the content does not match its CRC")
        return data

    def _apply_message(self, record: Record) -> None:
        self._state.last_ms = max(self._state.last_ms, record.stored_ms)
        queue = self._queue(QueueRef(record.topic, record.incarnation, record.queue_id))
        if queue is None or record.offset < queue.assigned:
            return
        if self._headless and not queue.assigned:
            queue.min = queue.flushed = queue.visible = queue.assigned = record.offset
        while queue.assigned < record.offset:
            self._add_entry(queue, self._lost_entry(queue))
        self._add_entry(queue, pack_entry(record))

    def _queue(self, ref: QueueRef) -> QueueState | None:
        """The queue; made up when the record that created it, or made it grow, must have been lost."""
        queue = self._state.queue(ref)
        lossless = not self._bad and not self._headless
        if queue is not None or lossless or ref.incarnation in self._deleted:
            return queue
        topic = self._state.topics.get(ref.topic)
        if topic is not None and topic.info.incarnation == ref.incarnation:
            self._state.apply_topic(replace(topic.info, queues=ref.queue_id + 1))
        elif ref.incarnation > self._known:
            log.error("topic %s was lost to damage; it is made again with default settings", ref.topic)
            queues = max(QUEUES_DEFAULT, ref.queue_id + 1)
            self._state.apply_topic(TopicInfo(ref.topic, ref.incarnation, queues))
        return self._state.queue(ref)

    def _add_entry(self, queue: QueueState, entry: bytes) -> None:
        queue.tail += entry
        queue.assigned += 1
        self._unflushed += ENTRY_BYTES
        if self._unflushed >= FLUSH_BYTES:
            self._flush()

    def _lost_entry(self, queue: QueueState) -> bytes:
        """For an offset whose record is damaged: what the old file says, if it points into the damage."""
        entry = self._files.read(queue.ref, queue.assigned, 1)
        if entry_is_sound(entry):
            position = int.from_bytes(entry[:ENTRY_POSITION], "little")
            if any(bad.start <= position < bad.end for bad in self._bad):
                return entry
        return GAP_ENTRY

    def _flush(self) -> None:
        for queue in self._state.queues():
            if queue.tail:
                self._files.write(queue.ref, queue.flushed, bytes(queue.tail))
                queue.flushed += len(queue.tail) // ENTRY_BYTES
                queue.tail.clear()
        self._unflushed = 0

    def _finish_queues(self) -> None:
        """Offsets lost at the end of a queue stay taken; entries of what was cut go."""
        for queue in self._state.queues():
            if self._bad:
                self._keep_lost(queue)
        self._flush()
        for queue in self._state.queues():
            queue.visible = queue.assigned
            if self._files.end(queue.ref) > queue.assigned:
                self._files.cut(queue.ref, queue.assigned)

    def _keep_lost(self, queue: QueueState) -> None:
        while True:
            entry = self._lost_entry(queue)
            if entry == GAP_ENTRY:
                return
            self._add_entry(queue, entry)

    # --- consume-queue files that are missing

    def _rebuild_missing(self, end: int) -> int:
        """Fill files that are shorter than the checkpoint says, or gone, from the log below it."""
        missing: dict[QueueRef, int] = {}
        for queue in self._state.queues():
            if not self._files.holds(queue.ref, queue.min, queue.flushed):
                missing[queue.ref] = queue.min
        if not missing:
            return 0
        log.warning("consume queues of %d queues are added again from the log", len(missing))
        for item in self.items(self._segments.first_position, end):
            if isinstance(item, Record) and item.kind == Kind.MESSAGE:
                self._refill(missing, item)
        for queue in self._state.queues():
            offset = missing.get(queue.ref, queue.flushed)
            if offset < queue.flushed:
                self._files.write(queue.ref, offset, GAP_ENTRY * (queue.flushed - offset))
        return len(missing)

    def _refill(self, missing: dict[QueueRef, int], record: Record) -> None:
        ref = QueueRef(record.topic, record.incarnation, record.queue_id)
        expected = missing.get(ref)
        if expected is None or record.offset < expected:
            return
        entries = GAP_ENTRY * (record.offset - expected) + pack_entry(record)
        self._files.write(ref, expected, entries)
        missing[ref] = record.offset + 1
