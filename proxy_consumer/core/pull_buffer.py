"""PullBuffer: where one subscription's messages wait for clients.

It decides what is read next, what is delivered to whom asks, and what becomes of results. It never
waits and never touches the backend: `take` gives a Delivery, or a ReadRequest for the shell to carry
out and hand back through `loaded`, or None when nothing can be delivered now.

Queues that may have something stand in `ready`, served round robin, redeliveries before new messages.
Bounds (messages leased, their bytes, messages retrying, ack span): at one, nothing new is taken; a
result or a time-out brings the queue back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, ReadStatus
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.leases import NEVER, Lease, by_lease
from proxy_consumer.core.queue_feed import FeedState, QueueFeed, Slice, pick
from proxy_consumer.core.queue_jobs import QueueJobs
from proxy_consumer.core.ranges import ascending_ranges
from proxy_consumer.core.retry import RetryPolicy
from proxy_consumer.core.steps import Delivery, Loaded, QueueState, ReadRequest
from proxy_consumer.core.tally import Budget, Count, Counter, Tally
from proxy_consumer.core.upstream_job import JobState, UpstreamJob

_REDELIVERY_WINDOW = 4  # offsets read per redelivery wanted: due ones are seldom neighbours


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
    ) -> None:
        """`read_ahead(wanted)`: how many records and bytes to read when `wanted` are asked for.

        `held` counts the bytes of messages read and not delivered.
        """
        self._held: Counter = Count() if held is None else held
        self.budget = Budget()
        self.tally = tally
        self.queues: dict[QueueRef, QueueState] = {}
        self._ready: deque[QueueState] = deque()
        self._answer_bytes_max = answer_bytes_max
        self._read_ahead = read_ahead
        self._lease_ids = lease_ids
        self.configure(config)

    def configure(self, config: SubscriptionDefaults) -> None:
        """New settings, effective from the next decision on; nothing is taken back."""
        self.config = config
        self.policy = RetryPolicy(config.retry_intervals_ms, config.max_timeout_redeliveries)
        for state in self.queues.values():
            state.jobs.policy = self.policy

    # --- queues

    def assign(self, queue: QueueRef, view: ProgressView, bounds: Bounds) -> QueueState:
        """A queue is ours, with what progress recorded. Offsets below its first message are finished."""
        start = bounds.min if view.committed is None else view.committed
        jobs = QueueJobs(queue, view, start, self.policy, self.budget, self.tally)
        if view.committed is None and start > 0:
            jobs.skip([(0, start)])
        finished_until = max(
            [start, *(end for _, end in view.finished), *(offset + 1 for offset in jobs.jobs)]
        )
        state = QueueState(jobs, QueueFeed(start, finished_until, self._held))
        if start < bounds.min:
            self._skip_expired(state, bounds.min)
        self.queues[queue] = state
        self._wake(state)
        return state

    def revoke(self, queue: QueueRef) -> QueueState | None:
        """The queue is not ours any more; its leases and retries are dropped."""
        state = self.queues.pop(queue, None)
        if state is None:
            return None
        state.feed.drop_read_ahead()
        state.feed.state = FeedState.GONE
        state.redelivery = None
        state.jobs.abandon()
        if state.in_ready:
            self._ready.remove(state)
            state.in_ready = False
        return state

    # --- delivery

    def take(self, now: float, count: int) -> Delivery | ReadRequest | None:
        """The next thing to do for a client that wants up to `count` messages."""
        if not self.may_have:
            return None
        config, ready = self.config, self._ready
        room = min(count, config.batch_max, config.concurrency - self.budget.leased)
        only_again = self.budget.retrying >= config.retrying_max
        for _ in range(len(ready)):
            state = ready[0]
            step = self._step(state, now, room, only_again)
            if isinstance(step, Delivery) or (step is None and only_again):
                ready.rotate(-1)
            else:
                ready.popleft()
                state.in_ready = False
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

    def _step(
        self, state: QueueState, now: float, room: int, only_again: bool
    ) -> Delivery | ReadRequest | None:
        jobs, feed = state.jobs, state.feed
        if jobs.retrying and not state.rereading and jobs.move_due(now):
            again = self._redeliver(state, now, room)
            if again is not None:
                return again
        if only_again:
            return None
        if feed.next_offset() - jobs.ack_map.committed >= self.config.ack_span_max:
            return None
        taken = feed.take(room, self._answer_bytes_max)
        if taken is None:
            return self._read_on(state, room)
        return self._deliver(state, taken, now, redelivered=jobs.recorded > 0)

    def _read_on(self, state: QueueState, room: int) -> ReadRequest | None:
        feed, ack_map = state.feed, state.jobs.ack_map
        if feed.state is not FeedState.READABLE:
            return None
        if feed.cursor < feed.finished_until:
            feed.cursor = ack_map.unfinished_from(feed.cursor, 1)[0][0]
        count, bytes_max = self._read_ahead(room)
        feed.state = FeedState.READING
        return ReadRequest(state, feed.cursor, count, bytes_max, False)

    def _redeliver(self, state: QueueState, now: float, room: int) -> Delivery | ReadRequest:
        jobs, read = state.jobs, state.redelivery
        state.redelivery = None
        if read is not None:
            due = [index for index, offset in enumerate(read.offsets) if jobs.is_due(offset)][:room]
            if due:
                chosen = Slice(
                    read.batch,
                    [read.offsets[index] for index in due],
                    [read.deliveries[index] for index in due],
                    [read.indexes[index] for index in due],
                ).fitting(self._answer_bytes_max)
                return self._deliver(state, chosen, now, redelivered=True)
        first = jobs.ready[0]
        window = first + room * _REDELIVERY_WINDOW
        last = max(offset for offset in jobs.ready[:room] if offset < window)
        state.rereading = True
        return ReadRequest(state, first, last - first + 1, self._answer_bytes_max, True)

    def _deliver(self, state: QueueState, messages: Slice, now: float, *, redelivered: bool) -> Delivery:
        lease = Lease(next(self._lease_ids), now + self.config.ack_timeout_ms / 1000)
        offsets = messages.offsets
        runs = ascending_ranges(offsets)
        if len(runs) == 1:
            state.jobs.lease(runs[0][0], runs[0][1], messages.size, lease)
        else:
            at = 0
            for start, end in runs:
                size = sum(map(len, messages.deliveries[at : at + end - start]))
                state.jobs.lease(start, end, size, lease)
                at += end - start
        self.tally.delivered.value += len(offsets)
        return Delivery(state, messages, lease, redelivered)

    # --- what was read

    def loaded(self, request: ReadRequest, batch: ReadBatch) -> Loaded:
        """A read came back."""
        state = request.state
        if state.feed.state is FeedState.GONE or batch.status is ReadStatus.GONE:
            return Loaded.GONE
        if request.redelivery:
            state.rereading = False
            return self._loaded_again(request, batch)
        if batch.status is ReadStatus.DATA:
            return self._loaded_new(state, batch)
        return self._loaded_nothing(state, batch)

    def read_failed(self, request: ReadRequest) -> None:
        """The read gave an error; the queue is tried again when the shell calls `data_arrived`."""
        if request.redelivery:
            request.state.rereading = False
        elif request.state.feed.state is FeedState.READING:
            request.state.feed.state = FeedState.TAIL

    def _loaded_new(self, state: QueueState, batch: ReadBatch) -> Loaded:
        feed, jobs = state.feed, state.jobs
        known = _known(jobs) if feed.cursor < feed.finished_until else None
        read, skipped, pressure = pick(batch, feed.cursor, not self.config.pressure_traffic, known)
        if skipped:
            self.tally.pressure.value += pressure
            self.tally.missing.value += sum(end - start for start, end in skipped) - pressure
            jobs.skip(skipped)
        feed.put(read, batch.next_offset)
        self._wake(state)
        return Loaded.DATA

    def _loaded_nothing(self, state: QueueState, batch: ReadBatch) -> Loaded:
        feed = state.feed
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            feed.state = FeedState.TAIL
            if feed.cursor < batch.bounds.min:
                self._skip_expired(state, batch.bounds.min)
                feed.state = FeedState.READABLE
                self._wake(state)
                return Loaded.DATA
            return Loaded.TAIL
        if batch.next_offset > feed.cursor:
            state.jobs.skip([(feed.cursor, batch.next_offset)])
            feed.cursor = batch.next_offset
        feed.state = FeedState.TAIL
        return Loaded.TAIL

    def _loaded_again(self, request: ReadRequest, batch: ReadBatch) -> Loaded:
        state = request.state
        end = batch.next_offset if batch.status is ReadStatus.DATA else request.offset
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            end = max(end, batch.bounds.min)
        there = set(batch.offsets) if batch.status is ReadStatus.DATA else set()
        lost = [
            offset for offset in state.jobs.ready if request.offset <= offset < end and offset not in there
        ]
        lost = [offset for offset in lost if state.jobs.is_due(offset)]
        state.jobs.skip(ascending_ranges(lost))
        self.tally.expired.value += len(lost)
        if there:
            state.redelivery = Slice(batch, batch.offsets, batch.deliveries, range(len(batch.offsets)))
        self._wake(state)
        return Loaded.DATA

    def _skip_expired(self, state: QueueState, first: int) -> None:
        """Retention removed what is below `first`."""
        feed, jobs = state.feed, state.jobs
        for start, end in jobs.ack_map.unfinished_from(feed.cursor, 1_000_000):
            if start >= first:
                break
            end = min(end, first)
            self.tally.expired.value += end - start
            jobs.skip([(start, end)])
        feed.cursor = max(feed.cursor, first)

    # --- results

    def finish(self, state: QueueState, offsets: Sequence[int], lease_ids: Sequence[int] | None) -> int:
        """Acknowledge `offsets`, each under the lease id at the same place (absent or 0: without one)."""
        done = 0
        for lease_id, group in by_lease(offsets, lease_ids):
            done += state.jobs.finish(group, lease_id)
        if done and state.jobs.handed_out > state.feed.next_offset():
            self._overtaken(state)
        self._wake(state)
        return done

    def _overtaken(self, state: QueueState) -> None:
        """Messages may be finished that were not delivered under this epoch: read with a sieve."""
        state.feed.drop_read_ahead()
        state.feed.finished_until = max(state.feed.finished_until, state.jobs.handed_out)

    def fail(
        self,
        state: QueueState,
        offsets: Sequence[int],
        lease_ids: Sequence[int] | None,
        delays_ms: Sequence[int] | None,
        now: float,
    ) -> int:
        """Fail `offsets`; a delay of 0 or more replaces the retry interval, a negative or absent one not."""
        failed = 0
        for index, offset in enumerate(offsets):
            lease_id = lease_ids[index] if lease_ids and index < len(lease_ids) else 0
            delay = delays_ms[index] if delays_ms and index < len(delays_ms) else -1
            failed += state.jobs.fail(offset, lease_id or None, delay if delay >= 0 else None, now)
        self._wake(state)
        return failed

    def extend(self, state: QueueState, lease_ids: Sequence[int], now: float) -> int:
        """Give the leases a whole ack time-out from now."""
        return state.jobs.extend(lease_ids, now + self.config.ack_timeout_ms / 1000)

    # --- time and news

    def sweep(self, now: float) -> int:
        """Leases that ran out, retries that are due; returns how many messages timed out."""
        expired = 0
        for state in self.queues.values():
            if state.jobs.next_event() <= now:
                expired += state.jobs.expire(now)
                state.jobs.move_due(now)
                self._wake(state)
        return expired

    def next_event(self) -> float:
        """When `sweep` has something to do; may be early, never late. NEVER: nothing."""
        return min((state.jobs.next_event() for state in self.queues.values()), default=NEVER)

    def data_arrived(self, state: QueueState) -> None:
        """There may be messages past the end seen last."""
        if state.feed.state is FeedState.TAIL:
            state.feed.state = FeedState.READABLE
        self._wake(state)

    def buried(self, state: QueueState, job: UpstreamJob) -> None:
        """The dead letter and its finish are durable."""
        state.jobs.buried(job)
        self._wake(state)

    def drop_read_ahead(self) -> None:
        """Forget messages read but not delivered."""
        for state in self.queues.values():
            state.feed.drop_read_ahead()
            state.redelivery = None

    def _wake(self, state: QueueState) -> None:
        if state.in_ready or state.feed.state is FeedState.GONE:
            return
        if state.jobs.ready or state.feed.buffered or state.feed.state is FeedState.READABLE:
            state.in_ready = True
            self._ready.append(state)


def _known(jobs: QueueJobs) -> Callable[[int], bool]:
    """Tells finished offsets, and those on their way to the dead letters, from fresh ones."""

    def known(offset: int) -> bool:
        job = jobs.jobs.get(offset)
        if job is not None and job.state is JobState.BURYING:
            return True
        return jobs.ack_map.is_finished(offset)

    return known
