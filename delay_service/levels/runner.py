"""Runs one level: does at the backend what the clockwork (core/level.py) says, one step at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from backend.ownership.reader import QueueReader, ReadAnswer
from backend.records import ProgressDelta, QueueRef
from ddmq_common.errors import CallerError, FencedError, UnknownTopicError
from ddmq_common.names import LEVELS_GROUP
from delay_service.core.level import (
    FireRun,
    Level,
    LevelState,
    PauseUntil,
    Read,
    SleepUntil,
    WaitForData,
)
from delay_service.core.level_targets import DEAD_TOPIC, record_of
from delay_service.due.backend import CommitFailure, classify_failure, commit_due
from delay_service.due.service import CHECK_INTERVAL_S, Alarm
from delay_service.levels.context import LevelsContext
from delay_service.levels.removal import LevelRemovals

log = logging.getLogger("ddmq.delay")
WAIT_S = 60.0  # how long one wait for data stands before it is armed again


class LevelRunner:
    """Runs one level until `stop`. A fire in flight then still finishes."""

    def __init__(self, context: LevelsContext, level: Level, alarm: Alarm) -> None:
        self._context = context
        self._alarm = alarm
        self._reader = QueueReader(context.backend, level.queue, self._on_read, self._on_data)
        self._on_idle: Callable[[], None] | None = None
        self._has_no_answer = False
        self.level = level
        self.number = level.queue.queue_id + 1
        self.running = True
        self.removals = LevelRemovals(context, level, self._on_removal_end)

    # --- QueueWork

    @property
    def queue(self) -> QueueRef:
        return self.level.queue

    @property
    def is_busy(self) -> bool:
        """Return whether a fire or a removal is in flight."""
        is_firing = self.level.state is LevelState.FIRING and not self._has_no_answer
        return is_firing or self.removals.is_busy

    def raise_epoch(self, epoch: int) -> None:
        self.level.epoch = epoch

    def abandon(self) -> None:
        """Do nothing: a fire in flight is either committed under its old epoch or fenced."""

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Start nothing new; call `on_idle` when neither a fire nor a removal is in flight."""
        self.running = False
        self.removals.stop()
        self._on_idle = on_idle
        self._alarm.stop()
        self._reader.stop()

    # --- steps

    def run_steps(self) -> None:
        """Run the level's next step and schedule the one after it.

        An error does not stop the level: it is logged and the step is retried.
        """
        if not self.running:
            return
        try:
            self._do_step()
        except Exception as error:
            self._on_step_failed(error)

    def _on_step_failed(self, error: Exception) -> None:
        log.error("delay level %d: a step failed", self.number, exc_info=error)
        self._context.counts.count_failure("step", error)
        if self.level.state is LevelState.FIRING:
            self._has_no_answer = True  # how far the fire came is uncertain, and nothing will say so
            self._context.reacquire()
            return
        self.level.on_failed(self._context.clock.monotonic())
        self._alarm.once(CHECK_INTERVAL_S, self.run_steps)

    def _do_step(self) -> None:
        context, now = self._context, self._context.clock.monotonic()
        clock_ms = context.backend.clock_ms()
        step = self.level.step(clock_ms, now)
        if isinstance(step, Read):
            self._reader.read(step.offset, context.config.read_count, context.config.read_bytes)
        elif isinstance(step, WaitForData):
            self._reader.wait(step.offset, now + WAIT_S)
        elif isinstance(step, FireRun):
            self._fire(step)
        elif isinstance(step, SleepUntil):
            self._alarm.once(min((step.due_ms - clock_ms) / 1e3, CHECK_INTERVAL_S), self.run_steps)
        elif isinstance(step, PauseUntil):
            self._alarm.once(step.at_s - now, self.run_steps)

    # --- reading and waiting

    def _on_read(self, read: ReadAnswer) -> None:
        level, counts = self.level, self._context.counts
        records = read.records()
        if read.expected > len(records):
            counts.count_lost(self.number, "missing", read.expected - len(records))
        if read.error is not None:
            self._pause_after("read", read.error)
        elif read.oldest is not None:
            lost = level.skip_to(read.oldest)
            counts.count_lost(self.number, "expired", lost)
            log.error("delayed messages are gone from the log", extra={"level": self.number, "count": lost})
        elif read.at_end:
            level.on_queue_end(read.next_offset)
            counts.pending[self.number].value = 0
        else:
            level.add_records(records, read.next_offset, self._context.backend.clock_ms())
        self.run_steps()

    def _on_data(self, arrived: bool, error: Exception | None) -> None:
        if error is not None:
            self._pause_after("wait", error)
        else:
            self.level.on_wait_end(arrived)
        self.run_steps()

    def _pause_after(self, what: str, error: Exception) -> None:
        self._context.counts.count_failure(what, error)
        self.level.on_failed(self._context.clock.monotonic())
        log.warning(
            "delay level held up, tried again",
            extra={"level": self.number, "what": what, "error": str(error)},
        )

    # --- firing

    def _fire(self, fire: FireRun) -> None:
        context, level = self._context, self.level
        epoch, deadline = level.epoch, context.clock.monotonic() + context.config.commit_timeout_ms / 1e3
        progress = ProgressDelta(LEVELS_GROUP, level.queue, epoch, level.generation, ((0, fire.end),))
        dead_topic = DEAD_TOPIC if any(level_fire.reason for level_fire in fire.fires) else ""
        wall_ms = context.clock.wall_ms()
        records = [record_of(level_fire, wall_ms, context.levels) for level_fire in fire.fires]

        def on_done(error: Exception | None) -> None:
            self._on_fire_done(fire, epoch, error)

        commit_due(context.backend, dead_topic, records, (progress,), deadline, on_done)

    def _on_fire_done(self, fire: FireRun, epoch: int, error: Exception | None) -> None:
        context = self._context
        if error is None:
            context.counts.count_fired(self.number, fire.fires, context.backend.clock_ms())
            self.level.on_fired(fire)
        elif self.running:
            self._on_not_fired(fire, epoch, error)
        else:
            self.level.on_failed(context.clock.monotonic())
        if self._on_idle is not None:
            self._on_idle()
        self.removals.advance_orders()
        self.run_steps()

    def _on_removal_end(self) -> None:
        """Continue with the level, which has fired nothing since the removal began."""
        if self._on_idle is not None:
            self._on_idle()
        self.run_steps()

    def _on_not_fired(self, fire: FireRun, epoch: int, error: Exception) -> None:
        context, now = self._context, self._context.clock.monotonic()
        how = classify_failure(error, epoch < self.level.epoch, (CallerError,))
        if how is CommitFailure.RETRY and isinstance(error, FencedError):
            self.level.on_failed(now)  # it was granted to us anew meanwhile
        elif how is CommitFailure.RETRY:
            self._pause_after("fire", error)
        else:
            context.counts.count_failure("fire", error)
            if how is CommitFailure.CLAIM_UNCERTAIN:
                facts = {"level": self.number, "error": str(error)}
                log.warning("a delay level's claim is renewed", extra=facts)
                context.reacquire()
            else:
                self.level.on_rejected(fire, topic_unknown=isinstance(error, UnknownTopicError), now_s=now)
