"""The traced messages of a subscription: from the moment when they are read until they are finished."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from backend.records import ProgressView, QueueRef, ReadBatch, ReadStatus
from backend.traces import Facts, TraceWriter
from ddmq_common.trace.events import Fact, TraceKind, Wait
from ddmq_common.trace.sampling import sampled
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.queue_jobs import QueueJobs
from proxy_consumer.core.retry_policy import RetryPolicy
from proxy_consumer.core.steps import BufferedQueue, Delivery
from proxy_consumer.core.tally import Budget, Tally
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.core.traced_jobs import TracedJobs
from proxy_consumer.retries.headers import attempts_before
from proxy_consumer.runtime import HandedOut, Runtime
from proxy_consumer.subscription.membership import SubscriptionMembership
from proxy_consumer.subscription.order import SubscriptionGroup
from proxy_consumer.tracing import waits

TRACED_MAX = 4_096  # messages of one queue at a time
KEY_CHARS = 100


class TracedSubscription(Protocol):
    """What is asked of a subscription. `halted`: it takes nothing, for it is about to start anew; `removed`:
    it was deleted."""

    config: SubscriptionDefaults
    halted: int
    readable: bool
    removed: bool
    topic: str

    @property
    def buffer(self) -> PullBuffer: ...

    @property
    def group_name(self) -> str: ...

    @property
    def joined(self) -> bool: ...

    @property
    def group(self) -> SubscriptionGroup: ...

    @property
    def membership(self) -> SubscriptionMembership: ...


class HeldUp(NamedTuple):
    """What is known here of a message that was not handed out. `here`: this proxy has its queue; else nobody
    pulls here, and that is all."""

    waits: list[Wait]
    here: bool


class QueueTrace:
    """A JobTrace of one queue. `offsets`: which are followed, with their message ids; `back_ms`: when a
    delivery of one ended that was not its last."""

    def __init__(self, owner: SubscriptionTrace, queue: QueueRef) -> None:
        self.offsets: dict[int, bytes] = {}
        self.back_ms: dict[int, int] = {}
        self.installed_ms = owner.writer.now_ms()
        self._owner = owner
        self._queue = queue
        self._retry = queue.topic != owner.topic
        self.jobs: QueueJobs | None = None

    def place(self, offset: int) -> Facts:
        found: Facts = {"queue": self._queue.queue_id, "offset": offset}
        return found | {"retry": 1} if self._retry else found

    def tell(self, offset: int, kind: TraceKind, **facts: Fact) -> None:
        """Write an event of a followed message."""
        owner, message_id = self._owner, self.offsets.get(offset)
        if message_id is not None:
            owner.writer.add(message_id, kind, owner.group, self.place(offset) | facts)

    def read(self, batch: ReadBatch) -> None:
        """Messages were read: those that are traced are followed from now on."""
        jobs, limit = self.jobs, self._owner.limit
        if jobs is None:
            return
        ids, offsets, finished = batch.message_ids(), batch.offsets, jobs.ack_map.is_finished
        for at in sampled(ids, limit):
            offset, message_id = offsets[at], ids[at]
            if not message_id or offset in self.offsets or finished(offset):
                continue
            if len(self.offsets) >= TRACED_MAX:
                self._owner.writer.dropped("messages")
                continue
            self.offsets[offset] = message_id
            self.tell(offset, TraceKind.READ)

    def key(self, offset: int) -> str:
        """Its order key, where it has one and is not behind others."""
        stream = None if self.jobs is None else self.jobs.stream
        return ("" if stream is None else stream.key(offset) or "")[:KEY_CHARS]

    def _ended(self, offset: int, kind: TraceKind) -> None:
        if offset in self.offsets:
            self.tell(offset, kind)
            self.moved(offset)

    def _came_back(
        self, offset: int, kind: TraceKind, following: str, due: float = 0.0, error: str = ""
    ) -> None:
        if offset in self.offsets:
            self.back_ms[offset] = self._owner.writer.now_ms()
            self.tell(offset, kind, error=error, next=following, again_ms=self._owner.store_ms(due))

    # --- what its jobs tell

    def acked(self, offset: int) -> None:
        self._ended(offset, TraceKind.ACKED)

    def failed(self, offset: int, error: str, following: str, due: float) -> None:
        self._came_back(offset, TraceKind.FAILED, following, due, error)

    def timed_out(self, offset: int, following: str, due: float) -> None:
        self._came_back(offset, TraceKind.TIMED_OUT, following, due)

    def returned(self, offset: int, following: str) -> None:
        self._came_back(offset, TraceKind.RETURNED, following)

    def extended(self, offset: int) -> None:
        self.tell(offset, TraceKind.EXTENDED)

    def released(self, offset: int) -> None:
        self.tell(offset, TraceKind.RELEASED, key=self.key(offset))

    def parked(self, offset: int) -> None:
        self.tell(offset, TraceKind.PARKED, key=self.key(offset))

    def spent(self, offset: int, reason: str) -> None:
        self.tell(offset, TraceKind.SPENT, reason=reason)

    def moved(self, offset: int) -> None:
        self.offsets.pop(offset, None)
        self.back_ms.pop(offset, None)

    def passed(self, offset: int) -> None:
        self._ended(offset, TraceKind.PASSED)

    def left(self) -> None:
        for offset in self.offsets:
            self.tell(offset, TraceKind.LEFT)
        self.offsets.clear()
        self.back_ms.clear()


class SubscriptionTrace:
    """Of one subscription as long as it is traced. `limit`: which ids (ddmq_common/trace/sampling.py)."""

    def __init__(
        self, runtime: Runtime, subscription: TracedSubscription, writer: TraceWriter, limit: int
    ) -> None:
        self.writer = writer
        self.limit = limit
        self.group = subscription.group_name
        self.topic = subscription.topic
        self._runtime = runtime
        self._subscription = subscription
        self._waits = waits.WaitLog()

    def store_ms(self, due: float) -> int:
        """A moment (monotonic seconds) on the store's clock; now for one that is none."""
        left_s = due - self._runtime.now() if 0 < due < NEVER else 0.0
        return self.writer.now_ms() + round(left_s * 1000)

    def jobs_of(
        self,
        queue: QueueRef,
        view: ProgressView,
        first: int,
        policy: RetryPolicy,
        budget: Budget,
        tally: Tally,
    ) -> QueueJobs:
        """The jobs of a queue that has come here."""
        trace = QueueTrace(self, queue)
        trace.jobs = jobs = TracedJobs(queue, view, first, policy, budget, tally, trace)
        return jobs

    def read(self, state: BufferedQueue, batch: ReadBatch) -> None:
        """A read came back."""
        trace = trace_of(state)
        if trace is not None and batch.status is ReadStatus.DATA:
            trace.read(batch)

    # --- what holds up deliveries

    def look(self) -> None:
        """Note what does now."""
        if self._subscription.removed:
            self._runtime.traced.pop(self, None)
            return
        self._waits.note(self._reason(), self.writer.now_ms())

    def _reason(self) -> str:
        subscription = self._subscription
        buffer, config = subscription.buffer, subscription.config
        budget, asked = buffer.budget, subscription.group.waiting.waiting_for(self.topic)
        if subscription.halted:
            return waits.ANEW
        if not subscription.readable:
            return waits.CLOSED
        if not subscription.joined:
            return waits.NO_PULL
        if not subscription.membership.claims.complete:
            return waits.BETWEEN
        if budget.leased >= config.concurrency or (config.pushed and not asked):
            return waits.CONCURRENCY
        if budget.leased_bytes >= config.in_flight_bytes_max:
            return waits.BYTES
        if budget.retrying >= config.retrying_max:
            return waits.RETRYING
        if self._runtime.now() < buffer.room_at < NEVER:
            return waits.RATE
        return waits.TURN if asked else waits.NO_PULL

    def waited(self, state: BufferedQueue | None, since_ms: int, until_ms: int) -> list[Wait]:
        """What held up a message between two moments, as far as it was noted here.

        Before its queue came here, only that nobody pulled or could, or that it was on its way.
        """
        found = self._waits.between(since_ms, until_ms)
        trace = None if state is None else trace_of(state)
        if trace is None or trace.installed_ms <= since_ms:
            return found
        here_ms = trace.installed_ms
        early = [
            (reason, start, min(end, here_ms))
            for reason, start, end in found
            if start < here_ms and reason in (*waits.EVERYWHERE, waits.BETWEEN, waits.ANEW)
        ]
        return early + [(reason, max(start, here_ms), end) for reason, start, end in found if end > here_ms]

    def held_up(self, queue: QueueRef, since_ms: int) -> HeldUp:
        """The same up to now, of a message of that queue."""
        state = self._subscription.buffer.queues.get(queue)
        found = self.waited(state, since_ms, self.writer.now_ms())
        if state is None:
            found = [wait for wait in found if wait[0] in waits.EVERYWHERE]
        return HeldUp(found, here=state is not None)

    # --- deliveries

    def handed_out(self, delivery: Delivery) -> None:
        """Messages go to a client; who it is will be known a moment later."""
        state, messages = delivery.state, delivery.messages
        trace = trace_of(state)
        if trace is None or trace.offsets.keys().isdisjoint(messages.offsets):
            return
        now_ms, attempts = self.writer.now_ms(), list(delivery.attempts())
        followed = trace.offsets
        for at in [at for at, offset in enumerate(messages.offsets) if offset in followed]:
            self._handed_out(trace, delivery, at, attempts[at], now_ms)

    def _handed_out(self, trace: QueueTrace, delivery: Delivery, at: int, attempt: int, now_ms: int) -> None:
        state, messages, lease = delivery.state, delivery.messages, delivery.lease
        offset, index = messages.offsets[at], messages.indexes[at]
        if state.retry_queue:
            attempt += attempts_before(messages.batch.record(index).system)
        since_ms = trace.back_ms.get(offset) or messages.batch.stored_ms(index)
        noted = self.waited(state, since_ms, now_ms)
        facts = trace.place(offset) | {
            "attempt": attempt,
            "lease": str(lease.id),
            "until_ms": self.store_ms(lease.deadline),
            "key": trace.key(offset),
            "waits": noted,
        }
        self.writer.add(
            trace.offsets[offset], TraceKind.HANDED_OUT, self.group, facts, now_ms, lambda: self._to(lease)
        )

    def _to(self, lease: Lease) -> Facts:
        config = self._subscription.config
        recipient = lease.recipient
        if recipient is None:
            return {"client": f"sink {config.actions[-1]}"} if config.pushed else {}
        return {"client": recipient.name.decode("utf-8", "replace"), "address": recipient.address}


class TracedHandedOut(HandedOut):
    """The cells of a traced subscription; what is counted is traced as well."""

    __slots__ = ("_trace",)

    def __init__(self, cells: HandedOut, trace: SubscriptionTrace) -> None:
        super().__init__(*cells.cells)
        self._trace = trace

    def note(self, delivery: Delivery, wall_ms: int) -> None:
        super().note(delivery, wall_ms)
        self._trace.handed_out(delivery)


def trace_of(state: BufferedQueue) -> QueueTrace | None:
    """What follows the messages of a queue; None: it came before the subscription was traced."""
    jobs = state.jobs
    trace = jobs.trace if isinstance(jobs, TracedJobs) else None
    return trace if isinstance(trace, QueueTrace) else None
