"""What this proxy knows of one message of a group: delivered, waiting for its retry, waiting for its key."""

from __future__ import annotations

from typing import NamedTuple

from backend.records import QueueRef
from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.steps import QueueState
from proxy_consumer.subscription.subscription import Subscription

IN_FLIGHT = "in flight"
RETRYING = "retrying"
BEHIND_KEY = "behind its key"
PARKED = "parked"
LEAVING = "on its way to its retry or dead letter"
NOT_YET = "not yet"
DONE = "done"

_STATES = {
    JobState.WAITING: RETRYING,
    JobState.READY: RETRYING,
    JobState.RELEASED: NOT_YET,
    JobState.PARKED: PARKED,
    JobState.SPENT: LEAVING,
}


class LiveState(NamedTuple):
    """`deliveries` so far, as far as known here; `error`: what the client said last."""

    state: str
    deliveries: int
    error: str


def live_state(subscription: Subscription, queue: QueueRef, offset: int) -> LiveState | None:
    """The state of an unfinished message; None where this proxy does not hold the queue."""
    held = subscription.buffer.queues.get(queue)
    if held is None:
        return None
    jobs = held.jobs
    if jobs.ack_map.is_finished(offset):
        return LiveState(DONE, 0, "")
    job = jobs.table.jobs.get(offset)
    failed = 0 if job is None else job.fails + job.timeouts
    error = "" if job is None else job.error
    if jobs.leases.lease_of(offset) is not None:
        return LiveState(IN_FLIGHT, failed + 1, error)
    known = None if job is None else _STATES.get(job.state)
    return LiveState(known or _unread(held, offset, failed), failed, error)


def _unread(held: QueueState, offset: int, failed: int) -> str:
    if failed:
        return RETRYING
    behind = held.stream is not None and offset < held.feed.cursor
    return BEHIND_KEY if behind else NOT_YET
