"""PullBuffer: where one subscription's messages wait for clients.

It decides what is read next and what is delivered to whom asks, and hears what clients say of it. It never
waits and never touches the backend: `take` gives a Delivery, or a ReadRequest for the shell to carry
out and hand back through `loaded` (or an EndsRequest, through its scope), or None when nothing can be
delivered now.

Queues that may have something stand in `ready`, served round robin, redeliveries before new messages.
Bounds (messages leased, their bytes, messages retrying, ack span, rate): at one, nothing new is taken; a
result, a time-out or time itself brings the queue back.

Without an order key a queue's messages go out in runs, straight from what was read. With one, the queue
is a stream of an OrderScope, which decides what may go out (order/scope.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, ReadStatus
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.arrivals import Arrivals
from proxy_consumer.core.jobs import UpstreamJob, policy_of
from proxy_consumer.core.leases import Lease, by_lease
from proxy_consumer.core.order.chains import KeyReader, QueueStream
from proxy_consumer.core.order.scope import EndsRequest, OrderScope
from proxy_consumer.core.progress import Range
from proxy_consumer.core.queue_feed import FeedState, Filter, QueueFeed, Slice, gather
from proxy_consumer.core.queue_jobs import LeasedRun, QueueJobs
from proxy_consumer.core.ready_queues import Rate, ReadyQueues
from proxy_consumer.core.steps import BufferedQueue, Delivery, Loaded, Purpose, ReadPlan, ReadRequest
from proxy_consumer.core.tally import Budget, Count, Counter, Tally

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
    ) -> None:
        """`read_ahead(wanted)`: how many records and bytes to read when `wanted` are asked for.

        `held` counts the bytes of messages read and not delivered.
        """
        self._held: Counter = Count() if held is None else held
        self.budget = Budget()
        self.tally = tally
        self.queues: dict[QueueRef, BufferedQueue] = {}
        self._ready = ReadyQueues()
        self._answer_bytes_max = answer_bytes_max
        self._plan = ReadPlan(read_ahead, config.ack_span_max)
        self._lease_ids = lease_ids
        self._rate = Rate(config.rate_max)
        self._arrivals = Arrivals(answer_bytes_max, tally)
        self._judge_by(message_filter)
        self.config = config

    def configure(self, config: SubscriptionDefaults) -> None:
        """New settings, effective from the next decision on; nothing is taken back."""
        self.config = config
        self._plan.ack_span_max = config.ack_span_max
        self._rate.change(config.rate_max)
        for state in self.queues.values():
            state.jobs.policy = policy_of(config, retry_queue=state.retry_queue)
            if state.stream is not None:
                self._ready.scopes[state].batch(state.stream, config.chain_batch)
            self._ready.heard(state)

    def filter_by(self, message_filter: Filter | None) -> None:
        """Another filter: what was read and not delivered is read again, and judged by it."""
        self._judge_by(message_filter)
        self.drop_read_ahead()
        for state in self.queues.values():
            state.forget_bytes()
            self._ready.heard(state)

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
        start = bounds.min if view.committed is None else view.committed
        policy = policy_of(self.config, retry_queue=retry_queue)
        jobs = QueueJobs(queue, view, start, policy, self.budget, self.tally)
        if view.committed is None and start > 0:
            jobs.skip([(0, start)])
        finished_until = max(
            [start, *(end for _, end in view.finished), *(offset + 1 for offset in jobs.table.jobs)]
        )
        feed = QueueFeed(start, finished_until, self._held)
        state = BufferedQueue(jobs, feed, self._plan, self._ready.ready)
        state.retry_queue = retry_queue
        if start < bounds.min:
            state.expire_below(bounds.min, start)
            feed.cursor = bounds.min
        self.queues[queue] = state
        if order is not None:
            scope, key_of = order
            stream = QueueStream(scope.ledger, queue, feed, key_of, self.tally.unkeyed)
            state.stream = jobs.stream = stream
            self._ready.scopes[state] = scope
            scope.add(stream, state, self.config.chain_batch, empty=start >= bounds.next)
        self._ready.heard(state)
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
        self._ready.forget(state)
        return state

    def scope_of(self, state: BufferedQueue) -> OrderScope | None:
        """The ordered scope of a queue; None without one."""
        return self._ready.scopes.get(state)

    def scopes(self) -> list[OrderScope]:
        """The ordered scopes of all queues, each once."""
        return list(dict.fromkeys(self._ready.scopes.values()))

    # --- delivery

    def take(self, now: float, count: int) -> Step | None:
        """The next thing to do for a client that wants up to `count` messages."""
        if not self.may_have:
            return None
        config, ready = self.config, self._ready.ready
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
            elif step is not None and state.stream is not None and not state.stream.deliverable:
                return step  # it may have more to ask
            elif state.in_ready:
                self._ready.stand_back(state, with_more=step is not None)
            if step is not None:
                return step
        return None

    @property
    def may_have(self) -> bool:
        """False: `take` is certain to give None until something happens."""
        config, budget = self.config, self.budget
        return (
            bool(self._ready.ready)
            and budget.leased < config.concurrency
            and budget.leased_bytes < config.in_flight_bytes_max
        )

    @property
    def has_some(self) -> bool:
        """Whether something lies ready for the next who asks."""
        return self.may_have and any(
            state.stream is not None and state.stream.deliverable for state in self._ready.ready
        )

    @property
    def short(self) -> bool:
        """Whether `take` stopped to let others go on, and should be called again soon."""
        return self._ready.short

    def _step(self, state: BufferedQueue, now: float, room: int, only_again: bool) -> Step | None:
        stream, scope = state.stream, None
        if stream is not None:
            scope = self._ready.scopes[state]
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
                self._ready.stopped_short(scope)
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
        self._ready.leased(state)
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
            loaded = self._arrivals.loaded(state, batch, self._filter, not self.config.pressure_traffic)
            if state.stream is not None:
                self._ready.scopes[state].answered(state.stream)
        elif request.purpose is Purpose.AGAIN:
            self._arrivals.reread(request, batch, self._filter, now)
            loaded = Loaded.DATA
        else:
            self._ready.scopes[state].looked_back(request, batch)
            loaded = Loaded.DATA
        self._ready.heard_of_all(state)
        return loaded

    def read_failed(self, request: ReadRequest) -> None:
        """The read gave an error; the queue is tried again when the shell calls `data_arrived`."""
        state = request.state
        if request.purpose is Purpose.AGAIN:
            state.rereading = False
        elif request.purpose is Purpose.NEW and state.feed.state is FeedState.READING:
            state.feed.state = FeedState.STALLED
        elif state in self._ready.scopes:
            self._ready.scopes[state].read_failed()

    # --- what clients say, each under its lease; offsets and what belongs to them come as lists side by side

    def finish(
        self, state: BufferedQueue, offsets: Sequence[int], lease_ids: Sequence[int] | None, now: float
    ) -> int:
        """Acknowledge `offsets`, each under the lease id at the same place (absent or 0: without one)."""
        done = 0
        for lease_id, group in by_lease(offsets, lease_ids):
            done += state.jobs.finish(group, lease_id, now)
        if done and state.jobs.handed_out > state.feed.next_offset():
            state.drop_overtaken()
        self._ready.heard(state)
        return done

    def fail(
        self,
        state: BufferedQueue,
        offsets: Sequence[int],
        lease_ids: Sequence[int] | None,
        delays_ms: Sequence[int] | None,
        now: float,
        reasons: Sequence[str] | None = None,
    ) -> int:
        """Fail `offsets`; a delay of 0 or more replaces the retry interval, a negative or absent one not."""
        failed = 0
        for index, offset in enumerate(offsets):
            lease_id = lease_ids[index] if lease_ids and index < len(lease_ids) else 0
            delay = delays_ms[index] if delays_ms and index < len(delays_ms) else -1
            reason = reasons[index] if reasons and index < len(reasons) else ""
            failed += state.jobs.fail(offset, lease_id or None, delay if delay >= 0 else None, now, reason)
        self._ready.heard(state)
        return failed

    def give_up(self, state: BufferedQueue, offset: int, lease_id: int, reason: str, error: str = "") -> bool:
        """Fail one message for good: dead letter without further retry; `reason` one word, `error` free."""
        given_up = state.jobs.give_up(offset, lease_id or None, reason, error)
        self._ready.heard(state)
        return given_up

    def extend(self, state: BufferedQueue, lease_ids: Sequence[int], now: float) -> int:
        """Start the leases' time anew."""
        return state.jobs.extend(lease_ids, now)

    def extend_parts(
        self, state: BufferedQueue, offsets: Sequence[int], lease_ids: Sequence[int], now: float
    ) -> list[int]:
        """Start the time of single messages anew; returns the offsets whose lease was over."""
        late: list[int] = []
        for lease_id, group in by_lease(offsets, lease_ids):
            late += state.jobs.extend_part(group, lease_id or 0, now)
        return late

    def take_back(self, state: BufferedQueue, offsets: Sequence[int], lease_ids: Sequence[int]) -> int:
        """Messages that nobody looked at, the last first: others may have them at once."""
        back = 0
        for offset, lease_id in sorted(zip(offsets, lease_ids, strict=False), reverse=True):
            back += state.jobs.take_back(offset, lease_id)
        self._rate.spend(-back)
        self._ready.heard(state)
        return back

    def adopt(
        self, state: BufferedQueue, runs: Sequence[LeasedRun], acked: Sequence[Range], now: float
    ) -> None:
        """Clients have these since before the queue came here: nobody else gets them while leases last.

        `acked`: what they have acknowledged in time, and was not durable yet.
        """
        state.feed.finished_until = max(state.feed.finished_until, state.jobs.adopt(runs, acked, now))
        self._ready.heard(state)

    # --- time and news

    def sweep(self, now: float) -> int:
        """Leases that ran out, retries that are due; returns how many messages timed out."""
        return self._ready.sweep(now)

    def next_event(self) -> float:
        """When `sweep` has something to do; may be early, never late. NEVER: nothing."""
        return min(self._rate.next_time(), self._ready.next_event())

    def data_arrived(self, state: BufferedQueue) -> None:
        """There may be messages past the end seen last, or what failed may work again."""
        if state.feed.state in (FeedState.TAIL, FeedState.STALLED):
            state.feed.state = FeedState.READABLE
        if state in self._ready.scopes:
            self._ready.scopes[state].retry()
        self._ready.heard_of_all(state)

    def published(self, state: BufferedQueue, job: UpstreamJob) -> None:
        """A spent job's record in its next topic, and its finish, are durable."""
        state.jobs.published(job)
        self._ready.heard(state)

    def drop_read_ahead(self) -> None:
        """Forget messages read but not delivered."""
        for state in self.queues.values():
            state.feed.drop_read_ahead()
            state.again.clear()
