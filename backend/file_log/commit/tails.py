"""Consume-queue entries that wait in memory to be written to their files.

Entries of visible records wait in memory, per queue, and go to the files in bulk, off the hub: past
`tail_bytes_max`, or `tail_ms` after the first. While another process reads the files (`at_once`), they go
there at every commit. Rule: entries leave memory only when they are in the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from backend.file_log.consume_queue import QueueFiles
from backend.file_log.core.layout import ENTRY_BYTES
from backend.file_log.options import FileLogOptions
from backend.file_log.state import LogQueue
from backend.records import QueueRef
from ddmq_common.hub_timer import HubTimer
from ddmq_common.native_threads import off_hub

log = logging.getLogger(__name__)
Write = tuple[LogQueue, int, bytes]  # queue, offset of the first entry, entries


class Tails:
    """The entries of all queues that are in no file yet. Belongs to the hub."""

    def __init__(self, files: QueueFiles, options: FileLogOptions) -> None:
        self._files = files
        self._bytes_max = options.tail_bytes_max
        self._period_s = options.tail_ms / 1000
        self._timer = HubTimer()
        self._waiting: dict[QueueRef, LogQueue] = {}
        self._busy = self._ticking = self._closed = self._failing = False
        self.at_once = False
        self.bytes = 0

    def add_bytes(self, queue: LogQueue, size: int) -> None:
        """Count `size` bytes that were added to a queue's tail."""
        if not queue.is_deleted:  # deleted by the same commit: `forget` has counted the bytes
            self._waiting[queue.ref] = queue
        self.bytes += size

    def add_unwritten(self, queues: Iterable[LogQueue]) -> None:
        """Add the entries that recovery could not write."""
        for queue in queues:
            if queue.tail:
                self.add_bytes(queue, len(queue.tail))
        self.on_commit()

    def on_commit(self) -> None:
        """Write the entries, or schedule writing, after all tails of one commit have grown."""
        if self.at_once and not self._busy:
            self._drop_written(self._write(self.list_writes()))
        elif self.bytes >= self._bytes_max and not self._busy:
            self.flush()
        elif not self._ticking and self._waiting:
            self._ticking = True
            self._timer.every(self._period_s, self._tick)

    def _tick(self) -> None:
        if self._waiting:
            self.flush()
        elif not self._busy:
            self._timer.stop()
            self._ticking = False

    def flush(self) -> None:
        """Write the waiting entries in a native thread."""
        if not self._busy and not self._closed:
            self._busy = True
            off_hub(self._write, self._on_written, self.list_writes())

    def list_writes(self) -> list[Write]:
        """Return the waiting writes for a checkpoint that performs them; writing them twice is harmless."""
        return [(queue, queue.flushed, bytes(queue.tail)) for queue in self._waiting.values()]

    def put(self, write: Write) -> None:
        """Write entries to their file, unless the queue is deleted meanwhile. Blocking. Raises OSError."""
        queue, offset, entries = write
        self._files.write(queue.ref, offset, entries)
        if queue.is_deleted:  # deleted meanwhile, before this write created the file again
            self._files.remove_queue(queue.ref)

    def _write(self, writes: list[Write]) -> list[Write]:
        """Perform writes until one fails; return those that succeeded. Blocking."""
        written: list[Write] = []
        try:
            for write in writes:
                self.put(write)
                written.append(write)
        except OSError as error:
            if not self._failing:
                log.error("consume-queue entries cannot be written, they stay in memory: %s", error)
            self._failing = True
            return written
        if self._failing:
            log.warning("consume-queue entries are written again")
        self._failing = False
        return written

    def _on_written(self, written: Any, _: Exception | None) -> None:
        self._busy = False
        if self._closed:
            return
        self._drop_written(written or [])

    def _drop_written(self, written: list[Write]) -> None:
        for queue, _, data in written:
            if self._waiting.get(queue.ref) is not queue:
                continue
            del queue.tail[: len(data)]
            queue.flushed += len(data) // ENTRY_BYTES
            self.bytes -= len(data)
            if not queue.tail:
                self._waiting.pop(queue.ref, None)

    def forget_queue(self, queue: LogQueue) -> None:
        """Forget the entries of a queue whose topic was deleted."""
        queue.is_deleted = True
        self._waiting.pop(queue.ref, None)
        self.bytes -= len(queue.tail)

    def close(self) -> None:
        """Write the waiting entries now, on this thread."""
        self._closed = True
        self._timer.stop()
        if not self._busy:
            self._drop_written(self._write(self.list_writes()))
