"""A directory opened for writing: locked, recovered, with its index up to date and its files open.

This module only creates the components and connects them; their own modules describe what they do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import gevent

from backend.engine import StoreClock
from backend.file_log.commit.committer import LogEnd
from backend.file_log.commit.packing import PackedFrame
from backend.file_log.commit.writer import Writer
from backend.file_log.consume_queue import FILE_ENTRIES, QueueFiles, Tails
from backend.file_log.core.retention import Hold, OldSegment, SegmentHold
from backend.file_log.damage import LogDamage
from backend.file_log.index.attached import AttachedIndex
from backend.file_log.lock import DirectoryLock
from backend.file_log.options import FileLogOptions
from backend.file_log.read.queries import Queries
from backend.file_log.retention import Retention, record_limits
from backend.file_log.segments import Segment, SegmentSet
from backend.file_log.start.checkpoint import Checkpointer
from backend.file_log.start.recovery import Recovered, Recovery
from backend.file_log.state import LogQueue
from backend.file_log.storage import Storage
from ddmq_common.clock import Clock
from ddmq_common.errors import StorageError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.native_threads import ignore_outcome, off_hub

log = logging.getLogger(__name__)
UNFREED_MAX = 64  # deleted segments whose space is still in use; more are not counted
SEGMENTS_OF_DISK = 32  # a disk has space for this many segments at least …
SEGMENT_BYTES_LEAST = 4 << 20  # … unless they would be smaller than this


class OpenedDirectory:
    """The storage, state, index and other components of a log directory that this process has opened.

    Creating them blocks. Raises StorageError; the lock then stays with the caller.
    """

    def __init__(
        self,
        directory: Path,
        options: FileLogOptions,
        lock: DirectoryLock,
        storage: Storage,
        metrics: Registry,
    ) -> None:
        folder = str(directory)
        options = self._fit_segments(options, storage.space(folder).total)
        self.storage = storage
        self.directory = folder
        self.segments = SegmentSet(storage, folder)
        self.files = QueueFiles(storage, folder, options.queue_files_max, write=True)
        self.damage = LogDamage(storage, folder, self.segments, metrics)
        self._lock = lock
        self._loop: Any = gevent.get_hub().loop
        self._unfreed: list[tuple[Segment, int]] = []  # deleted, but open in another process
        self._unfreed_lock = Lock()  # two native threads may check at once
        try:
            recovery = Recovery(storage, folder, self.segments, self.files, self.damage, options)
            self.recovered: Recovered = recovery.run()
            self.segments.release_space()
            self.index = AttachedIndex(storage, folder, self.segments, self.damage.report_range)
            self.index.recover()
        except OSError as error:
            raise StorageError(f"the log in {folder} cannot be opened: {error}") from error
        self.state = self.recovered.state
        self.tails = Tails(self.files, options)
        self.tails.add_unwritten(self.state.queues())
        self._log_recovery(metrics)
        record_limits(storage, folder, options.retention)

    def _fit_segments(self, options: FileLogOptions, disk_bytes: int) -> FileLogOptions:
        """Return `options` with smaller segments if the disk is small: only full segments can be deleted."""
        fitting = max(disk_bytes // SEGMENTS_OF_DISK, SEGMENT_BYTES_LEAST)
        self._segment_bytes = min(options.segment_bytes, fitting)
        return replace(options, segment_bytes=self._segment_bytes)

    def _log_recovery(self, metrics: Registry) -> None:
        recovered = self.recovered
        metrics.cell(catalogue.LOG_TORN).value += recovered.tail_bytes
        log.info(
            "log open: %d segments, ends at %d, read from %d, %d bytes of partial tail truncated,"
            " %d damaged ranges, %d consume queues rebuilt",
            len(self.segments.segments),
            recovered.end,
            recovered.checkpoint,
            recovered.tail_bytes,
            recovered.damaged_ranges,
            recovered.rebuilt_queues,
        )

    # --- creating the components

    def make_writer(
        self,
        options: FileLogOptions,
        clock: Clock,
        metrics: Registry,
        published: Callable[[PackedFrame], None],
        answered: Callable[[PackedFrame], None],
    ) -> Writer:
        """Create the writer and start its thread."""
        log_end = LogEnd(self.segments, self._segment_bytes, options.allocate_bytes)
        with suppress(OSError):  # the first commit will report it
            log_end.prepare_space()
        return Writer(self.state, log_end, self.recovered.end, options, clock, metrics, published, answered)

    def make_queries(self, options: FileLogOptions, limit: Callable[[], int]) -> Queries:
        """Create the object that reads records for callers, up to the log position that `limit` returns."""
        self._queries = Queries(
            self.state,
            self.segments,
            self.files,
            self.index,
            self.damage,
            limit,
            options.hot_bytes,
            options.warm_blocks_max,
        )
        return self._queries

    def make_checkpointer(self, writer: Writer, metrics: Registry) -> Checkpointer:
        """Create the object that writes the checkpoints of this log.

        The log from the position of the checkpoint read at the start is retained until two more are written.
        """
        return Checkpointer(
            self.storage,
            self.directory,
            writer,
            self.segments,
            self.files,
            self.tails,
            self.index,
            self.recovered.checkpoint,
            metrics,
        )

    def make_retention(
        self,
        options: FileLogOptions,
        clock: Clock,
        store_clock: StoreClock,
        metrics: Registry,
        holds: Callable[[], Iterable[Hold]],
        dead_letter_holds: Callable[[], SegmentHold],
    ) -> Retention:
        """Create the retention of the segments; `dead_letter_holds` returns the holds of dead letters for one
        round.
        """
        return Retention(
            self.storage,
            self.directory,
            options.retention,
            self._old_segments,
            self._release,
            lambda old: self.segments.keep_for_dead_letters(old.start),
            holds,
            dead_letter_holds,
            clock,
            store_clock,
            metrics,
            unfreed=self._close_unfreed,
        )

    # --- while it runs

    def forget_queues(self, queues: Sequence[LogQueue]) -> None:
        """Remove the files of the queues of a deleted topic, in native threads."""
        for queue in queues:
            self.tails.forget_queue(queue)
            off_hub(self.files.remove_queue, ignore_outcome, queue.ref)

    def _old_segments(self) -> list[OldSegment]:
        return [
            OldSegment(
                segment.start, segment.end, segment.disk_bytes(), segment.last_ms, segment.dead_letters_only
            )
            for segment in self.segments.segments
        ]

    def _release(self, old: OldSegment) -> Callable[[], None]:
        """Remove a segment from the set; return the blocking call that removes its files."""
        segment = self.segments.remove(old.start)
        lowest = self._queries.find_lowest()

        def remove() -> None:
            with self._unfreed_lock:
                self._unfreed.append((segment, segment.disk_bytes()))
            self.storage.remove(segment.path)
            self._close_unfreed()
            self.storage.sync_folder(self.segments.folder)
            self.index.index.drop_segment(segment.start)
            bounds = lowest()
            for queue, offset, _ in bounds:
                if offset // FILE_ENTRIES > queue.min // FILE_ENTRIES:
                    self.files.drop_below(queue.ref, offset)
            self._loop.run_callback_threadsafe(self._raise_lowest, bounds)

        return remove

    def _raise_lowest(self, bounds: Sequence[tuple[LogQueue, int, int]]) -> None:
        for queue, offset, first in bounds:
            queue.min, queue.min_at = max(queue.min, offset), max(queue.min_at, first)
            self.state.changed_topics.add(queue.ref.topic)

    def lock_lost(self) -> StorageError | None:
        """Return why this process has lost the writer's lock, or None."""
        try:
            self._lock.check()
        except StorageError as error:
            return error
        return None

    def _close_unfreed(self) -> int:
        """Close the deleted segments that no other process has open; return the bytes of the rest.

        Blocking.
        """
        with self._unfreed_lock:
            still_open = [deleted for deleted in self._unfreed if deleted[0].file.open_elsewhere()][
                -UNFREED_MAX:
            ]
            for deleted in self._unfreed:
                if deleted not in still_open:
                    deleted[0].close()
            self._unfreed = still_open
            return sum(size for _, size in still_open)

    def close(self) -> None:
        """Write the entries that are only in memory, close all files and release the lock."""
        try:
            with self._unfreed_lock:
                for segment, _ in self._unfreed:
                    segment.close()
                self._unfreed = []
            for close in (self.tails.close, self.index.close, self.files.close, self.segments.close):
                try:
                    close()
                except OSError as error:
                    log.error("closing %s: %s", self.directory, error)
        finally:
            self._lock.release()

    def abandon(self, waited_s: float) -> None:
        """Keep the lock instead of closing, when a native thread hangs in a file and may still write it."""
        log.error(
            "closing %s: its disk has not answered for %g s, and a write may still be under way; the"
            " directory stays locked until this process ends",
            self.directory,
            waited_s,
        )
        self._lock.keep_until_exit()
