"""Reads of a subscription's queues, its filter, the waits for more messages, and the ends of the queues.

The result of a read that completes at once is used at once; a later one wakes the group's waiting pulls. At
the end of a queue one wait is active as long as the subscription is in use, so that no append is missed. A
failed read is repeated a little later.
"""

from __future__ import annotations

from backend.completion import Completion
from backend.ownership.claims import RETRY_S
from backend.port import Wait
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus
from ddmq_common.errors import DrainingError
from ddmq_common.metrics.catalogue import SKIPPED
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.order.scope import EndsRequest
from proxy_consumer.core.progress import ranges_of
from proxy_consumer.core.queue_feed import FeedState, Filter, Rejection
from proxy_consumer.core.steps import Loaded, Purpose, ReadRequest
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.filters.message_filters import filter_for
from proxy_consumer.retries.headers import is_of_another_life
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.commits import SubscriptionBase

WAIT_S = 60.0  # duration of one wait at a queue's end before it is renewed
SOON_S = 0.001  # at the next tick
ENDS_AGE_S = 0.1  # age after which the end of a queue is requested again
FLUSH_S = 0.5  # delay before progress without a client's result is stored


class Reading:
    """The reads and waits of one subscription."""

    def __init__(self, runtime: Runtime, owner: SubscriptionBase) -> None:
        self._runtime = runtime
        self._owner = owner
        self._buffer = owner.buffer
        self._waits: dict[QueueRef, DataWait] = {}
        self._stalled: list[SubscribedQueue] = []  # to be read again after an error
        self._ends: dict[QueueRef, tuple[float, int]] = {}  # time of the request, next offset

    def request_ends(self, request: EndsRequest) -> None:
        """Look up the end offsets of queues, and report them to the scope that merges these queues."""
        lookup = self._runtime.backend.bounds([queue.ref for queue in request.queues])
        inline = True

        def on_ends(read: Completion[list[Bounds | None]]) -> None:
            if read.error is not None:
                request.scope.on_ends_failed()
                self._mark_stalled(request.queues[0], read.error)
                return
            request.scope.on_ends(request, read.value)
            if not inline:
                self._owner.serve()

        lookup.then(on_ends)
        inline = False

    def read(self, request: ReadRequest) -> None:
        """Carry out a read for the PullBuffer."""
        read = SubscriptionRead(self, request)
        self._runtime.backend.read(
            request.queue.ref,
            request.offset,
            request.count_max,
            request.bytes_max,
            into=read,
            tags=request.tags,
            ids=self._owner.trace is not None,
        )
        if read.done:
            self.on_read(read)
        else:
            read.inline = False

    def on_read_later(self, read: SubscriptionRead) -> None:
        """Accept a read that completed after the call that started it, and serve the waiting pulls."""
        if self.on_read(read) is Loaded.DATA or self._buffer.can_deliver:
            self._owner.serve()

    def on_read(self, read: SubscriptionRead) -> Loaded:
        """Accept a completed read, and return its result."""
        queue, owner = read.request.queue, self._owner
        if read.error is not None:
            self._buffer.on_read_failed(read.request)
            self._mark_stalled(queue, read.error)
            return Loaded.TAIL
        if queue.retry_queue and read.request.purpose is Purpose.NEW:
            self._pass_over_other_lives(queue, read.value)
        bounds = read.value.bounds if read.value.status is ReadStatus.OUT_OF_RANGE else None
        if read.request.purpose is Purpose.NEW and bounds is not None:
            self.warn_expired(queue.ref, queue.feed.cursor, bounds.min)
        if self._owner.trace is not None:
            self._owner.trace.on_read(queue, read.value)
        now = self._runtime.now()
        loaded = self._buffer.on_loaded(read.request, read.value, now)
        if queue.feed.state is FeedState.TAIL:
            self._arm_wait(queue)
        elif loaded is Loaded.DELETED and self._buffer.holds_queue(queue):
            owner.drop(queue.ref)
            owner.wake(now + SOON_S)  # jobs that waited behind its messages continue
        if queue.uncommitted:  # finished undelivered: no client's result will store it
            owner.wake(now + (FLUSH_S if queue.stream is None or not queue.stream.is_waiting else SOON_S))
        if queue.table.spent:
            owner.after_results((queue,))
        return loaded

    def warn_expired(self, queue: QueueRef, start: int | None, first: int) -> None:
        """Log a warning if retention deleted unconsumed messages from `start` to `first`."""
        if start is not None and start < first:
            where = {"group": self._owner.group_name, "topic": queue.topic, "queue": queue.queue_id}
            log.warning("messages went by retention unconsumed", extra=where | {"from": start, "to": first})

    def _pass_over_other_lives(self, queue: SubscribedQueue, batch: ReadBatch) -> None:
        """Finish retried messages undelivered that failed in a deleted subscription of the same name."""
        created_ms = self._owner.created_ms
        if batch.status is not ReadStatus.DATA or not created_ms:
            return
        finished = queue.ack_map.is_finished
        outdated = [
            offset
            for index, offset in enumerate(batch.offsets)
            if is_of_another_life(batch.record(index).system, created_ms)
            and not (finished(offset) or queue.table.is_spent(offset))
        ]
        if outdated:
            queue.skip(ranges_of(outdated))
            queue.feed.finished_until = max(queue.feed.finished_until, outdated[-1] + 1)
            group, topic = self._owner.group_name, self._owner.topic
            self._runtime.metrics.cell(SKIPPED, group, topic, "subscription deleted").value += len(outdated)

    def _mark_stalled(self, queue: SubscribedQueue, error: Exception) -> None:
        owner = self._owner
        if not isinstance(error, DrainingError):
            log.warning(
                "queue not readable",
                extra={
                    "group": owner.group_name,
                    "topic": owner.topic,
                    "error": str(error),
                },
            )
        if self._buffer.holds_queue(queue):
            self._stalled.append(queue)
            owner.wake(self._runtime.now() + RETRY_S)

    def retry_stalled(self) -> None:
        """Read the queues again whose last read failed."""
        stalled, self._stalled = self._stalled, []
        for queue in stalled:
            self._buffer.on_data_arrived(queue)

    # --- at a queue's end

    def _arm_wait(self, queue: SubscribedQueue) -> None:
        if queue.ref in self._waits or not self._owner.joined:
            return
        wait = self._waits[queue.ref] = DataWait(self, queue)
        runtime = self._runtime
        runtime.backend.wait(queue.ref, queue.feed.cursor, runtime.now() + WAIT_S, into=wait)

    def on_wait_done(self, wait: DataWait) -> None:
        """Read on if there are new messages, or renew the wait."""
        queue, owner = wait.queue, self._owner
        self._waits.pop(queue.ref, None)
        if not self._buffer.holds_queue(queue):
            return
        if wait.error is not None:
            self._mark_stalled(queue, wait.error)
        elif wait.value:
            self._buffer.on_data_arrived(queue)
            owner.serve()
        else:
            self._arm_wait(queue)

    # --- recent ends of queues, which ddmq_client gets with its messages

    def next_offset(self, queue: QueueRef, now: float) -> int:
        """Return the known end of a queue; if it is old, it is requested again, for the next call."""
        cached = self._ends.get(queue)
        if cached is None or now - cached[0] > ENDS_AGE_S:
            self._ends[queue] = (now, 0 if cached is None else cached[1])
            lookup = self._runtime.backend.bounds((queue,))
            lookup.then(lambda read: self._on_end_read(queue, read))
        return self._ends[queue][1]

    def _on_end_read(self, queue: QueueRef, read: Completion[list[Bounds | None]]) -> None:
        cached = self._ends.get(queue)
        if cached is not None and read.error is None and read.value[0] is not None:
            self._ends[queue] = (cached[0], read.value[0].next)

    def record_end(self, queue: QueueRef, offset: int) -> None:
        """Record the end of a queue that is known from another request."""
        self._ends[queue] = (self._runtime.now(), offset)

    def drop_queue(self, queue: QueueRef) -> None:
        """Forget a queue that this proxy lost."""
        self._ends.pop(queue, None)
        wait = self._waits.pop(queue, None)
        if wait is not None:
            wait.cancel()


# --- what may be delivered

FILTER_SETTINGS = ("tags", "sql", "actions", "push")


def filter_of(config: SubscriptionDefaults) -> Filter | None:
    """Combine the expression and the actions of a subscription into one filter; None if neither filters."""
    expression = filter_for(config.tags, config.sql)
    actions = _filter_of_actions(config) if config.actions else None
    if expression is None or actions is None:
        return expression or actions
    return _Both(expression, actions)


def _filter_of_actions(config: SubscriptionDefaults) -> Filter | None:
    from proxy_consumer.push.chain import filter_for_actions  # CEL is loaded where actions are used

    return filter_for_actions(config.actions, config.push)


def same_filter(one: SubscriptionDefaults, other: SubscriptionDefaults) -> bool:
    """Whether two settings deliver the same messages."""
    return all(getattr(one, name) == getattr(other, name) for name in FILTER_SETTINGS)


class _Both:
    __slots__ = ("_first", "_second", "tags")

    def __init__(self, first: Filter, second: Filter) -> None:
        self._first = first
        self._second = second
        self.tags = first.tags

    def find_rejection(self, delivery: bytes) -> Rejection | None:
        return self._first.find_rejection(delivery) or self._second.find_rejection(delivery)


# --- what the backend answers


class SubscriptionRead(Completion[ReadBatch]):
    """One read; `inline` is True until the call that started it has returned."""

    __slots__ = ("inline", "reading", "request")

    def __init__(self, reading: Reading, request: ReadRequest) -> None:
        super().__init__()
        self.reading = reading
        self.request = request
        self.inline = True

    def settled(self) -> None:
        if not self.inline:
            self.reading.on_read_later(self)


class DataWait(Wait):
    """The wait for new messages at the end of one queue."""

    __slots__ = ("queue", "reading")

    def __init__(self, reading: Reading, queue: SubscribedQueue) -> None:
        super().__init__()
        self.reading = reading
        self.queue = queue

    def settled(self) -> None:
        if not self.cancelled:
            self.reading.on_wait_done(self)
