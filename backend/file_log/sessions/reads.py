"""A member's reads: from the log's files directly, and through the writer for everything that the files lack.

Rules:
* An entry is in a consume-queue file only when readers may see its record. So a valid entry permits a read,
  and the mapped log is touched no further than such entries reach.
* Everything that is missing or invalid (end of the queue, too old, damaged, truncated by a new writer) is
  requested from the writer, which decides, counts and repairs. Nothing here counts damage or writes anything.
* A new session may mean a new writer, so every file is opened again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent

from backend.completion import Completion
from backend.file_log.consume_queue import (
    HUB_ENTRIES,
    QueueFiles,
    SelectedEntries,
    entries_max,
    search_entries,
    select_entries,
)
from backend.file_log.core.layout import ENTRY_BYTES, ENTRY_ROWS, UNSALTED, Salting, is_valid_entry
from backend.file_log.options import FileLogOptions
from backend.file_log.read.reader import FileBatch, LogReader
from backend.file_log.segments import SegmentSet
from backend.file_log.sessions.link import Link
from backend.file_log.sessions.mirror import Mirror
from backend.file_log.sessions.pipe import FrameKind
from backend.file_log.sessions.requests import PlainRequest, WaitRequest
from backend.file_log.start.format_file import read_format
from backend.file_log.storage import Storage
from backend.port import ReadCall, Wait
from backend.records import PASSED_MAX, QueueRef, ReadBatch, ReadStatus
from ddmq_common.clock import Clock
from ddmq_common.errors import StorageError
from ddmq_common.native_threads import off_hub


class Reads:
    """Reads for a member of any engine, through the writer."""

    def __init__(self, link: Link, clock: Clock, mirror: Mirror) -> None:
        self._link = link
        self._clock = clock
        self._mirror = mirror

    def read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """Read records of a queue; see Backend.read."""
        self.read_from_writer(call, completion)

    def read_from_writer(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """Send a read to the writer over the session; see Backend.read."""
        now = self._clock.monotonic()
        self._link.submit_request(
            PlainRequest(FrameKind.READ, call, completion, now + self._link.limits.request_timeout_s, now)
        )

    def wait(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        """Have the writer process complete `wait` once the queue has new records; see Backend.wait."""
        self._link.submit_request(WaitRequest(queue, offset, deadline, wait))

    def on_ready(self) -> None:
        """Called when a session is ready, possibly with another writer.

        The link resends parked waits itself.
        """

    def on_ping(self) -> None:
        """Close files that were deleted on disk: an open file keeps occupying its space."""

    def close(self) -> None:
        """Close all files; the link fails the pending requests."""


COUNT_MAX = 4096  # entries checked in one read
RELOAD_S = 0.05  # segments are not listed more often
MakeReads = Callable[[Link, Clock, Mirror], Reads]


def local_reads(directory: Path, options: FileLogOptions) -> MakeReads:
    """Return a factory of LocalReads for the log in `directory`, as the `reads` argument of Election."""
    return lambda link, clock, mirror: LocalReads(link, clock, mirror, directory, options)


class LocalReads(Reads):
    """Reads for a member that opens the log's files itself.

    It requests from the writer everything that the files do not contain.
    """

    def __init__(
        self, link: Link, clock: Clock, mirror: Mirror, directory: Path, options: FileLogOptions
    ) -> None:
        super().__init__(link, clock, mirror)
        self._directory = str(directory)
        self._options = options
        self._storage = Storage()
        self._hub: Any = gevent.get_hub()
        self._is_damaged = False  # the batch being read holds something that does not check out
        self._closed = False
        self._open()

    def _open(self) -> None:
        options = self._options
        self._files = QueueFiles(self._storage, self._directory, options.queue_files_max, write=False)
        self._segments = SegmentSet(self._storage, self._directory)
        self._segments.salting = self._read_salting()
        self._loaded_at = float("-inf")
        self._end = 0  # of the log, as far as entries have shown
        self._reader = LogReader(
            self._segments,
            self._on_damage,
            lambda ref, offset: None,
            options.hot_bytes,
            options.warm_blocks_max,
        )

    def _read_salting(self) -> Salting:
        """Return the directory's checksum salting.

        If it is unknown, no entry is valid and all reads go to the writer.
        """
        try:
            return read_format(self._storage, self._directory) or UNSALTED
        except (OSError, StorageError):
            return UNSALTED

    def on_ready(self) -> None:
        self.close()
        self._closed = False
        self._open()
        self._link.push(FrameKind.READS_FILES, 0, b"")

    def on_ping(self) -> None:
        segments = self._segments.segments
        if self._closed:
            return
        self._files.close_deleted()
        if any(segment.file.is_deleted() for segment in segments):
            self._loaded_at = float("-inf")
            self._load_segments()

    def close(self) -> None:
        self._closed = True
        self._files.close()
        self._segments.close()

    def read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        entries = self._read_entries(call)
        if not entries:
            self.read_from_writer(call, completion)
            return
        picked = select_entries(call, entries)
        if picked.entries or len(entries) < HUB_ENTRIES * ENTRY_BYTES:
            self._read_records(call, picked, completion)
            return
        end = call.offset + PASSED_MAX
        off_hub(
            search_entries,
            lambda picked, error: self._on_searched(call, picked, error, completion),
            call,
            self._files,
            end,
        )

    def _on_searched(
        self,
        call: ReadCall,
        picked: SelectedEntries,
        error: Exception | None,
        completion: Completion[ReadBatch],
    ) -> None:
        if self._closed or error is not None:
            self.read_from_writer(call, completion)
        else:
            self._read_records(call, picked, completion)

    def _read_records(
        self, call: ReadCall, picked: SelectedEntries, completion: Completion[ReadBatch]
    ) -> None:
        """Read the selected records from the log files.

        If there are none, answer only with the next offset.
        """
        cold = self._reader.list_cold(picked.entries, call.bytes_max)
        if not cold:
            self._hub.loop.run_callback(self._answer_read, call, picked, completion)
        else:
            off_hub(
                self._reader.load_ranges, lambda _, error: self._answer_read(call, picked, completion), cold
            )

    # --- inside

    def _read_entries(self, call: ReadCall) -> bytes:
        """Return the consume-queue entries from the call's offset on.

        B"" if the read must go to the writer instead. Entries are returned only if the log segments of their
        records are mapped.
        """
        info = self._mirror.topics.get(call.queue.topic)
        if info is None or info.incarnation != call.queue.incarnation or not info.readable or self._closed:
            return b""
        try:
            entries = self._files.read(call.queue, call.offset, min(entries_max(call), COUNT_MAX))
            if entries and is_valid_entry(entries[-ENTRY_BYTES:]) and self._has_segments(entries):
                return entries
        except (OSError, ValueError):  # a file that went, or became shorter, while a new writer cut it
            pass
        return b""

    def _has_segments(self, entries: bytes) -> bool:
        """Return whether the segments of the first and last entry are mapped; reload once if necessary."""
        first = ENTRY_ROWS.unpack_from(entries)[0]
        position, size = ENTRY_ROWS.unpack_from(entries, len(entries) - ENTRY_BYTES)[:2]
        if not size:
            return False
        self._end = max(self._end, position + size)
        segments = self._segments
        if not segments.segments or self._end > segments.last.start + segments.last.file.size():
            self._load_segments()
        if not segments.segments:
            return False
        segments.last.end = max(segments.last.end, self._end)
        return segments.locate(first) is not None and segments.locate(position) is not None

    def _answer_read(
        self, call: ReadCall, picked: SelectedEntries, completion: Completion[ReadBatch]
    ) -> None:
        batch = None if self._closed else self._make_batch(call, picked)
        if batch is None:
            self.read_from_writer(call, completion)
        else:
            completion.succeed(batch)

    def _make_batch(self, call: ReadCall, picked: SelectedEntries) -> FileBatch | None:
        if not picked.entries:
            return FileBatch(None, ReadStatus.DATA, picked.after, None)
        batch = self._read_valid_batch(call, picked)
        if batch is None and self._load_segments():  # one may have ended earlier than its file
            batch = self._read_valid_batch(call, picked)
        return batch

    def _read_valid_batch(self, call: ReadCall, picked: SelectedEntries) -> FileBatch | None:
        self._is_damaged = False
        try:
            if not self._has_segments(picked.entries):
                return None
            batch = self._reader.read_batch(call, picked, self._end)
        except (OSError, ValueError):
            return None
        return None if self._is_damaged or not batch.deliveries else batch

    def _load_segments(self) -> bool:
        """Map the segment files on disk; return False if this failed or was done a moment ago."""
        now = self._clock.monotonic()
        if now - self._loaded_at < RELOAD_S:
            return False
        self._loaded_at = now
        try:
            self._segments.load()
        except OSError:  # one was deleted while it was being opened
            return False
        if self._segments.segments:
            last = self._segments.last
            last.end = max(self._end, last.start)
        return True

    def _on_damage(self, position: int, length: int, what: str) -> None:
        self._is_damaged = True
