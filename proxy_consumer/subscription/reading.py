"""Reads of a subscription's queues, its filter, the waits for more messages, and the ends of the queues.

A read that the backend answers at once is used at once, another one wakes the group's waiters when it comes.
At a queue's end one wait stands armed for as long as the subscription is in use, so that no append goes
unnoticed. What cannot be read is tried again a little later.
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
from proxy_consumer.core.queue_feed import FeedState, Filter, Refusal
from proxy_consumer.core.steps import Loaded, Purpose, ReadRequest
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.filters.message_filters import filter_for
from proxy_consumer.retries.headers import is_of_another_life
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.commits import SubscriptionBase

WAIT_S = 60.0  # how long one wait at a queue's end stands before it is armed again
SOON_S = 0.001  # at the next tick
ENDS_AGE_S = 0.1  # after which the backend is asked again where a queue ends
FLUSH_S = 0.5  # when what is finished without a client is stored


class Reading:
    """All reads and waits of one subscription."""

    def __init__(self, runtime: Runtime, owner: SubscriptionBase) -> None:
        self._runtime = runtime
        self._owner = owner
        self._buffer = owner.buffer
        self._waits: dict[QueueRef, DataWait] = {}
        self._stalled: list[SubscribedQueue] = []  # to be tried again after an error
        self._ends: dict[QueueRef, tuple[float, int]] = {}  # as of when, next offset

    def ask_ends(self, request: EndsRequest) -> None:
        """Ask the backend where queues end, for a PullBuffer that reads them merged."""
        lookup = self._runtime.backend.bounds([queue.ref for queue in request.queues])
        inline = True

        def on_ends(found: Completion[list[Bounds | None]]) -> None:
            if found.error is not None:
                request.scope.on_ends_failed()
                self._note_stall(request.queues[0], found.error)
                return
            request.scope.on_ends(request, found.value)
            if not inline:
                self._owner.serve()

        lookup.then(on_ends)
        inline = False

    def read(self, request: ReadRequest) -> None:
        """Carry out what a PullBuffer asks for."""
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
        """A read came back when nobody waited for it in a call any more."""
        if self.on_read(read) is Loaded.DATA or self._buffer.can_deliver:
            self._owner.serve()

    def on_read(self, read: SubscriptionRead) -> Loaded:
        """A read came back, at once or later."""
        queue, owner = read.request.queue, self._owner
        if read.error is not None:
            self._buffer.on_read_failed(read.request)
            self._note_stall(queue, read.error)
            return Loaded.TAIL
        if queue.retry_queue and read.request.purpose is Purpose.NEW:
            self._pass_over_other_lives(queue, read.value)
        bounds = read.value.bounds if read.value.status is ReadStatus.OUT_OF_RANGE else None
        if read.request.purpose is Purpose.NEW and bounds is not None:
            self.tell_gone(queue.ref, queue.feed.cursor, bounds.min)
        if self._owner.trace is not None:
            self._owner.trace.on_read(queue, read.value)
        now = self._runtime.now()
        loaded = self._buffer.on_loaded(read.request, read.value, now)
        if queue.feed.state is FeedState.TAIL:
            self._arm_wait(queue)
        elif loaded is Loaded.GONE and self._buffer.holds_queue(queue):
            owner.drop(queue.ref)
            owner.wake(now + SOON_S)  # what waited behind its messages goes on
        if queue.uncommitted:  # finished undelivered: no client will have it stored
            owner.wake(now + FLUSH_S)
        if queue.table.spent:
            owner.after_results((queue,))
        return loaded

    def tell_gone(self, queue: QueueRef, place: int | None, first: int) -> None:
        """Whether retention took what nobody has consumed; it goes on at the oldest that is there."""
        if place is not None and place < first:
            where = {"group": self._owner.group_name, "topic": queue.topic, "queue": queue.queue_id}
            log.warning("messages went by retention unconsumed", extra=where | {"from": place, "to": first})

    def _pass_over_other_lives(self, queue: SubscribedQueue, batch: ReadBatch) -> None:
        """Finish undelivered what failed before the subscription was deleted, and made anew."""
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

    def _note_stall(self, queue: SubscribedQueue, error: Exception) -> None:
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
        """Try again what could not be read."""
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
        """Read on where there is data, or arm another wait."""
        queue, owner = wait.queue, self._owner
        self._waits.pop(queue.ref, None)
        if not self._buffer.holds_queue(queue):
            return
        if wait.error is not None:
            self._note_stall(queue, wait.error)
        elif wait.value:
            self._buffer.on_data_arrived(queue)
            owner.serve()
        else:
            self._arm_wait(queue)

    # --- where queues end, as known lately: what clients of ours are told beside their messages

    def next_offset(self, queue: QueueRef, now: float) -> int:
        """Return the known end of a queue; an old one is looked up again, for the next call."""
        cached = self._ends.get(queue)
        if cached is None or now - cached[0] > ENDS_AGE_S:
            self._ends[queue] = (now, 0 if cached is None else cached[1])
            lookup = self._runtime.backend.bounds((queue,))
            lookup.then(lambda found: self._end_told(queue, found))
        return self._ends[queue][1]

    def _end_told(self, queue: QueueRef, found: Completion[list[Bounds | None]]) -> None:
        cached = self._ends.get(queue)
        if cached is not None and found.error is None and found.value[0] is not None:
            self._ends[queue] = (cached[0], found.value[0].next)

    def note_end(self, queue: QueueRef, offset: int) -> None:
        """Note the end of a queue that is known from elsewhere."""
        self._ends[queue] = (self._runtime.now(), offset)

    def drop_queue(self, queue: QueueRef) -> None:
        """A queue is not ours any more."""
        self._ends.pop(queue, None)
        wait = self._waits.pop(queue, None)
        if wait is not None:
            wait.cancel()


# --- what may be delivered

FILTER_SETTINGS = ("tags", "sql", "actions", "push")


def filter_of(config: SubscriptionDefaults) -> Filter | None:
    """Return all that may keep a message from being delivered as one filter; None: nothing does."""
    expression = filter_for(config.tags, config.sql)
    actions = _filter_of_actions(config) if config.actions else None
    if expression is None or actions is None:
        return expression or actions
    return _Both(expression, actions)


def _filter_of_actions(config: SubscriptionDefaults) -> Filter | None:
    from proxy_consumer.push.chain import filter_for_actions  # CEL is loaded where actions are used

    return filter_for_actions(config.actions, config.push)


def same_filter(one: SubscriptionDefaults, other: SubscriptionDefaults) -> bool:
    """Whether two settings let the same messages through."""
    return all(getattr(one, name) == getattr(other, name) for name in FILTER_SETTINGS)


class _Both:
    __slots__ = ("_first", "_second", "tags")

    def __init__(self, first: Filter, second: Filter) -> None:
        self._first = first
        self._second = second
        self.tags = first.tags

    def judge(self, delivery: bytes) -> Refusal | None:
        return self._first.judge(delivery) or self._second.judge(delivery)


# --- what the backend answers


class SubscriptionRead(Completion[ReadBatch]):
    """One read; `inline` while the call that started it has not returned."""

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
    """The wait at one queue's end."""

    __slots__ = ("queue", "reading")

    def __init__(self, reading: Reading, queue: SubscribedQueue) -> None:
        super().__init__()
        self.reading = reading
        self.queue = queue

    def settled(self) -> None:
        if not self.cancelled:
            self.reading.on_wait_done(self)
