"""A directory opened for writing: lock held, log recovered, index in line, all files at hand.

Here the parts are made and tied together; what they do stands in their own modules.
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
from backend.file_log.commit.committer import WritePlace
from backend.file_log.commit.packing import PackedFrame
from backend.file_log.commit.tails import Tails
from backend.file_log.commit.writer import Writer
from backend.file_log.consume_queue import FILE_ENTRIES, QueueFiles
from backend.file_log.core.retention import Hold, Letters, OldSegment
from backend.file_log.damage import LogDamage
from backend.file_log.index.attached import AttachedIndex
from backend.file_log.lock import DirectoryLock
from backend.file_log.options import FileLogOptions
from backend.file_log.read.queries import Queries
from backend.file_log.retention import Retention, note_limits
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
UNFREED_MAX = 64  # more are not counted
SEGMENTS_OF_DISK = 32  # a disk has room for this many segments at least …
SEGMENT_BYTES_LEAST = 4 << 20  # … unless they would be smaller than this


class Opened:
    """One directory's parts. Making one blocks. Raises StorageError; the lock is the caller's until then."""

    def __init__(
        self,
        directory: Path,
        options: FileLogOptions,
        lock: DirectoryLock,
        storage: Storage,
        metrics: Registry,
    ) -> None:
        folder = str(directory)
        options = self._fitted(options, storage.space(folder).total)
        self.storage = storage
        self.directory = folder
        self.segments = SegmentSet(storage, folder)
        self.files = QueueFiles(storage, folder, options.queue_files_max, write=True)
        self.damage = LogDamage(storage, folder, self.segments, metrics)
        self._lock = lock
        self._loop: Any = gevent.get_hub().loop
        self._unfreed: list[tuple[Segment, int]] = []  # deleted, and open in another process
        self._unfreed_lock = Lock()  # two native threads may look at once
        try:
            recovery = Recovery(storage, folder, self.segments, self.files, self.damage, options)
            self.recovered: Recovered = recovery.run()
            self.segments.trim()
            self.index = AttachedIndex(storage, folder, self.segments, self.damage.found)
            self.index.recover()
        except OSError as error:
            raise StorageError(f"the log in {folder} cannot be opened: {error}") from error
        self.state = self.recovered.state
        self.tails = Tails(self.files, options)
        self.tails.left(self.state.queues())
        self._report(metrics)
        note_limits(storage, folder, options.retention)

    def _fitted(self, options: FileLogOptions, disk_bytes: int) -> FileLogOptions:
        """On a small disk segments are smaller: only what is no longer written can be deleted."""
        fitting = max(disk_bytes // SEGMENTS_OF_DISK, SEGMENT_BYTES_LEAST)
        self._segment_bytes = min(options.segment_bytes, fitting)
        return replace(options, segment_bytes=self._segment_bytes)

    def _report(self, metrics: Registry) -> None:
        found = self.recovered
        metrics.cell(catalogue.LOG_TORN).value += found.torn_bytes
        log.info(
            "log open: %d segments, ends at %d, read from %d, %d bytes of torn tail cut, %d damaged pieces,"
            " %d consume queues rebuilt",
            len(self.segments.segments),
            found.end,
            found.checkpoint,
            found.torn_bytes,
            found.damaged_pieces,
            found.rebuilt_queues,
        )

    # --- making the parts

    def make_writer(
        self,
        options: FileLogOptions,
        clock: Clock,
        metrics: Registry,
        published: Callable[[PackedFrame], None],
        answered: Callable[[PackedFrame], None],
    ) -> Writer:
        """The writer; its thread starts."""
        place = WritePlace(self.segments, self._segment_bytes, options.allocate_bytes)
        with suppress(OSError):  # the first commit will say so
            place.prepare()
        return Writer(self.state, place, self.recovered.end, options, clock, metrics, published, answered)

    def make_queries(self, options: FileLogOptions, limit: Callable[[], int]) -> Queries:
        """The queries; they read up to `limit`."""
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
        """The checkpointer; the log from where it was read at the start stays until two are written."""
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
        letters: Callable[[], Letters],
    ) -> Retention:
        """Retention over the segments."""
        return Retention(
            self.storage,
            self.directory,
            options.retention,
            self._old_segments,
            self._release,
            lambda old: self.segments.keep(old.start),
            holds,
            letters,
            clock,
            store_clock,
            metrics,
            unfreed=self._close_unfreed,
        )

    # --- while it runs

    def forget_queues(self, queues: Sequence[LogQueue]) -> None:
        """Their topic was deleted: their files go, off the hub."""
        for queue in queues:
            self.tails.forget(queue)
            off_hub(self.files.drop, ignore_outcome, queue.ref)

    def _old_segments(self) -> list[OldSegment]:
        return [
            OldSegment(segment.start, segment.end, segment.disk_bytes(), segment.last_ms, segment.kept)
            for segment in self.segments.segments
        ]

    def _release(self, old: OldSegment) -> Callable[[], None]:
        """Take a segment out of view; the call that removes its files."""
        segment = self.segments.drop(old.start)
        lowest = self._queries.lowest()

        def remove() -> None:
            with self._unfreed_lock:
                self._unfreed.append((segment, segment.disk_bytes()))
            self.storage.remove(segment.path)
            self._close_unfreed()
            self.storage.sync_folder(self.segments.folder)
            self.index.index.drop(segment.start)
            found = lowest()
            for queue, offset, _ in found:
                if offset // FILE_ENTRIES > queue.min // FILE_ENTRIES:
                    self.files.drop_below(queue.ref, offset)
            self._loop.run_callback_threadsafe(self._raise_lowest, found)

        return remove

    def _raise_lowest(self, found: Sequence[tuple[LogQueue, int, int]]) -> None:
        for queue, offset, first in found:
            queue.min, queue.min_at = max(queue.min, offset), max(queue.min_at, first)
            self.state.changed_topics.add(queue.ref.topic)

    def lock_lost(self) -> StorageError | None:
        """Why this process is not the writer any more, though it was not asked."""
        try:
            self._lock.check()
        except StorageError as error:
            return error
        return None

    def _close_unfreed(self) -> int:
        """Close the deleted segments that nobody else has open; bytes that the others take. Blocking."""
        with self._unfreed_lock:
            kept = [one for one in self._unfreed if one[0].file.open_elsewhere()][-UNFREED_MAX:]
            for one in self._unfreed:
                if one not in kept:
                    one[0].close()
            self._unfreed = kept
            return sum(size for _, size in kept)

    def close(self) -> None:
        """Write what is only in memory, close all files, give back the lock."""
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
        """Instead of `close`, when a native thread hangs in a file: nobody else may write the directory."""
        log.error(
            "closing %s: its disk has not answered for %g s, what it still does is not known; the directory"
            " stays locked until this process ends",
            self.directory,
            waited_s,
        )
        self._lock.keep()
