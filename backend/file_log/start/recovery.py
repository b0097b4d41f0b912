"""Recovery: decides what counts when a log is opened, truncates the partial tail, and updates the views.

Order: the format; the newest valid checkpoint; then two passes over the log from the checkpoint's position.
The first pass finds the highest proven durable position and the first incomplete frame above it. From there
on the log is the partial tail, which is truncated and synced before anything else. The second pass applies
the records before it. Data of a newer release is refused before anything is changed. Consume-queue entries
below the checkpoint are used unchanged, unless files are missing; then entries are added from the log.
Everything here blocks and runs before the log answers any call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from backend.file_log.consume_queue import QueueFiles
from backend.file_log.core import names
from backend.file_log.core.layout import (
    ENTRY_BYTES,
    FLAG_DELETED,
    GAP_ENTRY,
    UNSALTED,
    Frame,
    Record,
    RecordKind,
    Salting,
    is_valid_entry,
    pack_entry,
)
from backend.file_log.core.scan import Bad, scan_items
from backend.file_log.damage import LogDamage
from backend.file_log.index.log_index import refuse_newer_index
from backend.file_log.options import FileLogOptions
from backend.file_log.segments import SegmentSet
from backend.file_log.sends import SendFiles, apply_identity, forget_before, load_keys
from backend.file_log.start.checkpoint import load_checkpoint
from backend.file_log.start.format_file import find_format, new_salt, write_format
from backend.file_log.start.tail import Tail
from backend.file_log.state import LogQueue, LogState
from backend.file_log.storage import Storage, is_full
from backend.file_log.topic_row import decode_topic
from backend.progress.codec import decode_delta
from backend.records import QueueRef, TopicInfo
from ddmq_common.errors import DamagedError
from ddmq_common.names import QUEUES_DEFAULT, is_dead_letters

log = logging.getLogger(__name__)
FLUSH_BYTES = 8 << 20  # entries in memory before they are written; the rest is written when the log is open
GAPS_MAX = 1 << 20  # lost offsets at the end of a queue that stay assigned because a group has finished them
ENTRY_POSITION = 8  # the bytes of an entry that hold the position


class Recovered(NamedTuple):
    """The outcome of opening a log; positions in it are log positions."""

    state: LogState
    end: int  # everything below counts and is durable
    checkpoint: int  # the log was read from here
    tail_bytes: int
    damaged_ranges: int
    rebuilt_queues: int


class Recovery:
    """Recovers one directory, once, while it is being opened."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        segments: SegmentSet,
        files: QueueFiles,
        damage: LogDamage,
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
        self._tail_bytes = 0
        self._bad: list[Bad] = []
        self._full = False  # whether the disk is full
        self._headless = False  # the log's beginning was deleted, and no checkpoint has its state
        self._incarnation_before = 0  # incarnations up to this one existed before the checkpoint
        self._deleted: set[int] = set()  # incarnations deleted since the checkpoint
        self._fitting: set[LogQueue] = set()  # queues whose files end at the checkpoint

    def run(self) -> Recovered:
        """Recover the directory. Raises StorageError if it cannot be used."""
        salting, format_defect = find_format(self._storage, self._directory)
        checkpoint, checkpoint_errors = load_checkpoint(self._storage, self._directory)
        refuse_newer_index(self._storage, f"{self._directory}/{names.INDEX}")
        self._segments.salting = salting or UNSALTED
        self._segments.load()
        start = self._segments.first_position
        self._headless = checkpoint is None and start > 0
        if checkpoint is not None:
            self._state = checkpoint.state
            start = max(start, checkpoint.position)
        self._state.sends.set_bounds(self._options.idempotency_window_ms, self._options.idempotency_keys_max)
        tail = Tail(self._storage, self._segments, self._damage, self._options.segment_bytes)
        end = tail.find_end(start, start if checkpoint is not None else 0)
        # nothing is changed before this line: data of a newer release has been refused by now
        self._prepare_folders()
        self._report_views(format_defect, checkpoint_errors)
        if salting is not None:
            if format_defect:
                write_format(self._storage, self._directory, salting)
        elif self._segments.is_empty:
            salting = self._set_salting(start)
        if self._segments.is_empty:
            self._segments.add(self._segments.create(start, self._options.segment_bytes))
        if self._headless:
            self._report_headless(start)
        self._report_holes(start)
        self._tail_bytes = tail.truncate()
        if salting is None:
            self._add_salt(end)
        self._incarnation_before = self._state.last_incarnation
        if checkpoint is not None:
            files, now_ms = SendFiles(self._storage, self._directory), self._state.last_ms
            on_damage, segments = self._damage.report_range, self._segments
            load_keys(
                self._state.sends,
                files,
                checkpoint.slices,
                now_ms,
                on_damage,
                segments,
                self.log_items,
                start,
            )
        rebuilt = self._rebuild_missing(min(start, end))
        if self._headless:
            forget_before(self._state.sends, self.log_items(start, end))
            self._apply_dead_letters(start)
        self._apply(start, end)
        self._keep_finished()
        self._finish_queues()
        self._segments.set_ages(self._state.last_ms)
        self._state.writer_epoch += 1
        return Recovered(self._state, end, start, self._tail_bytes, len(self._bad), rebuilt)

    def _report_headless(self, start: int) -> None:
        text = (
            f"there is no valid checkpoint, and the log begins at {start}: settings, groups and progress from"
            " before are lost; topics are created again with default settings for the remaining messages"
        )
        self._damage.report_range("checkpoint", start, 0, text)

    def _report_holes(self, start: int) -> None:
        """Report missing files below the log position `start`, where the log is not scanned."""
        for hole in self._segments.missing_ranges(start):
            self._report_bad(Bad(*hole), "this part of the log is missing")

    def _report_bad(self, bad: Bad, what: str) -> None:
        self._bad.append(bad)
        self._damage.report_in_log(bad.start, bad.end - bad.start, what)

    def _prepare_folders(self) -> None:
        for folder in (self._directory, self._segments.folder, f"{self._directory}/{names.CONSUME_QUEUE}"):
            self._storage.make_folder(folder)
        self._storage.sync_folder(self._directory)
        for name in self._storage.list(self._segments.folder):
            if names.parse_segment(name.removesuffix(names.UNFINISHED)) is not None and name.endswith(
                names.UNFINISHED
            ):
                self._storage.remove(f"{self._segments.folder}/{name}")

    def _report_views(self, format_defect: str, checkpoint_errors: list[str]) -> None:
        if format_defect:
            self._damage.report_range("format", 0, 0, format_defect)
            self._move_to_damaged(names.FORMAT)
        for error in checkpoint_errors:
            self._damage.report_range("checkpoint", len(error), 0, error)
        if checkpoint_errors and checkpoint_errors[0].startswith(f"{names.CHECKPOINT}:"):
            self._move_to_damaged(names.CHECKPOINT)

    def _move_to_damaged(self, name: str) -> None:
        """Move a damaged file to `damaged/`, if it exists."""
        if name in self._storage.list(self._directory):
            self._storage.make_folder(f"{self._directory}/{names.DAMAGED}")
            self._storage.rename(f"{self._directory}/{name}", f"{self._directory}/{names.DAMAGED}/{name}")

    def _set_salting(self, since: int) -> Salting:
        salting = self._segments.salting = Salting(new_salt(), since)
        write_format(self._storage, self._directory, salting)
        return salting

    def _add_salt(self, end: int) -> None:
        """Convert a directory of format 1, which has no salt, to one with a salt from a new segment on."""
        segments = self._segments
        if end > segments.last.start:
            segments.reopen_last(end, 0)
            salted = segments.create(end, self._options.segment_bytes)
            segments.add(salted)
        segments.last.salt = self._set_salting(segments.last.start).salt

    # --- applying records

    def _apply(self, start: int, end: int) -> None:
        for item in self.log_items(start, end):
            if isinstance(item, Record):
                self._apply_record(item)
            elif isinstance(item, Frame):
                self._state.batch_id = item.batch_id + 1
                self._state.writer_epoch = max(self._state.writer_epoch, item.writer_epoch)
            else:
                self._report_bad(item, "no valid header")

    def _apply_dead_letters(self, end: int) -> None:
        """Apply the dead letters in expired segments, which are kept only for them.

        Other records there may be outdated by deleted ones.
        """
        message = RecordKind.MESSAGE
        for item in self.log_items(self._segments.starts[0], end):
            if isinstance(item, Record) and item.kind == message and is_dead_letters(item.topic):
                self._apply_message(item)

    def log_items(self, start: int, end: int) -> Iterator[Frame | Record | Bad]:
        """Yield the items of the log in `[start, end)` over all segments, with Bad for missing ranges."""
        at = start
        for segment in self._segments.segments:
            low, high = max(start, segment.start), min(end, segment.end)
            if low < high:
                if segment.start <= self._segments.first_position:
                    at = low  # the log between dead-letter segments was deleted
                for first, after in segment.readable_ranges(low, high):
                    if at < first:
                        yield Bad(at, first)
                    yield from scan_items(
                        segment.view(first, after), segment.start, first, after, segment.salt
                    )
                    at = after
        if at < end:
            yield Bad(at, end)

    def _apply_record(self, record: Record) -> None:
        state = self._state
        try:
            if record.kind == RecordKind.MESSAGE:
                self._apply_message(record)
            elif record.kind == RecordKind.PROGRESS:
                delta = decode_delta(self._read_delivery(record))
                self._find_queue(delta.queue)
                state.apply_delta(delta)
            elif record.kind == RecordKind.SETTING:
                deleted = record.flags & FLAG_DELETED
                state.apply_setting(record.key.decode(), None if deleted else self._read_delivery(record))
            elif record.kind == RecordKind.TOPIC and record.flags & FLAG_DELETED:
                self._deleted.add(record.incarnation)
                state.apply_topic_deleted(record.topic, record.incarnation)
            elif record.kind == RecordKind.TOPIC:
                data = self._read_delivery(record)
                state.apply_topic(decode_topic(record.topic, record.incarnation, data))
        except DamagedError as error:
            self._report_bad(Bad(record.position, record.end), str(error))

    def _read_delivery(self, record: Record) -> bytes:
        segment = self._segments.locate(record.position)
        assert segment is not None
        data = segment.salvage(record.position + record.meta_bytes, record.size - record.meta_bytes)
        if not record.delivery_is(data):
            raise DamagedError("the content does not match its CRC")
        return data

    def _apply_message(self, record: Record) -> None:
        self._state.last_ms = max(self._state.last_ms, record.stored_ms)
        queue = self._find_queue(QueueRef(record.topic, record.incarnation, record.queue_id))
        if queue is None or record.offset < queue.assigned:
            return
        if self._headless and not queue.assigned:
            queue.min = queue.flushed = queue.visible = queue.assigned = record.offset
        while queue.assigned < record.offset:
            self._add_entry(queue, self._lost_entry(queue))
        self._add_entry(queue, pack_entry(record))
        apply_identity(record, self._state.sends)

    def _find_queue(self, ref: QueueRef) -> LogQueue | None:
        """Return a queue; create it if the record that created it must have been lost, else return None."""
        queue = self._state.queue(ref)
        lossless = not self._bad and not self._headless
        if queue is not None or lossless or ref.incarnation in self._deleted:
            return queue
        topic = self._state.topics.get(ref.topic)
        if topic is not None and topic.info.incarnation == ref.incarnation:
            self._state.apply_topic(replace(topic.info, queues=ref.queue_id + 1))
        elif ref.incarnation > self._incarnation_before:
            log.error("topic %s was lost to damage; it is created again with default settings", ref.topic)
            queues = max(QUEUES_DEFAULT, ref.queue_id + 1)
            self._state.apply_topic(TopicInfo(ref.topic, ref.incarnation, queues))
        return self._state.queue(ref)

    def _keep_finished(self) -> None:
        """Keep the offsets that groups have finished or tried assigned, even if their records are lost."""
        for (group, ref), progress in self._state.progress if self._bad or self._headless else ():
            queue = self._state.queue(ref)
            if queue is not None:
                self._raise_next(queue, progress.acks.next_unused, group)

    def _raise_next(self, queue: LogQueue, end: int, group: str) -> None:
        """Raise a queue's next offset to `end`, so that no new message gets an offset that `group`
        finished.
        """
        if self._headless and not queue.assigned:
            queue.min = queue.flushed = queue.visible = queue.assigned = end
        missing = end - queue.assigned
        if missing <= 0:
            return
        if missing > GAPS_MAX:
            log.error("group %s finished offset %d of %s far beyond its next offset %d; ignoring it",
                      group, end - 1, queue.ref, queue.assigned)  # fmt: skip
            return
        log.warning("the last %d records of %s are lost; group %s finished their offsets, they stay assigned",
                    missing, queue.ref, group)  # fmt: skip
        while queue.assigned < end:
            self._add_entry(queue, self._lost_entry(queue))

    def _add_entry(self, queue: LogQueue, entry: bytes) -> None:
        queue.tail += entry
        queue.assigned += 1
        self._unflushed += ENTRY_BYTES
        if self._unflushed >= FLUSH_BYTES:
            self._flush()

    def _lost_entry(self, queue: LogQueue) -> bytes:
        """Return the entry for an offset without a valid record: the old one if it points to damage, else a
        gap.
        """
        entry = self._files.read(queue.ref, queue.assigned, 1)
        if is_valid_entry(entry):
            position = int.from_bytes(entry[:ENTRY_POSITION], "little")
            if any(bad.start <= position < bad.end for bad in self._bad):
                return entry
        return GAP_ENTRY

    def _flush(self) -> None:
        """Write the entries in memory; they stay there if the disk is full, until retention frees space."""
        self._unflushed = 0
        for queue in self._state.queues():
            if queue.tail and not self._full:
                self._flush_one(queue)

    def _flush_one(self, queue: LogQueue) -> None:
        try:
            self._files.write(queue.ref, queue.flushed, bytes(queue.tail))
        except OSError as error:
            if not is_full(error):
                raise
            self._full = True
            log.error("the disk is full (%s): entries of consume queues stay in memory", error)
            return
        queue.flushed += len(queue.tail) // ENTRY_BYTES
        queue.tail.clear()

    def _finish_queues(self) -> None:
        """Keep lost offsets at the end of each queue assigned, and remove entries of truncated records."""
        for queue in self._state.queues():
            if self._bad:
                self._keep_lost(queue)
            queue.visible = queue.assigned
            if queue not in self._fitting and self._files.has_entries_from(queue.ref, queue.assigned):
                self._files.truncate_at(queue.ref, queue.assigned)

    def _keep_lost(self, queue: LogQueue) -> None:
        while True:
            entry = self._lost_entry(queue)
            if entry == GAP_ENTRY:
                return
            self._add_entry(queue, entry)

    # --- consume-queue files that are missing

    def _rebuild_missing(self, end: int) -> int:
        """Fill consume-queue files that are missing or too short from the log; return the number of
        queues.
        """
        missing: dict[QueueRef, tuple[LogQueue, int]] = {}
        for queue in self._state.queues():
            complete, passing = self._files.check_extent(queue.ref, queue.min, queue.assigned)
            if not passing:
                self._fitting.add(queue)
            if not complete:
                missing[queue.ref] = queue, queue.assigned
                queue.flushed = queue.assigned = queue.min
        if not missing:
            return 0
        log.warning("consume queues of %d queues are added again from the log", len(missing))
        log_intact = True
        for item in self.log_items(self._segments.starts[0], end):
            if isinstance(item, Record) and item.kind == RecordKind.MESSAGE:
                self._refill_queue(missing, item, log_intact)
            log_intact = log_intact and not isinstance(item, Bad)
        for queue, after in missing.values():
            self._add_gaps(queue, after, log_intact)
        return len(missing)

    def _refill_queue(
        self, missing: dict[QueueRef, tuple[LogQueue, int]], record: Record, log_intact: bool
    ) -> None:
        queue, after = missing.get(QueueRef(record.topic, record.incarnation, record.queue_id), (None, 0))
        if queue is None or not queue.assigned <= record.offset < after:
            return
        if record.position < self._segments.first_of(record.topic):
            return  # in a dead-letter segment
        self._add_gaps(queue, record.offset, log_intact)
        self._add_entry(queue, pack_entry(record))

    def _add_gaps(self, queue: LogQueue, end: int, log_intact: bool) -> None:
        """Mark offsets up to `end` as missing.

        With `log_intact`, those at a queue's start count as expired.
        """
        if log_intact and queue.assigned == queue.min:
            queue.min = queue.flushed = queue.assigned = end
        while queue.assigned < end:
            self._add_entry(queue, GAP_ENTRY)
