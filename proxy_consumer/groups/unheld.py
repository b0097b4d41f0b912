"""The lag of subscriptions that no proxy holds, as one proxy tells it for all.

Nobody pulls from them, so nothing of theirs is in memory: who holds what, progress and bounds are asked of
the backend, every REFRESH_S and for at most CHECKS_MAX subscriptions per look, in turn; the answers are told
as they come. Which proxy does it is settled as everything is that only one may do: it holds a queue, here one
of an inner topic that is always there, in a group of its own.
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


class Behind(NamedTuple):
    """One queue with a lag: all below `committed` is finished, the next message lands at `next`."""

    queue: QueueRef
    committed: int
    next: int


class KnownLag(NamedTuple):
    """The lag found at a moment. `rows` empty: some proxy holds the subscription, or it has
    no lag; None: nothing was found yet."""

    at: float  # monotonic seconds
    rows: list[Behind] | None


class Unheld(ClaimOwner):
    """The lag of subscriptions that no proxy holds, reported by one proxy. `told(subscription, rows)` follows
    whenever something was found."""

    def __init__(self, runtime: Runtime, told: Callable[[Subscription, list[Behind]], None]) -> None:
        self._runtime = runtime
        self._told = told
        self._claims = QueueClaims(runtime.backend, self, runtime.now, load=False)
        self._left = False
        self._known: dict[Name, KnownLag] = {}

    def leave(self) -> None:
        """Leave it to another proxy, for good."""
        self._left = True
        self._claims.leave()

    @property
    def is_reporter(self) -> bool:
        """Whether this is the proxy that tells of what nobody holds."""
        return bool(self._claims.held)

    def trouble(self, doing: str, error: Exception) -> None:
        log.warning("lags that no proxy holds are not told yet", extra={"error": str(error)})

    def find_unheld(self, others: Iterable[Subscription]) -> Mapping[Name, list[Behind] | None]:
        """The queues of those among `others` that no proxy holds, as far as it is known, None: not yet; {}
        where another proxy tells of them."""
        if not self._left and self._runtime.backend.topic(SCHEDULE_TOPIC) is not None:
            address = self._runtime.address
            self._claims.join(Join(LAG_GROUP, SCHEDULE_TOPIC, queues=frozenset({0}), address=address))
        if not self.is_reporter:
            self._known.clear()
            return {}
        now = self._runtime.now()
        names = {
            (each.group.name, each.topic): each
            for each in others
            if self._runtime.backend.topic(each.topic) is not None
            and each.config.model != "broadcasting"  # the place of those is their clients'
        }
        self._known = {name: self._known.get(name, KnownLag(float("-inf"), None)) for name in names}
        stale = sorted((lag.at, name) for name, lag in self._known.items() if lag.at + REFRESH_S <= now)
        for _, name in stale[:CHECKS_MAX]:
            self._check(name, names[name], now)
        return {name: lag.rows for name, lag in self._known.items()}

    def _check(self, name: Name, subscription: Subscription, now: float) -> None:
        self._known[name] = self._known[name]._replace(at=now)
        deadline = now + REFRESH_S

        def on_holders(holders: Completion[Mapping[QueueRef, str]]) -> None:
            if holders.error is not None:
                return
            if holders.value:
                self._note_rows(name, subscription, [])
            else:
                subscription_stats(self._runtime, subscription).then(on_counted)

        def on_counted(found: Completion[SubscriptionStats]) -> None:
            if found.error is None:
                self._note_rows(name, subscription, _behind_rows(subscription, found.value, self._runtime))

        try:
            self._runtime.backend.holders(name[0], name[1], deadline).then(on_holders)
        except DdmqError:
            self._note_rows(name, subscription, [])

    def _note_rows(self, name: Name, subscription: Subscription, rows: list[Behind]) -> None:
        lag = self._known.get(name)
        if lag is not None:
            self._known[name] = lag._replace(rows=rows)
            self._told(subscription, rows)


def _behind_rows(subscription: Subscription, found: SubscriptionStats, runtime: Runtime) -> list[Behind]:
    info = runtime.backend.topic(subscription.topic)
    if info is None:
        return []
    return [
        Behind(QueueRef(info.name, info.incarnation, row.queue_id), row.committed, row.next)
        for row in found.queues
        if row.lag
    ]
