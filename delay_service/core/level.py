"""One level's clockwork: what to do next with its queue.

A level reads its queue in order, holds a bounded piece of it, and fires the head as soon as it is due; what
stands behind a head that is not due waits for it, whatever its own due time. Then it commits, and only then
goes on. One thing is under way at a time: a read, a wait for data, a fire.

    READ → reading → HELD → firing → HELD … → READ → reading → END → waiting for data → READ
                              ↳ failed: PAUSED until a later time, then HELD again

`step` says what to do now and marks it begun; the events at the bottom say what came of it. Due times are
milliseconds on the store's clock, pauses are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from backend.records import QueueRef, StoredRecord
from delay_service.core.level_targets import LevelFire, Targets


class Read(NamedTuple):
    """Read from this offset on."""

    offset: int


class WaitForData(NamedTuple):
    """Nothing is there; wait until there is something at or past this offset."""

    offset: int


class FireRun(NamedTuple):
    """Append these to where they belong and finish everything below `end`, in one commit."""

    fires: tuple[LevelFire, ...]
    end: int


class SleepUntil(NamedTuple):
    """The head is due then, on the store's clock."""

    due_ms: int


class PauseUntil(NamedTuple):
    """Something failed; try again then, monotonic seconds."""

    at_s: float


LevelStep = Read | WaitForData | FireRun | SleepUntil | PauseUntil | None
"""None: something is under way; its end is the next event."""


class LevelLimits(NamedTuple):
    """Of one fire, and of pauses in seconds."""

    count_max: int
    bytes_max: int
    pause_s_min: float
    pause_s_max: float


class LevelState(Enum):
    """See the picture above."""

    READ = "read"
    READING = "reading"
    END = "end"
    WAITING = "waiting"
    HELD = "held"
    FIRING = "firing"


class _Held(NamedTuple):
    """A record in memory, due then on the store's clock."""

    due_ms: int
    record: StoredRecord


class Level:
    """One queue of the schedule topic. `position`: everything below it has been fired."""

    def __init__(
        self,
        queue: QueueRef,
        position: int,
        epoch: int,
        generation: int,
        limits: LevelLimits,
        targets: Targets,
    ) -> None:
        self.queue = queue
        self.position = position
        self.epoch = epoch
        self.generation = generation
        self.state = LevelState.READ
        self._limits = limits
        self._targets = targets
        self._read_at = position
        self._held: deque[_Held] = deque()
        self._pause_s = limits.pause_s_min
        self._paused_until = float("-inf")
        self._alone = 0  # so many records are fired one by one: somewhere in them is one that is refused

    @property
    def held(self) -> int:
        """Records in memory."""
        return len(self._held)

    @property
    def knows_head(self) -> bool:
        """Whether `first_due_ms` says what is so; not while its queue is being read, or cannot be."""
        return bool(self._held) or self.state in (LevelState.END, LevelState.WAITING)

    @property
    def first_due_ms(self) -> int | None:
        """When the first message in memory is, or was, due; None: there is none."""
        return self._held[0].due_ms if self._held else None

    def step(self, clock_ms: int, now_s: float) -> LevelStep:
        """What to do now; anything but a sleep or a pause is begun with this call."""
        if self.state in (LevelState.READING, LevelState.WAITING, LevelState.FIRING):
            return None
        if now_s < self._paused_until:
            return PauseUntil(self._paused_until)
        if self.state is LevelState.END:
            self.state = LevelState.WAITING
            return WaitForData(self._read_at)
        if not self._held:
            self.state = LevelState.READING
            return Read(self._read_at)
        if self._held[0].due_ms > clock_ms:
            return SleepUntil(self._held[0].due_ms)
        return self._fire(clock_ms, now_s)

    def _fire(self, clock_ms: int, now_s: float) -> FireRun:
        fires = self._targets.plan(self._due(clock_ms), now_s)
        end = fires[-1].record.offset + 1
        if len(fires) == len(self._held):
            end = self._read_at  # gaps behind the last one
        self.state = LevelState.FIRING
        return FireRun(tuple(fires), end)

    def _due(self, clock_ms: int) -> list[StoredRecord]:
        """The head and what is due behind it, within the limits."""
        count_max = 1 if self._alone else self._limits.count_max
        found: list[StoredRecord] = []
        size = 0
        for due_ms, record in self._held:
            size += len(record.delivery)
            if due_ms > clock_ms or len(found) >= count_max:
                break
            if found and size > self._limits.bytes_max:
                break
            found.append(record)
        return found

    # --- events

    def read(self, records: Sequence[StoredRecord], next_offset: int, clock_ms: int) -> None:
        """Records came, perhaps none of those that should be there.

        None waits longer from now on than it was to wait from when it was stored: where the store's clock
        is behind the one that it was stored with, its due time does not count.
        """
        self._well()
        self._read_at = next_offset
        for record in records:
            wait_ms = record.due_ms - record.stored_ms
            self._held.append(_Held(min(record.due_ms, clock_ms + wait_ms), record))
        self.state = LevelState.HELD if self._held else LevelState.READ

    def at_end(self, next_offset: int) -> None:
        """There is nothing at or after the offset yet, and only gaps below `next_offset`."""
        self._well()
        self._read_at = next_offset
        self.state = LevelState.END

    def moved_on(self, oldest: int) -> int:
        """The queue begins later than where we are: how many offsets are lost."""
        lost = oldest - self._read_at
        self._read_at = oldest
        self.state = LevelState.READ
        return lost

    def waited(self, data: bool) -> None:
        """There is something to read, or the wait has stood long enough without."""
        self.state = LevelState.READ if data else LevelState.END

    def fired(self, fire: FireRun) -> None:
        """It is durable."""
        self._well()
        self.position = fire.end
        for _ in fire.fires:
            self._held.popleft()
        self._alone = max(0, self._alone - len(fire.fires))
        self._targets.passed(fire.fires)
        self.state = LevelState.HELD

    def refused(self, fire: FireRun, *, topic_gone: bool, now_s: float) -> None:
        """The engine takes it from nobody as it is: a bad one among several, or the head itself."""
        self.state = LevelState.HELD
        if len(fire.fires) > 1:
            self._alone = max(self._alone, len(fire.fires))
            return
        alone = fire.fires[0]
        if topic_gone and not alone.reason and self._targets.topic_gone(alone):
            return
        self._targets.refused(alone, now_s)
        self._pause(now_s)

    def failed(self, now_s: float) -> None:
        """A read, a wait or a fire failed for a reason that passes: again a little later."""
        self.state = LevelState.HELD if self._held else LevelState.READ
        self._pause(now_s)

    def _pause(self, now_s: float) -> None:
        self._paused_until = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._limits.pause_s_max)

    def _well(self) -> None:
        self._pause_s = self._limits.pause_s_min
