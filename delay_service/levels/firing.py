"""One fire at the backend: due records to where they belong, and the level's progress, as one commit.

Where the engine is not atomic the records are appended first, those that were not stored again until all
are, and the progress is committed then: a crash in between fires them twice, never not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.completion import Completion
from backend.levels import real_record
from backend.port import Backend
from backend.records import AppendResult, AppendStatus, CommitBatch, NewRecord, ProgressDelta, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.errors import RemoteError
from ddmq_common.names import LEVELS_GROUP
from delay_service.levels.core.level import Fire, Level
from delay_service.levels.core.targets import Outlet
from delay_service.levels.dead_letters import dead_letter, ready_dead_topic


class Firing:
    """`done(firing, error)` follows once: None when it is durable."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        timeout_s: float,
        level: Level,
        fire: Fire,
        done: Callable[[Firing, Exception | None], None],
    ) -> None:
        self.level = level
        self.fire = fire
        self._backend = backend
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s
        self._done = done
        self.epoch = level.epoch
        self._delta = ProgressDelta(
            LEVELS_GROUP, level.queue, level.epoch, level.generation, ((0, fire.end),)
        )

    def start(self) -> None:
        if any(outlet.reason for outlet in self.fire.outlets):
            ready_dead_topic(self._backend, self._deadline).then(self._topic_made)
        else:
            self._store()

    def _topic_made(self, made: Completion[TopicInfo]) -> None:
        if made.error is not None:
            self._done(self, made.error)
        else:
            self._store()

    def _store(self) -> None:
        wall_ms = self._clock.wall_ms()
        records = [_record(outlet, wall_ms) for outlet in self.fire.outlets]
        if self._backend.capabilities.atomic:
            self._commit(records)
        else:
            self._append(records)

    def _commit(self, records: list[NewRecord]) -> None:
        batch = CommitBatch(records=records, progress=(self._delta,))
        self._backend.commit(batch, self._deadline).then(self._ended)

    def _append(self, records: list[NewRecord]) -> None:
        def appended(answer: Completion[list[AppendResult]]) -> None:
            if answer.error is not None:
                self._done(self, answer.error)
                return
            pairs = list(zip(records, answer.value, strict=True))
            left = [record for record, result in pairs if result.status is not AppendStatus.STORED]
            if not left:
                self._commit([])
            elif len(left) < len(records):
                self._append(left)
            else:
                self._done(self, pairs[0][1].error or RemoteError("messages may or may not be stored"))

        self._backend.append(records, self._deadline).then(appended)

    def _ended(self, stored: Completion[Any]) -> None:
        self._done(self, stored.error)


def _record(outlet: Outlet, wall_ms: int) -> NewRecord:
    if outlet.reason:
        return dead_letter(outlet, wall_ms)
    record = real_record(outlet.record)
    record.queue_id = outlet.queue_id
    return record
