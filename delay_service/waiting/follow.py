"""Brings a store in line with the rows of its shard: an empty one from the first, any other from where it is.

The store notes with each batch how far it has followed, so nothing is read twice and nothing is left out.
What it has beyond the rows (its owner was killed before the commit) the commands say once more; what came
after them the rows of whoever took them say. `follow` waits, so it belongs into a greenlet of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import gevent

from backend.completion import Completion
from backend.ownership.reader import interpret_batch
from backend.port import Backend
from backend.records import Bounds, QueueRef, ReadBatch
from ddmq_common.clock import Clock
from ddmq_common.errors import DamagedError, TryLaterError
from ddmq_common.names import WAITING_TOPIC
from delay_service.context import ROOM_S
from delay_service.store.port import DelayStore, StoreChanges
from delay_service.waiting.rows import WaitingRow, changes_of, read_row

log = logging.getLogger("ddmq.delay")
T = TypeVar("T")
FOLLOWED = "followed"  # meta: incarnation of the topic, and the offset of the next row to follow
ROWS_MAX, BYTES_MAX = 512, 1 << 20  # of one read
WAIT_S = 0.25  # one wait for more, then whether to stop is asked again
ANSWER_S = 30.0  # of one read
TELL_S = 5.0  # between two lines about a long restore


def rows_of(backend: Backend, shard: int) -> QueueRef:
    """The queue that has them. Raises TryLaterError while it is not there."""
    info = backend.topic(WAITING_TOPIC)
    if info is None or shard >= info.queues:
        raise TryLaterError(f"topic {WAITING_TOPIC} has no queue {shard} yet")
    return QueueRef(WAITING_TOPIC, info.incarnation, shard)


def followed_to(incarnation: int, offset: int) -> dict[str, bytes | None]:
    """The note that a store has all rows below `offset`."""
    return {FOLLOWED: b"%d %d" % (incarnation, offset)}


class Follower:
    """Of one store, open. `position`: the next row; `rows`, `damaged`: how many were. `end()`: to stop."""

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
        known = len(text) == 2 and all(part.isdigit() for part in text)
        same = known and int(text[0]) == self.queue.incarnation
        self.position = int(text[1]) if same else 0
        self._told_at = clock.monotonic() + TELL_S

    def bounds(self) -> Bounds:
        """Of the rows now. Raises TryLaterError when they are gone."""
        found = _answer(self._backend.bounds([self.queue]))[0]
        if found is None:
            raise TryLaterError(f"topic {WAITING_TOPIC} is gone")
        if found.next < self.position:
            shard = self.queue.queue_id
            log.error(
                "delay shard %d: rows end at %d, %d were followed: all again",
                shard,
                found.next,
                self.position,
            )
            self.position = found.min
        return found

    def follow(self, to: int) -> None:
        """Until every row below the offset `to` is in the store, or `end()` says so.

        Raises what a read or the store fails with.
        """
        while self.position < to and not self._end():
            if not self._store.has_room(growing=True):
                gevent.sleep(ROOM_S)
            elif not self._step():
                deadline = self._clock.monotonic() + WAIT_S
                _answer(self._backend.wait(self.queue, self.position, deadline))
            self._tell(to)

    def _step(self) -> bool:
        """One read; False: there is nothing more now."""
        batch = _answer(self._backend.read(self.queue, self.position, ROWS_MAX, BYTES_MAX))
        read = interpret_batch(self.queue, self.position, batch, self._backend.gapless)
        if read.is_unanswered and read.error is not None:
            raise read.error
        if read.batch is None:
            self.position = read.next_offset
            return read.oldest is not None  # else this process has not heard yet how far the rows go
        moved = read.next_offset > self.position
        self.at_end = not moved
        if moved and not self._end():
            self._take(batch)
        return moved

    def _take(self, batch: ReadBatch) -> None:
        rows = []
        for place, delivery in enumerate(batch.deliveries):
            row = self._row(batch.offsets[place], bytes(delivery))
            if row is not None:
                rows.append(row)
        changes = changes_of(rows, self._store) if rows else StoreChanges()
        changes.meta |= followed_to(self.queue.incarnation, batch.next_offset)
        self._store.write(changes)
        self.rows += len(rows)
        self.position = batch.next_offset

    def _row(self, offset: int, delivery: bytes) -> WaitingRow | None:
        try:
            return read_row(delivery)
        except DamagedError as error:
            self.damaged += 1
            log.error(
                "delay shard %d: the row at offset %d is left out: %s", self.queue.queue_id, offset, error
            )
            return None

    def _tell(self, to: int) -> None:
        now = self._clock.monotonic()
        if now >= self._told_at:
            self._told_at = now + TELL_S
            log.info(
                "delay shard %d is restored: %d rows so far, at offset %d of %d",
                self.queue.queue_id, self.rows, self.position, to,
            )  # fmt: skip


def _answer(completion: Completion[T]) -> T:
    return completion.wait(ANSWER_S)
