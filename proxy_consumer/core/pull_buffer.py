"""PullBuffer: where one subscription's messages wait for clients.

It decides what is read next and what is delivered to whom asks; results come through `outcomes`. It never
waits and never touches the backend: `take` gives a Delivery, or a ReadRequest for the shell to carry
out and hand back through `loaded` (or an EndsRequest, through its scope), or None when nothing can be
delivered now.

Queues that may have something stand in `ready`, served round robin, redeliveries before new messages.
Bounds (messages leased, their bytes, messages retrying, ack span, rate): at one, nothing new is taken; a
result, a time-out or time itself brings the queue back.

Without an order key a queue's messages go out in runs, straight from what was read. With one, the queue
is a lane of an OrderScope, which decides what may go out (order/scope.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, ReadStatus
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.arrivals import Arrivals
from proxy_consumer.core.gate import Gate
from proxy_consumer.core.gathered import gather
from proxy_consumer.core.jobs.leases import NEVER, Lease
from proxy_consumer.core.jobs.queue_jobs import LeasedRun, QueueJobs
from proxy_consumer.core.jobs.retry import policy_of
from proxy_consumer.core.jobs.upstream_job import UpstreamJob
from proxy_consumer.core.order.lane import KeyReader, OrderedLane
from proxy_consumer.core.order.scope import OrderScope
from proxy_consumer.core.outcomes import Outcomes
from proxy_consumer.core.queue_feed import FeedState, QueueFeed, Slice
from proxy_consumer.core.ranges import Range
from proxy_consumer.core.rate import Rate
from proxy_consumer.core.redelivery import Redelivery
from proxy_consumer.core.steps import Delivery, EndsRequest, Loaded, Purpose, QueueState, ReadRequest
from proxy_consumer.core.tally import Budget, Count, Counter, Tally

Step = Delivery | ReadRequest | EndsRequest
Ordering = Callable[[QueueRef], tuple[OrderScope, KeyReader] | None]


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
        ordering: Ordering = lambda _: None,
        gate: Gate | None = None,
    ) -> None:
        """`read_ahead(wanted)`: how many records and bytes to read when `wanted` are asked for.

        `held` counts the bytes of messages read and not delivered. `ordering` gives the scope of a queue
        and the reader of its order keys, or None.
        """
        self._held: Counter = Count() if held is None else held
        self.budget = Budget()
        self.tally = tally
        self.queues: dict[QueueRef, QueueState] = {}
        self._ready: deque[QueueState] = deque()
        self._timed: dict[QueueState, None] = {}  # those with a lease or a retry, and some that had one
        self._short: dict[OrderScope, None] = {}  # scopes that stopped to let others have a turn
        self._answer_bytes_max = answer_bytes_max
        self._read_ahead = read_ahead
        self._lease_ids = lease_ids
        self._ordering = ordering
        self._gate = gate
        self._rate = Rate(config.rate_max)
        self._again = Redelivery(answer_bytes_max, tally)
        self._arrivals = Arrivals(tally)
        self.outcomes = Outcomes(self._wake, self._overtaken, self._rate)
        self.config = config

    def configure(self, config: SubscriptionDefaults) -> None:
        """New settings, effective from the next decision on; nothing is taken back."""
        self.config = config
        self._rate.change(config.rate_max)
        for state in self.queues.values():
            state.jobs.policy = policy_of(config, retry_queue=state.retry_queue)
            if state.lane is not None:
                state.lane.scope.batch(state.lane, config.chain_batch)
            self._wake(state)

    def filter_by(self, gate: Gate | None) -> None:
        """Another gate: what was read and not delivered is read again, and judged by it."""
        self._gate = gate
        self.drop_read_ahead()
        for state in self.queues.values():
            if state.lane is not None:
                state.lane.forget_bytes()
            self._wake(state)

    # --- queues

    def assign(
        self, queue: QueueRef, view: ProgressView, bounds: Bounds, *, retry_queue: bool = False
    ) -> QueueState:
        """A queue is ours, with what progress recorded. Offsets below its first message are finished.

        `retry_queue`: it is of `%RETRY%group`, where each message has one delivery.
        """
        start = bounds.min if view.committed is None else view.committed
        policy = policy_of(self.config, retry_queue=retry_queue)
        jobs = QueueJobs(queue, view, start, policy, self.budget, self.tally)
        if view.committed is None and start > 0:
            jobs.skip([(0, start)])
        finished_until = max(
            [start, *(end for _, end in view.finished), *(offset + 1 for offset in jobs.jobs)]
        )
        state = QueueState(jobs, QueueFeed(start, finished_until, self._held))
        state.retry_queue = retry_queue
        state.read_on = partial(self._read_on, state)
        if start < bounds.min:
            self._arrivals.skip_expired(state, bounds.min)
        self.queues[queue] = state
        ordering = None if retry_queue else self._ordering(queue)
        if ordering is not None:
            scope, key_of = ordering
            wake, unkeyed = partial(self._enter, state), self.tally.unkeyed
            state.lane = jobs.lane = OrderedLane(scope, state, key_of, wake, unkeyed)
            scope.add(state.lane, self.config.chain_batch, empty=start >= bounds.next)
        self._wake(state)
        return state

    def revoke(self, queue: QueueRef) -> QueueState | None:
        """The queue is not ours any more; its leases and retries are dropped."""
        state = self.queues.pop(queue, None)
        if state is None:
            return None
        state.feed.drop_read_ahead()
        state.feed.state = FeedState.GONE
        state.again.clear()
        state.jobs.lane = None
        state.jobs.abandon()
        self._timed.pop(state, None)
        if state.lane is not None:
            state.lane.scope.drop(state.lane)
        if state.in_ready:
            self._ready.remove(state)
            state.in_ready = False
        return state

    # --- delivery

    def take(self, now: float, count: int) -> Step | None:
        """The next thing to do for a client that wants up to `count` messages."""
        if not self.may_have:
            return None
        config, ready = self.config, self._ready
        room = self._rate.room(min(count, config.batch_max, config.concurrency - self.budget.leased), now)
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
            elif step is not None and state.lane is not None and not state.lane.deliverable:
                return step  # it may have more to ask
            elif state.in_ready:
                ready.remove(state)
                state.in_ready = False
                if step is not None and state.lane is not None:
                    state.lane.scope.waiting_lanes.append(state.lane)
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
            state.lane is not None and state.lane.deliverable for state in self._ready
        )

    @property
    def short(self) -> bool:
        """Whether `take` stopped to let others have a turn, and should be called again soon."""
        return any(scope.short for scope in self._short)

    def _step(self, state: QueueState, now: float, room: int, only_again: bool) -> Step | None:
        if state.lane is not None and not state.lane.scope.open:
            return None
        again = self._step_again(state, now, room)
        if again is not None or only_again:
            return again
        if state.lane is not None:
            step = self._step_in_order(state, state.lane, now, room)
            return self._step_again(state, now, room) if step is None else step
        taken = state.feed.take(room, self._answer_bytes_max) if self._has_span(state) else None
        if taken is None:
            return self._read_on(state, room)
        return self._deliver(state, taken, now, redelivered=state.jobs.recorded > 0)

    def _step_again(self, state: QueueState, now: float, room: int) -> Delivery | ReadRequest | None:
        """Redeliveries, and jobs that their chains let out."""
        jobs = state.jobs
        if not (jobs.retrying or jobs.released) or state.rereading or not jobs.move_due(now):
            return None
        step = self._again.next(state, room)
        if not isinstance(step, Slice):
            return step
        late = set() if state.lane is None else state.lane.close(list(step.offsets))
        if late:
            kept = [at for at, offset in enumerate(step.offsets) if offset not in late]
            if not kept:
                return self._step_again(state, now, room)
            step = step.chosen(kept)
        return self._deliver(state, step, now, redelivered=True)

    def _step_in_order(self, state: QueueState, lane: OrderedLane, now: float, room: int) -> Step | None:
        if len(lane.deliverable) < room:
            request = lane.scope.advance(lane, room - len(lane.deliverable))
            if lane.scope.short:
                self._short[lane.scope] = None
            if request is not None:
                return request
        if not lane.deliverable:
            return None
        entries = lane.take(room, self._answer_bytes_max)
        if not entries:
            return self._step_in_order(state, lane, now, room)
        offsets = [entry.offset for entry in entries]
        messages = gather(offsets, [(entry.batch, entry.at) for entry in entries])
        return self._deliver(state, messages, now, redelivered=state.jobs.recorded > 0)

    def _has_span(self, state: QueueState) -> bool:
        return state.feed.next_offset() - state.jobs.ack_map.committed < self.config.ack_span_max

    def _read_on(self, state: QueueState, room: int) -> ReadRequest | None:
        feed, ack_map = state.feed, state.jobs.ack_map
        if feed.state is not FeedState.READABLE or not self._has_span(state):
            return None
        if feed.cursor < feed.finished_until:
            feed.cursor = ack_map.unfinished_from(feed.cursor, 1)[0][0]
        count, bytes_max = self._read_ahead(room)
        feed.state = FeedState.READING
        tags = None if self._gate is None else self._gate.tags
        return ReadRequest(state, feed.cursor, count, bytes_max, Purpose.NEW, tags)

    def _deliver(self, state: QueueState, messages: Slice, now: float, *, redelivered: bool) -> Delivery:
        lease = Lease(next(self._lease_ids), now + self.config.ack_timeout_ms / 1000, now)
        state.lease(messages, lease)
        self._timed[state] = None
        if state.lane is not None:
            state.lane.scope.made_room()
        self.tally.delivered.value += len(messages.offsets)
        self._rate.spend(len(messages.offsets))
        return Delivery(state, messages, lease, redelivered)

    # --- what was read

    def loaded(self, request: ReadRequest, batch: ReadBatch, now: float) -> Loaded:
        """A read came back."""
        state = request.state
        if state.feed.state is FeedState.GONE or batch.status is ReadStatus.GONE:
            return Loaded.GONE
        if request.purpose is Purpose.NEW:
            loaded = self._arrivals.loaded(state, batch, self._gate, not self.config.pressure_traffic)
            if state.lane is not None:
                state.lane.scope.answered(state.lane)
        elif request.purpose is Purpose.AGAIN:
            self._again.loaded(request, batch, self._gate, now)
            loaded = Loaded.DATA
        else:
            assert state.lane is not None
            state.lane.scope.looked_back(request, batch)
            loaded = Loaded.DATA
        self._stir(state)
        return loaded

    def read_failed(self, request: ReadRequest) -> None:
        """The read gave an error; the queue is tried again when the shell calls `data_arrived`."""
        state = request.state
        if request.purpose is Purpose.AGAIN:
            state.rereading = False
        elif request.purpose is Purpose.NEW and state.feed.state is FeedState.READING:
            state.feed.state = FeedState.STALLED
        elif state.lane is not None:
            state.lane.scope.read_failed()

    # --- what clients have

    def adopt(self, state: QueueState, runs: Sequence[LeasedRun], acked: Sequence[Range], now: float) -> None:
        """Clients have these since before the queue came here: nobody else gets them while leases last.

        `acked`: what they have acknowledged in time, and was not durable yet.
        """
        state.feed.finished_until = max(state.feed.finished_until, state.jobs.adopt(runs, acked, now))
        self._wake(state)

    def _overtaken(self, state: QueueState) -> None:
        """Messages may be finished that were not delivered under this epoch: read with a sieve."""
        state.jobs.overtaken = False
        state.feed.drop_read_ahead()
        state.feed.finished_until = max(state.feed.finished_until, state.jobs.handed_out)

    # --- time and news

    def sweep(self, now: float) -> int:
        """Leases that ran out, retries that are due; returns how many messages timed out."""
        expired = 0
        for state in list(self._timed):
            if state.jobs.next_event() <= now:
                expired += state.jobs.expire(now)
                state.jobs.move_due(now)
                self._wake(state)
        short, self._short = self._short, {}
        for scope in short:
            scope.short = False
            scope.stir()
        return expired

    def next_event(self) -> float:
        """When `sweep` has something to do; may be early, never late. NEVER: nothing."""
        soonest = self._rate.next_time()
        for state in list(self._timed):
            event = state.jobs.next_event()
            if event == NEVER:
                del self._timed[state]
            soonest = min(soonest, event)
        return soonest

    def data_arrived(self, state: QueueState) -> None:
        """There may be messages past the end seen last, or what failed may work again."""
        if state.feed.state in (FeedState.TAIL, FeedState.STALLED):
            state.feed.state = FeedState.READABLE
        if state.lane is not None:
            state.lane.scope.retry()
        self._stir(state)

    def buried(self, state: QueueState, job: UpstreamJob) -> None:
        """The dead letter and its finish are durable."""
        state.jobs.buried(job)
        self._wake(state)

    def drop_read_ahead(self) -> None:
        """Forget messages read but not delivered."""
        for state in self.queues.values():
            state.feed.drop_read_ahead()
            state.again.clear()

    def _stir(self, state: QueueState) -> None:
        """Wake the queue, and its ordered scope, which may have waited for it."""
        self._wake(state)
        if state.lane is not None:
            state.lane.scope.stir()

    def _wake(self, state: QueueState) -> None:
        """Something was heard of a queue."""
        self._timed[state] = None
        if state.jobs.overtaken:
            self._overtaken(state)
        if state.lane is not None and state.feed.state is not FeedState.GONE:
            state.lane.scope.hear(state.lane)
        self._enter(state)

    def _enter(self, state: QueueState) -> None:
        if state.in_ready or state.feed.state is FeedState.GONE:
            return
        if (
            state.lane is not None
            or state.jobs.ready
            or state.feed.buffered
            or state.feed.state is FeedState.READABLE
        ):
            state.in_ready = True
            self._ready.append(state)
