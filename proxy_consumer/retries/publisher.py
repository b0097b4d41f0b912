"""The retry publisher: a subscription's spent jobs, taken over from its queues and moved a few at a time.

What fails is tried again after a second, by the subscription's own wake-ups; a queue that is lost takes its
jobs with it, whoever has it next finds them spent and moves them.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from backend.completion import Completion
from ddmq_common.metrics.catalogue import DEAD_LETTERS, RETRY_STEPS
from proxy_consumer.core.jobs import UpstreamJob
from proxy_consumer.core.steps import QueueState
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.retries.move import MessageMove, MoveSettings
from proxy_consumer.retries.next_hop import DEAD_LETTER
from proxy_consumer.retries.retry_queues import RetryQueues
from proxy_consumer.runtime import Runtime

AT_ONCE_MAX = 256  # of one subscription under way at a time: they share group commits
BYTES_AT_ONCE_MAX = 16 << 20
RETRY_S = 1.0


class SpentJobs(Protocol):
    """Whose jobs are moved: it says by which settings, and hears what became of each."""

    @property
    def move_settings(self) -> MoveSettings: ...

    def holds(self, state: QueueState) -> bool:
        """Whether the queue is still its own."""

    def moved(self, state: QueueState, job: UpstreamJob, *, gone: bool) -> None:
        """The message stands elsewhere, and is finished here; `gone`: it was not there any more, and nothing
        is stored yet."""

    def not_moved(self, state: QueueState, error: Exception, again_at: float) -> None:
        """It is tried again at `again_at` (monotonic seconds), by `go_on`."""


class RetryPublisher:
    """`dead_letters`: how many were made since this proxy started."""

    def __init__(self, runtime: Runtime, group: str, topic: str, owner: SpentJobs) -> None:
        self.dead_letters = 0
        self._runtime = runtime
        self._group = group
        self._topic = topic
        self._owner = owner
        self._retry_queues = RetryQueues(runtime, group)
        self._waiting: deque[MessageMove] = deque()
        self._busy = 0
        self._busy_bytes = 0
        self._again_at = 0.0
        self._watched: dict[UpstreamJob, Completion[None]] = {}  # by who waits for their end

    def watch(self, job: UpstreamJob) -> Completion[None]:
        """Succeeds when this job has been moved, or its queue is lost: its next owner moves it then."""
        return self._watched.setdefault(job, Completion())

    def _no_longer_watched(self, job: UpstreamJob) -> None:
        watched = self._watched.pop(job, None)
        if watched is not None:
            watched.succeed(None)

    def take(self, state: QueueState) -> None:
        """Take over what this queue decided to move."""
        for job in state.jobs.table.take_spent():
            move = MessageMove(self._runtime, self._group, self._retry_queues, state, job, self._ended)
            self._waiting.append(move)
        self.go_on(self._runtime.now())

    def go_on(self, now: float) -> None:
        """Start what may start now."""
        while self._waiting and now >= self._again_at and self._has_room():
            move = self._waiting.popleft()
            if self._owner.holds(move.state):
                self._busy += 1
                self._busy_bytes += move.size
                move.start(self._owner.move_settings)
            else:
                self._no_longer_watched(move.job)

    def _has_room(self) -> bool:
        if not self._busy:
            return True
        return self._busy < AT_ONCE_MAX and self._busy_bytes + self._waiting[0].size <= BYTES_AT_ONCE_MAX

    def next_event(self) -> float:
        """When `go_on` may start something that waits; NEVER when nothing does."""
        return self._again_at if self._waiting and not self._busy else NEVER

    def _ended(self, move: MessageMove, error: Exception | None) -> None:
        """One try is over. What is not (certainly) stored comes again, unless the queue is lost by then."""
        self._busy -= 1
        self._busy_bytes -= move.size
        if error is not None:
            self._runtime.progress_failed(error)
            self._again_at = self._runtime.now() + RETRY_S
            self._waiting.append(move)
            self._owner.not_moved(move.state, error, self._again_at)
            return
        if not move.gone:
            self._count(move)
        self._owner.moved(move.state, move.job, gone=move.gone)
        self._no_longer_watched(move.job)
        self.go_on(self._runtime.now())

    def _count(self, move: MessageMove) -> None:
        cell = self._runtime.metrics.cell
        if move.step == DEAD_LETTER:
            self.dead_letters += 1
            cell(DEAD_LETTERS, self._group, self._topic, move.job.reason).value += 1
        else:
            cell(RETRY_STEPS, self._group, self._topic, str(move.step)).value += 1
