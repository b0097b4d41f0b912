"""The lag of subscriptions that no proxy holds, as the leading process tells it.

Nobody pulls from them, so nothing of theirs is in memory: who holds what, progress and bounds are asked of
the backend, every REFRESH_S and for at most CHECKS_MAX subscriptions per look, in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from backend.completion import Completion
from backend.records import QueueRef
from ddmq_common.errors import DdmqError
from proxy_consumer.groups.stats import SubscriptionStats, subscription_stats
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Subscription

REFRESH_S = 5.0
CHECKS_MAX = 100
Name = tuple[str, str]  # group, topic
Row = tuple[QueueRef, int, int]  # queue, committed offset, next offset


class Known(NamedTuple):
    """What was found at a moment; `rows` empty: some proxy holds the subscription, or it has no lag."""

    at: float  # monotonic seconds
    rows: list[Row]


class Unheld:
    """What is known of subscriptions that this proxy does not hold."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[Name, Known] = {}

    def look(self, others: Iterable[Subscription]) -> Mapping[Name, list[Row]]:
        """The queues of those among `others` that no proxy holds; {} where this process does not lead."""
        if not self._runtime.backend.leads():
            self._known.clear()
            return {}
        now = self._runtime.now()
        names = {
            (each.group.name, each.topic): each
            for each in others
            if each.topic_exists
            and each.config.model != "broadcasting"  # the place of those is their clients'
        }
        self._known = {name: self._known.get(name, Known(float("-inf"), [])) for name in names}
        stale = sorted((known.at, name) for name, known in self._known.items() if known.at + REFRESH_S <= now)
        for _, name in stale[:CHECKS_MAX]:
            self._check(name, names[name], now)
        return {name: known.rows for name, known in self._known.items() if known.rows}

    def _check(self, name: Name, subscription: Subscription, now: float) -> None:
        self._known[name] = self._known[name]._replace(at=now)
        deadline = now + REFRESH_S

        def told(holders: Completion[Mapping[QueueRef, str]]) -> None:
            if holders.error is not None:
                return
            if holders.value:
                self._note(name, [])
            else:
                subscription_stats(self._runtime, subscription).then(counted)

        def counted(found: Completion[SubscriptionStats]) -> None:
            if found.error is None:
                self._note(name, _rows(subscription, found.value, self._runtime))

        try:
            self._runtime.backend.holders(name[0], name[1], deadline).then(told)
        except DdmqError:
            self._note(name, [])

    def _note(self, name: Name, rows: list[Row]) -> None:
        known = self._known.get(name)
        if known is not None:
            self._known[name] = known._replace(rows=rows)


def _rows(subscription: Subscription, found: SubscriptionStats, runtime: Runtime) -> list[Row]:
    info = runtime.backend.topic(subscription.topic)
    if info is None:
        return []
    return [
        (QueueRef(info.name, info.incarnation, row.queue_id), row.committed, row.next)
        for row in found.queues
        if row.lag
    ]
