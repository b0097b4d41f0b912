"""PullBuffer: where one subscription's messages wait for clients.

It decides what is read next and what is delivered to whom asks, and hears what clients say of it. It never
waits and never touches the backend: `take` gives a Delivery, or a ReadRequest for the shell to carry
out and hand back through `loaded` (or an EndsRequest, through its scope), or None when nothing can be
delivered now.

Clients' results go to the jobs of their queue (queue_jobs.py); `heard` then lets the buffer act on them.

Queues that may have something stand in `_ready`, served round robin, redeliveries before new messages.
Bounds (messages leased, their bytes, messages retrying, ack span, rate): at one, nothing new is taken; a
result, a time-out or time itself brings the queue back.

Without an order key a queue's messages go out in runs, straight from what was read. With one, the queue
is a stream of an OrderScope, which decides what may go out (order/scope.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, ReadStatus
from ddmq_common.token_bucket import TokenBucket
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.arrivals import Arrivals
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.order.chains import KeyReader, QueueStream
from proxy_consumer.core.order.scope import EndsRequest, OrderScope
from proxy_consumer.core.queue_feed import FeedState, Filter, QueueFeed, Slice, gather
from proxy_consumer.core.queue_jobs import QueueJobs
from proxy_consumer.core.retry_policy import policy_of
from proxy_consumer.core.steps import BufferedQueue, Delivery, Loaded, Purpose, ReadPlan, ReadRequest
from proxy_consumer.core.tally import Budget, Count, Counter, Tally
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.core.traced_jobs import JobsMaker

Step = Delivery | ReadRequest | EndsRequest


class PullBuffer:
    """All queues of one subscription. Never yields; time is an argument, in monotonic seconds."""

    def __init__(
        self,
        config: SubscriptionDefaults,
        answer_bytes_max: int,
        read_ahead: Callable[[int], tuple[int, int]],
        lease_ids: Iterator[int],
        tally: Tally,
        held: Counter | None = None,
        message_filter: Filter | None = None,
        group: str = "",
    ) -> None:
        """`read_ahead(wanted)`: how many records and bytes to read when `wanted` are asked for.

        `group`: whose subscription it is. `held` counts the bytes of messages read and not delivered.
        """
        self.jobs_of: JobsMaker = QueueJobs
        self._held: Counter = Count() if held is None else held
        self.budget = Budget()
        self.tally = tally
        self.queues: dict[QueueRef, BufferedQueue] = {}
        self._ready: deque[BufferedQueue] = deque()
        self._scopes: dict[BufferedQueue, OrderScope] = {}  # of the queues that are in an ordered one
        self._timed: dict[BufferedQueue, None] = {}  # those with a lease or a retry, and some that had one
        self._short: dict[OrderScope, None] = {}  # scopes that stopped to let others go on
        self._answer_bytes_max = answer_bytes_max
        self._plan = ReadPlan(read_ahead, config.ack_span_max)
        self._lease_ids = lease_ids
        self._bucket: TokenBucket | None = None
        self.room_at = NEVER  # when the rate lets something out again, for who was told to wait
        self._arrivals = Arrivals(group, answer_bytes_max, tally)
        self._judge_by(message_filter)
        self._limit(config.rate_max)
        self.config = config

    def configure(self, config: SubscriptionDefaults) -> None:
        """New settings, effective from the next decision on; nothing is taken back."""
        self.config = config
        self._plan.ack_span_max = config.ack_span_max
        self._limit(config.rate_max)
        for state in self.queues.values():
            state.jobs.policy = policy_of(config, retry_queue=state.retry_queue)
            if state.stream is not None:
                self._scopes[state].batch(state.stream, config.chain_batch)
            self.heard(state)

    def filter_by(self, message_filter: Filter | None) -> None:
        """Another filter: what was read and not delivered is read again, and judged by it."""
        self._judge_by(message_filter)
        for state in self.queues.values():
            state.feed.drop_read_ahead()
            state.again.clear()
            state.forget_bytes()
            self.heard(state)

    def _limit(self, rate_max: int) -> None:
        """So many messages may go out a second; 0: no limit."""
        before, self.room_at = self._bucket, NEVER
        self._bucket = TokenBucket(rate_max, rate_max, 0.0) if rate_max else None
        if self._bucket is not None and before is not None:
            self._bucket.tokens, self._bucket.at = min(before.tokens, self._bucket.burst), before.at

    def _judge_by(self, message_filter: Filter | None) -> None:
        self._filter = message_filter
        self._plan.tags = None if message_filter is None else message_filter.tags

    # --- queues

    def assign(
        self,
        queue: QueueRef,
        view: ProgressView,
        bounds: Bounds,
        order: tuple[OrderScope, KeyReader] | None = None,
        *,
        retry_queue: bool = False,
    ) -> BufferedQueue:
        """A queue is ours, with what progress recorded. Offsets below its first message are finished.

        `order`: its scope and the reader of its order keys; None without. `retry_queue`: it is of
        `%RETRY%group`, where each message has one delivery.
        """
        policy = policy_of(self.config, retry_queue=retry_queue)
        jobs = self.jobs_of(queue, view, bounds.min, policy, self.budget, self.tally)
        start = jobs.ack_map.committed
        finished_until = max(
            [start, *(end for _, end in view.finished), *(offset + 1 for offset in jobs.table.jobs)]
        )
        feed = QueueFeed(start, finished_until, self._held)
        state = BufferedQueue(jobs, feed, self._plan, self._ready)
        state.retry_queue = retry_queue
        if start < bounds.min:
            state.expire_below(bounds.min, start)
            feed.cursor = bounds.min
        self.queues[queue] = state
        if order is not None:
            scope, key_of = order
            stream = QueueStream(scope.ledger, queue, feed, key_of, self.tally.unkeyed)
            state.stream = jobs.stream = stream
            self._scopes[state] = scope
            scope.add(stream, state, self.config.chain_batch, empty=start >= bounds.next)
        self.heard(state)
        return state

    def revoke(self, queue: QueueRef) -> BufferedQueue | None:
        """The queue is not ours any more; its leases and retries are dropped."""
        state = self.queues.pop(queue, None)
        if state is None:
            return None
        state.feed.drop_read_ahead()
        state.feed.state = FeedState.GONE
        state.again.clear()
        state.jobs.stream = None
        state.jobs.abandon()
        self._timed.pop(state, None)
        scope = self._scopes.pop(state, None)
        if scope is not None and state.stream is not None:
            scope.drop(state.stream)  # its chains go on without it
        if state.in_ready:
            self._stand_back(state)
        return state

    def scope_of(self, state: BufferedQueue) -> OrderScope | None:
        """The ordered scope of a queue; None without one."""
        return self._scopes.get(state)

    def scopes(self) -> list[OrderScope]:
        """The ordered scopes of all queues, each once."""
        return list(dict.fromkeys(self._scopes.values()))

    # --- delivery

    def take(self, now: float, count: int) -> Step | None:
        """The next thing to do for a client that wants up to `count` messages."""
        if not self.may_have:
            return None
        config, ready, bucket = self.config, self._ready, self._bucket
        room = min(count, config.batch_max, config.concurrency - self.budget.leased)
        if bucket is not None:
            wait_s = bucket.wait_s(1, now)
            self.room_at = now + wait_s + 1e-6 if wait_s else NEVER
            room = min(room, int(bucket.tokens))
        if room < 1:
            return None
        only_again = self.budget.retrying >= config.retrying_max
        visits = len(ready)
        while visits > 0:
            state, before = ready[0], len(ready)
            step = self._step(state, now, room, only_again)
            visits += len(ready) - before - 1  # what a step wakes is visited too
            if isinstance(step, Delivery) or (step is None and only_again):
                ready.rotate(-1)
            elif step is not None and state.stream is not None and not state.stream.deliverable:
                return step  # it may have more to ask
            elif state.in_ready:
                self._stand_back(state)
                if step is not None and state.stream is not None:
                    self._scopes[state].waiting_streams.append(state.stream)
            if step is not None:
                return step
        return None

    @property
    def may_have(self) -> bool:
        """False: `take` is certain to give None until something happens."""
        config, budget = self.config, self.budget
        return (
            bool(self._ready)
            and budget.leased < config.concurrency
            and budget.leased_bytes < config.in_flight_bytes_max
        )

    @property
    def has_some(self) -> bool:
        """Whether something lies ready for the next who asks."""
        return self.may_have and any(
            state.stream is not None and state.stream.deliverable for state in self._ready
        )

    @property
    def short(self) -> bool:
        """Whether `take` stopped to let others go on, and should be called again soon."""
        return any(scope.short for scope in self._short)

    def _stand_back(self, state: BufferedQueue) -> None:
        """Take a queue out of those that are ready."""
        self._ready.remove(state)
        state.in_ready = False

    def _step(self, state: BufferedQueue, now: float, room: int, only_again: bool) -> Step | None:
        stream, scope = state.stream, None
        if stream is not None:
            scope = self._scopes[state]
            if not scope.open:
                return None
        again = self._step_again(state, now, room)
        if again is not None or only_again:
            return again
        if stream is not None and scope is not None:
            step = self._step_in_order(state, stream, scope, now, room)
            return self._step_again(state, now, room) if step is None else step
        taken = state.feed.take(room, self._answer_bytes_max) if state.has_span() else None
        if taken is None:
            return state.read_on(room)
        return self._deliver(state, taken, now, redelivered=state.jobs.table.recorded > 0)

    def _step_again(self, state: BufferedQueue, now: float, room: int) -> Delivery | ReadRequest | None:
        """Redeliveries, and jobs that their chains let out."""
        table = state.jobs.table
        if not (table.retrying or table.released) or state.rereading or not table.move_due(now):
            return None
        step = self._arrivals.due(state, room)
        if not isinstance(step, Slice):
            return step
        late = set() if state.stream is None else state.close(state.stream, list(step.offsets))
        if late:
            kept = [at for at, offset in enumerate(step.offsets) if offset not in late]
            if not kept:
                return self._step_again(state, now, room)
            step = step.chosen(kept)
        return self._deliver(state, step, now, redelivered=True)

    def _step_in_order(
        self, state: BufferedQueue, stream: QueueStream, scope: OrderScope, now: float, room: int
    ) -> Step | None:
        if len(stream.deliverable) < room:
            request = scope.advance(stream, room - len(stream.deliverable))
            if scope.short:
                self._short[scope] = None  # `sweep` lets it go on
            if request is not None:
                return request
        if not stream.deliverable:
            return None
        chosen = state.take_in_order(stream, room, self._answer_bytes_max)
        if stream.ledger.made_room:
            scope.go_on()
        if not chosen:
            return self._step_in_order(state, stream, scope, now, room)
        offsets = [message.offset for message in chosen]
        messages = gather(offsets, [(message.batch, message.at) for message in chosen])
        return self._deliver(state, messages, now, redelivered=state.jobs.table.recorded > 0)

    def _deliver(self, state: BufferedQueue, messages: Slice, now: float, *, redelivered: bool) -> Delivery:
        lease = Lease(next(self._lease_ids), now + self.config.ack_timeout_ms / 1000, now)
        state.lease(messages, lease)
        self._timed[state] = None
        if state.stream is not None and (scope := self._scopes[state]).full:
            scope.made_room()
        self.tally.delivered.value += len(messages.offsets)
        if self._bucket is not None:
            self._bucket.take(len(messages.offsets))
        return Delivery(state, messages, lease, redelivered)

    # --- what was read

    def loaded(self, request: ReadRequest, batch: ReadBatch, now: float) -> Loaded:
        """A read came back."""
        state = request.state
        if state.feed.state is FeedState.GONE or batch.status is ReadStatus.GONE:
            return Loaded.GONE
        if request.purpose is Purpose.NEW:
            loaded = self._arrivals.loaded(state, batch, self._filter, not self.config.pressure_traffic)
            if state.stream is not None:
                self._scopes[state].answered(state.stream)
        elif request.purpose is Purpose.AGAIN:
            self._arrivals.reread(request, batch, self._filter, now)
            loaded = Loaded.DATA
        else:
            self._scopes[state].looked_back(request, batch)
            loaded = Loaded.DATA
        self._heard_of_all(state)
        return loaded

    def read_failed(self, request: ReadRequest) -> None:
        """The read gave an error; the queue is tried again when the shell calls `data_arrived`."""
        state = request.state
        if request.purpose is Purpose.AGAIN:
            state.rereading = False
        elif request.purpose is Purpose.NEW and state.feed.state is FeedState.READING:
            state.feed.state = FeedState.STALLED
        elif state in self._scopes:
            self._scopes[state].read_failed()

    # --- what clients say

    def heard(self, state: BufferedQueue) -> None:
        """Something was heard of a queue: what follows from it is done, and it is looked at again."""
        self._timed[state] = None
        if state.jobs.overtaken:
            state.drop_overtaken()
        if state.stream is not None and state.feed.state is not FeedState.GONE:
            scope, ledger = self._scopes[state], state.stream.ledger
            if ledger.let_out or ledger.made_room:
                scope.go_on()
            scope.hear(state.stream)
        state.wake()

    def _heard_of_all(self, state: BufferedQueue) -> None:
        """The same, and its ordered scope, which may have waited for it, reads on."""
        self.heard(state)
        if state in self._scopes:
            self._scopes[state].wake()

    def take_back(self, state: BufferedQueue, offsets: Sequence[int], lease_ids: Sequence[int]) -> int:
        """Messages that nobody looked at, the last first: others may have them at once."""
        pairs = sorted(zip(offsets, lease_ids, strict=False), reverse=True)
        back = sum(state.jobs.take_back(offset, lease_id) for offset, lease_id in pairs)
        if self._bucket is not None:
            self._bucket.take(-back)
        self.heard(state)
        return back

    # --- time and news

    def sweep(self, now: float) -> None:
        """Leases that ran out, retries that are due."""
        for state in list(self._timed):
            if state.jobs.next_event() <= now:
                state.jobs.expire(now)
                state.jobs.table.move_due(now)
                self.heard(state)
        short, self._short = self._short, {}
        for scope in short:
            scope.short = False
            scope.wake()

    def next_event(self) -> float:
        """When `sweep` has something to do; may be early, never late. NEVER: nothing."""
        soonest = self.room_at
        for state in list(self._timed):
            event = state.jobs.next_event()
            if event == NEVER:
                del self._timed[state]
            soonest = min(soonest, event)
        return soonest

    def data_arrived(self, state: BufferedQueue) -> None:
        """There may be messages past the end seen last, or what failed may work again."""
        if state.feed.state in (FeedState.TAIL, FeedState.STALLED):
            state.feed.state = FeedState.READABLE
        if state in self._scopes:
            self._scopes[state].retry()
        self._heard_of_all(state)
