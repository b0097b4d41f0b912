"""One level's clockwork: what to do next with its queue.

A level reads its queue in order, buffers a bounded part of it, and fires the head as soon as it is due; what
stands behind a head that is not due waits for it, whatever its own due time. Then it commits, and only then
goes on. One thing is under way at a time: a read, a wait for data, a fire.

    READ → reading → BUFFERED → firing → BUFFERED … → READ → reading → END → waiting for data → READ
                                  ↳ failed: PAUSED until a later time, then BUFFERED again

`step` says what to do now and marks it begun; the events at the bottom say what came of it. Due times are
milliseconds on the store's clock, pauses are monotonic seconds.

Records can be removed before they are due (decision 30): `begin_removal`, one commit that stores them
elsewhere and marks their offsets as finished, then `on_removed` or `on_not_removed`. A level never fires and
removes at the same time, and neither fires nor removes a finished offset, so each record leaves it once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from backend.progress.ack_map import AckMap
from backend.records import QueueRef, StoredRecord
from delay_service.core.level_targets import LevelFire, Targets


class Read(NamedTuple):
    """The step: read records from this offset on."""

    offset: int


class WaitForData(NamedTuple):
    """The step: wait until there is a record at or after this offset."""

    offset: int


class FireRun(NamedTuple):
    """The step: append these fires and finish everything below `end`, in one commit."""

    fires: tuple[LevelFire, ...]
    end: int


class SleepUntil(NamedTuple):
    """The step: sleep until the head is due, in milliseconds on the store's clock."""

    due_ms: int


class PauseUntil(NamedTuple):
    """The step: pause after a failure until `at_s`, in monotonic seconds."""

    at_s: float


LevelStep = Read | WaitForData | FireRun | SleepUntil | PauseUntil | None
"""None: something is under way; its end is the next event."""


class LevelLimits(NamedTuple):
    """The limits of one fire, and of the pauses after failures in seconds."""

    count_max: int
    bytes_max: int
    pause_s_min: float
    pause_s_max: float


class LevelState(Enum):
    """The states of a delay level, as the diagram above shows them."""

    READ = "read"
    READING = "reading"
    END = "end"
    WAITING = "waiting"
    BUFFERED = "buffered"
    FIRING = "firing"


class _BufferedRecord(NamedTuple):
    """A record in memory, and its due time on the store's clock."""

    due_ms: int
    record: StoredRecord


class Level:
    """The state machine of one delay level: a queue of the schedule topic whose messages all wait equally
    long.

    All records below `finished_below` have left it. `finished`: ranges of offsets above `finished_below` that
    have left it, too, because they were removed.
    """

    def __init__(
        self,
        queue: QueueRef,
        finished_below: int,
        epoch: int,
        generation: int,
        limits: LevelLimits,
        targets: Targets,
        finished: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.queue = queue
        self.epoch = epoch
        self.generation = generation
        self.state = LevelState.READ
        self._limits = limits
        self._targets = targets
        self._read_at = finished_below
        self._buffer: deque[_BufferedRecord] = deque()
        self._pause_s = limits.pause_s_min
        self._paused_until = float("-inf")
        self._finished = AckMap(finished_below)
        self._finished.finish(finished)
        self._removed: frozenset[int] = frozenset()  # offsets of the removal in progress
        self._one_by_one = 0  # so many records are fired one by one: somewhere in them is one that is refused

    @property
    def finished_below(self) -> int:
        """Return the offset below which every record has left the level."""
        return self._finished.committed

    @property
    def can_remove(self) -> bool:
        """Return whether a removal can begin: neither a fire nor another removal is in progress."""
        return self.state is not LevelState.FIRING and not self._removed

    def has_left(self, offset: int) -> bool:
        """Return whether the record at an offset has been fired or removed, or never existed."""
        return self._finished.is_finished(offset)

    def count_waiting(self, end: int) -> int:
        """Return how many offsets below `end`, the end of the queue, have not left the level."""
        return max(end - self.finished_below - self._finished.count_above(), 0)

    @property
    def record_count(self) -> int:
        """Return the number of records in memory."""
        return len(self._buffer)

    @property
    def knows_head(self) -> bool:
        """Return whether `first_due_ms` is reliable. It is not before the queue has been read."""
        return bool(self._buffer) or self.state in (LevelState.END, LevelState.WAITING)

    @property
    def first_due_ms(self) -> int | None:
        """Return when the first record in memory is or was due; None if there is none."""
        return self._buffer[0].due_ms if self._buffer else None

    def step(self, clock_ms: int, now_s: float) -> LevelStep:
        """Return the next step: a read, a wait, a fire or a pause. It counts as started with this call.

        Returns None if a step is in progress, or if a removal must end before the head is fired.
        """
        if self.state in (LevelState.READING, LevelState.WAITING, LevelState.FIRING):
            return None
        if now_s < self._paused_until:
            return PauseUntil(self._paused_until)
        if self.state is LevelState.END:
            self.state = LevelState.WAITING
            return WaitForData(self._read_at)
        if not self._buffer:
            self.state = LevelState.READING
            return Read(self._read_at)
        if self._buffer[0].due_ms > clock_ms:
            return SleepUntil(self._buffer[0].due_ms)
        return None if self._removed else self._fire(clock_ms, now_s)

    def _fire(self, clock_ms: int, now_s: float) -> FireRun:
        fires = self._targets.plan(self._due_records(clock_ms), now_s)
        end = fires[-1].record.offset + 1
        if len(fires) == len(self._buffer):
            end = self._read_at  # gaps behind the last one
        self.state = LevelState.FIRING
        return FireRun(tuple(fires), end)

    def _due_records(self, clock_ms: int) -> list[StoredRecord]:
        """Return the head and the due records that follow it, within the limits."""
        count_max = 1 if self._one_by_one else self._limits.count_max
        records: list[StoredRecord] = []
        size = 0
        for due_ms, record in self._buffer:
            size += len(record.delivery)
            if due_ms > clock_ms or len(records) >= count_max:
                break
            if records and size > self._limits.bytes_max:
                break
            records.append(record)
        return records

    # --- events

    def add_records(self, records: Sequence[StoredRecord], next_offset: int, clock_ms: int) -> None:
        """Add the records of a finished read, perhaps none, and continue at `next_offset`.

        No record waits longer than its level requires: if the store's clock is behind the one that stored the
        record, its due time is lowered.
        """
        self._reset_pause()
        self._read_at = next_offset
        for record in records:
            if self._finished.is_finished(record.offset):
                continue
            wait_ms = record.due_ms - record.stored_ms
            self._buffer.append(_BufferedRecord(min(record.due_ms, clock_ms + wait_ms), record))
        self.state = LevelState.BUFFERED if self._buffer else LevelState.READ

    def on_queue_end(self, next_offset: int) -> None:
        """Record that the queue has no record at or after `next_offset` yet, and only gaps below it."""
        self._reset_pause()
        self._read_at = next_offset
        self.state = LevelState.END

    def skip_to(self, oldest: int) -> int:
        """Continue at `oldest`, where the queue begins after a deletion; return how many offsets are lost."""
        lost = oldest - self._read_at
        self._read_at = oldest
        self.state = LevelState.READ
        return lost

    def on_wait_end(self, data: bool) -> None:
        """Record that a wait for new records has ended. `data`: there are records to read."""
        self.state = LevelState.READ if data else LevelState.END

    def on_fired(self, fire: FireRun) -> None:
        """Remove the records of a durable fire and advance `finished_below`."""
        self._reset_pause()
        self._finished.finish(((0, fire.end),))
        for _ in fire.fires:
            self._buffer.popleft()
        self._one_by_one = max(0, self._one_by_one - len(fire.fires))
        self._targets.on_appended(fire.fires)
        self.state = LevelState.BUFFERED

    def on_rejected(self, fire: FireRun, *, topic_unknown: bool, now_s: float) -> None:
        """Handle a fire that the engine will never accept: fire its records one by one, or pause a single
        one.
        """
        self.state = LevelState.BUFFERED
        if len(fire.fires) > 1:
            self._one_by_one = max(self._one_by_one, len(fire.fires))
            return
        alone = fire.fires[0]
        if topic_unknown and not alone.reason and self._targets.confirm_unknown_topic(alone):
            return
        self._targets.on_rejected(alone, now_s)
        self._begin_pause(now_s)

    def begin_removal(self, offsets: Sequence[int]) -> None:
        """Begin to remove records that have not left the level. Nothing is fired until the removal ends.

        Raises ValueError unless `can_remove`, and for an offset that has left the level.
        """
        if not self.can_remove or any(map(self._finished.is_finished, offsets)):
            raise ValueError(f"a removal of {list(offsets)} cannot begin now ({self.state})")
        self._removed = frozenset(offsets)

    def on_removed(self) -> None:
        """Forget the records of the removal in progress, which is durable."""
        removed, self._removed = self._removed, frozenset()
        self._finished.finish((offset, offset + 1) for offset in removed)
        self._buffer = deque(each for each in self._buffer if each.record.offset not in removed)
        if self.state is LevelState.BUFFERED and not self._buffer:
            self.state = LevelState.READ

    def on_not_removed(self) -> None:
        """End a removal that certainly was not stored."""
        self._removed = frozenset()

    def on_failed(self, now_s: float) -> None:
        """Pause after a read, a wait or a fire failed for a temporary reason."""
        self.state = LevelState.BUFFERED if self._buffer else LevelState.READ
        self._begin_pause(now_s)

    def _begin_pause(self, now_s: float) -> None:
        self._paused_until = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._limits.pause_s_max)

    def _reset_pause(self) -> None:
        self._pause_s = self._limits.pause_s_min
