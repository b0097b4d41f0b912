"""Memberships of the file log: a grant's epochs go into the log first.

They are progress of each queue that only raises the epoch; the member hears of its queues when that is
durable. So a former holder's commits, also those of a process that was stopped and goes on, are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent

from backend.assignment.decisions import Grant
from backend.assignment.memberships import Answered, Later, Memberships
from backend.completion import Completion
from backend.file_log.state import LogState
from backend.records import CommitBatch, ProgressDelta, QueueRef
from ddmq_common.clock import Clock

GRANT_S = 10.0  # how long raising an epoch may wait for the disk
RETRY_S = 0.1  # after that failed


class Ownership(Memberships):
    """Every membership of one log; belongs to the hub of the writer's process."""

    def __init__(
        self,
        commit: Callable[[CommitBatch, float], Completion[Any]],
        state: LogState,
        clock: Clock,
        later: Later,
        watch: Callable[[], object],
        lines_max: int,
    ) -> None:
        fence = state.progress.fence

        def living(name: str) -> list[QueueRef]:
            topic = state.topics.get(name)
            return [] if topic is None else [queue.ref for queue in topic.queues]

        def raise_epochs(grant: Grant, answered: Answered) -> None:
            group = grant.seat.group
            deltas = [
                ProgressDelta(group, queue, grant.epoch, fence(group, queue).generation)
                for queue in grant.queues
            ]
            done = commit(CommitBatch((), deltas), clock.monotonic() + GRANT_S)
            done.then(lambda one: answered(one.error))

        super().__init__(
            living,
            lambda group, queue: fence(group, queue).epoch,
            raise_epochs,
            later,
            lambda again: gevent.spawn_later(RETRY_S, again),
            clock.monotonic,
            watch,
            lines_max,
        )
