"""One queue of one subscription: its buffered and unfinished messages, and how results change them.

Which results take effect:

* with a lease id: only on messages leased under exactly that id;
* without: an ack finishes messages that are leased, wait for redelivery, or were delivered before according
  to group progress, or before this proxy lost the queue and got it back; a fail needs a leased message;
* messages that clients held when the queue moved here (`out`) stay theirs, under the same lease;
* every other result changes nothing and is counted, as late (a lease id that is not current) or unknown.

In an ordered scope `stream` is notified of finished messages, and again when they are durably so
(`on_stored`): then their chains go on. It returns which jobs are behind a failed one in its chain: those go
back into the chain without having been tried. With `on_dead_letter: park` a job whose attempts are used up is
exhausted, not spent, and stays the head of its chain. `used_up` holds such jobs while they wait for their
chain to reach them.

If messages are traced, `observer` receives their events; otherwise it is None and costs nothing. The module
is one class, because every result changes several of its tables together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from backend.progress.ack_map import AckMap
from backend.records import ProgressDelta, ProgressView, QueueRef, ReadBatch
from proxy_consumer.core.jobs import (
    JobEvent,
    JobNews,
    JobObserver,
    JobState,
    JobTable,
    UpstreamJob,
    may_return,
)
from proxy_consumer.core.leases import Lease, LeaseTable, by_lease
from proxy_consumer.core.order.chains import QueueStream, ReadyMessage
from proxy_consumer.core.progress import Range, UncommittedProgress, ascending_ranges, ranges_of
from proxy_consumer.core.queue_feed import CachedBatches, FeedState, QueueFeed, ReadPlan, Slice
from proxy_consumer.core.queue_name import UNNAMED
from proxy_consumer.core.retry_policy import REASON_FAILED, REASON_GIVEN_UP, REASON_TIMED_OUT, RetryPolicy
from proxy_consumer.core.tally import Budget, Counter, Tally

LeasedRun = tuple[int, int, int, Lease]  # start, end, bytes, lease


class SubscribedQueue:
    """One queue of a subscription, under one epoch and generation. Its methods never yield.

    `feed`: messages read and not delivered. `table`: the jobs. `leases`: the messages at clients. `stream`:
    the queue's stream in an ordered scope, None without an order key. `reread`: messages read for redelivery
    and not delivered, by offset, and some of those that wait in their chains.
    """

    __slots__ = (
        "_ready", "_tally", "ack_map", "cached", "delivered_until", "epoch", "feed", "generation", "in_ready",
        "is_lost", "leases", "name", "observer", "out", "overtaken", "plan", "policy", "ref",
        "reread", "rereading", "retry_queue", "stream", "table", "uncommitted", "used_up",
    )  # fmt: skip

    def __init__(
        self,
        ref: QueueRef,
        view: ProgressView,
        first: int,
        policy: RetryPolicy,
        budget: Budget,
        tally: Tally,
        plan: ReadPlan,
        read_bytes: Counter,
        ready: deque[SubscribedQueue],
        observer: JobObserver | None = None,
    ) -> None:
        """Create the queue from its recorded progress.

        `first`: offset of the queue's first message; without progress, lower ones are finished. `read_bytes`:
        counts the bytes of messages read and not delivered. `ready`: the subscription's queues that may have
        messages.
        """
        self.ref = ref
        self.name = UNNAMED
        self.epoch = view.epoch
        self.generation = view.generation
        self.retry_queue = False  # of %RETRY%group
        self.is_lost = False  # its claim was lost; messages at clients may still be acknowledged
        self.overtaken = False  # messages were finished that may have been read ahead
        self.delivered_until = 0  # offsets below it were delivered under an earlier epoch of this proxy
        self.policy = policy
        self.plan = plan
        self.observer = observer
        self.table = JobTable(budget, observer)
        self.stream: QueueStream | None = None
        self.ack_map = AckMap(first if view.committed is None else view.committed)
        self.ack_map.finish(view.finished)
        self.leases = LeaseTable(budget)
        self.out: set[int] = set()  # leased since before it moved here; in an ordered stream: not placed
        self.used_up: set[int] = set()  # recorded, to be exhausted when their chains reach them
        self.uncommitted = UncommittedProgress()
        self.reread: dict[int, tuple[ReadBatch, int]] = {}
        self.cached = CachedBatches(read_bytes)
        self.rereading = False  # a read for redelivery is under way
        self.in_ready = False
        self._ready = ready
        self._tally = tally
        self._load_attempts(view)
        if view.committed is None and first > 0:
            self.uncommitted.add_finished(0, first)
        start = self.ack_map.committed
        finished_ends = [end for _, end in view.finished]
        job_ends = [offset + 1 for offset in self.table.jobs]
        self.feed = QueueFeed(start, max([start, *finished_ends, *job_ends]), read_bytes)

    def _load_attempts(self, view: ProgressView) -> None:
        for offset, packed in view.attempts.items():
            if self.ack_map.is_finished(offset):
                continue
            job = self.table.add_recorded(offset, packed)
            reason = job.used_up_reason(self.policy)
            if reason and self.policy.parks:
                self.used_up.add(offset)
            elif reason:
                self.table.spend_job(job, reason)

    # --- reading

    def wake_up(self) -> None:
        """Add the queue to the ready queues if it may have work."""
        if self.in_ready or self.feed.state is FeedState.CLOSED:
            return
        feed, is_ordered = self.feed, self.stream is not None
        if is_ordered or self.table.ready or feed.has_messages or feed.state is FeedState.READABLE:
            self.in_ready = True
            self._ready.append(self)

    def is_within_ack_span(self) -> bool:
        """Whether the ack span allows another message to be delivered."""
        return self.feed.next_offset() - self.ack_map.committed < self.plan.ack_span_max

    def expire_below(self, first: int, start: int) -> None:
        """Finish the unfinished messages from `start` to below `first`, because retention deleted them."""
        unfinished = self.ack_map.unfinished_from(start, 1_000_000)
        expired = [(begin, min(end, first)) for begin, end in unfinished if begin < first]
        self.expire_ranges(expired)

    def drop_overtaken(self) -> None:
        """Drop the buffer, which may hold finished messages; the next reads skip finished ones."""
        self.overtaken = False
        self.feed.drop_read_ahead()
        self.feed.finished_until = max(self.feed.finished_until, self.delivered_until)

    def forget_reads(self) -> None:
        """Drop the messages that are cached for their redelivery or their release."""
        self.cached.clear()
        self.reread.clear()

    def forget_bytes(self) -> None:
        """Drop the bytes of ready messages. They are read again before their delivery."""
        if self.stream is not None:
            for offset in self.stream.drop_all_ready():
                self.table.release(offset)

    # --- delivery

    def adopt_leases(self, runs: Iterable[LeasedRun], acked: Iterable[Range], now: float) -> None:
        """Take over the current leases and the acknowledgements from the queue's previous owner."""
        last = 0
        for start, end in acked:
            if self.finish_handed_out(start, end):
                last = max(last, end)
        for start, end, size, lease in runs:
            if lease.deadline <= now:
                continue
            unfinished = self.open_offsets(start, end)
            for first, after in ranges_of(unfinished):
                self.leases.add(first, after, size * (after - first) // (end - start), lease)
                last = max(last, after)
                for job in self.table.jobs_within(first, after):
                    self.table.change(job, JobEvent.DELIVERED)
            self.out.update(unfinished)
        self.feed.finished_until = max(self.feed.finished_until, last)

    def lease(self, messages: Slice, lease: Lease) -> None:
        """Record that these messages are delivered under this lease."""
        runs = ascending_ranges(messages.offsets)
        if len(runs) == 1:
            self._lease_run(runs[0][0], runs[0][1], messages.size, lease)
            return
        at = 0
        for start, end in runs:
            size = sum(map(len, messages.deliveries[at : at + end - start]))
            self._lease_run(start, end, size, lease)
            at += end - start

    def take_in_order(self, stream: QueueStream, count: int, bytes_max: int) -> list[ReadyMessage]:
        """Remove and return up to `count` ready messages within `bytes_max`, or none."""
        messages = stream.take_messages(count, bytes_max)
        if stream.ledger.table.batch == 1:
            return messages
        late = self.close(stream, [message.offset for message in messages])
        return [message for message in messages if message.offset not in late] if late else messages

    def close(self, stream: QueueStream, offsets: list[int]) -> set[int]:
        """Fix which of these messages go into a reply; return those that must wait."""
        behind = stream.close(offsets)
        for offset in behind:
            if not self.leases.return_if_reserved(offset):
                self.send_back(offset)
        return set(behind).intersection(offsets) if behind else set()

    def _lease_run(self, start: int, end: int, size: int, lease: Lease) -> None:
        self.leases.add(start, end, size, lease)
        if self.table.jobs:
            for job in self.table.jobs_within(start, end):
                self._tally.redelivered.value += job.was_tried
                self.table.change(job, JobEvent.DELIVERED)

    def drop_adopted(self, start: int, end: int) -> None:
        """Record that clients no longer hold these messages from the queue's previous owner."""
        returned = [offset for offset in range(start, end) if offset in self.out] if self.out else ()
        if returned:
            self.out.difference_update(returned)
            self.overtaken = True

    def next_event(self) -> float:
        """Return the next lease deadline or retry time, or an earlier time; NEVER if there is none."""
        deadline = self.leases.next_deadline
        return min(deadline, self.table.next_due()) if self.table.jobs else deadline

    # --- chains and operators

    def exhaust_used_up(self, offset: int) -> bool:
        """Exhaust a job that its chain has reached if its attempts are used up; return whether they were."""
        self.used_up.discard(offset)
        exhausted = self.policy.parks and self.table.exhaust_recorded(offset, self.policy)
        if exhausted and self.observer is not None:
            self.observer.on_change(JobNews.PARKED, offset)
        return exhausted

    def replay(self, offset: int) -> bool:
        """Make a parked, exhausted or waiting job due and reset its attempts; False if there is none."""
        job = self.table.replay(offset)
        if job is not None and job.is_recorded:
            self.uncommitted.mark_attempts(offset, job.packed_attempts)
        return job is not None

    def park(self, offset: int) -> None:
        """Park the job at `offset`; a leased one is parked when its client returns it."""
        self._withdraw_ready(offset)
        self.park_unread(offset)

    def park_unread(self, offset: int) -> None:
        """Park a job whose bytes are not in the ready messages."""
        if self.leases.lease_of(offset) is None:
            self.table.park(offset)

    def _withdraw_ready(self, offset: int) -> None:
        """Remove a job from the ready messages; it is read again before delivery."""
        if self.stream is not None and self.stream.drop_ready(offset):
            self.table.release(offset)

    def send_back(self, offset: int) -> None:
        """Return a released job that is not leased to its chain."""
        job = self.table.jobs.get(offset)
        if job is not None:
            self.table.return_to_chain(job)
        if self.stream is not None:
            self.stream.put_back(offset)
        if self.observer is not None:
            self.observer.on_change(JobNews.SENT_BACK, offset)

    def dead_letter(self, offset: int, reason: str) -> None:
        """Turn the message into a dead letter at once; a later result from a client that holds it is ignored.
        A reserved message becomes one only if its acknowledgement is not stored. Its chain then continues."""
        self._withdraw_ready(offset)
        self.leases.take_leased(offset, offset + 1, None)
        self.drop_adopted(offset, offset + 1)
        is_reserved = offset in self.leases.reserved
        state = JobState.LEASED if is_reserved else JobState.PLAIN
        job = self.table.jobs.get(offset) or self.table.add(offset, state)
        if job.state is not JobState.SPENT:
            job.final, job.reason = True, reason
            if not is_reserved:
                self._spend_job(job, reason)
        if self.observer is not None:
            self.observer.on_change(JobNews.SPENT, offset, f"{reason}: {job.error}" if job.error else reason)

    # --- results

    def finish_messages(self, offsets: Sequence[int], lease_ids: Sequence[int] | None, now: float) -> int:
        """Acknowledge messages; return how many this finished.

        `lease_ids` has the lease id of each offset by index; a missing one or 0: without a lease.
        """
        finished = 0
        for lease_id, group in by_lease(offsets, lease_ids):
            lease, before = self.leases.lease_of(group[0]), finished
            if lease is not None and lease_id in (None, lease.id) and group[0] not in self.leases.reserved:
                self._tally.process.observe((now - lease.since) * 1e6)
            for start, end in ranges_of(group):
                finished += self._finish_range(start, end, lease_id)
            self._count_ignored(len(group) - finished + before, lease_id)
        self._tally.acked.value += finished
        if self.observer is not None:
            self.observer.on_acks(offsets)
        return finished

    def _finish_range(self, start: int, end: int, lease_id: int | None) -> int:
        finished = 0
        for first, after, _ in self.leases.take_leased(start, end, lease_id):
            if self.out:
                self._drop_finished(first, after)
            self._finish_run(first, after)
            finished += after - first
        if lease_id is None and self.table.jobs and finished < end - start:
            finished += self._finish_retrying(start, end)
        if lease_id is None and start < self.delivered_until and finished < end - start:
            finished += self.finish_handed_out(start, min(end, self.delivered_until))
        if finished < end - start and self.uncommitted.in_commit:
            self.uncommitted.repeat_acks(start, end, self.ack_map)
        return finished

    def _finish_run(self, start: int, end: int, *, durable: bool = False, acked: bool = False) -> None:
        self.ack_map.finish(((start, end),))
        if not durable:
            self.uncommitted.add_finished(start, end)
        if self.table.jobs:
            for job in self.table.jobs_within(start, end):
                self.table.change(job, JobEvent.FINISHED)
                self.used_up.discard(job.offset)
        if self.stream is not None:
            if durable:
                self.stream.on_finished(start, end, acked=acked)
            else:
                self.stream.hold_jobs(start, end)

    def _finish_retrying(self, start: int, end: int) -> int:
        waiting = list(filter(may_return, self.table.jobs_within(start, end)))
        recorded = [job.offset for job in waiting if job.state is JobState.RECORDED]
        if recorded:
            self.overtaken = True
            if self.stream is not None:
                self.stream.pass_over(recorded)
        for job in waiting:
            self._finish_run(job.offset, job.offset + 1)
        return len(waiting)

    def finish_handed_out(self, start: int, end: int) -> int:
        """Finish the unfinished messages of a range that was delivered before this epoch; return how many."""
        unfinished = self.open_offsets(start, end)
        self.overtaken = self.overtaken or bool(unfinished)
        if self.stream is not None:
            self.stream.pass_over(unfinished)
        for first, after in ranges_of(unfinished):
            self._finish_run(first, after)
        return len(unfinished)

    def _drop_finished(self, start: int, end: int) -> None:
        """Record that clients finished those of these messages that they held when the queue moved here."""
        if self.stream is not None:
            self.stream.hold_unplaced([offset for offset in range(start, end) if offset in self.out])
        self.drop_adopted(start, end)

    def open_offsets(self, start: int, end: int) -> list[int]:
        """Return the offsets that are neither finished, nor on their way to another topic, nor reserved."""
        finished, is_spent, reserved = self.ack_map.is_finished, self.table.is_spent, self.leases.reserved
        return [at for at in range(start, end) if not (finished(at) or is_spent(at) or at in reserved)]

    def fail(
        self, offset: int, lease_id: int | None, delay_ms: int | None, now: float, error: str = ""
    ) -> bool:
        """Make a failed message wait (`delay_ms`, or the next interval) or use it up; False if ignored."""
        job = self._take_job(offset, lease_id)
        if job is None:
            if self.uncommitted.in_commit and (waiting_job := self.table.jobs.get(offset)) is not None:
                self.uncommitted.mark_attempts(offset, waiting_job.packed_attempts)
            return False
        self._apply_failure(job, delay_ms, now, error)
        return True

    def _take_job(self, offset: int, lease_id: int | None) -> UpstreamJob | None:
        """End the lease of a returned message and return its job; count it and return None if not leased."""
        leased = self.leases.take_leased(offset, offset + 1, lease_id)
        if leased:
            return self._returned_job(offset, leased[0][2])
        self._count_ignored(1, lease_id)
        return None

    def _returned_job(self, offset: int, size: int) -> UpstreamJob:
        job = self.table.jobs.get(offset) or self.table.add(offset, JobState.LEASED)
        job.size = size
        return job

    def give_up(self, offset: int, lease_id: int | None, error: str, *, parks: bool = False) -> bool:
        """Make a failed message a dead letter, or with `parks` treat it as used up; False if ignored."""
        job = self._take_job(offset, lease_id)
        if job is None:
            return False
        job.final = parks and self.policy.parks
        self._count_failure(job, error)
        in_chain = self.step_back(offset)
        if job.final:
            self._use_up(job, REASON_GIVEN_UP, in_chain=in_chain)
        else:
            self.dead_letter(offset, REASON_GIVEN_UP)
        return True

    def fail_undelivered(self, offset: int, now: float, error: str) -> None:
        """Fail a due job without having delivered it."""
        self._apply_failure(self.table.jobs[offset], None, now, error)

    def _count_failure(self, job: UpstreamJob, error: str) -> None:
        self._tally.failed.value += 1
        job.fails += 1
        job.error = error or job.error
        self.uncommitted.mark_attempts(job.offset, job.packed_attempts)

    def _mark_failing(self, job: UpstreamJob, now: float) -> None:
        job.since = job.since or now
        if self.stream is not None:
            self.stream.mark_failing(job.offset, now)

    def _apply_failure(self, job: UpstreamJob, delay_ms: int | None, now: float, error: str) -> None:
        self._count_failure(job, error)
        self._mark_failing(job, now)
        interval = self.policy.after_fail(job.fails, job.timeouts)
        if interval is None and delay_ms is not None and self.policy.waits_in_place(job.fails):
            interval = delay_ms
        wait_ms = interval if interval is None or delay_ms is None else delay_ms
        in_chain = self.step_back(job.offset)
        if wait_ms is None:
            self._use_up(job, REASON_FAILED, in_chain=in_chain)
        elif not in_chain:
            self._wait_in_place(job, wait_ms, now)
        if self.observer is not None:
            self.observer.on_change(JobNews.FAILED, job.offset, error)

    def _wait_in_place(self, job: UpstreamJob, wait_ms: int, now: float) -> None:
        """Make a job wait for its retry, or park it if an operator parked its key."""
        if self.stream is not None and self.stream.is_parked(job.offset):
            self.table.change(job, JobEvent.PARKED)
        else:
            self.table.wait(job, now + wait_ms / 1000)

    def _use_up(self, job: UpstreamJob, reason: str, *, in_chain: bool) -> None:
        """Move a job whose attempts are used up to another topic, or (with a key) make it wait for an
        operator.

        `in_chain`: the job waits in its chain again.
        """
        if self.policy.parks and in_chain:
            self.used_up.add(job.offset)
        elif self.policy.parks and self.stream is not None and self.stream.key_of_job(job.offset) is not None:
            self.table.exhaust_job(job, reason)
        else:
            self._spend_job(job, reason)

    def _spend_job(self, job: UpstreamJob, reason: str) -> None:
        """Queue a job for its next topic; its scope waits until it is there if the job was not placed yet."""
        self.table.spend_job(job, reason)
        if self.stream is not None and job.offset >= self.feed.next_offset():
            self.stream.hold_unplaced((job.offset,))

    def step_back(self, offset: int) -> bool:
        """Return the jobs behind a blocked one to their chain; True if the job itself returned, too."""
        stream = self.stream
        if stream is None:
            self.out.discard(offset)
            return False
        if offset in self.out:
            # it was not placed yet, or waits in its chain, which will reach it
            self.drop_adopted(offset, offset + 1)
            self.table.return_to_chain(self.table.jobs[offset])
            return True
        for follower in stream.on_failing(offset):
            if not self.leases.return_if_reserved(follower):
                self.leases.take_leased(follower, follower + 1, None)
                self.send_back(follower)
        if stream.is_first(offset):
            return False
        self.send_back(offset)
        return True

    def extend(self, lease_ids: Sequence[int], now: float) -> None:
        """Restart the timeouts of these leases; unknown ones are counted as late."""
        self._tally.late.value += sum(not self.leases.extend(lease_id, now) for lease_id in lease_ids)
        if self.observer is not None:
            self.observer.on_extensions(lease_ids)

    def extend_messages(self, offsets: Sequence[int], lease_ids: Sequence[int], now: float) -> list[int]:
        """Restart the timeout of single messages; return the offsets that their leases do not hold."""
        late = self.leases.extend_messages(offsets, lease_ids, now)
        self._tally.late.value += len(late)
        if self.observer is not None:
            for offset in offsets:
                if offset not in late:
                    self.observer.on_change(JobNews.EXTENDED, offset)
        return late

    def take_back(self, offset: int, lease_id: int) -> bool:
        """Make a message that a client returned unprocessed due again at once; False if ignored."""
        job = self._take_job(offset, lease_id)
        if job is None:
            return False
        self._tally.returned.value += 1
        if not self.step_back(offset):
            if self.stream is not None and self.stream.is_parked(offset):
                self.table.change(job, JobEvent.PARKED)
            else:
                self.table.release(offset)
        if self.observer is not None:
            self.observer.on_change(JobNews.RETURNED, offset)
        return True

    def expire_leases(self, now: float) -> None:
        """Time out the messages whose lease has passed its deadline."""
        for start, end, size in self.leases.take_expired(now):
            self._tally.timed_out.value += end - start
            share, rest = divmod(size, end - start)
            for offset in range(start, end):
                self._time_out(offset, share + rest if offset == start else share, now)
                if self.observer is not None:
                    self.observer.on_change(JobNews.TIMED_OUT, offset)

    def _time_out(self, offset: int, size: int, now: float) -> None:
        if self.stream is not None and not self.stream.is_first(offset):
            self.send_back(offset)
            return
        if self.stream is not None:
            for follower in self.stream.on_failing(offset):
                turned = self.leases.return_if_reserved(follower)
                if not turned and self.leases.take_leased(follower, follower + 1, None):
                    self.send_back(follower)  # extended on its own
        job = self._returned_job(offset, size)
        job.timeouts += 1
        self._mark_failing(job, now)
        self.uncommitted.mark_attempts(offset, job.packed_attempts)
        wait_ms = self.policy.after_timeout(job.fails, job.timeouts)
        in_chain = offset in self.out and self.step_back(offset)
        if wait_ms is None:
            self._use_up(job, REASON_TIMED_OUT, in_chain=in_chain)
        elif in_chain:
            return
        elif wait_ms:
            self._wait_in_place(job, wait_ms, now)
        elif self.stream is not None and self.stream.is_parked(offset):
            self.table.change(job, JobEvent.PARKED)
        else:
            self.table.make_ready(job, JobEvent.TIMED_OUT)

    def skip(self, ranges: Iterable[Range]) -> None:
        """Finish ranges of messages that are not delivered: gaps, filtered, expired."""
        for start, end in ranges:
            for offset in [offset for offset in self.out if start <= offset < end]:
                self.out.discard(offset)
                self.leases.take_leased(offset, offset + 1, None)
            self._finish_run(start, end)
            if self.observer is not None:
                self.observer.on_skip(start, end)

    def expire_ranges(self, ranges: Sequence[Range]) -> None:
        """Finish the messages that retention deleted."""
        self._tally.expired.value += sum(end - start for start, end in ranges)
        self.skip(ranges)

    def _count_ignored(self, count: int, lease_id: int | None) -> None:
        (self._tally.unknown if lease_id is None else self._tally.late).value += count

    # --- progress on its way to the backend

    def build_finish(self, group: str, offset: int) -> ProgressDelta:
        """Return the progress that finishes the message, to be committed with its copies in other topics."""
        return ProgressDelta(group, self.ref, self.epoch, self.generation, ((offset, offset + 1),))

    def on_published(self, offset: int, *, acked: bool = False) -> None:
        """Finish a message whose progress and copies are durable. `acked`: by a client's acknowledgement."""
        self._finish_run(offset, offset + 1, durable=True, acked=acked)
        if self.observer is not None:
            self.observer.on_change(JobNews.ACKED if acked else JobNews.MOVED, offset)

    def on_stored(self, delta: ProgressDelta) -> bool:
        """Record that collected progress is durable; return whether chains waited for it, and go on."""
        self.uncommitted.on_committed(delta)
        return self.stream is not None and self.stream.on_stored(delta.finished)

    def collect_progress(self, group: str) -> ProgressDelta | None:
        """Return the uncommitted progress as one delta and mark it as being committed; None if there is
        none."""
        return self.uncommitted.collect_delta(group, self.ref, self.epoch, self.generation)

    def release_all(self) -> None:
        """Drop all state of a queue that this proxy lost, and subtract it from the subscription's budget."""
        if self.observer is not None:
            self.observer.on_loss()
        self.feed.drop_read_ahead()
        self.feed.state = FeedState.CLOSED
        self.forget_reads()
        self.leases.clear()
        self.out.clear()
        self.table.clear()
