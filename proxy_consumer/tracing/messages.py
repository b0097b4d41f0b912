"""The traced messages of a subscription: followed from their read until they are finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.records import QueueRef, ReadBatch, ReadStatus
from backend.traces import Facts, TraceWriter, one_in_of
from ddmq_common.trace.events import Fact, TraceKind, Wait
from ddmq_common.trace.sampling import OFF, limit_of, sampled_indexes
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import JobNews, JobObserver, JobState
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.steps import Delivery
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.retries.headers import attempts_before
from proxy_consumer.runtime import Runtime
from proxy_consumer.tracing import waits

TRACED_MAX = 4_096  # messages of one queue at a time
KEY_CHARS = 100


class MessageWaits(NamedTuple):
    """The reasons why a message is not delivered yet.

    `here`: this proxy owns its queue; otherwise `waits` only says that no client pulls.
    """

    waits: list[Wait]
    here: bool


NEXT_WAIT, NEXT_REDELIVERY, NEXT_CHAIN, NEXT_OPERATOR, NEXT_TOPIC = "wait", "again", "key", "parked", "spent"
_NEXT = {
    JobState.WAITING: NEXT_WAIT, JobState.READY: NEXT_REDELIVERY, JobState.RELEASED: NEXT_REDELIVERY,
    JobState.PARKED: NEXT_OPERATOR, JobState.EXHAUSTED: NEXT_OPERATOR, JobState.SPENT: NEXT_TOPIC,
}  # fmt: skip


class QueueTrace(JobObserver):
    """Follows the traced messages of one queue.

    `offsets`: the followed messages with their ids; `back_ms`: when their last unsuccessful delivery ended,
    in epoch milliseconds.
    """

    def __init__(self, owner: SubscriptionTrace, ref: QueueRef) -> None:
        self.offsets: dict[int, bytes] = {}
        self.back_ms: dict[int, int] = {}
        self.installed_ms = owner.writer.now_ms()
        self._owner = owner
        self._ref = ref
        self._retry = ref.topic != owner.topic
        self.queue: SubscribedQueue | None = None

    def position_of(self, offset: int) -> Facts:
        facts: Facts = {"queue": self._ref.queue_id, "offset": offset}
        return facts | {"retry": 1} if self._retry else facts

    def write_event(self, offset: int, kind: TraceKind, **facts: Fact) -> None:
        """Write a trace event of a followed message."""
        owner, message_id = self._owner, self.offsets.get(offset)
        if message_id is not None:
            owner.writer.add(message_id, kind, owner.group, self.position_of(offset) | facts)

    def follow_read(self, batch: ReadBatch) -> None:
        """Start to follow the traced messages of a read."""
        queue, limit = self.queue, self._owner.limit
        if queue is None:
            return
        ids, offsets, finished = batch.message_ids(), batch.offsets, queue.ack_map.is_finished
        for at in sampled_indexes(ids, limit):
            offset, message_id = offsets[at], ids[at]
            if not message_id or offset in self.offsets or finished(offset):
                continue
            if len(self.offsets) >= TRACED_MAX:
                self._owner.writer.count_dropped("messages")
                continue
            self.offsets[offset] = message_id
            self.write_event(offset, TraceKind.READ)

    def key_of(self, offset: int) -> str:
        """Return the order key of a released message; "" if it has none, or waits in its chain."""
        stream = None if self.queue is None else self.queue.stream
        return ("" if stream is None else stream.key_of_job(offset) or "")[:KEY_CHARS]

    # --- JobObserver

    def on_change(self, news: JobNews, offset: int, detail: str = "") -> None:
        if offset not in self.offsets:
            return
        following, due = self._describe_next(offset)
        if news is JobNews.FAILED:
            self._write_return(offset, TraceKind.FAILED, following, due, detail)
        elif news is JobNews.TIMED_OUT:
            self._write_return(offset, TraceKind.TIMED_OUT, following, due)
        elif news is JobNews.RETURNED:
            waits_on = following if following in (NEXT_CHAIN, NEXT_OPERATOR) else NEXT_REDELIVERY
            self._write_return(offset, TraceKind.RETURNED, waits_on)
        elif news is JobNews.SENT_BACK:
            self._write_return(offset, TraceKind.RETURNED, NEXT_CHAIN)
        elif news is JobNews.EXTENDED:
            self.write_event(offset, TraceKind.EXTENDED)
        elif news is JobNews.RELEASED:
            self.write_event(offset, TraceKind.RELEASED, key=self.key_of(offset))
        elif news is JobNews.PARKED:
            self.write_event(offset, TraceKind.PARKED, key=self.key_of(offset))
        elif news is JobNews.SPENT:
            self.write_event(offset, TraceKind.SPENT, reason=detail)
        elif news is JobNews.ACKED:
            self._end(offset, TraceKind.ACKED)
        else:  # moved to its next topic; the copy there is traced
            self._forget_message(offset)

    def on_acks(self, offsets: Sequence[int]) -> None:
        if self.queue is not None and not self.offsets.keys().isdisjoint(offsets):
            for offset in offsets:
                if offset in self.offsets and self.queue.ack_map.is_finished(offset):
                    self._end(offset, TraceKind.ACKED)

    def on_extensions(self, lease_ids: Sequence[int]) -> None:
        extended = set(lease_ids)
        for offset in self.offsets:
            lease = None if self.queue is None else self.queue.leases.lease_of(offset)
            if lease is not None and lease.id in extended:
                self.write_event(offset, TraceKind.EXTENDED)

    def on_skip(self, start: int, end: int) -> None:
        for offset in [offset for offset in self.offsets if start <= offset < end]:
            self._end(offset, TraceKind.PASSED)

    def on_loss(self) -> None:
        for offset in self.offsets:
            self.write_event(offset, TraceKind.LEFT)
        self.offsets.clear()
        self.back_ms.clear()

    def _describe_next(self, offset: int) -> tuple[str, float]:
        """Return the next event of a job, and when it is due (monotonic seconds)."""
        job = None if self.queue is None else self.queue.table.jobs.get(offset)
        return (NEXT_CHAIN, 0.0) if job is None else (_NEXT.get(job.state, NEXT_CHAIN), job.due)

    def _write_return(
        self, offset: int, kind: TraceKind, following: str, due: float = 0.0, error: str = ""
    ) -> None:
        self.back_ms[offset] = self._owner.writer.now_ms()
        self.write_event(offset, kind, error=error, next=following, again_ms=self._owner.store_ms(due))

    def _end(self, offset: int, kind: TraceKind) -> None:
        self.write_event(offset, kind)
        self._forget_message(offset)

    def _forget_message(self, offset: int) -> None:
        self.offsets.pop(offset, None)
        self.back_ms.pop(offset, None)


def trace_limit(runtime: Runtime, topic: str, config: SubscriptionDefaults) -> int:
    """Return which message ids of a subscription are traced: by its own setting or its topic's, whichever
    traces more.

    None are if it is broadcasting: its messages are not finished for the group.
    """
    if config.model == "broadcasting":
        return OFF
    return max(limit_of(config.trace_one_in), limit_of(one_in_of(runtime.backend, topic)))


class SubscriptionTrace:
    """Writes trace events for the sampled messages of one subscription.

    `limit`: which ids are sampled (ddmq_common/trace/sampling.py).
    """

    def __init__(
        self, runtime: Runtime, topic: str, buffer: PullBuffer, writer: TraceWriter, limit: int
    ) -> None:
        self.writer = writer
        self.limit = limit
        self.group = buffer.group
        self.topic = topic
        self._runtime = runtime
        self._buffer = buffer
        self._waits = waits.WaitLog()

    def store_ms(self, due: float) -> int:
        """Convert a time in monotonic seconds to the store's clock in milliseconds; now, if `due` is not a
        time."""
        left_s = due - self._runtime.now() if 0 < due < NEVER else 0.0
        return self.writer.now_ms() + round(left_s * 1000)

    def follow_queue(self, ref: QueueRef) -> QueueTrace:
        """Return the observer for an acquired queue."""
        return QueueTrace(self, ref)

    def on_read(self, queue: SubscribedQueue, batch: ReadBatch) -> None:
        """Follow the traced messages of a read."""
        trace = trace_of(queue)
        if trace is not None and batch.status is ReadStatus.DATA:
            trace.follow_read(batch)

    # --- what holds up deliveries

    def record_wait(self, reason: str) -> None:
        """Record the reason that holds up deliveries now (waits.py)."""
        self._waits.record_reason(reason, self.writer.now_ms())

    def waits_between(self, queue: SubscribedQueue | None, since_ms: int, until_ms: int) -> list[Wait]:
        """Return what held up a message between two times, as far as it was recorded here.

        For the time before its queue was acquired, only reasons that did not depend on the queue.
        """
        recorded_waits = self._waits.waits_between(since_ms, until_ms)
        trace = None if queue is None else trace_of(queue)
        if trace is None or trace.installed_ms <= since_ms:
            return recorded_waits
        here_ms = trace.installed_ms
        early = [
            (reason, start, min(end, here_ms))
            for reason, start, end in recorded_waits
            if start < here_ms and reason in (*waits.EVERYWHERE, waits.BETWEEN, waits.RELOAD)
        ]
        return early + [
            (reason, max(start, here_ms), end) for reason, start, end in recorded_waits if end > here_ms
        ]

    def waits_since(self, ref: QueueRef, since_ms: int) -> MessageWaits:
        """Return what has held up a message of that queue since `since_ms`."""
        queue = self._buffer.queues.get(ref)
        recorded_waits = self.waits_between(queue, since_ms, self.writer.now_ms())
        if queue is None:
            recorded_waits = [wait for wait in recorded_waits if wait[0] in waits.EVERYWHERE]
        return MessageWaits(recorded_waits, here=queue is not None)

    # --- deliveries

    def on_handed_out(self, delivery: Delivery) -> None:
        """Write the delivery of traced messages; their client is looked up when the event is written."""
        messages = delivery.messages
        trace = trace_of(delivery.queue)
        if trace is None or trace.offsets.keys().isdisjoint(messages.offsets):
            return
        now_ms, attempts = self.writer.now_ms(), list(delivery.attempt_numbers())
        followed = trace.offsets
        for at in [at for at, offset in enumerate(messages.offsets) if offset in followed]:
            self._handed_out(trace, delivery, at, attempts[at], now_ms)

    def _handed_out(self, trace: QueueTrace, delivery: Delivery, at: int, attempt: int, now_ms: int) -> None:
        queue, messages, lease = delivery.queue, delivery.messages, delivery.lease
        offset, index = messages.offsets[at], messages.indexes[at]
        if queue.retry_queue:
            attempt += attempts_before(messages.batch.record(index).system)
        since_ms = trace.back_ms.get(offset) or messages.batch.stored_ms(index)
        recorded_waits = self.waits_between(queue, since_ms, now_ms)
        facts = trace.position_of(offset) | {
            "attempt": attempt,
            "lease": str(lease.id),
            "until_ms": self.store_ms(lease.deadline),
            "key": trace.key_of(offset),
            "waits": recorded_waits,
        }
        self.writer.add(
            trace.offsets[offset],
            TraceKind.HANDED_OUT,
            self.group,
            facts,
            now_ms,
            lambda: self._describe_recipient(lease),
        )

    def _describe_recipient(self, lease: Lease) -> Facts:
        config = self._buffer.config
        recipient = lease.recipient
        if recipient is None:
            return {"client": f"sink {config.actions[-1]}"} if config.pushed else {}
        return {"client": recipient.name.decode("utf-8", "replace"), "address": recipient.address}


def trace_of(queue: SubscribedQueue) -> QueueTrace | None:
    """Return the trace of a queue; None if it was acquired before the subscription was traced."""
    observer = queue.observer
    return observer if isinstance(observer, QueueTrace) else None
