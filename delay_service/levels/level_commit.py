"""One fire at the backend: due records to where they belong, and the level's progress, as one commit.

How, where the engine is not atomic, is said in delay_service/due/commit.py.
"""

from __future__ import annotations

from collections.abc import Callable

from backend.internal_topics import ready_topic, real_record, schedule_record
from backend.port import Backend
from backend.records import NewRecord, ProgressDelta
from ddmq_common.clock import Clock
from ddmq_common.delays.levels import Levels
from ddmq_common.names import LEVELS_GROUP
from delay_service.due.commit import commit_due
from delay_service.levels.core.level import FireRun, Level
from delay_service.levels.core.targets import LevelFire
from delay_service.levels.dead_letters import DEAD_TOPIC, dead_letter


class LevelCommit:
    """`done(firing, error)` follows once: None when it is durable."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        timeout_s: float,
        levels: Levels,
        level: Level,
        fire: FireRun,
        done: Callable[[LevelCommit, Exception | None], None],
    ) -> None:
        self.level = level
        self.fire = fire
        self._backend = backend
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s
        self._done = done
        self._levels = levels
        self.epoch = level.epoch
        self._delta = ProgressDelta(
            LEVELS_GROUP, level.queue, level.epoch, level.generation, ((0, fire.end),)
        )

    def start(self) -> None:
        backend, dead_topic = self._backend, None
        if any(one.reason for one in self.fire.fires):
            dead_topic = ready_topic(backend, DEAD_TOPIC, 1, self._deadline)
        commit_due(backend, dead_topic, self._records, self._delta, self._deadline, self._ended)

    def _records(self) -> list[NewRecord]:
        wall_ms = self._clock.wall_ms()
        return [_record(one, wall_ms, self._levels) for one in self.fire.fires]

    def _ended(self, error: Exception | None) -> None:
        self._done(self, error)


def _record(fire: LevelFire, wall_ms: int, levels: Levels) -> NewRecord:
    if fire.reason:
        return dead_letter(fire, wall_ms)
    record = real_record(fire.record)
    if fire.put_off_ms:
        return schedule_record(record, _level_of(fire.put_off_ms, levels), levels)
    record.queue_id = fire.queue_id
    return record


def _level_of(wait_ms: int, levels: Levels) -> int:
    """The first level that waits so long, or the last."""
    return next((level for level, wait in enumerate(levels.waits, 1) if wait >= wait_ms), len(levels))
