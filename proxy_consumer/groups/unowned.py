"""The lag of subscriptions that no proxy owns, reported by one proxy for all.

No client pulls from them, so that no proxy has their state in memory: the backend is asked for owners,
progress and bounds, every REFRESH_S and for at most CHECKS_MAX subscriptions per refresh, in turn; results
are reported as they arrive. The reporting proxy is chosen like any exclusive role: it owns a queue, in this
case one of an inner topic that always exists, in a group of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from backend.completion import Completion
from backend.ownership.claims import ClaimOwner, QueueClaims
from backend.port import Join
from backend.records import QueueRef
from ddmq_common.errors import DdmqError
from ddmq_common.names import LAG_GROUP, SCHEDULE_TOPIC
from proxy_consumer.groups.stats import SubscriptionStats, subscription_stats
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.subscription import Subscription

REFRESH_S = 5.0
CHECKS_MAX = 100
Name = tuple[str, str]  # group, topic


class UnownedQueue(NamedTuple):
    """One queue with a lag: all offsets below `committed` are finished, the next message gets offset
    `next`."""

    queue: QueueRef
    committed: int
    next: int


class RecordedLag(NamedTuple):
    """The lag of a subscription at a moment. `rows` empty: some proxy owns it, or it has no lag; None: not
    known yet."""

    at: float  # monotonic seconds
    rows: list[UnownedQueue] | None


class Unowned(ClaimOwner):
    """The lag of subscriptions that no proxy owns, reported by one proxy.

    `report(subscription, rows)` is called with each result.
    """

    def __init__(self, runtime: Runtime, report: Callable[[Subscription, list[UnownedQueue]], None]) -> None:
        self._runtime = runtime
        self._report = report
        self._claims = QueueClaims(runtime.backend, self, runtime.now, load=False)
        self._left = False
        self._lags: dict[Name, RecordedLag] = {}

    def leave(self) -> None:
        """Leave the report to another proxy permanently."""
        self._left = True
        self._claims.leave()

    @property
    def is_reporter(self) -> bool:
        """Whether this proxy is the one that reports subscriptions that no proxy owns."""
        return bool(self._claims.owned_queues)

    def on_failed(self, doing: str, error: Exception) -> None:
        log.warning(
            "lags of subscriptions without an owner are not reported yet", extra={"error": str(error)}
        )

    def find_unowned(self, others: Iterable[Subscription]) -> Mapping[Name, list[UnownedQueue] | None]:
        """Return the lagging queues of those among `others` that no proxy owns; None: not known yet.

        Returns {} if another proxy reports them.
        """
        if not self._left and self._runtime.backend.topic(SCHEDULE_TOPIC) is not None:
            address = self._runtime.address
            self._claims.join(Join(LAG_GROUP, SCHEDULE_TOPIC, queues=frozenset({0}), address=address))
        if not self.is_reporter:
            self._lags.clear()
            return {}
        now = self._runtime.now()
        names = {
            (each.group.name, each.topic): each
            for each in others
            if self._runtime.backend.topic(each.topic) is not None
            and each.config.model != "broadcasting"  # their clients keep the offsets
        }
        self._lags = {name: self._lags.get(name, RecordedLag(float("-inf"), None)) for name in names}
        stale = sorted((lag.at, name) for name, lag in self._lags.items() if lag.at + REFRESH_S <= now)
        for _, name in stale[:CHECKS_MAX]:
            self._check(name, names[name], now)
        return {name: lag.rows for name, lag in self._lags.items()}

    def _check(self, name: Name, subscription: Subscription, now: float) -> None:
        self._lags[name] = self._lags[name]._replace(at=now)
        deadline = now + REFRESH_S

        def on_holders(holders: Completion[Mapping[QueueRef, str]]) -> None:
            if holders.error is not None:
                return
            if holders.value:
                self._record_rows(name, subscription, [])
            else:
                subscription_stats(self._runtime, subscription).then(on_counted)

        def on_counted(counted: Completion[SubscriptionStats]) -> None:
            if counted.error is None:
                self._record_rows(
                    name, subscription, _behind_rows(subscription, counted.value, self._runtime)
                )

        try:
            self._runtime.backend.holders(name[0], name[1], deadline).then(on_holders)
        except DdmqError:
            self._record_rows(name, subscription, [])

    def _record_rows(self, name: Name, subscription: Subscription, rows: list[UnownedQueue]) -> None:
        lag = self._lags.get(name)
        if lag is not None:
            self._lags[name] = lag._replace(rows=rows)
            self._report(subscription, rows)


def _behind_rows(
    subscription: Subscription, stats: SubscriptionStats, runtime: Runtime
) -> list[UnownedQueue]:
    info = runtime.backend.topic(subscription.topic)
    if info is None:
        return []
    return [
        UnownedQueue(QueueRef(info.name, info.incarnation, row.queue_id), row.committed, row.next)
        for row in stats.queues
        if row.lag
    ]
