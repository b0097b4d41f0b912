"""Consume-queue entries on their way from memory to their files.

Entries of what readers may see wait in memory, per queue, and go to the files in bulk, off the hub: past
`tail_bytes_max`, or `tail_ms` after the first. While another process reads the files (`at_once`), they go
at every commit. Rule: entries leave memory only when they are in the file.
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
    """The entries of all queues that are not in files yet. Belongs to the hub."""

    def __init__(self, files: QueueFiles, options: FileLogOptions) -> None:
        self._files = files
        self._bytes_max = options.tail_bytes_max
        self._period_s = options.tail_ms / 1000
        self._timer = HubTimer()
        self._waiting: dict[QueueRef, LogQueue] = {}
        self._busy = self._ticking = self._closed = self._failing = False
        self.at_once = False
        self.bytes = 0

    def grown(self, queue: LogQueue, size: int) -> None:
        """A queue's tail has grown by `size` bytes."""
        if not queue.gone:  # by the same commit; then `forget` has counted them already
            self._waiting[queue.ref] = queue
        self.bytes += size

    def left(self, queues: Iterable[LogQueue]) -> None:
        """What recovery has not written waits as well."""
        for queue in queues:
            if queue.tail:
                self.grown(queue, len(queue.tail))
        self.committed()

    def committed(self) -> None:
        """All tails of one commit have grown."""
        if self.at_once and not self._busy:
            self._finish(self._write(self.take()))
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
        """Write what waits now, in a native thread."""
        if not self._busy and not self._closed:
            self._busy = True
            off_hub(self._write, self._written, self.take())

    def take(self) -> list[Write]:
        """Return the waiting writes for a checkpoint that performs them; writing them twice is harmless."""
        return [(queue, queue.flushed, bytes(queue.tail)) for queue in self._waiting.values()]

    def put(self, write: Write) -> None:
        """Entries to their file; nothing stays of a queue that is gone. Blocking. Raises OSError."""
        queue, offset, entries = write
        self._files.write(queue.ref, offset, entries)
        if queue.gone:  # meanwhile: its files were removed before there was this one
            self._files.drop(queue.ref)

    def _write(self, writes: list[Write]) -> list[Write]:
        """Blocking; gives back what is in the files now."""
        done: list[Write] = []
        try:
            for write in writes:
                self.put(write)
                done.append(write)
        except OSError as error:
            if not self._failing:
                log.error("consume-queue entries cannot be written, they stay in memory: %s", error)
            self._failing = True
            return done
        if self._failing:
            log.warning("consume-queue entries are written again")
        self._failing = False
        return done

    def _written(self, done: Any, _: Exception | None) -> None:
        self._busy = False
        if self._closed:
            return
        self._finish(done or [])

    def _finish(self, done: list[Write]) -> None:
        for queue, _, data in done:
            if self._waiting.get(queue.ref) is not queue:
                continue
            del queue.tail[: len(data)]
            queue.flushed += len(data) // ENTRY_BYTES
            self.bytes -= len(data)
            if not queue.tail:
                self._waiting.pop(queue.ref, None)

    def forget(self, queue: LogQueue) -> None:
        """Its topic is gone."""
        queue.gone = True
        self._waiting.pop(queue.ref, None)
        self.bytes -= len(queue.tail)

    def close(self) -> None:
        """Write what waits, at once and on this thread."""
        self._closed = True
        self._timer.stop()
        if not self._busy:
            self._finish(self._write(self.take()))
