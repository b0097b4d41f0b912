"""PullBuffer: the messages of one subscription that wait for clients.

It decides what is read next and which messages each client gets, and accepts the results of clients. It never
waits and never calls the backend: `next_step` returns a Delivery, or a ReadRequest that the caller carries
out and answers through `on_loaded` (or an EndsRequest, answered through its scope), or None if nothing can be
delivered now. Results are applied to their queue (subscribed_queue.py); `on_news` then lets the buffer act on
them.

Queues that may have messages are in `_ready`, served round robin, redeliveries before new messages. At a
bound (messages leased, their bytes, messages retrying, ack span, rate) no new message is taken; a result, a
time-out or the passing of time makes the queue ready again.

A paused buffer delivers nothing and reads nothing for a delivery; results, time-outs and retries are applied
as always, and whatever they make ready waits.

Without an order key the messages of a queue are delivered in runs, straight from the read. With one, the
queue is a stream of an OrderScope, which decides what may be delivered (order/scope.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, ReadStatus
from ddmq_common.token_bucket import TokenBucket
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.arrivals import Arrivals
from proxy_consumer.core.jobs import JobObserver
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.order.chains import KeyReader, QueueStream
from proxy_consumer.core.order.scope import EndsRequest, OrderScope
from proxy_consumer.core.queue_feed import FeedState, Filter, ReadPlan, Slice, gather_slice
from proxy_consumer.core.retry_policy import policy_of
from proxy_consumer.core.steps import Delivery, Loaded, Purpose, ReadRequest, read_new
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.tally import Budget, Count, Counter, Tally
from proxy_consumer.core.timer_queue import NEVER

Step = Delivery | ReadRequest | EndsRequest


class PullBuffer:
    """Chooses the messages for pulls from the queues of one subscription.

    Its methods never yield; times are arguments, in monotonic seconds.
    """

    def __init__(
        self,
        config: SubscriptionDefaults,
        answer_bytes_max: int,
        read_ahead: Callable[[int], tuple[int, int]],
        lease_ids: Iterator[int],
        tally: Tally,
        read_bytes: Counter | None = None,
        message_filter: Filter | None = None,
        group: str = "",
    ) -> None:
        """Create a buffer of messages for pulls, without any queues yet.

        `read_ahead(n)` returns how many records and bytes to read for a pull of `n` messages. `group`: the
        group of the subscription. `read_bytes` counts the bytes of messages read and not delivered.
        """
        self._read_bytes: Counter = Count() if read_bytes is None else read_bytes
        self.group = group
        self.budget = Budget()
        self.tally = tally
        self.queues: dict[QueueRef, SubscribedQueue] = {}
        self.paused = False
        self._ready: deque[SubscribedQueue] = deque()
        self._scopes: dict[SubscribedQueue, OrderScope] = {}  # of the queues in an ordered scope
        self._timed: dict[SubscribedQueue, None] = {}  # queues with a lease or a retry, and some that had one
        self._short: dict[OrderScope, None] = {}  # scopes that stopped early to give others processor time
        self._answer_bytes_max = answer_bytes_max
        self._plan = ReadPlan(read_ahead, config.ack_span_max)
        self._lease_ids = lease_ids
        self._bucket: TokenBucket | None = None
        self.rate_allows_at = NEVER  # when the rate limit allows the next message
        self._arrivals = Arrivals(group, answer_bytes_max, tally)
        self._judge_by(message_filter)
        self._set_rate(config.rate_max)
        self.config = config

    def apply_config(self, config: SubscriptionDefaults) -> None:
        """Apply new settings from the next decision on; deliveries already made are not affected."""
        self.config = config
        self._plan.ack_span_max = config.ack_span_max
        self._set_rate(config.rate_max)
        for queue in self.queues.values():
            queue.policy = policy_of(config, retry_queue=queue.retry_queue)
            if queue.stream is not None:
                self._scopes[queue].set_batch(queue.stream, config.chain_batch)
            self.on_news(queue)

    def set_paused(self, paused: bool) -> None:
        """Deliver nothing while `paused`, from the next decision on."""
        self.paused = paused
        if paused:
            self.rate_allows_at = NEVER

    def filter_by(self, message_filter: Filter | None) -> None:
        """Replace the filter; messages read and not delivered are read again and filtered by it."""
        self._judge_by(message_filter)
        for queue in self.queues.values():
            queue.feed.drop_read_ahead()
            queue.forget_reads()
            queue.forget_bytes()
            self.on_news(queue)

    def _set_rate(self, rate_max: int) -> None:
        """Limit the messages delivered per second; 0: no limit."""
        before, self.rate_allows_at = self._bucket, NEVER
        self._bucket = TokenBucket(rate_max, rate_max, 0.0) if rate_max else None
        if self._bucket is not None and before is not None:
            self._bucket.tokens, self._bucket.at = min(before.tokens, self._bucket.burst), before.at

    def _judge_by(self, message_filter: Filter | None) -> None:
        self._filter = message_filter
        self._plan.tags = None if message_filter is None else message_filter.tags
        self._plan.filtered = message_filter is not None

    # --- queues

    def assign_queue(
        self,
        ref: QueueRef,
        view: ProgressView,
        bounds: Bounds,
        order: tuple[OrderScope, KeyReader] | None = None,
        *,
        retry_queue: bool = False,
        observer: JobObserver | None = None,
    ) -> SubscribedQueue:
        """Add a queue that this proxy acquired, with its recorded progress; offsets below its first message
        are finished.

        `order`: the scope of the queue and the reader of its order keys; None without an order.
        `retry_queue`: it is a queue of `%RETRY%group`, where each message has one delivery. `observer`:
        receives the events of its messages.
        """
        policy = policy_of(self.config, retry_queue=retry_queue)
        queue = self.queues[ref] = SubscribedQueue(
            ref, view, bounds.min, policy, self.budget, self.tally, self._plan, self._read_bytes, self._ready,
            observer,
        )  # fmt: skip
        queue.retry_queue = retry_queue
        start = queue.ack_map.committed
        if start < bounds.min:
            queue.expire_below(bounds.min, start)
            queue.feed.cursor = bounds.min
        if order is not None:
            scope, key_of = order
            stream = queue.stream = QueueStream(scope.ledger, ref, queue.feed, key_of, self.tally.unkeyed)
            self._scopes[queue] = scope
            scope.add(stream, queue, self.config.chain_batch, empty=start >= bounds.next)
        self.on_news(queue)
        return queue

    def revoke_queue(self, ref: QueueRef) -> SubscribedQueue | None:
        """Remove a queue that this proxy lost, with its leases and retries; return it, or None if it is not
        here."""
        queue = self.queues.pop(ref, None)
        if queue is None:
            return None
        stream, queue.stream = queue.stream, None
        queue.release_all()
        self._timed.pop(queue, None)
        scope = self._scopes.pop(queue, None)
        if scope is not None and stream is not None:
            scope.drop_queue(stream)  # its chains continue without it
        if queue.in_ready:
            self._remove_ready(queue)
        return queue

    def holds_queue(self, queue: SubscribedQueue) -> bool:
        """Whether this object is the subscription's current one for its queue."""
        return self.queues.get(queue.ref) is queue

    def scope_of(self, queue: SubscribedQueue) -> OrderScope | None:
        """Return the ordered scope of a queue; None if it has none."""
        return self._scopes.get(queue)

    def ordered_scopes(self) -> list[OrderScope]:
        """Return the ordered scopes of all queues, each once."""
        return list(dict.fromkeys(self._scopes.values()))

    # --- delivery

    def next_step(self, now: float, count: int) -> Step | None:
        """Return the delivery for a client that requests up to `count` messages, or the read needed for it,
        or None."""
        if not self.can_deliver:
            return None
        config, ready, bucket = self.config, self._ready, self._bucket
        capacity = min(count, config.batch_max, config.concurrency - self.budget.leased)
        if bucket is not None:
            wait_s = bucket.wait_s(1, now)
            self.rate_allows_at = now + wait_s + 1e-6 if wait_s else NEVER
            capacity = min(capacity, int(bucket.tokens))
        if capacity < 1:
            return None
        redeliveries_only = self.budget.retrying >= config.retrying_max
        visits = len(ready)
        while visits > 0:
            queue, before = ready[0], len(ready)
            step = self._step_queue(queue, now, capacity, redeliveries_only)
            visits += len(ready) - before - 1  # queues that a step wakes are visited too
            if isinstance(step, Delivery) or (step is None and redeliveries_only):
                ready.rotate(-1)
            elif step is not None and queue.stream is not None and not queue.stream.deliverable:
                return step  # it may need further reads
            elif queue.in_ready:
                self._remove_ready(queue)
                if step is not None and queue.stream is not None:
                    self._scopes[queue].waiting_streams.append(queue.stream)
            if step is not None:
                return step
        return None

    def next_read(self, ready_max: int, bytes_max: int) -> ReadRequest | EndsRequest | None:
        """Return the next read of the ordered queues, which are read without a delivery until `ready_max`
        messages, or `bytes_max` bytes, are ready in each scope; None if no read is needed or possible now."""
        limits = {
            scope: ready_max - scope.ledger.ready
            for scope in self.ordered_scopes()
            if scope.open and scope.ready_bytes() < bytes_max
        }
        for queue, scope in list(self._scopes.items()):
            count = limits.get(scope, 0)
            if queue.stream is None or count < 1:
                continue
            request = self._read_on(scope, queue.stream, count)
            if request is not None:
                return request
        return None

    def _read_on(
        self, scope: OrderScope, stream: QueueStream, count: int
    ) -> ReadRequest | EndsRequest | None:
        """Let the scope place messages until `count` more of the stream are ready; return the read needed
        before that, or None."""
        request = scope.read_on(stream, count)
        if scope.short:
            self._short[scope] = None  # `expire_due` resumes it
        return request

    @property
    def can_deliver(self) -> bool:
        """False if `next_step` is certain to return None until the state changes."""
        config, budget = self.config, self.budget
        return (
            bool(self._ready)
            and not self.paused
            and budget.leased < config.concurrency
            and budget.leased_bytes < config.in_flight_bytes_max
        )

    @property
    def has_ready(self) -> bool:
        """Whether messages of an ordered queue are ready for the next pull."""
        return self.can_deliver and any(
            queue.stream is not None and queue.stream.deliverable for queue in self._ready
        )

    @property
    def stopped_early(self) -> bool:
        """Whether `next_step` stopped early to give others processor time, and should be called again
        soon."""
        return any(scope.short for scope in self._short)

    def _remove_ready(self, queue: SubscribedQueue) -> None:
        """Remove a queue from the queues that may have messages to deliver."""
        self._ready.remove(queue)
        queue.in_ready = False

    def _step_queue(
        self, queue: SubscribedQueue, now: float, capacity: int, redeliveries_only: bool
    ) -> Step | None:
        stream, scope = queue.stream, None
        if stream is not None:
            scope = self._scopes[queue]
            if not scope.open:
                return None
        redelivery = self._step_due(queue, now, capacity)
        if redelivery is not None or redeliveries_only:
            return redelivery
        if stream is not None and scope is not None:
            step = self._step_in_order(queue, stream, scope, now, capacity)
            return self._step_due(queue, now, capacity) if step is None else step
        messages = (
            queue.feed.take_messages(capacity, self._answer_bytes_max) if queue.is_within_ack_span() else None
        )
        if messages is None:
            return read_new(queue, capacity)
        return self._build_delivery(queue, messages, now, redelivered=queue.table.recorded > 0)

    def _step_due(self, queue: SubscribedQueue, now: float, capacity: int) -> Delivery | ReadRequest | None:
        """Deliver due retries and released jobs of a queue: return the delivery, the read needed for it, or
        None."""
        table = queue.table
        if not (table.retrying or table.released) or queue.rereading or not table.move_due(now):
            return None
        step = self._arrivals.gather_due(queue, capacity)
        if not isinstance(step, Slice):
            return step
        late = set() if queue.stream is None else queue.close(queue.stream, list(step.offsets))
        if late:
            remaining = [at for at, offset in enumerate(step.offsets) if offset not in late]
            if not remaining:
                return self._step_due(queue, now, capacity)
            step = step.pick_messages(remaining)
        return self._build_delivery(queue, step, now, redelivered=True)

    def _step_in_order(
        self, queue: SubscribedQueue, stream: QueueStream, scope: OrderScope, now: float, capacity: int
    ) -> Step | None:
        if len(stream.deliverable) < capacity:
            request = self._read_on(scope, stream, capacity - len(stream.deliverable))
            if request is not None:
                return request
        if not stream.deliverable:
            return None
        ready_messages = queue.take_in_order(stream, capacity, self._answer_bytes_max)
        if stream.ledger.gained_capacity:
            scope.apply_ledger()
        if not ready_messages:
            return self._step_in_order(queue, stream, scope, now, capacity)
        offsets = [message.offset for message in ready_messages]
        messages = gather_slice(offsets, [(message.batch, message.at) for message in ready_messages])
        return self._build_delivery(queue, messages, now, redelivered=queue.table.recorded > 0)

    def _build_delivery(
        self, queue: SubscribedQueue, messages: Slice, now: float, *, redelivered: bool
    ) -> Delivery:
        lease = Lease(next(self._lease_ids), now + self.config.ack_timeout_ms / 1000, now)
        queue.lease(messages, lease)
        self._timed[queue] = None
        if queue.stream is not None and (scope := self._scopes[queue]).full:
            scope.on_capacity()
        self.tally.delivered.value += len(messages.offsets)
        if self._bucket is not None:
            self._bucket.take_tokens(len(messages.offsets))
        return Delivery(queue, messages, lease, redelivered)

    # --- results of reads

    def on_loaded(self, request: ReadRequest, batch: ReadBatch, now: float) -> Loaded:
        """Accept the result of a read."""
        queue = request.queue
        if queue.feed.state is FeedState.CLOSED or batch.status is ReadStatus.UNKNOWN_QUEUE:
            return Loaded.DELETED
        if request.purpose is Purpose.NEW:
            loaded = self._arrivals.take_new(queue, batch, self._filter, not self.config.pressure_traffic)
            if queue.stream is not None:
                self._scopes[queue].on_read(queue.stream)
        elif request.purpose is Purpose.REDELIVERY:
            self._arrivals.take_reread(request, batch, self._filter, now)
            loaded = Loaded.DATA
        else:
            self._scopes[queue].on_rescan_read(request, batch)
            loaded = Loaded.DATA
        self._on_scope_news(queue)
        return loaded

    def on_read_failed(self, request: ReadRequest) -> None:
        """Record that a read failed; the queue is read again after `on_data_arrived`."""
        queue = request.queue
        if request.purpose is Purpose.REDELIVERY:
            queue.rereading = False
        elif request.purpose is Purpose.NEW and queue.feed.state is FeedState.READING:
            queue.feed.state = FeedState.STALLED
        elif queue in self._scopes:
            self._scopes[queue].on_rescan_failed()

    # --- results of clients

    def on_news(self, queue: SubscribedQueue) -> None:
        """Act on a change of the queue's state, and make it ready again if it may have messages."""
        self._timed[queue] = None
        if queue.overtaken:
            queue.drop_overtaken()
        if queue.stream is not None and queue.feed.state is not FeedState.CLOSED:
            scope, ledger = self._scopes[queue], queue.stream.ledger
            if ledger.released or ledger.gained_capacity or ledger.lifted:
                scope.apply_ledger()
            scope.add_news(queue.stream)
        queue.wake_up()

    def _on_scope_news(self, queue: SubscribedQueue) -> None:
        """Act on a change of a queue, and let its ordered scope, which may have waited for it, read on."""
        self.on_news(queue)
        if queue in self._scopes:
            self._scopes[queue].wake_drivers()

    def take_back(self, queue: SubscribedQueue, offsets: Sequence[int], lease_ids: Sequence[int]) -> int:
        """Make messages that a client returned unprocessed due again at once, without counting an attempt.

        Returns how many were returned; results without a current lease are ignored.
        """
        pairs = sorted(zip(offsets, lease_ids, strict=False), reverse=True)
        back = sum(queue.take_back(offset, lease_id) for offset, lease_id in pairs)
        if self._bucket is not None:
            self._bucket.take_tokens(-back)
        self.on_news(queue)
        return back

    # --- time and new data

    def expire_due(self, now: float) -> None:
        """Redeliver the messages whose lease has expired or whose retry is due."""
        for queue in list(self._timed):
            if queue.next_event() <= now:
                queue.expire_leases(now)
                queue.table.move_due(now)
                self.on_news(queue)
        short, self._short = self._short, {}
        for scope in short:
            scope.short = False
            scope.wake_drivers()

    def next_event(self) -> float:
        """Return when `expire_due` next has work (may be early, never late); NEVER if it has none."""
        soonest = self.rate_allows_at
        for queue in list(self._timed):
            event = queue.next_event()
            if event == NEVER:
                del self._timed[queue]
            soonest = min(soonest, event)
        return soonest

    def on_data_arrived(self, queue: SubscribedQueue) -> None:
        """Read the queue on: there may be messages past its last known end, or a failed read may work now."""
        if queue.feed.state in (FeedState.TAIL, FeedState.STALLED):
            queue.feed.state = FeedState.READABLE
        if queue in self._scopes:
            self._scopes[queue].retry()
        self._on_scope_news(queue)
