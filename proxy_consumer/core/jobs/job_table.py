"""The jobs of one queue that have a state of their own, by offset, and which of them are due.

Which state follows which stands in job_states.py; here is the bookkeeping: how many jobs are in
which kind of state, a heap of waits and a sorted list of what is due. Both may hold stale entries; they
are passed over and swept out.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush

from proxy_consumer.core.jobs.job_states import JobEvent, JobState, after
from proxy_consumer.core.jobs.upstream_job import UpstreamJob
from proxy_consumer.core.tally import Budget
from proxy_consumer.core.timer_queue import NEVER

_RETRYING = (JobState.WAITING, JobState.READY, JobState.SPENT)
_DUE = (JobState.READY, JobState.RELEASED)
_STALE_ENTRIES_MAX = 1_024


class JobTable:
    """Every job is in it until it is GONE. `retrying`, `recorded`, `released`: jobs in those states."""

    __slots__ = ("_budget", "_waiting", "jobs", "ready", "recorded", "released", "retrying", "spent")

    def __init__(self, budget: Budget) -> None:
        self.jobs: dict[int, UpstreamJob] = {}
        self.ready: list[int] = []  # offsets that are due, ascending
        self.spent: list[UpstreamJob] = []  # not yet taken by the shell
        self.retrying = self.recorded = self.released = 0
        self._budget = budget
        self._waiting: list[tuple[float, int]] = []

    # --- looking

    def attempt(self, offset: int) -> int:
        """The number of the present (or next) delivery of `offset`, from 1."""
        job = self.jobs.get(offset)
        return 1 if job is None else job.attempt

    def is_due(self, offset: int) -> bool:
        """Whether `offset` is to be read and delivered now."""
        job = self.jobs.get(offset)
        return job is not None and job.state in _DUE

    def is_spent(self, offset: int) -> bool:
        """Whether `offset` is on its way to its next topic."""
        job = self.jobs.get(offset)
        return job is not None and job.state is JobState.SPENT

    def due(self, count: int) -> list[int]:
        """Up to `count` offsets that are due, ascending; call `move_due` first."""
        found: list[int] = []
        for offset in self.ready:
            if self.is_due(offset) and not (found and found[-1] == offset):
                found.append(offset)
                if len(found) == count:
                    break
        return found

    def within(self, start: int, end: int) -> list[UpstreamJob]:
        """The jobs of `[start, end)`."""
        jobs = self.jobs
        if end - start < len(jobs):
            return [jobs[offset] for offset in range(start, end) if offset in jobs]
        return [job for offset, job in jobs.items() if start <= offset < end]

    def next_due(self) -> float:
        """Not later than the end of the next retry interval; NEVER when none is on."""
        return self._waiting[0][0] if self._waiting else NEVER

    # --- what happens to jobs

    def add(self, offset: int, state: JobState, fails: int = 0, timeouts: int = 0) -> UpstreamJob:
        """A message becomes a job."""
        job = self.jobs[offset] = UpstreamJob(offset, state, fails, timeouts)
        self._count(state, 1)
        return job

    def change(self, job: UpstreamJob, event: JobEvent) -> None:
        """Something happened to a job; IllegalJobEventError, and nothing changed, where it cannot."""
        following = after(job.state, event)
        self._count(job.state, -1)
        self._count(following, 1)
        job.state = following
        if following is JobState.GONE:
            del self.jobs[job.offset]

    def wait(self, job: UpstreamJob, due: float) -> None:
        """It failed and comes again at `due`, in monotonic seconds."""
        self.change(job, JobEvent.FAILED)
        job.due = due
        heappush(self._waiting, (due, job.offset))
        if len(self._waiting) > 2 * self.retrying + _STALE_ENTRIES_MAX:
            self._waiting = [entry for entry in self._waiting if self._waits(entry) is not None]
            heapify(self._waiting)

    def make_ready(self, job: UpstreamJob, event: JobEvent) -> None:
        """It is to be read and delivered: timed out, due, let out or replayed."""
        self.change(job, event)
        insort(self.ready, job.offset)

    def move_due(self, now: float) -> bool:
        """Make jobs ready whose retry interval is over; True when any is due."""
        waiting, ready = self._waiting, self.ready
        while waiting and waiting[0][0] <= now:
            job = self._waits(heappop(waiting))
            if job is not None:
                self.make_ready(job, JobEvent.DUE)
        stale = 0
        while stale < len(ready) and not self.is_due(ready[stale]):
            stale += 1
        if stale:
            del ready[:stale]
        return bool(ready)

    def release(self, offset: int) -> None:
        """The job's chain came to it (or it is to be read again): deliver it."""
        job = self.jobs.get(offset) or self.add(offset, JobState.PLAIN)
        if job.state in (JobState.PLAIN, JobState.LEASED, JobState.RECORDED):
            self.make_ready(job, JobEvent.LET_OUT)

    def park(self, offset: int) -> None:
        """An operator set the key aside: not delivered until `replay`. It must not be leased."""
        job = self.jobs.get(offset) or self.add(offset, JobState.PLAIN)
        if job.state not in (JobState.LEASED, JobState.SPENT, JobState.PARKED):
            self.change(job, JobEvent.PARKED)

    def replay(self, offset: int) -> None:
        """Deliver a parked or waiting job now, with its attempts counted anew."""
        job = self.jobs.get(offset)
        if job is not None and job.state in (JobState.PARKED, JobState.WAITING):
            job.fails = job.timeouts = 0
            self.make_ready(job, JobEvent.REPLAYED)

    def spend(self, job: UpstreamJob, reason: str) -> None:
        """Its tries are used up, or it was given up: the shell moves it to its next topic."""
        self.change(job, JobEvent.SPENT)
        job.reason = reason
        self.spent.append(job)

    def go_back(self, job: UpstreamJob) -> None:
        """It waits in its chain again."""
        self.change(job, JobEvent.SENT_BACK if job.tried else JobEvent.FORGOTTEN)

    def take_spent(self) -> list[UpstreamJob]:
        """Jobs to be stored elsewhere; each stays unfinished until that is durable."""
        taken, self.spent = self.spent, []
        return taken

    def clear(self) -> None:
        """The queue is not ours any more."""
        self._budget.retrying -= self.retrying
        self.retrying = self.recorded = self.released = 0
        self.jobs.clear()
        self.ready.clear()
        self._waiting.clear()
        self.spent.clear()

    def _waits(self, entry: tuple[float, int]) -> UpstreamJob | None:
        """The job that an entry of the heap stands for; None when it is stale."""
        job = self.jobs.get(entry[1])
        waits = job is not None and job.state is JobState.WAITING and job.due == entry[0]
        return job if waits else None

    def _count(self, state: JobState, change: int) -> None:
        if state in _RETRYING:
            self.retrying += change
            self._budget.retrying += change
        elif state is JobState.RELEASED:
            self.released += change
        elif state is JobState.RECORDED:
            self.recorded += change
