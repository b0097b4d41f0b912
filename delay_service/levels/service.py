"""LevelService: the delay levels that this process holds, at work.

It makes SCHEDULE_TOPIC, joins the levels' group (so that several processes share the levels, each level with
one owner), loads each level's progress and has a Runner do what its clockwork says. Nothing but a
look at how late they are runs by the second: a level whose head is not due sleeps until then, an empty one
waits for data. Rules:
* A message is fired and finished in one commit, never before the store's clock has its due time.
* When nobody knows what became of a commit, the group is left and joined again: the new epoch keeps the old
  commit out, or the progress that is then read has it.
* While any message is held the clock is looked at every LOOK_S, so that steps of it and a laptop's sleep
  are noticed; nothing is read for that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from backend.claims import RETRY_S, ClaimOwner, QueueClaims, Release
from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.port import Backend, Health, Join
from backend.records import Bounds, ProgressView, QueueRef, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC
from delay_service.config import DelayConfig
from delay_service.due.alarm import Alarm, HubAlarm
from delay_service.due.counts import LevelCounts
from delay_service.due.target_topic import TargetTopic, target_topic
from delay_service.levels.core.level import Level, LevelLimits
from delay_service.levels.core.targets import Targets
from delay_service.levels.runner import LOOK_S, NEVER, LevelsContext, Runner

log = logging.getLogger("ddmq.delay")


class LevelService(ClaimOwner):
    """See the module's text. Make it on the hub that is to serve it; `alarm` is its timer,
    `look_alarm` that of its look at what is overdue.

    `address`: where others find this process (HOST:PORT), told to those who ask who runs the levels.
    """

    def __init__(
        self,
        backend: Backend,
        config: DelayConfig,
        metrics: Registry,
        clock: Clock,
        alarm: Alarm | None = None,
        address: str = "",
        look_alarm: Alarm | None = None,
    ) -> None:
        self._backend = backend
        self._config = config
        self._clock = clock
        self._counts = LevelCounts(metrics)
        self._alarm: Alarm = HubAlarm() if alarm is None else alarm
        self._look_alarm: Alarm = HubAlarm() if look_alarm is None else look_alarm
        self._address = address
        self._context = LevelsContext(
            backend, config, clock, self._counts, self._set_alarm, self._fire_ended, self._rejoin
        )
        self._limits = LevelLimits(
            config.fire_count_max, config.fire_bytes_max, config.pause_ms_min / 1e3, config.pause_ms_max / 1e3
        )
        self._targets = Targets(self._look, config.refused_ms / 1e3)
        self._claims = QueueClaims(backend, self, clock.monotonic)
        self._runners: dict[QueueRef, Runner] = {}
        self._letting_go: dict[Runner, Release] = {}  # revoked while firing: released when that has ended
        self._retry_at = NEVER
        self._looked_at = float("-inf")
        self._looks = False  # at what is overdue
        self._why = "it has not started"
        self._ending: set[Runner] = set()  # stopped while firing
        self._drained: Completion[None] | None = None
        self._closed = False
        self.started: Completion[None] = Completion()  # succeeds when it takes part for the first time

    def _look(self, topic: str) -> TargetTopic | None:
        return target_topic(self._backend, topic)

    # --- start, health, end

    @property
    def _stopping(self) -> bool:
        return self._closed or self._drained is not None

    @property
    def held(self) -> int:
        """How many levels this process holds."""
        return len(self._runners)

    def start(self) -> None:
        """Begin; what is not there yet (a writer, disk space) is tried again until it is."""
        if not self._looks:
            self._looks = True
            self._look_alarm.set(LOOK_S, self._look_at_heads)
        deadline = self._clock.monotonic() + self._config.commit_timeout_ms / 1e3
        levels = len(self._config.table)
        ready_topic(self._backend, SCHEDULE_TOPIC, levels, deadline).then(self._topic_ready)

    def _topic_ready(self, made: Completion[TopicInfo]) -> None:
        if self._stopping:
            return
        if made.error is not None:
            self._not_started(made.error)
        else:
            self._join()

    def _join(self) -> None:
        self._claims.join(Join(LEVELS_GROUP, SCHEDULE_TOPIC, address=self._address))
        if self._claims.joined and not self.started.done:
            self.started.succeed(None)

    def _not_started(self, error: Exception) -> None:
        self._why = str(error)
        self._counts.failed("start", error)
        log.warning("the delay levels do not run yet", extra={"error": self._why})
        self._try_again()

    def _try_again(self) -> None:
        self._retry_at = self._clock.monotonic() + RETRY_S
        self._set_alarm()

    def trouble(self, doing: str, error: Exception) -> None:
        """Start again in a moment."""
        if doing == "join":
            self._not_started(error)
            return
        self._counts.failed("load", error)
        log.warning("progress of the delay levels not read", extra={"error": str(error)})
        self._try_again()

    def health(self) -> Health:
        """Ready while it takes part in running the levels."""
        if self._claims.joined and not self._stopping:
            return Health(True, "")
        return Health(False, f"no level scheduler: {self._why}")

    def drain(self, deadline: float) -> Completion[None]:
        """Begin nothing new, let what is being fired end, then give up the levels.

        A fire ends by its own deadline; the caller waits as long as it likes (`deadline`, monotonic).
        """
        if self._drained is None:
            self._drained = Completion()
            self._why = "it is draining"
            self._alarm.stop()
            self._look_alarm.stop()
            for runner in self._runners.values():
                runner.stop()
            self._end_when_idle()
        return self._drained

    def _end_when_idle(self) -> None:
        drained = self._drained
        if drained is None or drained.done:
            return
        if not self._ending and not any(runner.firing for runner in self._runners.values()):
            self._leave()
            drained.succeed(None)

    def close(self) -> None:
        """Stop at once; what is being fired counts or not, and the next owner sees which."""
        self._closed = True
        self._alarm.stop()
        self._look_alarm.stop()
        self._leave()

    def _leave(self) -> None:
        self._letting_go.clear()
        for queue in list(self._runners):
            self._drop(queue)
        self._claims.leave()

    # --- ClaimOwner

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        """A level is ours: it goes on where its progress ends."""
        position = bounds.min if view.committed is None else view.committed
        level = Level(queue, position, epoch, view.generation, self._limits, self._targets)
        runner = self._runners[queue] = Runner(self._context, level)
        self._counts.held.value = len(self._runners)
        self._counts.pending(runner.number, max(bounds.next - position, 0))
        runner.pump()

    def may_load(self, queue: QueueRef) -> bool:
        return not self._stopping

    def raised(self, queue: QueueRef, epoch: int) -> None:
        self._runners[queue].level.epoch = epoch

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Give them up as soon as nothing of theirs is being fired."""
        free = []
        for queue in queues:
            runner = self._drop(queue)
            if runner is not None and runner.firing:
                self._letting_go[runner] = release
            else:
                free.append(queue)
        if free:
            release(free)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """They are someone else's; what we are firing of theirs counted in time, or is refused."""
        for queue in queues:
            self._drop(queue)

    def _drop(self, queue: QueueRef) -> Runner | None:
        runner = self._runners.pop(queue, None)
        if runner is not None:
            runner.stop()
            if runner.firing:
                self._ending.add(runner)
            self._counts.held.value = len(self._runners)
            self._counts.pending(runner.number, 0)
        return runner

    def _rejoin(self, runner: Runner) -> None:
        """Our claim to a level is in doubt: a new epoch decides."""
        self._leave()
        if not self._stopping:
            self._join()

    def _fire_ended(self, runner: Runner) -> None:
        self._ending.discard(runner)
        release = self._letting_go.pop(runner, None)
        if release is not None:
            release((runner.level.queue,))
        self._end_when_idle()

    # --- time

    def _set_alarm(self) -> None:
        at = min((runner.wake_at for runner in self._runners.values()), default=NEVER)
        at = min(at, self._retry_at)
        if at < NEVER and not self._stopping:
            self._alarm.set(at - self._clock.monotonic(), self._ring)

    def _ring(self) -> None:
        now = self._clock.monotonic()
        if self._retry_at <= now:
            self._retry_at = NEVER
            self.start()
        for runner in [runner for runner in self._runners.values() if runner.wake_at <= now]:
            runner.pump()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._count_pending()
        self._set_alarm()

    def _look_at_heads(self) -> None:
        if self._stopping:
            return
        self._look_alarm.set(LOOK_S, self._look_at_heads)
        levels = {runner.number: runner.level for runner in self._runners.values()}
        known = {number: level.first_due_ms for number, level in levels.items() if level.knows_head}
        unknown = {*levels, *(queue.queue_id + 1 for queue in self._claims.loading)} - known.keys()
        self._counts.overdue(known, unknown, self._claims.joined, self._backend.clock_ms())

    def _count_pending(self) -> None:
        queues = list(self._runners)
        if not queues:
            return

        def known(answer: Completion[list[Bounds | None]]) -> None:
            if answer.error is None:
                for queue, bounds in zip(queues, answer.value, strict=True):
                    runner = self._runners.get(queue)
                    if runner is not None and bounds is not None:
                        self._counts.pending(runner.number, max(bounds.next - runner.level.position, 0))

        self._backend.bounds(queues).then(known)
