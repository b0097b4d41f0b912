"""The jobs of one queue that have a state of their own, by offset, and which of them are due.

The states and their changes stand in upstream_job.py; here is the bookkeeping: how many jobs are in
which kind of state, a heap of waits and a sorted list of what is due. Both may hold stale entries; they
are passed over and swept out.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush

from proxy_consumer.core.jobs.upstream_job import JobState, UpstreamJob
from proxy_consumer.core.tally import Budget

_RETRYING = (JobState.WAITING, JobState.READY, JobState.BURYING)
_DUE = (JobState.READY, JobState.RELEASED)
_STALE_ENTRIES_MAX = 1_024


class JobTable:
    """See the module. `retrying`, `recorded`, `released`, `held`: jobs in those states."""

    __slots__ = (
        "_budget",
        "_waiting",
        "burials",
        "held",
        "jobs",
        "ready",
        "recorded",
        "released",
        "retrying",
    )

    def __init__(self, budget: Budget) -> None:
        self.jobs: dict[int, UpstreamJob] = {}
        self.ready: list[int] = []  # offsets that are due, ascending
        self.burials: list[UpstreamJob] = []  # decided, not yet taken by the shell
        self.retrying = self.recorded = self.released = self.held = 0
        self._budget = budget
        self._waiting: list[tuple[float, int]] = []

    def attempt(self, offset: int) -> int:
        """The number of the present (or next) delivery of `offset`, from 1."""
        job = self.jobs.get(offset)
        return 1 if job is None else job.attempt

    def is_due(self, offset: int) -> bool:
        """Whether `offset` is to be read and delivered now."""
        job = self.jobs.get(offset)
        return job is not None and job.state in _DUE

    def is_burying(self, offset: int) -> bool:
        """Whether `offset` is on its way to its next topic."""
        job = self.jobs.get(offset)
        return job is not None and job.state is JobState.BURYING

    def move_due(self, now: float) -> bool:
        """Make jobs ready whose retry interval is over; True when any is due."""
        waiting, ready = self._waiting, self.ready
        while waiting and waiting[0][0] <= now:
            due, offset = heappop(waiting)
            job = self.jobs.get(offset)
            if job is not None and job.state is JobState.WAITING and job.due == due:
                self._make_ready(job)
        stale = 0
        while stale < len(ready) and not self.is_due(ready[stale]):
            stale += 1
        if stale:
            del ready[:stale]
        return bool(ready)

    def due(self, count: int) -> list[int]:
        """Up to `count` offsets that are due, ascending; call `move_due` first."""
        found: list[int] = []
        for offset in self.ready:
            if self.is_due(offset) and not (found and found[-1] == offset):
                found.append(offset)
                if len(found) == count:
                    break
        return found

    def release(self, offset: int) -> None:
        """The job's chain came to it (or it is to be read again): deliver it."""
        job = self.jobs.get(offset)
        if job is None:
            job = self.jobs[offset] = UpstreamJob(offset)
            job.state = JobState.LEASED
        if job.state in (JobState.LEASED, JobState.RECORDED):
            self._set_state(job, JobState.RELEASED)
            insort(self.ready, offset)

    def hold(self, offset: int) -> None:
        """An operator set the job's key aside: it is not delivered until `replay`. It must not be leased."""
        job = self.jobs.get(offset)
        if job is None:
            job = self.jobs[offset] = UpstreamJob(offset)
            job.state = JobState.LEASED
        elif job.state is JobState.LEASED:
            return
        if job.state not in (JobState.BURYING, JobState.HELD):
            self._set_state(job, JobState.HELD)

    def replay(self, offset: int) -> None:
        """Deliver a held or waiting job now, with its attempts counted anew."""
        job = self.jobs.get(offset)
        if job is not None and job.state in (JobState.HELD, JobState.WAITING):
            job.fails = job.timeouts = 0
            self._make_ready(job)

    def _jobs_within(self, start: int, end: int) -> list[int]:
        """Offsets of `[start, end)` that have a job."""
        jobs = self.jobs
        if end - start < len(jobs):
            return [offset for offset in range(start, end) if offset in jobs]
        return [offset for offset in jobs if start <= offset < end]

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
        elif state is JobState.RELEASED:
            self.released += 1
        elif state is JobState.RECORDED:
            self.recorded += 1
        elif state is JobState.HELD:
            self.held += 1

    def _drop(self, job: UpstreamJob) -> None:
        self._leave(job.state)
        del self.jobs[job.offset]

    def _leave(self, state: JobState) -> None:
        if state in _RETRYING:
            self.retrying -= 1
            self._budget.retrying -= 1
        elif state is JobState.RELEASED:
            self.released -= 1
        elif state is JobState.RECORDED:
            self.recorded -= 1
        elif state is JobState.HELD:
            self.held -= 1

    def _forget_jobs(self) -> None:
        self._budget.retrying -= self.retrying
        self.retrying = self.recorded = self.released = self.held = 0
        self.jobs.clear()
        self.ready.clear()
        self._waiting.clear()
        self.burials.clear()
