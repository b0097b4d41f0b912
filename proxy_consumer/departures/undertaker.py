"""A subscription's spent jobs, taken over from its queues and moved a few at a time.

What fails is tried again after a second, by the subscription's own wake-ups; a queue that is lost takes its
jobs with it, whoever has it next finds them spent and moves them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from backend.completion import Completion, succeeded
from backend.records import QueueRef
from ddmq_common.errors import FencedError
from ddmq_common.metrics.catalogue import DEAD_LETTERS, RETRY_STEPS
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.agenda import NEVER
from proxy_consumer.core.jobs.upstream_job import UpstreamJob
from proxy_consumer.core.steps import QueueState
from proxy_consumer.departures.departure import Departure
from proxy_consumer.departures.retry_queues import RetryQueueGrant, retry_queue_of

if TYPE_CHECKING:
    from proxy_consumer.subscription.subscription import Subscription

AT_ONCE_MAX = 256  # of one subscription under way at a time: they share group commits
BYTES_AT_ONCE_MAX = 16 << 20
UNKNOWN_BYTES = 1 << 20  # what a message counts that was not delivered since the queue is ours
RETRY_S = 1.0


class Undertaker:
    """`moved`: dead letters since this proxy started; `retried`: steps along the retry path."""

    def __init__(self, subscription: Subscription) -> None:
        self.moved = 0
        self.retried = 0
        self._subscription = subscription
        self._line: deque[Departure] = deque()
        self._busy = 0
        self._busy_bytes = 0
        self._again_at = 0.0
        self._grants: dict[str, RetryQueueGrant] = {}
        self._watched: dict[UpstreamJob, Completion[None]] = {}  # by who waits for their end

    # --- the subscription's calls

    def watch(self, job: UpstreamJob) -> Completion[None]:
        """Succeeds when this job has been moved, or its queue is lost: its next owner moves it then."""
        return self._watched.setdefault(job, Completion())

    def _no_longer_watched(self, job: UpstreamJob) -> None:
        watched = self._watched.pop(job, None)
        if watched is not None:
            watched.succeed(None)

    def take(self, state: QueueState) -> None:
        """Take over what this queue decided to move."""
        runtime = self._subscription.runtime
        for job in state.jobs.take_burials():
            self._line.append(Departure(self, runtime, state, job, job.size or UNKNOWN_BYTES))
        self.go_on(runtime.now())

    def go_on(self, now: float) -> None:
        """Start what may start now."""
        while self._line and now >= self._again_at and self._has_room():
            departure = self._line.popleft()
            if self._subscription.holds(departure.state):
                self._busy += 1
                self._busy_bytes += departure.size
                departure.start()
            else:
                self._no_longer_watched(departure.job)

    def _has_room(self) -> bool:
        if not self._busy:
            return True
        return self._busy < AT_ONCE_MAX and self._busy_bytes + self._line[0].size <= BYTES_AT_ONCE_MAX

    def _ended(self, departure: Departure) -> None:
        self._busy -= 1
        self._busy_bytes -= departure.size

    def next_event(self) -> float:
        """When `go_on` may start something that waits; NEVER when nothing does."""
        return self._again_at if self._line and not self._busy else NEVER

    # --- the departures' calls

    @property
    def group(self) -> str:
        return self._subscription.group.name

    @property
    def config(self) -> SubscriptionDefaults:
        return self._subscription.config

    @property
    def created_ms(self) -> int:
        return self._subscription.created_ms

    def retry_queue(self, topic: str) -> Completion[QueueRef]:
        """The retry queue of `topic`, given if need be; once, however many wait for it."""
        runtime = self._subscription.runtime
        known = retry_queue_of(runtime, self.group, topic)
        if known is not None:
            return succeeded(known)
        grant = self._grants.get(topic)
        if grant is None:
            grant = self._grants[topic] = RetryQueueGrant(runtime, self.group, topic)
            grant.then(lambda _: self._grants.pop(topic))
            grant.start()
        return grant

    def done(self, departure: Departure) -> None:
        """Stored and finished."""
        subscription = self._subscription
        self._ended(departure)
        cell = subscription.runtime.metrics.cell
        if departure.step:
            self.retried += 1
            cell(RETRY_STEPS, self.group, subscription.topic, str(departure.step)).value += 1
        else:
            self.moved += 1
            cell(DEAD_LETTERS, self.group, subscription.topic, departure.job.reason).value += 1
        self._finished(departure)

    def gone(self, departure: Departure) -> None:
        """The message itself is not there any more; its finish is owed."""
        self._ended(departure)
        offset = departure.job.offset
        departure.state.jobs.skip([(offset, offset + 1)])
        self._subscription.buffer.tally.expired.value += 1
        self._subscription.owe()
        self._finished(departure)

    def _finished(self, departure: Departure) -> None:
        subscription = self._subscription
        if subscription.holds(departure.state):
            subscription.buffer.buried(departure.state, departure.job)
            subscription.group.serve()
        self._no_longer_watched(departure.job)
        self.go_on(subscription.runtime.now())

    def failed(self, departure: Departure, error: Exception) -> None:
        """Not (certainly) stored: again a little later, unless the queue is not ours any more."""
        subscription = self._subscription
        self._ended(departure)
        subscription.runtime.progress_failed(error)
        self._again_at = subscription.runtime.now() + RETRY_S
        self._line.append(departure)
        subscription.runtime.agenda.set(subscription, self._again_at)
        if isinstance(error, FencedError) and subscription.holds(departure.state):
            subscription.refence(departure.state, lambda: None)
