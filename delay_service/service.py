"""DelayService: messages with any due time, of the shards that this process owns.

It creates the inner topic, joins the delay group (so that several processes share the shards, each with one
owner) and runs a Shard for each queue that it is granted. When the outcome of a commit is uncertain, the
service leaves the group and joins again: the new epoch fences the old commit, or the progress that is then
read has it. A shard handles a failure of its store itself. docs/decisions/0010 says why a message fires once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.port import Assignment, Backend, Health, Join
from backend.records import Bounds, ProgressView, QueueRef, TopicInfo
from backend.traces import TraceWriter
from ddmq_common.clock import Clock
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC, HOLD_PREFIX, WAITING_TOPIC
from delay_service.config import DelayConfig
from delay_service.context import DelayServiceContext
from delay_service.due.counts import DelayCounts
from delay_service.due.holds import list_holds
from delay_service.due.service import Alarm, DueService, hub_alarm
from delay_service.quota import Quota
from delay_service.shard import CALM_S, PAUSE_S, Shard
from delay_service.store.port import DelayStore, StoreOpener
from delay_service.waiting.standby import Standby

log = logging.getLogger("ddmq.delay")
TIDY_CHECKS = 30  # looks between two times that the stores give back disk space


class DelayService(DueService[Shard]):
    """Runs the delay shards that this process owns.

    `opener` opens a shard's store, blocking in a native thread. `address`: where other processes reach this
    one. `standby_opener` opens the store of a shard that another process owns; None: no standbys. `alarms`
    creates timers. `fires` False: stores follow the log, but no message fires. `quota_of`: returns how many
    messages of an identity may wait, 0 for no limit; None: rights are off. `started` settles when all shards
    granted at the start fire, or when other processes own all shards.
    """

    _counts: DelayCounts

    def __init__(
        self,
        backend: Backend,
        config: DelayConfig,
        metrics: Registry,
        clock: Clock,
        opener: StoreOpener,
        address: str = "",
        alarms: Callable[[], Alarm] = hub_alarm,
        *,
        fires: bool = True,
        standby_opener: Callable[[QueueRef], DelayStore] | None = None,
        traces: TraceWriter | None = None,
        quota_of: Callable[[str], int] | None = None,
    ) -> None:
        counts, join = DelayCounts(metrics), Join(DELAY_GROUP, DELAY_TOPIC, address=address)
        super().__init__(
            "delay service", backend, config, clock, counts, join, alarms(), alarms(), load=False
        )
        self._service = DelayServiceContext(backend, config, clock, self._counts, fires, traces)
        self._opener = opener
        self._alarms = alarms
        self._quota = Quota(self._service, quota_of)
        self._granted = False  # heard of our shards, or that others have them all
        self._reacquire_pause_s = PAUSE_S
        self._reacquired_at = float("-inf")
        self._standby_opener = standby_opener if backend.compacts and config.standby else None
        self._standbys: dict[QueueRef, Standby] = {}
        self._lags: dict[int, int] = {}
        self._positions: dict[
            QueueRef, int
        ] = {}  # how far commands were taken in, also by a shard that failed
        self._checks = 0
        self._holds_changed = True  # since they were counted; to list them, all settings are gone through
        self._stop_watching: Callable[[], None] | None = None

    # --- start, health, end

    @property
    def shards(self) -> Mapping[int, Shard]:
        """Return the shards that this process owns, by number."""
        return {queue.queue_id: shard for queue, shard in sorted(self._owned.items())}

    def start(self) -> None:
        if self._stop_watching is None:
            self._stop_watching = self._backend.watch_settings(
                self._on_setting_changed, "topic/", HOLD_PREFIX
            )
        super().start()

    def _queue_count(self) -> int:
        """Return the number of shards, which never changes, because an id's shard is derived from it."""
        info = self._backend.topic(DELAY_TOPIC)
        return self._config.shards if info is None else info.queues

    def _on_topic_ready(self, answer: Completion[TopicInfo]) -> None:
        """Create the topic of rows as well, if the engine has one."""
        if answer.error is not None or not self._backend.compacts:
            super()._on_topic_ready(answer)
            return
        deadline = self._clock.monotonic() + self._config.commit_timeout_ms / 1e3
        ready_topic(self._backend, WAITING_TOPIC, answer.value.queues, deadline).then(super()._on_topic_ready)

    @property
    def standbys(self) -> Mapping[int, Standby]:
        """Return the warm standby stores of shards that other processes own, by number."""
        return {queue.queue_id: standby for queue, standby in sorted(self._standbys.items())}

    def health(self) -> Health:
        """Return ready while the service is a group member and all its shards fire."""
        health = super().health()
        if not health.ready:
            return health
        for number, shard in self.shards.items():
            if shard.why:
                return Health(False, f"delay shard {number} does not fire: {shard.why}")
        if not self._granted:
            return Health(False, "the delay service has not heard yet which shards it owns")
        return Health(True, "")

    def drain(self, deadline: float) -> Completion[None]:
        self._end_standbys()
        return super().drain(deadline)

    def close(self) -> None:
        if self._stop_watching is not None:
            self._stop_watching()
        super().close()
        self._end_standbys()

    def _is_idle(self) -> bool:
        return super()._is_idle() and not self._standbys

    def _leave(self) -> None:
        self._granted = False
        super()._leave()

    # --- QueueOwner

    def assigned(self, assignment: Assignment) -> None:
        """Record whether this process was granted any shards."""
        self._granted = self._granted or (bool(assignment.queues) and not self._stopping)

    def granted(self, queue: QueueRef, epoch: int) -> None:
        """Start a granted shard.

        Its store is opened once its previous owner in this process has closed it.
        """
        if self._stopping:
            return
        ending = self._ending_of(queue)
        closed = ending[-1].closed if ending else self._end_standby(queue)
        shard = Shard(
            self._service,
            queue,
            epoch,
            self._opener,
            self._alarms,
            self._on_claim_uncertain,
            self._on_shard_opened,
            closed,
        )
        self._begin_work(shard)
        shard.start()

    def _on_owned_changed(self, queue: QueueRef) -> None:
        self._counts.shards.value = len(self._owned)
        if queue in self._owned:
            return
        self._positions.pop(queue, None)
        if self._lags.pop(queue.queue_id, None) is not None:
            self._counts.lag[queue.queue_id].value = 0  # its next owner reports it

    # --- standbys

    def _start_standbys(self) -> None:
        """Start a standby for each shard that this process does not own."""
        info = self._backend.topic(DELAY_TOPIC)
        if self._standby_opener is None or info is None or self._stopping:
            return
        for queue in info.refs():
            if not (queue in self._owned or queue in self._standbys or self._ending_of(queue)):
                standby = Standby(self._backend, self._clock, queue, self._standby_opener)
                self._standbys[queue] = standby
                standby.start()

    def _end_standbys(self) -> None:
        for queue in list(self._standbys):
            self._end_standby(queue)

    def _end_standby(self, queue: QueueRef) -> Completion[None] | None:
        standby = self._standbys.get(queue)
        if standby is None:
            return None

        def on_closed(_: Completion[None]) -> None:
            if self._standbys.get(queue) is standby:
                del self._standbys[queue]
            self._leave_when_idle()

        standby.closed.then(on_closed)
        return standby.stop()

    def _on_shard_opened(self) -> None:
        if not self.started.done and self.health().ready:
            self.started.succeed(None)

    def _on_claim_uncertain(self, shard: Shard, error: Exception) -> None:
        """Leave the group and rejoin after a pause, so that a new epoch settles an uncertain claim."""
        if self._stopping or self._owned.get(shard.queue) is not shard:
            return
        log.warning("releasing and re-acquiring all delay shards: %s", error)
        self._why = str(error)
        self._leave()
        now, before = self._clock.monotonic(), self._reacquired_at
        is_repeated = now - before < CALM_S
        pause = min(self._reacquire_pause_s * 2, self._config.pause_ms_max / 1e3) if is_repeated else PAUSE_S
        self._reacquire_pause_s, self._reacquired_at = pause, now
        self._alarm.once(pause, self.start)

    # --- looking

    def _on_setting_changed(self, key: str) -> None:
        if key.startswith(HOLD_PREFIX):
            self._holds_changed = True
            for shard in self._owned.values():
                shard.hold_changed(key.removeprefix(HOLD_PREFIX))
        else:
            for shard in self._owned.values():
                shard.topic_changed(key.removeprefix("topic/"))

    def _check_work(self) -> None:
        self._count_overdue()
        if not self._claims.joined:
            return
        if not self._granted:
            self._read_holders()
        self._start_standbys()
        self._count_pending()
        self._checks += 1
        if self._checks % TIDY_CHECKS == 0:
            for shard in self._owned.values():
                shard.tidy_store()
                shard.trim_log()
        queues = list(self._owned)
        closed = [queue for queue, shard in self._owned.items() if shard.position is None]
        self._read_positions([queue for queue in closed if queue not in self._positions])

        def on_bounds(answer: Completion[list[Bounds | None]]) -> None:
            if answer.error is None:
                for queue, bounds in zip(queues, answer.value, strict=True):
                    self._count_lag(queue, bounds)

        if queues:
            self._backend.bounds(queues).then(on_bounds)

    def _count_overdue(self) -> None:
        due_by_shard: dict[int, int | None] = {}
        for number, shard in self.shards.items():
            due_ms = shard.first_due_ms()
            if shard.running and not shard.why:
                due_by_shard[number] = due_ms
        unread = self.shards.keys() - due_by_shard.keys()
        self._counts.report_overdue(due_by_shard, unread, self._granted, self._clock.wall_ms())

    def _read_holders(self) -> None:
        """Read whether other processes own all shards. A shard without an owner may still be granted here."""

        def on_holders(answer: Completion[Mapping[QueueRef, str]]) -> None:
            if answer.error is None and self._claims.joined and not self._owned:
                info = self._backend.topic(DELAY_TOPIC)
                self._granted = info is not None and len(answer.value) >= info.queues
                self._on_shard_opened()

        self._backend.holders(DELAY_GROUP, DELAY_TOPIC, self._service.deadline()).then(on_holders)

    def _count_pending(self) -> None:
        pending, sizes = self.pending_counts(), self._sum_counts(lambda store: store.sizes())
        self._counts.pending.show_numbers(pending)
        self._counts.pending_bytes.show_numbers(sizes)
        if self._holds_changed:
            self._holds_changed = False
            self._counts.held.show_numbers(dict.fromkeys(list_holds(self._backend), 1))
        info = self._backend.topic(DELAY_TOPIC)
        if info is not None and all(shard.running for shard in self._owned.values()):
            senders = self.sender_counts()
            self._quota.check_topics(self.shards.keys(), info.queues, pending, sizes, senders)

    def _read_positions(self, queues: list[QueueRef]) -> None:
        """Read how far earlier owners have ingested the shards that this process has not opened yet."""

        def on_progress(answer: Completion[list[ProgressView]]) -> None:
            if answer.error is None:
                for queue, view in zip(queues, answer.value, strict=True):
                    if queue in self._owned:
                        self._positions.setdefault(queue, view.committed or 0)

        if queues:
            self._backend.progress(DELAY_GROUP, queues).then(on_progress)

    def _count_lag(self, queue: QueueRef, bounds: Bounds | None) -> None:
        shard = self._owned.get(queue)
        if shard is None:
            return
        if shard.position is not None:
            self._positions[queue] = shard.position
        if bounds is not None and queue in self._positions:
            self._lags[queue.queue_id] = lag = max(bounds.next - self._positions[queue], 0)
            self._counts.lag[queue.queue_id].value = lag

    def lags(self) -> dict[int, int]:
        """Return the number of commands not yet ingested by shard, as of the last check (every second)."""
        return {number: self._lags.get(number, -1) for number in self.shards}

    def pending_counts(self) -> Counter[str]:
        """Return the number of waiting messages by topic in the shards of this process."""
        return self._sum_counts(lambda store: store.counts())

    def sender_counts(self) -> Counter[str]:
        """Return the number of waiting messages by the identity that sent them, as `pending_counts`."""
        return self._sum_counts(lambda store: store.sender_counts())

    def _sum_counts(self, of: Callable[[DelayStore], Mapping[str, int]]) -> Counter[str]:
        total: Counter[str] = Counter()
        for shard in self._owned.values():
            if shard.context is not None and shard.context.running:
                total.update(of(shard.context.store))
        return total
