"""DelayService: messages with any due time, of the shards that this process owns.

It makes the inner topic, joins the delay group (so that several processes share the shards, each with one
owner) and runs a Shard for each that it is granted. When nobody knows what became of a commit, the group is
left and joined again: the new epoch keeps the old commit out, or the progress that is then read has it. A
store that fails is its shard's own affair. docs/decisions/0010 tells why a message fires once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from backend.claims import RETRY_S, ClaimOwner, QueueClaims, Release
from backend.completion import Completion, succeeded
from backend.internal_topics import ready_topic
from backend.port import Assignment, Backend, Health, Join
from backend.records import Bounds, QueueRef, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC
from delay_service.config import DelayConfig
from delay_service.context import DelayServiceContext
from delay_service.due.alarm import Alarm, HubAlarm
from delay_service.due.counts import DelayCounts
from delay_service.quota import Quota
from delay_service.shard import CALM_S, PAUSE_S, Shard
from delay_service.store.port import StoreOpener

log = logging.getLogger("ddmq.delay")
LOOK_S = 1.0  # between two looks at how much waits
TIDY_LOOKS = 30  # looks between two times that the stores give back disk space


class DelayService(ClaimOwner):
    """See the module's text. Make it on the hub that is to serve it.

    `opener` opens a shard's store (it runs in a native thread). `address`: where others reach this process,
    told to those who ask who owns a shard. `alarms` makes timers. `started` settles when all shards that
    were granted at the beginning fire, or others have them all.
    """

    def __init__(
        self,
        backend: Backend,
        config: DelayConfig,
        metrics: Registry,
        clock: Clock,
        opener: StoreOpener,
        address: str = "",
        alarms: Callable[[], Alarm] = HubAlarm,
    ) -> None:
        self._backend = backend
        self._config = config
        self._clock = clock
        self._counts = DelayCounts(metrics)
        self._service = DelayServiceContext(backend, config, clock, self._counts)
        self._opener = opener
        self._address = address
        self._alarms = alarms
        self._alarm = alarms()
        self._look_alarm = alarms()
        self._quota = Quota(backend, config, clock, self._counts)
        self._granted = False  # heard of our shards, or that others have them all
        self._doubt_pause_s = PAUSE_S
        self._doubted_at = float("-inf")
        self._claims = QueueClaims(backend, self, clock.monotonic, load=False)
        self._shards: dict[QueueRef, Shard] = {}
        self._closing: dict[QueueRef, Shard] = {}
        self._lags: dict[int, int] = {}
        self.started: Completion[None] = Completion()
        self._why = "it has not started"
        self._looks = 0
        self._stop_watching: Callable[[], None] | None = None
        self._drained: Completion[None] | None = None
        self._closed = False

    # --- start, health, end

    @property
    def _stopping(self) -> bool:
        return self._closed or self._drained is not None

    @property
    def shards(self) -> Mapping[int, Shard]:
        """The shards that this process owns, by number."""
        return {queue.queue_id: shard for queue, shard in sorted(self._shards.items())}

    def start(self) -> None:
        """Begin; what is not there yet (a writer, disk space) is tried again until it is."""
        if self._stop_watching is None:
            self._stop_watching = self._backend.watch_settings(self._changed)
            self._look_alarm.set(LOOK_S, self._look)
        try:
            found = self._backend.topic(DELAY_TOPIC)
            # it keeps the shards that it was made with: commands find their message by them
            shards = self._config.shards if found is None else found.queues
            ready_topic(self._backend, DELAY_TOPIC, shards, self._service.deadline()).then(self._topic_ready)
        except Exception as error:
            self._not_started(error)

    def _topic_ready(self, made: Completion[TopicInfo]) -> None:
        if self._stopping:
            return
        if made.error is not None:
            self._not_started(made.error)
        else:
            self._join()

    def _join(self) -> None:
        if not self._stopping:
            self._claims.join(Join(DELAY_GROUP, DELAY_TOPIC, address=self._address))

    def trouble(self, doing: str, error: Exception) -> None:
        self._not_started(error)

    def _not_started(self, error: Exception) -> None:
        self._why = str(error)
        self._counts.failed("start", error)
        log.warning("the delay service does not run yet: %s", self._why)
        self._alarm.set(RETRY_S, self.start)

    def health(self) -> Health:
        """Ready while it takes part, and fires in every shard that it owns."""
        if not self._claims.joined or self._stopping:
            return Health(False, f"no delay service: {self._why}")
        for number, shard in self.shards.items():
            if shard.why:
                return Health(False, f"delay shard {number} does not fire: {shard.why}")
        if not self._granted:
            return Health(False, "the delay service has not heard yet which shards it owns")
        return Health(True, "")

    def drain(self, deadline: float) -> Completion[None]:
        """Begin nothing new, let commits under way end, close the stores, then give up the shards.

        A commit ends by its own deadline; the caller waits as long as it likes (`deadline`, monotonic).
        """
        if self._drained is None:
            self._drained = Completion()
            self._why = "it is draining"
            self._alarm.stop()
            self._look_alarm.stop()
            self._stop_all(Shard.stop)
            self._end_when_closed()
        return self._drained

    def close(self) -> None:
        """Stop at once; what is being committed counts or not, and the next owner sees which."""
        self._closed = True
        self._alarm.stop()
        self._look_alarm.stop()
        self._stop_all(Shard.abandon)
        self._leave()
        if self._stop_watching is not None:
            self._stop_watching()

    def _end_when_closed(self) -> None:
        drained = self._drained
        if drained is not None and not drained.done and not self._closing:
            self._leave()
            drained.succeed(None)

    def _leave(self) -> None:
        self._granted = False
        self._claims.leave()

    # --- ClaimOwner

    def assigned(self, assignment: Assignment) -> None:
        """Shards are ours under this epoch."""
        self._granted = self._granted or (bool(assignment.queues) and not self._stopping)

    def raised(self, queue: QueueRef, epoch: int) -> None:
        shard = self._shards.get(queue)
        if shard is not None:
            shard.raised(epoch)

    def granted(self, queue: QueueRef, epoch: int) -> None:
        """A shard is ours; its store is opened once whoever had it here before has closed it."""
        if self._stopping:
            return
        before = self._closing.get(queue)
        shard = Shard(
            self._service,
            queue,
            epoch,
            self._opener,
            self._alarms,
            self._doubted,
            self._shard_opened,
            None if before is None else before.closed,
        )
        self._shards[queue] = shard
        self._counts.shards.value = len(self._shards)
        shard.start()

    def _shard_opened(self) -> None:
        if not self.started.done and self.health().ready:
            self.started.succeed(None)

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Give them up as soon as nothing of theirs is being committed and their store is closed."""
        for queue in queues:
            self._end(queue, Shard.stop).then(lambda _, queue=queue: release((queue,)))  # type: ignore[misc]

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """They are someone else's; what we are committing of theirs counted in time, or is refused."""
        for queue in queues:
            self._end(queue, Shard.abandon)

    def _end(self, queue: QueueRef, how: Callable[[Shard], None]) -> Completion[None]:
        shard = self._shards.pop(queue, None)
        if shard is None:
            before = self._closing.get(queue)
            return succeeded(None) if before is None else before.closed
        self._counts.shards.value = len(self._shards)
        self._closing[queue] = shard
        shard.closed.then(lambda _: self._has_closed(queue, shard))
        how(shard)
        return shard.closed

    def _has_closed(self, queue: QueueRef, shard: Shard) -> None:
        if self._closing.get(queue) is shard:
            del self._closing[queue]
        self._end_when_closed()

    def _stop_all(self, how: Callable[[Shard], None]) -> None:
        for queue in list(self._shards):
            self._end(queue, how)

    def _doubted(self, shard: Shard, error: Exception) -> None:
        """Our claim to a shard is in doubt: a new epoch decides."""
        if self._stopping or self._shards.get(shard.queue) is not shard:
            return
        log.warning("the delay shards are given up and had anew: %s", error)
        self._why = str(error)
        self._stop_all(Shard.abandon)
        self._leave()
        now, before = self._clock.monotonic(), self._doubted_at
        again = now - before < CALM_S
        pause = min(self._doubt_pause_s * 2, self._config.pause_ms_max / 1e3) if again else PAUSE_S
        self._doubt_pause_s, self._doubted_at = pause, now
        self._alarm.set(pause, self.start)

    # --- looking

    def _changed(self, key: str) -> None:
        kind, _, topic = key.partition("/")
        if kind == "topic":
            for shard in self._shards.values():
                shard.topic_changed(topic)

    def _look(self) -> None:
        if self._stopping:
            return
        self._look_alarm.set(LOOK_S, self._look)
        self._count_overdue()
        if not self._claims.joined:
            return
        if not self._granted:
            self._ask_who_holds_the_shards()
        self._count_pending()
        self._looks += 1
        if self._looks % TIDY_LOOKS == 0:
            for shard in self._shards.values():
                shard.tidy()
        queues = [queue for queue, shard in self._shards.items() if shard.position is not None]

        def known(answer: Completion[list[Bounds | None]]) -> None:
            if answer.error is None:
                for queue, bounds in zip(queues, answer.value, strict=True):
                    self._count_lag(queue, bounds)

        if queues:
            self._backend.bounds(queues).then(known)

    def _count_overdue(self) -> None:
        known: dict[int, int | None] = {}
        for number, shard in self.shards.items():
            due_ms = shard.first_due_ms()
            if shard.running and not shard.why:
                known[number] = due_ms
        unknown = self.shards.keys() - known.keys()
        self._counts.overdue(known, unknown, self._granted, self._clock.wall_ms())

    def _ask_who_holds_the_shards(self) -> None:
        """Others have them all when each has a holder; one between two owners may still come to us."""

        def known(answer: Completion[Mapping[QueueRef, str]]) -> None:
            if answer.error is None and self._claims.joined and not self._shards:
                info = self._backend.topic(DELAY_TOPIC)
                self._granted = info is not None and len(answer.value) >= info.queues
                self._shard_opened()

        self._backend.holders(DELAY_GROUP, DELAY_TOPIC, self._service.deadline()).then(known)

    def _count_pending(self) -> None:
        pending, sizes = self.pending_counts(), self._pending_sizes()
        self._counts.pending(pending)
        self._counts.pending_bytes(sizes)
        info = self._backend.topic(DELAY_TOPIC)
        if info is not None and all(shard.running for shard in self._shards.values()):
            self._quota.look(self.shards.keys(), info.queues, pending, sizes)

    def _count_lag(self, queue: QueueRef, bounds: Bounds | None) -> None:
        shard = self._shards.get(queue)
        position = None if shard is None else shard.position
        if bounds is not None and position is not None:
            self._lags[queue.queue_id] = lag = max(bounds.next - position, 0)
            self._counts.lag(queue.queue_id, lag)

    def lags(self) -> Mapping[int, int]:
        """Commands not taken in, per shard, as last looked at (every second)."""
        return {number: self._lags.get(number, -1) for number in self.shards}

    def pending_counts(self) -> Counter[str]:
        """What waits in the shards of this process, per topic."""
        total: Counter[str] = Counter()
        for shard in self._shards.values():
            if shard.context is not None and shard.context.running:
                total.update(shard.context.store.counts())
        return total

    def _pending_sizes(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for shard in self._shards.values():
            if shard.context is not None and shard.context.running:
                total.update(shard.context.store.sizes())
        return total
