"""Finds queues that stand still though clients wait for their messages, whatever the cause.

It judges from outside the mechanism that delivers: a queue has messages, clients (or a push) wait for them,
and neither the committed offset nor the finished ranges above it have changed for STALLED_S, without an
intended reason: messages in flight, retrying or parked, a limit that is reached, a paused subscription, or a
queue that another proxy owns (which reports it itself). If a topic of a group-wide scope has messages but no
client that pulls it, that topic is named: the other topics of its group wait behind it.

The check runs periodically, whether or not the metrics are read, and logs queues that begin to stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from backend.completion import Completion
from backend.records import QueueRef
from ddmq_common.errors import DdmqError
from ddmq_common.metrics import catalogue
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.groups.stats import QueueStats, SubscriptionStats, subscription_stats
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.subscription import Subscription

CHECK_INTERVAL_S = 5.0
STALLED_S = 30.0
WAITED_S = 15.0  # a client counts as waiting for this long after its last pull
CHECKS_MAX = 100  # subscriptions per check, in turn
Name = tuple[str, str]  # group, topic


class Stall(NamedTuple):
    """The stalled queues of one subscription, the longest for `seconds`.

    `held_up_by`: topics of its group whose messages no client pulls.
    """

    topic: str
    queue_ids: tuple[int, ...]
    seconds: float
    held_up_by: tuple[str, ...]


class ObservedProgress(NamedTuple):
    """The progress of a queue, and since when it has not changed (monotonic seconds)."""

    committed: int
    ack_span: int
    since: float


class WatchedSubscription:
    """The observed progress of one subscription."""

    def __init__(self) -> None:
        self.waited_at = float("-inf")
        self.checked_at = float("-inf")
        self.lag = False
        self.queues: dict[int, ObservedProgress] = {}
        self.logged: set[int] = set()  # the queues whose stall was logged


class Stalled:
    """The check of all subscriptions of one proxy. Also a task of the timer queue."""

    def __init__(
        self,
        runtime: Runtime,
        subscriptions: Callable[[], Iterable[Subscription]],
        fetched: Callable[[str, str], Collection[QueueRef]],
    ) -> None:
        self._runtime = runtime
        self._subscriptions = subscriptions
        self._fetched = fetched
        self._watched: dict[Name, WatchedSubscription] = {}
        self.wake_at = NEVER

    def start(self) -> None:
        """Schedule the next check for stalled queues."""
        self._runtime.timers.set(self, self._runtime.now() + CHECK_INTERVAL_S)

    def due(self, now: float) -> None:
        """Check the subscriptions for which clients wait; results are applied as the backend returns them."""
        self.start()
        here = {(each.group.name, each.topic): each for each in self._subscriptions()}
        for name in self._watched.keys() - here.keys():
            self._runtime.metrics.cell(catalogue.STALLED_QUEUES, *name).value = 0
            del self._watched[name]
        for name, each in here.items():
            if is_waited_for(each):
                self._watched.setdefault(name, WatchedSubscription()).waited_at = now
        groups = {name[0] for name, watch in self._watched.items() if watch.waited_at + WAITED_S >= now}
        names = []
        for name, each in here.items():
            watch = self._watched.setdefault(name, WatchedSubscription())
            together = each.group_wide and name[0] in groups
            if together or watch.waited_at + WAITED_S >= now:
                names.append((watch.checked_at, name))
            elif watch.queues:
                watch.queues = {}
                self._log_changes(here[name], watch, now)
        for _, name in sorted(names)[:CHECKS_MAX]:
            self._watched[name].checked_at = now
            self._check(here[name])

    def stalls_of(self, group: str, subscriptions: Iterable[Subscription]) -> list[Stall]:
        """Return the stalled queues of a group, as of the last check."""
        now, stalls = self._runtime.now(), []
        for each in subscriptions:
            watch = self._watched.get((group, each.topic))
            since = {} if watch is None else self._stalled_queues(watch, now)
            if since:
                longest = now - min(since.values())
                stalls.append(Stall(each.topic, tuple(sorted(since)), longest, self._unpulled_topics(each)))
        return stalls

    def _check(self, subscription: Subscription) -> None:
        """Request the progress of the subscription, and the owners of the queues that this proxy does not
        own."""
        runtime, name = self._runtime, (subscription.group.name, subscription.topic)

        def on_counted(counted: Completion[SubscriptionStats]) -> None:
            if counted.error is not None:
                return  # the last result stays valid until the next check
            if all(row.held or not row.lag for row in counted.value.queues):
                self._judge_subscription(subscription, counted.value, {})
                return
            try:
                lookup = runtime.backend.holders(*name, runtime.now() + STALLED_S)
            except DdmqError:
                return
            lookup.then(lambda holders: on_holders(counted.value, holders))

        def on_holders(counted: SubscriptionStats, holders: Completion[Mapping[QueueRef, str]]) -> None:
            if holders.error is None:
                by_id = {queue.queue_id: address for queue, address in holders.value.items()}
                self._judge_subscription(subscription, counted, by_id)

        subscription_stats(runtime, subscription).then(on_counted)

    def _judge_subscription(
        self, subscription: Subscription, stats: SubscriptionStats, holders: Mapping[int, str]
    ) -> None:
        name, now = (stats.group, stats.topic), self._runtime.now()
        watch = self._watched.get(name)
        if watch is None:
            return
        watch.lag = stats.lag > 0
        before, watch.queues = watch.queues, {}
        if watch.waited_at + WAITED_S >= now:
            for row in stats.queues:
                if row.lag and not self._is_explained(subscription, row, holders.get(row.queue_id)):
                    progress = ObservedProgress(row.committed, row.ack_span, now)
                    last = before.get(row.queue_id, progress)
                    watch.queues[row.queue_id] = last if last[:2] == progress[:2] else progress
        self._log_changes(subscription, watch, now)

    def _is_explained(self, subscription: Subscription, row: QueueStats, holder: str | None) -> bool:
        """Whether a queue makes no progress for an intended reason."""
        runtime, group = self._runtime, subscription.group
        sharing = group.sharing_members() if subscription.group_wide else ()
        if subscription.paused_ms or any(each.paused_ms for each in sharing):
            return True
        info = runtime.backend.topic(subscription.topic)
        if info is None:
            return True
        queue = QueueRef(info.name, info.incarnation, row.queue_id)
        state = subscription.buffer.queues.get(queue)
        if state is None:
            fetched = queue in self._fetched(group.name, subscription.topic)
            return fetched or holder not in (None, runtime.address)
        config, budget = subscription.config, subscription.buffer.budget
        if budget.leased >= config.concurrency or budget.retrying >= config.retrying_max:
            return True
        if subscription.order.open_at > runtime.now() or _is_busy(state):
            return True
        scope = subscription.buffer.scope_of(state)
        if scope is None or self._unpulled_topics(subscription):
            return False
        return bool(group.shared.parked) or any(map(_is_busy, scope.queues.values()))

    def _unpulled_topics(self, subscription: Subscription) -> tuple[str, ...]:
        """Return the topics that share the subscription's chains and have messages, but no client that
        pulls."""
        if not subscription.group_wide:
            return ()
        group, now = subscription.group, self._runtime.now()
        topics = []
        for each in group.sharing_members():
            watch = self._watched.get((group.name, each.topic))
            if watch is not None and watch.lag and watch.waited_at + WAITED_S < now:
                topics.append(each.topic)
        return tuple(sorted(topics))

    @staticmethod
    def _stalled_queues(watch: WatchedSubscription, now: float) -> dict[int, float]:
        """Return the queues that have stood still for long enough, with the time since when."""
        return {
            number: progress.since
            for number, progress in watch.queues.items()
            if progress.since + STALLED_S <= now
        }

    def _log_changes(self, subscription: Subscription, watch: WatchedSubscription, now: float) -> None:
        name, since = (subscription.group.name, subscription.topic), self._stalled_queues(watch, now)
        self._runtime.metrics.cell(catalogue.STALLED_QUEUES, *name).value = len(since)
        facts = {"group": name[0], "topic": name[1], "queues": sorted(since or watch.logged)}
        if since.keys() - watch.logged:
            why = {
                "seconds": int(now - min(since.values())),
                "held_up_by": list(self._unpulled_topics(subscription)),
            }
            log.warning("queues stand still though clients wait for their messages", extra=facts | why)
        elif watch.logged and not since:
            log.info("queues no longer stand still", extra=facts)
        watch.logged = set(since)


def is_waited_for(subscription: Subscription) -> bool:
    """Whether a client, or the subscription's push runner, would accept a message now."""
    group = subscription.group
    if subscription.creating or subscription.config.model == "broadcasting":
        return False
    if subscription.paused_ms or not subscription.readable:
        return False
    if subscription.pushed:
        pusher = group.pusher_of(subscription.topic)
        return pusher is not None and pusher.count > 0
    return group.waiting.waiting_for(subscription.topic) > 0


def _is_busy(state: SubscribedQueue) -> bool:
    """Whether messages of the queue are leased or wait for their retry."""
    return bool(state.leases.jobs or state.table.retrying)
