"""Jobs: the messages that need a state of their own, the states, and which jobs of a queue are due.

Most messages never become a job: they are read, leased as part of a run of offsets (leases.py) and
acknowledged. A job is created for a message that fails or times out, waits in a chain and is read again, is
parked or skipped, or was any of these before a restart. It begins as PLAIN (only read so far), RECORDED
(stored in group progress) or LEASED (returned by a client), and ends as REMOVED. The events allowed in each
state are a table, TRANSITIONS, shown in docs/states.md. Any other event raises IllegalJobEventError and
changes nothing.

Failures and time-outs are counted separately, because each has its own limit. Progress stores one number per
message, `packed` (layout in docs/formats-progress.md). The stored number only rises, because AckMap ignores
one that is not above it. It rises with either count, and also with each replay, which resets both counts to
0: the number of replays is its highest field.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush

from mypy_extensions import mypyc_attr

from proxy_consumer.core.retry_policy import REASON_GIVEN_UP, RetryPolicy
from proxy_consumer.core.tally import Budget
from proxy_consumer.core.timer_queue import NEVER


class JobState(Enum):
    """The states of a job: a message of a queue, as its subscription processes it. Each value describes its
    state."""

    PLAIN = "the message has been read, and nothing else is known about it"
    RECORDED = "the message is recorded in group progress, or is back in its chain after an attempt"
    RELEASED = "the chain has reached the message, or it must be checked again; it is read and delivered next"
    LEASED = "a client has a lease on the message"
    WAITING = "the message failed and is waiting for its retry interval to end"
    READY = "the message is ready to be read and delivered again"
    PARKED = "an operator has parked the key of the message"
    EXHAUSTED = "the attempts are used up, and the key is waiting for an operator (on_dead_letter: park)"
    SPENT = "the message is being moved to the retry topic or the dead letters"
    REMOVED = "the message is no longer a job"

    __hash__ = object.__hash__  # members are singletons


class JobEvent(Enum):
    """An event that changes a job's state; each value describes it in words."""

    DELIVERED = "the message was delivered to a client"
    FAILED = "the message failed or timed out and has to wait"
    TIMED_OUT = "the message timed out and is delivered again immediately"
    DUE = "the retry interval ended"
    RELEASED = "the chain reached the message, a client handed it back untried, or it must be checked again"
    SENT_BACK = "the message returned to its chain and has been tried before"
    FORGOTTEN = "the message returned to its chain and has never been tried"
    PARKED = "the key of the message was parked"
    EXHAUSTED = "the attempts were used up, and the key must be parked"
    REPLAYED = "an operator requested immediate delivery"
    SPENT = "the attempts were used up, or a client or an operator gave up on the message"
    FINISHED = "the message was acknowledged or skipped, it expired, or it was stored in its next topic"

    __hash__ = object.__hash__


class JobNews(Enum):
    """An event reported to a JobObserver; each value describes what happened to the message."""

    ACKED = "acknowledged"
    FAILED = "its client failed it; the detail is the client's error"
    TIMED_OUT = "its lease ran out"
    RETURNED = "its client gave it back unread"
    SENT_BACK = "it waits in its chain again"
    EXTENDED = "its client has it for longer"
    RELEASED = "its chain came to it, or an operator replayed it"
    PARKED = "it waits for an operator"
    SPENT = "a dead letter; the detail is the reason"
    MOVED = "stored in its next topic"

    __hash__ = object.__hash__


@mypyc_attr(allow_interpreted_subclasses=True)
class JobObserver:
    """Receives the events of the messages of one queue, each after it has taken effect."""

    def on_change(self, news: JobNews, offset: int, detail: str = "") -> None:
        """Called when an event happened to the message at `offset`; `detail` is an error or a reason."""

    def on_acks(self, offsets: Sequence[int]) -> None:
        """Called when a client acknowledged these offsets; some acknowledgements may have been late."""

    def on_extensions(self, lease_ids: Sequence[int]) -> None:
        """Called when a client extended these leases; some may already have expired."""

    def on_skip(self, start: int, end: int) -> None:
        """Called when the messages in `[start, end)` were finished undelivered."""

    def on_loss(self) -> None:
        """Called when this proxy lost the queue."""


class IllegalJobEventError(Exception):
    """The event is not possible in the job's state, which is a bug in the caller; nothing was changed."""

    def __init__(self, state: JobState, event: JobEvent) -> None:
        super().__init__(f"a job that is {state.name} was {event.name}")


_S, _E = JobState, JobEvent
_BACK = {_E.SENT_BACK: _S.RECORDED, _E.FORGOTTEN: _S.REMOVED}
_END = {_E.SPENT: _S.SPENT, _E.FINISHED: _S.REMOVED}
_REDELIVERY = {
    _E.DELIVERED: _S.LEASED,
    _E.PARKED: _S.PARKED,
    _E.EXHAUSTED: _S.EXHAUSTED,
    **_BACK,
    **_END,
}

TRANSITIONS: Mapping[JobState, Mapping[JobEvent, JobState]] = {
    _S.PLAIN: {_E.RELEASED: _S.RELEASED, _E.PARKED: _S.PARKED, _E.SPENT: _S.SPENT},
    _S.RECORDED: {_E.RELEASED: _S.RELEASED, **_REDELIVERY},
    _S.RELEASED: {_E.FAILED: _S.WAITING, **_REDELIVERY},
    _S.LEASED: {
        _E.FAILED: _S.WAITING,
        _E.TIMED_OUT: _S.READY,
        _E.RELEASED: _S.RELEASED,
        _E.PARKED: _S.PARKED,
        _E.EXHAUSTED: _S.EXHAUSTED,
        **_BACK,
        **_END,
    },
    _S.WAITING: {_E.DUE: _S.READY, _E.PARKED: _S.PARKED, _E.REPLAYED: _S.READY, **_END},
    _S.READY: {_E.FAILED: _S.WAITING, **_REDELIVERY},
    _S.PARKED: {_E.REPLAYED: _S.READY, **_BACK, **_END},
    _S.EXHAUSTED: {_E.REPLAYED: _S.READY, _E.SENT_BACK: _S.RECORDED, **_END},
    _S.SPENT: {_E.FINISHED: _S.REMOVED},
    _S.REMOVED: {},
}


FAILS_MAX = (1 << 16) - 1
TIMEOUTS_MAX = (1 << 31) - 1
REPLAYS_MAX = (1 << 15) - 1


class UpstreamJob:
    """A message of one subscription that needs a state of its own: it failed, timed out, waits or is
    parked."""

    __slots__ = (
        "due", "error", "fails", "final", "offset", "reason", "replays", "since", "size", "state", "timeouts",
    )  # fmt: skip

    def __init__(self, offset: int, state: JobState, fails: int = 0, timeouts: int = 0) -> None:
        self.offset = offset
        self.fails = fails
        self.timeouts = timeouts
        self.replays = 0  # how often an operator replayed it, which resets its attempts
        self.state = state
        self.due = 0.0  # monotonic seconds; while WAITING
        self.since = 0.0  # monotonic seconds of the first failure at this proxy; 0: none yet
        self.size = 0  # bytes, as accounted while leased
        self.reason = ""  # why it is spent or exhausted
        self.error = ""  # the client's last error text
        self.final = False  # given up: no further retry

    @property
    def was_tried(self) -> bool:
        """Whether the message was delivered and failed or timed out at least once."""
        return bool(self.fails or self.timeouts)

    @property
    def is_recorded(self) -> bool:
        """Whether group progress stores attempts or replays of this message."""
        return bool(self.fails or self.timeouts or self.replays)

    @property
    def attempt_number(self) -> int:
        """The number of the next (or current) delivery, from 1."""
        return self.fails + self.timeouts + 1

    @property
    def packed_attempts(self) -> int:
        """All counters packed into the one number that progress stores."""
        return pack_attempts(self.fails, self.timeouts, self.replays, final=self.final)

    def used_up_reason(self, policy: RetryPolicy) -> str:
        """Return why the job must not be retried, as the reason of its dead letter; "" if it may be
        retried."""
        return REASON_GIVEN_UP if self.final else policy.used_up(self.fails, self.timeouts)


def pack_attempts(fails: int, timeouts: int, replays: int = 0, *, final: bool = False) -> int:
    """Pack the counters into one number for ProgressDelta.attempts (layout in docs/formats-progress.md).

    From the lowest bit: 16 bits of failures, 31 of time-outs, one for `final`, 15 of replays. The stored
    number only rises, because AckMap ignores one that is not above it. So a replay, which resets the two
    lower counts, must raise `replays`, the highest field.
    """
    tries = min(timeouts, TIMEOUTS_MAX) << 16 | min(fails, FAILS_MAX)
    return min(replays, REPLAYS_MAX) << 48 | final << 47 | tries


def unpack_attempts(packed: int) -> tuple[int, int, int, bool]:
    """Unpack a number from `pack_attempts`: (failures, time-outs, replays, whether the message was given
    up)."""
    return packed & FAILS_MAX, packed >> 16 & TIMEOUTS_MAX, packed >> 48, bool(packed >> 47 & 1)


_RETRYING = (JobState.WAITING, JobState.READY, JobState.SPENT, JobState.EXHAUSTED)
_RETURNABLE = (JobState.WAITING, JobState.READY, JobState.PARKED, JobState.EXHAUSTED)
_BEFORE = (JobState.RECORDED, JobState.RELEASED)


def may_return(job: UpstreamJob) -> bool:
    """Whether an acknowledgement without a lease finishes the job: it waits for redelivery, or was delivered
    before."""
    return job.state in _RETURNABLE or (job.was_tried and job.state in _BEFORE)


_REPLAYABLE = (JobState.PARKED, JobState.EXHAUSTED, JobState.WAITING)
_DUE = (JobState.READY, JobState.RELEASED)  # states from which jobs are delivered
_STALE_ENTRIES_MAX = 1_024
_Counts = tuple[int, int, int]  # of retrying, released and recorded jobs


def _counts_of(state: JobState, count: int) -> _Counts:
    """Return the amounts that a job in this state adds to the counts of its table."""
    return (
        count if state in _RETRYING else 0,
        count if state is JobState.RELEASED else 0,
        count if state is JobState.RECORDED else 0,
    )


def _build_step(state: JobState, following: JobState) -> tuple[JobState, int, int, int]:
    retrying, released, recorded = map(sum, zip(_counts_of(state, -1), _counts_of(following, 1), strict=True))
    return following, retrying, released, recorded


_ADDED = {state: _counts_of(state, 1) for state in JobState}
_STEPS = {
    state: {event: _build_step(state, following) for event, following in row.items()}
    for state, row in TRANSITIONS.items()
}  # TRANSITIONS, with what each changes in the counts of a table


class JobTable:
    """The jobs of one queue: the messages that a subscription has to finish. Each is kept until it is
    REMOVED.

    `retrying`, `recorded`, `released`: how many are in those states.
    """

    __slots__ = (
        "_budget", "_observer", "_waiting", "exhausted", "jobs", "ready", "recorded", "released", "retrying",
        "spent",
    )  # fmt: skip

    def __init__(self, budget: Budget, observer: JobObserver | None = None) -> None:
        self._observer = observer
        self.jobs: dict[int, UpstreamJob] = {}
        self.ready: list[int] = []  # offsets that are due, ascending
        self.spent: list[UpstreamJob] = []  # until `take_spent`
        self.exhausted: list[UpstreamJob] = []  # until `take_exhausted`
        self.retrying = self.recorded = self.released = 0
        self._budget = budget
        self._waiting: list[tuple[float, int]] = []

    # --- queries

    def attempt_of(self, offset: int) -> int:
        """Return the number of the current (or next) delivery of `offset`, from 1."""
        job = self.jobs.get(offset)
        return 1 if job is None else job.attempt_number

    def is_due(self, offset: int) -> bool:
        """Whether the message at `offset` must be read and delivered now."""
        job = self.jobs.get(offset)
        return job is not None and job.state in _DUE

    def is_spent(self, offset: int) -> bool:
        """Whether the message at `offset` is on its way to the retry topic or the dead letters."""
        job = self.jobs.get(offset)
        return job is not None and job.state is JobState.SPENT

    def due_offsets(self, count: int) -> list[int]:
        """Return up to `count` offsets that are due, ascending; call `move_due` first."""
        offsets: list[int] = []
        for offset in self.ready:
            if self.is_due(offset) and not (offsets and offsets[-1] == offset):
                offsets.append(offset)
                if len(offsets) == count:
                    break
        return offsets

    def jobs_within(self, start: int, end: int) -> list[UpstreamJob]:
        """Return the jobs with offsets in `[start, end)`."""
        jobs = self.jobs
        if end - start < len(jobs):
            return [jobs[offset] for offset in range(start, end) if offset in jobs]
        return [job for offset, job in jobs.items() if start <= offset < end]

    def next_due(self) -> float:
        """Return the end of the next retry interval, or an earlier time; NEVER if no job waits."""
        return self._waiting[0][0] if self._waiting else NEVER

    # --- what happens to jobs

    def add_recorded(self, offset: int, packed: int) -> UpstreamJob:
        """Create the job of a message whose counters progress stores as `packed`."""
        fails, timeouts, replays, final = unpack_attempts(packed)
        job = self.add(offset, JobState.RECORDED, fails, timeouts)
        job.replays, job.final = replays, final
        return job

    def add(self, offset: int, state: JobState, fails: int = 0, timeouts: int = 0) -> UpstreamJob:
        """Create a job for the message at `offset`."""
        job = self.jobs[offset] = UpstreamJob(offset, state, fails, timeouts)
        retrying, released, recorded = _ADDED[state]
        self.retrying += retrying
        self._budget.retrying += retrying
        self.released += released
        self.recorded += recorded
        return job

    def change(self, job: UpstreamJob, event: JobEvent) -> None:
        """Apply an event to a job; raises IllegalJobEventError, and changes nothing, if its state does not
        allow it."""
        step = _STEPS[job.state].get(event)
        if step is None:
            raise IllegalJobEventError(job.state, event)
        following, retrying, released, recorded = step
        if retrying:
            self.retrying += retrying
            self._budget.retrying += retrying
        self.released += released
        self.recorded += recorded
        job.state = following
        if following is JobState.REMOVED:
            del self.jobs[job.offset]

    def wait(self, job: UpstreamJob, due: float) -> None:
        """Make a failed job wait until `due`, in monotonic seconds."""
        self.change(job, JobEvent.FAILED)
        job.due = due
        heappush(self._waiting, (due, job.offset))
        if len(self._waiting) > 2 * self.retrying + _STALE_ENTRIES_MAX:
            self._waiting = [entry for entry in self._waiting if self._waiting_job(entry) is not None]
            heapify(self._waiting)

    def make_ready(self, job: UpstreamJob, event: JobEvent) -> None:
        """Make a job due for delivery after a time-out, a retry interval, its release or a replay."""
        self.change(job, event)
        insort(self.ready, job.offset)
        if self._observer is not None and event in (JobEvent.RELEASED, JobEvent.REPLAYED):
            self._observer.on_change(JobNews.RELEASED, job.offset)

    def move_due(self, now: float) -> bool:
        """Make the jobs ready whose retry interval has passed; return whether any job is due."""
        waiting, ready = self._waiting, self.ready
        while waiting and waiting[0][0] <= now:
            job = self._waiting_job(heappop(waiting))
            if job is not None:
                self.make_ready(job, JobEvent.DUE)
        stale = 0
        while stale < len(ready) and not self.is_due(ready[stale]):
            stale += 1
        if stale:
            del ready[:stale]
        return bool(ready)

    def release(self, offset: int) -> None:
        """Make the job at `offset` due, because it heads its chain now or must be read again."""
        job = self.jobs.get(offset) or self.add(offset, JobState.PLAIN)
        if job.state in (JobState.PLAIN, JobState.LEASED, JobState.RECORDED):
            self.make_ready(job, JobEvent.RELEASED)

    def park(self, offset: int) -> None:
        """Park the job at `offset`: it is not delivered until `replay`. The job must not be leased."""
        job = self.jobs.get(offset) or self.add(offset, JobState.PLAIN)
        if job.state not in (JobState.LEASED, JobState.SPENT, JobState.PARKED, JobState.EXHAUSTED):
            self.change(job, JobEvent.PARKED)
        if self._observer is not None:
            self._observer.on_change(JobNews.PARKED, offset)

    def exhaust_job(self, job: UpstreamJob, reason: str) -> None:
        """Mark a job whose attempts are used up: it keeps its position, undelivered until it is replayed."""
        self.change(job, JobEvent.EXHAUSTED)
        job.reason = reason
        self.exhausted.append(job)

    def exhaust_recorded(self, offset: int, policy: RetryPolicy) -> bool:
        """Mark a RECORDED job as exhausted if its attempts are used up; return whether it was."""
        job = self.jobs.get(offset)
        if job is None or job.state is not JobState.RECORDED:
            return False
        reason = job.used_up_reason(policy)
        if reason:
            self.exhaust_job(job, reason)
        return bool(reason)

    def replay(self, offset: int) -> UpstreamJob | None:
        """Make a parked, exhausted or waiting job due now, and reset its attempts.

        Returns the job, whose counters in progress must then be stored again; None if there is no such job.
        """
        job = self.jobs.get(offset)
        if job is None or job.state not in _REPLAYABLE:
            return None
        if job.was_tried:
            job.fails = job.timeouts = 0
            job.replays += 1
        job.reason, job.final = "", False
        self.make_ready(job, JobEvent.REPLAYED)
        return job

    def spend_job(self, job: UpstreamJob, reason: str) -> None:
        """Queue a job for the retry topic or the dead letters: its attempts are used up, or it was given
        up."""
        self.change(job, JobEvent.SPENT)
        job.reason = reason
        self.spent.append(job)

    def return_to_chain(self, job: UpstreamJob) -> None:
        """Return the job to its chain, where it waits again."""
        self.change(job, JobEvent.SENT_BACK if job.is_recorded else JobEvent.FORGOTTEN)

    def take_exhausted(self) -> list[UpstreamJob]:
        """Return the jobs that were exhausted since the last call; some may have changed state since."""
        jobs, self.exhausted = self.exhausted, []
        return jobs

    def take_spent(self) -> list[UpstreamJob]:
        """Return the spent jobs since the last call; each stays unfinished until its copy in the next topic
        is durable."""
        jobs, self.spent = self.spent, []
        return jobs

    def clear(self) -> None:
        """Forget all jobs, because this proxy lost the queue."""
        self._budget.retrying -= self.retrying
        self.retrying = self.recorded = self.released = 0
        self.jobs.clear()
        self.ready.clear()
        self._waiting.clear()
        self.spent.clear()
        self.exhausted.clear()

    def _waiting_job(self, entry: tuple[float, int]) -> UpstreamJob | None:
        """Return the job of a heap entry; None if the entry is stale."""
        job = self.jobs.get(entry[1])
        waits = job is not None and job.state is JobState.WAITING and job.due == entry[0]
        return job if waits else None
