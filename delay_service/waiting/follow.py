"""Brings a store in line with the rows of its shard, from where it stopped the last time.

With each batch the store notes how far it has followed, so no row is read twice and none is left out. The
store may have more than the rows, when its owner was killed before the commit: those commands are read once
more. Changes after them are in the rows of the next owner. `follow_to` blocks, so it needs a greenlet of its
own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from backend.completion import Completion
from backend.ownership.reader import interpret_batch
from backend.port import Backend
from backend.records import Bounds, QueueRef, ReadBatch
from ddmq_common.clock import NEVER, Clock
from ddmq_common.errors import DamagedError, TryLaterError
from ddmq_common.event_loop import sleep
from ddmq_common.names import WAITING_TOPIC
from delay_service.context import CAPACITY_POLL_S
from delay_service.store.port import DelayStore, StoreChanges
from delay_service.waiting.rows import WaitingRow, changes_of, read_row

log = logging.getLogger("ddmq.delay")
T = TypeVar("T")
FOLLOWED = "followed"  # meta: incarnation of the topic, and the offset of the next row to follow
ROWS_MAX, BYTES_MAX = 512, 1 << 20  # of one read
WAIT_S = 0.25  # one wait for more, then whether to stop is asked again
ANSWER_S = 30.0  # of one read
REPORT_INTERVAL_S = 5.0  # between two lines about a long restore


def rows_of(backend: Backend, shard: int) -> QueueRef:
    """Return the queue with the rows of a shard. Raises TryLaterError while it does not exist."""
    info = backend.topic(WAITING_TOPIC)
    if info is None or shard >= info.queues:
        raise TryLaterError(f"topic {WAITING_TOPIC} has no queue {shard} yet")
    return QueueRef(WAITING_TOPIC, info.incarnation, shard)


def followed_to(incarnation: int, offset: int) -> dict[str, bytes | None]:
    """Return the named value which records that a store has all rows below `offset`."""
    return {FOLLOWED: b"%d %d" % (incarnation, offset)}


class Follower:
    """Applies the rows of one shard to its store until `end()` is true.

    `position`: the offset of the next row. `rows`, `damaged`: the number of applied and of damaged rows.
    """

    def __init__(
        self, backend: Backend, clock: Clock, shard: int, store: DelayStore, end: Callable[[], bool]
    ) -> None:
        self.queue = rows_of(backend, shard)
        self.rows = self.damaged = 0
        self.at_end = False  # when it read last, the store had every row
        self._backend = backend
        self._clock = clock
        self._store = store
        self._end = end
        text = (store.meta(FOLLOWED) or b"").split()
        is_valid = len(text) == 2 and all(number.isdigit() for number in text)
        same = is_valid and int(text[0]) == self.queue.incarnation
        self.position = int(text[1]) if same else 0
        self._report_at = clock.monotonic() + REPORT_INTERVAL_S

    def read_bounds(self) -> Bounds:
        """Return the current bounds of the queue of rows. Raises TryLaterError if the queue is gone."""
        bounds = _wait_for(self._backend.bounds([self.queue]))[0]
        if bounds is None:
            raise TryLaterError(f"topic {WAITING_TOPIC} is gone")
        if bounds.next < self.position:
            shard = self.queue.queue_id
            log.error(
                "delay shard %d: rows end at %d, %d were followed: all again",
                shard,
                bounds.next,
                self.position,
            )
            self.position = bounds.min
        return bounds

    def follow_to(self, to: int) -> None:
        """Apply all rows below the offset `to`, or stop when `end()` is true.

        Raises the errors of reads and of the store.
        """
        while self.position < to and not self._end():
            if not self._store.has_capacity(growing=True):
                sleep(CAPACITY_POLL_S)
            elif not self._follow_batch():
                deadline = self._clock.monotonic() + WAIT_S
                _wait_for(self._backend.wait(self.queue, self.position, deadline))
            self._report_progress(to)

    def _follow_batch(self) -> bool:
        """Read and apply one batch; return False if there is none now."""
        batch = _wait_for(self._backend.read(self.queue, self.position, ROWS_MAX, BYTES_MAX))
        read = interpret_batch(self.queue, self.position, batch, self._backend.gapless)
        if read.is_unanswered and read.error is not None:
            raise read.error
        if read.batch is None:
            self.position = read.next_offset
            return read.oldest is not None  # else this process has not heard yet how far the rows go
        moved = read.next_offset > self.position
        self.at_end = not moved
        if moved and not self._end():
            self._apply_batch(batch)
        return moved

    def _apply_batch(self, batch: ReadBatch) -> None:
        rows = []
        for index, delivery in enumerate(batch.deliveries):
            row = self._read_row(batch.offsets[index], bytes(delivery))
            if row is not None:
                rows.append(row)
        changes = changes_of(rows, self._store) if rows else StoreChanges()
        changes.meta |= followed_to(self.queue.incarnation, batch.next_offset)
        self._store.write(changes)
        self.rows += len(rows)
        self.position = batch.next_offset

    def _read_row(self, offset: int, delivery: bytes) -> WaitingRow | None:
        try:
            return read_row(delivery)
        except DamagedError as error:
            self.damaged += 1
            log.error(
                "delay shard %d: the row at offset %d is left out: %s", self.queue.queue_id, offset, error
            )
            return None

    def _report_progress(self, to: int) -> None:
        now = self._clock.monotonic()
        if self.at_end:
            self._report_at = NEVER  # restored; a standby goes on following
        elif now >= self._report_at:
            self._report_at = now + REPORT_INTERVAL_S
            log.info(
                "delay shard %d is restored: %d rows so far, at offset %d of %d",
                self.queue.queue_id, self.rows, self.position, to,
            )  # fmt: skip


def _wait_for(completion: Completion[T]) -> T:
    return completion.wait(ANSWER_S)
