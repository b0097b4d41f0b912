"""Memberships of the file log: a grant's epochs go into the log first.

They are progress of each queue that only raises the epoch; the member hears of its queues when that is
durable. So a former holder's commits, also those of a process that was stopped and goes on, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backend.assignment.decisions import Grant
from backend.assignment.memberships import Answered, Later, Memberships
from backend.completion import Completion
from backend.progress.group_progress import Fence
from backend.records import CommitBatch, ProgressDelta, QueueRef

RETRY_S = 0.1


class Ownership(Memberships):
    """Every membership of one log; belongs to the hub of the writer's process."""

    def __init__(
        self,
        commit: Callable[[CommitBatch], Completion[Any]],
        living: Callable[[str], Sequence[QueueRef]],
        fence: Callable[[str, QueueRef], Fence],
        later: Later,
        call_after: Callable[[float, Callable[[], None]], object],
        now: Callable[[], float],
        watch: Callable[[], object],
        lines_max: int,
    ) -> None:
        def raise_epochs(grant: Grant, answered: Answered) -> None:
            group = grant.seat.group
            deltas = [
                ProgressDelta(group, queue, grant.epoch, fence(group, queue).generation)
                for queue in grant.queues
            ]
            commit(CommitBatch((), deltas)).then(lambda done: answered(done.error))

        super().__init__(
            living,
            lambda group, queue: fence(group, queue).epoch,
            raise_epochs,
            later,
            lambda again: call_after(RETRY_S, again),
            now,
            watch,
            lines_max,
        )
