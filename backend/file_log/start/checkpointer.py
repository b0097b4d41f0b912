"""Writes checkpoints: every so many bytes or seconds, between two commits, off the hub.

The state is encoded on the hub at a moment when nothing is being written and all is durable; then, in a
native thread, consume queues and index are brought up to that moment and synced, and only then the
checkpoint takes its place. A failure leaves the last one in force: the next start reads more of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from backend.file_log.commit.tails import Tails, Write
from backend.file_log.commit.writer import Writer
from backend.file_log.consume_queue import QueueFiles
from backend.file_log.index.attached import AttachedIndex
from backend.file_log.segments import SegmentSet
from backend.file_log.start.checkpoint import Encoder, save_checkpoint
from backend.file_log.storage import Storage
from ddmq_common.errors import DrainingError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.native_threads import off_hub

log = logging.getLogger(__name__)
TURN_S = 0.001  # between two slices of encoding


class Checkpointer:
    """Of one log. `floor`: the log position of the older generation; what lies behind it must stay."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        writer: Writer,
        segments: SegmentSet,
        files: QueueFiles,
        tails: Tails,
        index: AttachedIndex,
        position: int,
        metrics: Registry,
    ) -> None:
        self.floor = self.position = position
        self._counts = [metrics.cell(catalogue.LOG_CHECKPOINTS, outcome) for outcome in ("failed", "saved")]
        self._storage = storage
        self._directory = directory
        self._writer = writer
        self._segments = segments
        self._files = files
        self._tails = tails
        self._index = index
        self._encoder = Encoder(writer.state)
        self._turn = HubTimer()
        self._waiting: list[Callable[[], None]] = []
        self._wanted = self._saving = self._failing = self.closed = False

    def want(self, then: Callable[[], None] | None = None) -> None:
        """Write one soon, unless nothing was written since the last; `then` follows, whatever came of it."""
        if then is not None:
            self._waiting.append(then)
        if not self._wanted and not self._saving and not self.closed:
            self._wanted = True
            self._prepare(self._encoder.prepare())

    def _prepare(self, slices: Iterator[None]) -> None:
        """One slice, then whoever waits for the hub, then the next; at last the moment that is captured."""
        if next(slices, self) is None and not self.closed:
            self._turn.once(TURN_S, lambda: self._prepare(slices))
        else:
            self._writer.when_at_rest(self._capture)

    def _capture(self) -> None:
        self._wanted = False
        position = self._writer.durable
        if position == self.position or self.closed:
            self._finish()
            return
        self._saving = True
        data = self._encoder.encode(position, self._segments.first_position)
        self._index.index.flush()
        off_hub(self._save, lambda _, error: self._saved(position, error), data, self._tails.take())

    def _save(self, data: bytes, writes: list[Write]) -> None:
        """Blocking. Raises DrainingError when its turn comes after the log was closed."""
        if self.closed:
            raise DrainingError("the log was closed before it began")
        for write in writes:
            self._tails.put(write)
        self._files.sync()
        self._index.index.sync()
        save_checkpoint(self._storage, self._directory, data)

    def _saved(self, position: int, error: Exception | None) -> None:
        self._saving = False
        self._counts[error is None].value += 1
        if error is None:
            self.floor, self.position = self.position, position
        else:
            if not self._failing:
                log.error("the checkpoint at log position %d failed: %s", position, error)
        self._failing = error is not None
        self._finish()

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()
