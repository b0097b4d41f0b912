"""Progress of groups, and the live state of one message: for getConsumeStats and the admin API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from backend.completion import Completion, all_of, followed, gather_results, succeeded
from backend.records import Bounds, ProgressView, QueueRef
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.retries.retry_queues import retry_queue_of
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import BROADCASTING, Group, Subscription

IN_FLIGHT = "in flight"
RETRYING = "retrying"
BEHIND_KEY = "behind its key"
PARKED = "parked"
LEAVING = "on its way to its retry or dead letter"
NOT_YET = "not yet"
DONE = "done"
LEFT = "done or gone on"  # moved to a retry or a dead letter, which cannot be found by its id

_JOB_STATES = {
    JobState.WAITING: RETRYING,
    JobState.READY: RETRYING,
    JobState.RELEASED: NOT_YET,
    JobState.PARKED: PARKED,
    JobState.EXHAUSTED: PARKED,
    JobState.SPENT: LEAVING,
}


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The progress of a subscription in one queue. `committed` and `next` are as stored; the other numbers
    are this proxy's.

    `held`: whether this proxy delivers from it now; otherwise the live numbers are 0. `unfinished`: the lag
    without the finished and the deleted messages above the committed offset. If the model is broadcasting,
    every instance has its own position: `lag` and `unfinished` are 0.
    """

    queue_id: int
    qid: str
    committed: int
    next: int
    lag: int
    in_flight: int
    retrying: int
    ack_span: int
    held: bool
    unfinished: int


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """The settings and the progress of one subscription: a group's use of one topic.

    `dead_lettered`: since the proxy's start; `retry_lag`: messages due on the retry path; `paused_ms`: since
    when it is paused, in epoch milliseconds; 0: it is not.
    """

    group: str
    topic: str
    config: SubscriptionDefaults
    lag: int
    in_flight: int
    retrying: int
    dead_lettered: int
    ack_span: int
    waiters: int
    queues: tuple[QueueStats, ...]
    retry_lag: int = 0
    paused_ms: int = 0

    @property
    def unfinished(self) -> int | None:
        """The messages that the group has not finished; None if every instance has its own position."""
        if self.config.model == BROADCASTING:
            return None
        return sum(queue.unfinished for queue in self.queues)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group's row in the list of all groups."""

    name: str
    source: str
    created_ms: int
    topics: tuple[str, ...]
    waiters: int


def summarize_group(group: Group) -> GroupSummary:
    """Return the row of a group."""
    topics = tuple(sorted(each.topic for each in group.subscriptions.values()))
    return GroupSummary(group.name, group.source, group.created_ms, topics, group.waiting.count)


def subscription_stats(runtime: Runtime, subscription: Subscription) -> Completion[SubscriptionStats]:
    """Return the progress of a subscription; the backend is asked for progress and bounds in bulk."""
    info = runtime.backend.topic(subscription.topic)
    if info is None:
        return succeeded(_sum_rows(subscription, ()))
    queues = info.refs()
    retry_queue = retry_queue_of(runtime, subscription.group.name, subscription.topic)
    if retry_queue is not None:
        queues.append(retry_queue)
    views = runtime.backend.progress(subscription.group.name, queues)
    bounds = runtime.backend.bounds(queues)

    def on_counted() -> Completion[SubscriptionStats]:
        rows = [
            (queue != retry_queue, _queue_stats(runtime, subscription, queue, view, limits))
            for queue, view, limits in zip(queues, views.value, bounds.value, strict=True)
            if limits is not None
        ]
        return succeeded(_sum_rows(subscription, rows))

    return followed(all_of([views, bounds]), on_counted)


def group_stats(runtime: Runtime, group: Group, topic: str | None) -> Completion[list[SubscriptionStats]]:
    """Return the progress of every subscription of the group, or of the one to `topic`."""
    subscriptions = [each for each in group.subscriptions.values() if topic is None or each.topic == topic]
    return gather_results([subscription_stats(runtime, each) for each in subscriptions])


def _queue_stats(
    runtime: Runtime, subscription: Subscription, queue: QueueRef, view: ProgressView, bounds: Bounds
) -> QueueStats:
    committed = bounds.min if view.committed is None else view.committed
    state = subscription.buffer.queues.get(queue)
    top = max([committed, *(end for _, end in view.finished)])
    shared = subscription.config.model != BROADCASTING
    return QueueStats(
        queue_id=queue.queue_id,
        qid=runtime.qid(queue),
        committed=committed,
        next=bounds.next,
        lag=max(0, bounds.next - committed) if shared else 0,
        in_flight=_live_number(state, lambda live: live.leases.jobs),
        retrying=_live_number(state, lambda live: live.table.retrying),
        ack_span=_live_number(state, lambda live: live.ack_map.span) if state else top - committed,
        held=state is not None,
        unfinished=_count_unfinished(view, bounds) if shared else 0,
    )


def _count_unfinished(view: ProgressView, bounds: Bounds) -> int:
    """Count the readable messages of a queue that the group has not finished."""
    low = bounds.min if view.committed is None else max(bounds.min, view.committed)
    finished = sum(max(0, min(end, bounds.next) - max(start, low)) for start, end in view.finished)
    return max(0, bounds.next - low - finished)


def _live_number(state: SubscribedQueue | None, number: Callable[[SubscribedQueue], int]) -> int:
    return 0 if state is None else number(state)


def _sum_rows(subscription: Subscription, rows: Sequence[tuple[bool, QueueStats]]) -> SubscriptionStats:
    """Sum up queues; the flag in each row is True for the topic's own queues, False for the retry queue."""
    queues = tuple(row for own, row in rows if own)
    return SubscriptionStats(
        group=subscription.group.name,
        topic=subscription.topic,
        config=subscription.config,
        lag=sum(queue.lag for queue in queues),
        in_flight=sum(row.in_flight for _, row in rows),
        retrying=sum(row.retrying for _, row in rows),
        dead_lettered=subscription.retries.dead_letters,
        ack_span=max((queue.ack_span for queue in queues), default=0),
        waiters=subscription.group.waiting.waiting_for(subscription.topic),
        queues=queues,
        retry_lag=sum(row.lag for own, row in rows if not own),
        paused_ms=subscription.paused_ms,
    )


class LiveState(NamedTuple):
    """A message's present state in a group, such as in flight or parked, as far as this proxy knows.

    `deliveries`: how many this proxy knows of; `error`: the client's last error.
    """

    state: str
    deliveries: int
    error: str


def live_state(subscription: Subscription, queue: QueueRef, offset: int) -> LiveState | None:
    """Return the state of a message; None if this proxy does not own the queue."""
    subscribed = subscription.buffer.queues.get(queue)
    if subscribed is None:
        return None
    if subscribed.ack_map.is_finished(offset):
        return LiveState(DONE, 0, "")
    job = subscribed.table.jobs.get(offset)
    failed = 0 if job is None else job.fails + job.timeouts
    error = "" if job is None else job.error
    if subscribed.leases.lease_of(offset) is not None:
        return LiveState(IN_FLIGHT, failed + 1, error)
    state_name = None if job is None else _JOB_STATES.get(job.state)
    return LiveState(state_name or _describe_unread(subscribed, offset, failed), failed, error)


def _describe_unread(state: SubscribedQueue, offset: int, failed: int) -> str:
    if failed:
        return RETRYING
    behind = state.stream is not None and offset < state.feed.cursor
    return BEHIND_KEY if behind else NOT_YET
