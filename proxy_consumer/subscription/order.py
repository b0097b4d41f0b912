"""The order of a subscription: the scopes of its queues, when they may deliver, and the chains that it
shares.

Subscriptions whose chains cover the whole group share one scope, so nothing of it is delivered before the
queues of all of them are loaded (subscription.py). When one of them reloads its queues, all do.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backend.port import Sharing
from backend.records import QueueRef
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.order.chains import ChainTable, KeyReader
from proxy_consumer.core.order.scope import OrderScope
from proxy_consumer.order_keys.reader import QID, key_reader
from proxy_consumer.runtime import Runtime


class SharedOrder:
    """The order by key that holds over all subscriptions of one group.

    `scope`: the scope of the chains that cover the group.
    """

    __slots__ = ("parked", "scope", "used_at")

    def __init__(self) -> None:
        self.scope: OrderScope | None = None
        self.used_at = 0.0  # monotonic seconds of the last pull from any of the topics of `scope`
        self.parked: frozenset[str] = frozenset()  # the parked keys


def sharing_of(config: SubscriptionDefaults) -> Sharing:
    """Return how the queues of a subscription are divided among proxies."""
    if config.scope == "group":
        return Sharing.WHOLE_GROUP
    return Sharing.WHOLE_TOPIC if config.scope == "topic" else Sharing(config.assignment)


def same_order(one: SubscriptionDefaults, other: SubscriptionDefaults) -> bool:
    """Whether two settings have the same chains, parking and division of queues, so that no reload is
    needed."""
    chains = one.order_key == other.order_key and one.scope == other.scope
    chains = chains and one.on_dead_letter == other.on_dead_letter
    return chains and sharing_of(one) == sharing_of(other)


class SubscriptionOrder:
    """The order by key of one subscription: the scopes of queues within which it holds."""

    def __init__(self, runtime: Runtime, shared: SharedOrder, config: SubscriptionDefaults) -> None:
        self._runtime = runtime
        self._shared = shared
        self._own: OrderScope | None = None
        self.config = config
        self.open_at = 0.0  # monotonic seconds; until then the leases of a dead proxy may be current
        self.lost_until = 0.0  # monotonic seconds; until then a lost queue may come back
        self.held_until = 0.0  # monotonic seconds; until then an operator needs the queues

    def scope_of(self, queue: QueueRef) -> tuple[OrderScope, KeyReader] | None:
        """Return the scope of a queue and the reader of its keys; None without an order key."""
        config = self.config
        if not config.scope:
            return None
        if config.order_key == QID:
            key = msgspec.json.encode(f"{queue.topic}/{self._runtime.qid(queue)}").decode()
            return self._build_scope(single=True), lambda _: key
        reader = key_reader(config.order_key)
        if config.scope == "queue":
            return self._build_scope(), reader
        if config.scope == "group":
            if self._shared.scope is None:
                self._shared.scope = self._build_scope()
            return self._shared.scope, reader
        if self._own is None:
            self._own = self._build_scope()
        return self._own, reader

    def _build_scope(self, *, single: bool = False) -> OrderScope:
        merged = self._runtime.backend.capabilities.topic_order
        scope = OrderScope(ChainTable(self.config.chain_batch), merged=merged, single=single)
        scope.open = False
        scope.ledger.parked_keys = self._shared.parked
        return scope

    def drop_scope(self) -> None:
        """Forget the scope, because the subscription has released its queues."""
        self._own = None

    def must_reload(self, scope: OrderScope) -> bool:
        """Whether an invalid scope must be reloaded now: its lost queue is back, or need not be waited for
        any more."""
        return scope.invalid and (scope.returned or self._runtime.now() >= self.lost_until)

    def open_scopes(self, scopes: Iterable[OrderScope], *, ready: bool) -> bool:
        """Open or close these scopes by `ready`; return True, and change nothing more, if one must be
        reloaded."""
        for scope in scopes:
            if self.must_reload(scope):
                return True
            set_open(scope, ready)
        return False


def set_open(scope: OrderScope, is_open: bool) -> None:
    """Open or close a scope; an invalid one stays closed."""
    is_open = is_open and not scope.invalid
    if scope.open != is_open:
        scope.set_open(is_open)
