"""The jobs of a queue of which some messages are traced: they tell what happens to those.

QueueJobs of an untraced subscription know nothing of it, so that tracing costs nothing where it is off. What
is told has no time: whoever hears it (`JobTrace`) knows what time it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from backend.records import ProgressView, QueueRef
from proxy_consumer.core.jobs import JobEvent, JobState, JobTable, UpstreamJob
from proxy_consumer.core.progress import Range
from proxy_consumer.core.queue_jobs import QueueJobs
from proxy_consumer.core.retry_policy import RetryPolicy
from proxy_consumer.core.tally import Budget, Tally

WAITS, AGAIN, BACK, SET_ASIDE, SPENT = "wait", "again", "key", "parked", "spent"
_NEXT = {
    JobState.WAITING: WAITS, JobState.READY: AGAIN, JobState.RELEASED: AGAIN, JobState.PARKED: SET_ASIDE,
    JobState.EXHAUSTED: SET_ASIDE, JobState.SPENT: SPENT,
}  # fmt: skip


class JobTrace(Protocol):
    """Hears of the traced messages of one queue; those in `offsets` are traced and unfinished."""

    @property
    def offsets(self) -> dict[int, bytes]: ...

    def acked(self, offset: int) -> None: ...

    def failed(self, offset: int, error: str, following: str, due: float) -> None:
        """`due`: monotonic seconds, where it waits."""

    def timed_out(self, offset: int, following: str, due: float) -> None: ...

    def returned(self, offset: int, following: str) -> None:
        """Untried: by its client, or as one before it in its chain came back."""

    def extended(self, offset: int) -> None: ...

    def released(self, offset: int) -> None: ...

    def parked(self, offset: int) -> None: ...

    def spent(self, offset: int, reason: str) -> None: ...

    def moved(self, offset: int) -> None:
        """It stands in its next topic; its copy there tells that."""

    def passed(self, offset: int) -> None: ...

    def left(self) -> None:
        """The queue is not ours any more."""


class TracedTable(JobTable):
    """Tells when a job is let out or parked."""

    __slots__ = ("trace",)

    def __init__(self, budget: Budget, trace: JobTrace) -> None:
        super().__init__(budget)
        self.trace = trace

    def make_ready(self, job: UpstreamJob, event: JobEvent) -> None:
        super().make_ready(job, event)
        if job.offset in self.trace.offsets and event in (JobEvent.LET_OUT, JobEvent.REPLAYED):
            self.trace.released(job.offset)

    def park(self, offset: int) -> None:
        super().park(offset)
        if offset in self.trace.offsets:
            self.trace.parked(offset)


class TracedJobs(QueueJobs):
    """As QueueJobs, and it tells `trace`."""

    __slots__ = ("trace",)

    def __init__(
        self,
        queue: QueueRef,
        view: ProgressView,
        first: int,
        policy: RetryPolicy,
        budget: Budget,
        tally: Tally,
        trace: JobTrace,
    ) -> None:
        self.trace = trace
        super().__init__(queue, view, first, policy, budget, tally)

    def new_table(self, budget: Budget) -> JobTable:
        return TracedTable(budget, self.trace)

    def _among(self, offsets: Sequence[int]) -> list[int]:
        traced = self.trace.offsets
        if traced.keys().isdisjoint(offsets):
            return []
        return [offset for offset in offsets if offset in traced]

    def _following(self, offset: int) -> tuple[str, float]:
        job = self.table.jobs.get(offset)
        return (BACK, 0.0) if job is None else (_NEXT.get(job.state, BACK), job.due)

    def finish(self, offsets: Sequence[int], lease_ids: Sequence[int] | None, now: float) -> int:
        done = super().finish(offsets, lease_ids, now)
        for offset in self._among(offsets):
            if self.ack_map.is_finished(offset):
                self.trace.acked(offset)
        return done

    def _failed(self, job: UpstreamJob, delay_ms: int | None, now: float, error: str) -> None:
        super()._failed(job, delay_ms, now, error)
        if job.offset in self.trace.offsets:
            self.trace.failed(job.offset, error, *self._following(job.offset))

    def _time_out(self, offset: int, size: int, now: float) -> None:
        super()._time_out(offset, size, now)
        if offset in self.trace.offsets:
            self.trace.timed_out(offset, *self._following(offset))

    def dead_letter(self, offset: int, reason: str) -> None:
        super().dead_letter(offset, reason)
        if offset in self.trace.offsets:
            error = self.table.jobs[offset].error
            self.trace.spent(offset, f"{reason}: {error}" if error else reason)

    def exhaust_used_up(self, offset: int) -> bool:
        exhausted = super().exhaust_used_up(offset)
        if exhausted and offset in self.trace.offsets:
            self.trace.parked(offset)
        return exhausted

    def send_back(self, offset: int) -> None:
        super().send_back(offset)
        if offset in self.trace.offsets:
            self.trace.returned(offset, BACK)

    def take_back(self, offset: int, lease_id: int) -> bool:
        taken = super().take_back(offset, lease_id)
        if taken and offset in self.trace.offsets:
            following = self._following(offset)[0]
            self.trace.returned(offset, following if following in (BACK, SET_ASIDE) else AGAIN)
        return taken

    def extend(self, lease_ids: Sequence[int], now: float) -> None:
        super().extend(lease_ids, now)
        extended = set(lease_ids)
        for offset in self.trace.offsets:
            lease = self.leases.lease_of(offset)
            if lease is not None and lease.id in extended:
                self.trace.extended(offset)

    def extend_parts(self, offsets: Sequence[int], lease_ids: Sequence[int], now: float) -> list[int]:
        late = super().extend_parts(offsets, lease_ids, now)
        for offset in self._among(offsets):
            if offset not in late:
                self.trace.extended(offset)
        return late

    def skip(self, ranges: Iterable[Range]) -> None:
        ranges = list(ranges)
        traced = self.trace.offsets
        gone = [offset for offset in traced if any(start <= offset < end for start, end in ranges)]
        super().skip(ranges)
        for offset in gone:
            self.trace.passed(offset)

    def published(self, offset: int, *, acked: bool = False) -> None:
        super().published(offset, acked=acked)
        if offset in self.trace.offsets:
            (self.trace.acked if acked else self.trace.moved)(offset)

    def abandon(self) -> None:
        self.trace.left()
        super().abandon()


JobsMaker = Callable[[QueueRef, ProgressView, int, RetryPolicy, Budget, Tally], QueueJobs]
"""Makes the jobs of a queue: QueueJobs, or TracedJobs."""
