"""LevelService: the delay levels that this process holds, at work.

It makes SCHEDULE_TOPIC, joins the levels' group (so that several processes share the levels, each level with
one owner), loads each level's progress and has a Runner do what its clockwork says. Nothing but a
look at how late they are runs by the second: a level whose head is not due sleeps until then, an empty one
waits for data. Rules:
* A message is fired and finished in one commit, never before the store's clock has its due time.
* When nobody knows what became of a commit, the group is left and joined again: the new epoch keeps the old
  commit out, or the progress that is then read has it.
* A level that holds a message looks at the clock each LOOK_S, so that steps of it and a laptop's sleep are
  noticed; nothing is read for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from backend.completion import Completion
from backend.port import Backend, Join
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.clock import Clock
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC
from delay_service.config import DelayConfig
from delay_service.core.level import Level, LevelLimits, LevelState
from delay_service.core.level_targets import Targets
from delay_service.due.backend import target_topic
from delay_service.due.service import Alarm, DueService, hub_alarm
from delay_service.levels.runner import LevelCounts, LevelsContext, Runner

log = logging.getLogger("ddmq.delay")
TRIM_LOOKS = 30  # looks between two times that the log is told what nobody needs any more


class LevelService(DueService[Runner]):
    """The levels of one process, at work. `started` succeeds when it takes part for the first time."""

    _counts: LevelCounts

    def __init__(
        self,
        backend: Backend,
        config: DelayConfig,
        metrics: Registry,
        clock: Clock,
        alarms: Callable[[], Alarm] = hub_alarm,
        look_alarm: Alarm | None = None,
    ) -> None:
        counts, join = LevelCounts(metrics), Join(LEVELS_GROUP, SCHEDULE_TOPIC)
        look_alarm = look_alarm or hub_alarm()
        super().__init__(
            "level scheduler", backend, config, clock, counts, join, alarms(), look_alarm, load=True
        )
        self._alarms = alarms
        self._context = LevelsContext(backend, config, config.table, clock, counts, self.reacquire)
        self._limits = LevelLimits(
            config.fire_count_max, config.fire_bytes_max, config.pause_ms_min / 1e3, config.pause_ms_max / 1e3
        )
        self._targets = Targets(partial(target_topic, backend), config.refused_ms / 1e3)
        self._looks = 0

    # --- start and end

    @property
    def held(self) -> int:
        """How many levels this process holds."""
        return len(self._owned)

    def _queues(self) -> int:
        return len(self._config.table)

    def acquire(self) -> None:
        super().acquire()
        if self._claims.joined and not self.started.done:
            self.started.succeed(None)

    def trouble(self, doing: str, error: Exception) -> None:
        if doing == "join":
            self._not_started(error)
            return
        self._counts.failed("load", error)
        log.warning("progress of the delay levels not read", extra={"error": str(error)})
        self._try_again()

    # --- QueueOwner

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        """Start firing a level where its progress ends."""
        position = bounds.min if view.committed is None else view.committed
        level = Level(queue, position, epoch, view.generation, self._limits, self._targets)
        runner = Runner(self._context, level, self._alarms())
        self._begin_work(runner)
        self._counts.pending[runner.number].value = max(bounds.next - position, 0)
        runner.pump()

    def _on_owned_changed(self, queue: QueueRef) -> None:
        self._counts.held.value = len(self._owned)
        if queue not in self._owned:
            self._counts.pending[queue.queue_id + 1].value = 0

    # --- looking

    def _look_now(self) -> None:
        levels = {runner.number: runner.level for runner in self._owned.values()}
        known = {number: level.first_due_ms for number, level in levels.items() if level.knows_head}
        unknown = {*levels, *(queue.queue_id + 1 for queue in self._claims.loading)} - known.keys()
        self._counts.overdue(known, unknown, self._claims.joined, self._backend.clock_ms())
        self._count_pending()
        self._looks += 1
        if self._looks % TRIM_LOOKS == 0:
            for queue, runner in self._owned.items():
                self._backend.trim(queue, runner.level.position)

    def _count_pending(self) -> None:
        """Levels that wait for data are known to be empty."""
        runners = self._owned.items()
        queues = [queue for queue, runner in runners if runner.level.state is not LevelState.WAITING]

        def known(answer: Completion[list[Bounds | None]]) -> None:
            if answer.error is None:
                for queue, bounds in zip(queues, answer.value, strict=True):
                    runner = self._owned.get(queue)
                    if runner is not None and bounds is not None:
                        left = max(bounds.next - runner.level.position, 0)
                        self._counts.pending[runner.number].value = left

        if queues:
            self._backend.bounds(queues).then(known)
