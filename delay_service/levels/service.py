"""LevelService: the delay levels that this process holds, at work.

It creates SCHEDULE_TOPIC, joins the levels' group (so that several processes share the levels, each level
with one owner), loads each level's progress and has a LevelRunner do the steps of its clockwork. Only a check
of how late they are runs every second: a level whose head is not due sleeps until then, an empty one waits
for data. Rules:
* A message is fired and finished in one commit, never before its due time on the store's clock.
* When the outcome of a commit is uncertain, the service leaves the group and joins again: the new epoch
  fences the old commit, or the progress that is then read has it.
* A level that holds a message checks the clock every CHECK_INTERVAL_S, so that steps of it and a laptop's
  sleep are noticed; nothing is read for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from backend.completion import Completion, failed
from backend.port import Backend, Join
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import TryLaterError
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC
from delay_service.config import DelayConfig
from delay_service.core.level import Level, LevelLimits, LevelState
from delay_service.core.level_targets import Targets
from delay_service.due.backend import target_topic
from delay_service.due.service import Alarm, DueService, hub_alarm
from delay_service.levels.context import LevelCounts, LevelsContext
from delay_service.levels.removal import RemovalOrder
from delay_service.levels.runner import LevelRunner

log = logging.getLogger("ddmq.delay")
TRIM_CHECKS = 30  # looks between two times that the log is told what nobody needs any more


class LevelService(DueService[LevelRunner]):
    """Runs the delay levels that this process owns.

    `address`: where other processes reach this one. `started` settles when it has joined for the first time.
    """

    _counts: LevelCounts

    def __init__(
        self,
        backend: Backend,
        config: DelayConfig,
        metrics: Registry,
        clock: Clock,
        alarms: Callable[[], Alarm] = hub_alarm,
        check_alarm: Alarm | None = None,
        address: str = "",
    ) -> None:
        counts, join = LevelCounts(metrics), Join(LEVELS_GROUP, SCHEDULE_TOPIC, address=address)
        check_alarm = check_alarm or hub_alarm()
        super().__init__(
            "level scheduler", backend, config, clock, counts, join, alarms(), check_alarm, load=True
        )
        self._alarms = alarms
        self._context = LevelsContext(backend, config, config.table, clock, counts, self.reacquire)
        self._limits = LevelLimits(
            config.fire_count_max, config.fire_bytes_max, config.pause_ms_min / 1e3, config.pause_ms_max / 1e3
        )
        self._targets = Targets(partial(target_topic, backend), config.refused_ms / 1e3)
        self._checks = 0

    # --- start and end

    @property
    def owned_count(self) -> int:
        """Return how many levels this process owns."""
        return len(self._owned)

    def list_positions(self) -> dict[int, int]:
        """Return for each level's queue the offset below which every message has fired."""
        return {queue.queue_id: runner.level.finished_below for queue, runner in self._owned.items()}

    def owns_level(self, level: int) -> bool:
        """Return whether this process owns a level; levels count from 1."""
        return any(runner.number == level for runner in self._owned.values())

    def remove_messages(self, level: int, order: RemovalOrder) -> Completion[dict[int, str]]:
        """Remove messages from a level before they are due (see RemovalOrder)."""
        for runner in self._owned.values():
            if runner.number == level:
                return runner.removals.add(order)
        return failed(TryLaterError(f"this process does not own delay level {level}; try again"))

    def first_due(self) -> list[int]:
        """Return when the first message of each level is due, epoch milliseconds; no empty levels."""
        levels = [runner.level for runner in self._owned.values() if runner.level.knows_head]
        return [level.first_due_ms for level in levels if level.first_due_ms is not None]

    def _queue_count(self) -> int:
        return len(self._config.table)

    def acquire(self) -> None:
        super().acquire()
        if self._claims.joined and not self.started.done:
            self.started.succeed(None)

    def on_failed(self, doing: str, error: Exception) -> None:
        if doing == "join":
            self._on_start_failed(error)
            return
        self._counts.count_failure("load", error)
        log.warning("progress of the delay levels not read", extra={"error": str(error)})
        self._start_later()

    # --- QueueOwner

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        """Start a granted level at the end of its progress."""
        position = bounds.min if view.committed is None else view.committed
        level = Level(queue, position, epoch, view.generation, self._limits, self._targets, view.finished)
        runner = LevelRunner(self._context, level, self._alarms())
        self._begin_work(runner)
        self._counts.pending[runner.number].value = level.count_waiting(bounds.next)
        runner.run_steps()

    def _on_owned_changed(self, queue: QueueRef) -> None:
        self._counts.owned.value = len(self._owned)
        if queue not in self._owned:
            self._counts.pending[queue.queue_id + 1].value = 0

    # --- looking

    def _check_work(self) -> None:
        levels = {runner.number: runner.level for runner in self._owned.values()}
        due_by_level = {number: level.first_due_ms for number, level in levels.items() if level.knows_head}
        unread = {*levels, *(queue.queue_id + 1 for queue in self._claims.loading)} - due_by_level.keys()
        self._counts.report_overdue(due_by_level, unread, self._claims.joined, self._backend.clock_ms())
        self._count_pending()
        self._checks += 1
        if self._checks % TRIM_CHECKS == 0:
            for queue, runner in self._owned.items():
                self._backend.trim(queue, runner.level.finished_below)

    def _count_pending(self) -> None:
        """Set the number of waiting messages of each level. A level that waits for data has none."""
        runners = self._owned.items()
        queues = [queue for queue, runner in runners if runner.level.state is not LevelState.WAITING]

        def on_bounds(answer: Completion[list[Bounds | None]]) -> None:
            if answer.error is None:
                for queue, bounds in zip(queues, answer.value, strict=True):
                    runner = self._owned.get(queue)
                    if runner is not None and bounds is not None:
                        self._counts.pending[runner.number].value = runner.level.count_waiting(bounds.next)

        if queues:
            self._backend.bounds(queues).then(on_bounds)
