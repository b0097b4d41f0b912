"""The unfinished messages of one queue: leases, retries, and what is owed to the backend.

Every change that must survive a restart goes into `owed` first. `collect` turns what is owed into one
ProgressDelta for the shell to commit; `settled` or `restore` says how that went. So a commit that
failed is repeated with the next one, and a client that sends an acknowledgement again while the first
commit is still under way has it written again before it is answered.

Who may finish what (behaviour of acknowledgements):
* with a lease id: only what is leased under exactly that id;
* without: an ack finishes what is leased or waits for redelivery, and what was handed out before the
  queue was lost and came back; a fail counts only while leased;
* everything else changes nothing and is counted, as late (a lease id that is not current) or unknown.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from backend.progress.ack_map import OFFSET_END, AckMap
from backend.records import ProgressDelta, ProgressView, QueueRef
from proxy_consumer.core.leases import NEVER, Lease, LeaseTable, Piece
from proxy_consumer.core.ranges import Range, ranges_of
from proxy_consumer.core.retry import RetryPolicy
from proxy_consumer.core.tally import Budget, Tally
from proxy_consumer.core.upstream_job import JobState, UpstreamJob, unpack_attempts

REASON_FAILED = "failed"
REASON_TIMED_OUT = "timed-out"
_RETRYING = (JobState.WAITING, JobState.READY, JobState.BURYING)
_STALE_ENTRIES_MAX = 1_024


class QueueJobs:
    """One queue of one subscription under one epoch and generation. Never yields."""

    __slots__ = (
        "_budget", "_finished", "_in_commit", "_marks", "_open_end", "_open_start", "_tally", "_waiting",
        "ack_map", "burials", "epoch", "generation", "handed_out", "jobs", "leases", "policy", "queue",
        "ready", "recorded", "retrying",
    )  # fmt: skip

    def __init__(
        self,
        queue: QueueRef,
        view: ProgressView,
        start: int,
        policy: RetryPolicy,
        budget: Budget,
        tally: Tally,
    ) -> None:
        self.queue = queue
        self.epoch = view.epoch
        self.generation = view.generation
        self.handed_out = 0  # offsets below it were delivered under an earlier epoch of ours
        self.policy = policy
        self.ack_map = AckMap(start)
        self.ack_map.finish(view.finished)
        self.leases = LeaseTable()
        self.jobs: dict[int, UpstreamJob] = {}
        self.ready: list[int] = []  # offsets due again, ascending; may hold stale ones
        self.burials: list[UpstreamJob] = []  # decided, not yet taken by the shell
        self.retrying = 0
        self.recorded = 0
        self._budget = budget
        self._tally = tally
        self._waiting: list[tuple[float, int]] = []  # heap; may hold stale ones
        self._finished: list[Range] = []  # owed
        self._marks: list[tuple[int, int]] = []  # owed attempts
        self._in_commit = 0  # deltas collected and not settled; all their ranges lie in the next two:
        self._open_start, self._open_end = OFFSET_END, 0
        self._load_attempts(view)

    def _load_attempts(self, view: ProgressView) -> None:
        for offset, packed in view.attempts.items():
            if self.ack_map.is_finished(offset):
                continue
            fails, timeouts = unpack_attempts(packed)
            job = self.jobs[offset] = UpstreamJob(offset, fails, timeouts)
            self.recorded += 1
            reason = self._spent(job)
            if reason:
                self._bury(job, reason)

    def _spent(self, job: UpstreamJob) -> str:
        if job.fails and self.policy.after_fail(job.fails) is None:
            return REASON_FAILED
        if job.timeouts and not self.policy.again_after_timeout(job.timeouts):
            return REASON_TIMED_OUT
        return ""

    # --- delivery

    def lease(self, start: int, end: int, size: int, lease: Lease) -> None:
        """`[start, end)` is handed to a client."""
        self.leases.add(start, end, size, lease)
        self._budget.leased += end - start
        self._budget.leased_bytes += size
        if self.jobs:
            for offset in self._jobs_within(start, end):
                self._set_state(self.jobs[offset], JobState.LEASED)

    def attempt(self, offset: int) -> int:
        """The number of the present (or next) delivery of `offset`, from 1."""
        job = self.jobs.get(offset)
        return 1 if job is None else job.attempt

    def is_due(self, offset: int) -> bool:
        """Whether `offset` waits for redelivery now."""
        job = self.jobs.get(offset)
        return job is not None and job.state is JobState.READY

    def move_due(self, now: float) -> bool:
        """Make jobs ready whose retry interval is over; True when any is ready."""
        waiting, ready = self._waiting, self.ready
        while waiting and waiting[0][0] <= now:
            due, offset = heappop(waiting)
            job = self.jobs.get(offset)
            if job is not None and job.state is JobState.WAITING and job.due == due:
                self._make_ready(job)
        while ready and not self.is_due(ready[0]):
            del ready[0]
        return bool(ready)

    def next_event(self) -> float:
        """Not later than the next lease deadline or retry; NEVER when there is none."""
        if self._waiting:
            return min(self.leases.next_deadline, self._waiting[0][0])
        return self.leases.next_deadline

    # --- results

    def finish(self, offsets: Sequence[int], lease_id: int | None) -> int:
        """Acknowledge; returns how many were finished by it."""
        done = 0
        for start, end in ranges_of(offsets):
            done += self._finish_range(start, end, lease_id)
        self._tally.acked.value += done
        self._count_ignored(len(offsets) - done, lease_id)
        return done

    def _finish_range(self, start: int, end: int, lease_id: int | None) -> int:
        done = 0
        for piece in self.leases.take(start, end, lease_id):
            done += self._complete(piece)
        if lease_id is None and self.retrying and done < end - start:
            done += self._finish_retrying(start, end)
        if lease_id is None and start < self.handed_out and done < end - start:
            done += self._finish_handed_out(start, min(end, self.handed_out))
        if done < end - start and start < self._open_end and end > self._open_start:
            self._owe_again(max(start, self._open_start), min(end, self._open_end))
        return done

    def _complete(self, piece: Piece) -> int:
        start, end, size = piece
        self._release(end - start, size)
        self._finish(start, end)
        return end - start

    def _finish(self, start: int, end: int) -> None:
        self.ack_map.finish(((start, end),))
        self._finished.append((start, end))
        if self.jobs:
            for offset in self._jobs_within(start, end):
                self._drop(self.jobs[offset])

    def _finish_retrying(self, start: int, end: int) -> int:
        done = 0
        for offset in self._jobs_within(start, end):
            if self.jobs[offset].state in (JobState.WAITING, JobState.READY):
                self._finish(offset, offset + 1)
                done += 1
        return done

    def _finish_handed_out(self, start: int, end: int) -> int:
        """What a client got under an earlier epoch of ours and nobody has got since."""
        finished, jobs = self.ack_map.is_finished, self.jobs
        open_offsets = [
            offset
            for offset in range(start, end)
            if not finished(offset) and not (offset in jobs and jobs[offset].state is JobState.BURYING)
        ]
        for first, after in ranges_of(open_offsets):
            self._finish(first, after)
        return len(open_offsets)

    def _owe_again(self, start: int, end: int) -> None:
        """Someone repeats an acknowledgement that an open commit holds: it is not durable yet."""
        finished = [offset for offset in range(start, end) if self.ack_map.is_finished(offset)]
        self._finished.extend(ranges_of(finished))

    def fail(self, offset: int, lease_id: int | None, delay_ms: int | None, now: float) -> bool:
        """One failed message: wait (`delay_ms`, or the next retry interval) or give up; False if ignored."""
        pieces = self.leases.take(offset, offset + 1, lease_id)
        if not pieces:
            self._count_ignored(1, lease_id)
            if self._in_commit and (known := self.jobs.get(offset)) is not None:
                self._marks.append((offset, known.packed))
            return False
        job = self._returned(pieces[0][0], pieces[0][2])
        job.fails += 1
        self._tally.failed.value += 1
        self._marks.append((offset, job.packed))
        interval = self.policy.after_fail(job.fails)
        if interval is None:
            self._bury(job, REASON_FAILED)
        else:
            self._wait(job, now + (interval if delay_ms is None else delay_ms) / 1000)
        return True

    def extend(self, lease_ids: Iterable[int], deadline: float) -> int:
        """Give live leases a new deadline; returns how many there were."""
        extended = 0
        for lease_id in lease_ids:
            if self.leases.extend(lease_id, deadline):
                extended += 1
            else:
                self._tally.late.value += 1
        return extended

    def expire(self, now: float) -> int:
        """Take back leases past their deadline; returns how many messages they held."""
        expired = 0
        for start, end, size in self.leases.expire(now):
            expired += end - start
            share, rest = divmod(size, end - start)
            for offset in range(start, end):
                self._time_out(offset, share + rest if offset == start else share)
        self._tally.timed_out.value += expired
        return expired

    def _time_out(self, offset: int, size: int) -> None:
        job = self._returned(offset, size)
        job.timeouts += 1
        self._marks.append((offset, job.packed))
        if self.policy.again_after_timeout(job.timeouts):
            self._make_ready(job)
        else:
            self._bury(job, REASON_TIMED_OUT)

    def skip(self, ranges: Iterable[Range]) -> None:
        """Finish what is not to be delivered: gaps, filtered, expired."""
        for start, end in ranges:
            self._finish(start, end)

    def _count_ignored(self, count: int, lease_id: int | None) -> None:
        if count:
            tally = self._tally.unknown if lease_id is None else self._tally.late
            tally.value += count

    # --- dead letters

    def take_burials(self) -> list[UpstreamJob]:
        """Jobs to be stored in the dead-letter topic; each stays unfinished until `buried`."""
        taken, self.burials = self.burials, []
        return taken

    def burial_delta(self, group: str, job: UpstreamJob) -> ProgressDelta:
        """What to commit together with the dead letter."""
        finished = ((job.offset, job.offset + 1),)
        return ProgressDelta(group, self.queue, self.epoch, self.generation, finished=finished)

    def buried(self, job: UpstreamJob) -> None:
        """The dead letter and its finish are durable."""
        self.ack_map.finish(((job.offset, job.offset + 1),))
        if self.jobs.get(job.offset) is job:
            self._drop(job)

    # --- what is owed to the backend

    @property
    def owes(self) -> bool:
        return bool(self._finished or self._marks)

    def collect(self, group: str) -> ProgressDelta | None:
        """Everything owed as one delta, which is then under way; None when nothing is owed."""
        if not (self._finished or self._marks):
            return None
        delta = ProgressDelta(group, self.queue, self.epoch, self.generation, self._finished, self._marks)
        for start, end in self._finished:
            self._open_start = min(self._open_start, start)
            self._open_end = max(self._open_end, end)
        self._finished, self._marks = [], []
        self._in_commit += 1
        return delta

    def settled(self) -> None:
        """A collected delta is durable."""
        self._closed()

    def restore(self, delta: ProgressDelta) -> None:
        """A collected delta is not (or not certainly) durable: it is owed again."""
        self._closed()
        merged = sorted([*delta.finished, *self._finished])
        self._finished = []
        for start, end in merged:
            if self._finished and start <= self._finished[-1][1]:
                last = self._finished[-1]
                self._finished[-1] = (last[0], max(last[1], end))
            else:
                self._finished.append((start, end))
        latest = {offset: packed for offset, packed in (*delta.attempts, *self._marks) if offset in self.jobs}
        self._marks = list(latest.items())

    def _closed(self) -> None:
        self._in_commit -= 1
        if self._in_commit == 0:
            self._open_start, self._open_end = OFFSET_END, 0

    def abandon(self) -> None:
        """The queue is not ours any more: give everything back to the subscription's budget."""
        self._release(self.leases.jobs, self.leases.size)
        self.leases = LeaseTable()
        self._budget.retrying -= self.retrying
        self.retrying = self.recorded = 0
        self.jobs.clear()
        self.ready.clear()
        self._waiting.clear()
        self.burials.clear()

    # --- job states

    def _jobs_within(self, start: int, end: int) -> list[int]:
        """Offsets of `[start, end)` that have a job."""
        jobs = self.jobs
        if end - start < len(jobs):
            return [offset for offset in range(start, end) if offset in jobs]
        return [offset for offset in jobs if start <= offset < end]

    def _returned(self, offset: int, size: int) -> UpstreamJob:
        """The job of a message that came back from a client."""
        self._release(1, size)
        job = self.jobs.get(offset)
        if job is None:
            job = self.jobs[offset] = UpstreamJob(offset)
            job.state = JobState.LEASED
        job.size = size
        return job

    def _wait(self, job: UpstreamJob, due: float) -> None:
        job.due = due
        self._set_state(job, JobState.WAITING)
        heappush(self._waiting, (due, job.offset))
        if len(self._waiting) > 2 * self.retrying + _STALE_ENTRIES_MAX:
            self._waiting = [entry for entry in self._waiting if self._is_waiting(entry)]
            heapify(self._waiting)

    def _is_waiting(self, entry: tuple[float, int]) -> bool:
        job = self.jobs.get(entry[1])
        return job is not None and job.state is JobState.WAITING and job.due == entry[0]

    def _make_ready(self, job: UpstreamJob) -> None:
        self._set_state(job, JobState.READY)
        insort(self.ready, job.offset)

    def _bury(self, job: UpstreamJob, reason: str) -> None:
        job.reason = reason
        self._set_state(job, JobState.BURYING)
        self.burials.append(job)

    def _set_state(self, job: UpstreamJob, state: JobState) -> None:
        self._leave(job.state)
        job.state = state
        if state in _RETRYING:
            self.retrying += 1
            self._budget.retrying += 1

    def _drop(self, job: UpstreamJob) -> None:
        self._leave(job.state)
        del self.jobs[job.offset]

    def _leave(self, state: JobState) -> None:
        if state in _RETRYING:
            self.retrying -= 1
            self._budget.retrying -= 1
        elif state is JobState.RECORDED:
            self.recorded -= 1

    def _release(self, jobs: int, size: int) -> None:
        self._budget.leased -= jobs
        self._budget.leased_bytes -= size


def next_of(times: Iterable[float]) -> float:
    """The earliest, or NEVER."""
    return min(times, default=NEVER)
