"""Loads the keys of a group for an operator, also while no client pulls.

A group that no client pulls from has no keys in memory: this proxy has released its queues. So a request for
its keys acquires the queues as a pull does, reads them ahead without a delivery, and waits for at most
LOAD_S. Queues of a topic that another proxy owns are left alone: that proxy knows their keys. The queues are
released HOLD_S later, unless clients pull.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend.completion import Completion, failed, when_all
from backend.records import QueueRef
from ddmq_common.errors import DdmqError, TryLaterError
from proxy_consumer.core.order.scope import EndsRequest, OrderScope
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.reading import SOON_S
from proxy_consumer.subscription.subscription import Group, Subscription

LOAD_S = 3.0
HOLD_S = 10.0  # how long queues are kept that were acquired for an operator
READY_MAX = 1_000  # messages of a scope that are read ahead, besides those that wait in their chains
READY_BYTES_MAX = 16 << 20
READS_MAX = 32  # reads completed at once; then other work gets a turn
POLL_INTERVAL_S = 0.1
Owners = Mapping[QueueRef, str]


class KeyLoading:
    """One request for the keys of a group. `done`: succeeds when they are known, and fails with TryLaterError
    if they are not within LOAD_S. Also a task of the timer queue."""

    def __init__(self, runtime: Runtime, group: Group) -> None:
        self.done: Completion[None] = Completion()
        self.wake_at = NEVER
        self._runtime = runtime
        self._group = group
        self._until = runtime.now() + LOAD_S
        self._acquired: list[Subscription] = []
        self._foreign: list[Subscription] = []  # other proxies own all queues of the topic
        self._requested_scopes: set[OrderScope] = set()  # whose queues' ends were requested
        self._checking = False

    def start(self, *, acquire: bool, hold: bool) -> None:
        """Start to load. `acquire`: acquire queues that no proxy owns. `hold`: keep the queues of this proxy
        for HOLD_S, because the request changes a key."""
        subscriptions = self._list_ordered()
        idle = [each for each in subscriptions if not each.joined and acquire and not each.pushed]
        owners = {each: self._find_owners(each.topic) for each in subscriptions}

        def on_owners() -> None:
            error = next((error for each in idle if (error := owners[each].error) is not None), None)
            if error is not None:
                self._fail(f"it is not known which proxy owns its queues ({error})")
                return
            now = self._runtime.now()
            foreign = {each: self._list_foreign(each, owners[each]) for each in subscriptions}
            self._foreign = [
                each for each, queues in foreign.items() if queues and len(queues) == len(owners[each].value)
            ]
            shared_is_owned = any(each.group_wide and foreign[each] for each in idle)
            self._acquired = [
                each for each in idle if not foreign[each] and not (each.group_wide and shared_is_owned)
            ]  # other proxies own no queue of their topics, nor of a topic that shares their chains
            owned = [each for each in subscriptions if each.joined and each not in self._foreign]
            for each in self._acquired + (owned if hold else []):
                _join(each, now)
            self._group.waiting.observers.append(self._check)
            self._check()

        when_all(list(owners.values()), on_owners)

    def due(self, now: float) -> None:
        """Check whether the keys are loaded; called by the timer queue."""
        self._check()

    def _list_ordered(self) -> list[Subscription]:
        """Return the subscriptions that have an order key and can be pulled from."""
        return [
            each
            for each in self._group.subscriptions.values()
            if each.config.order_key and each.readable and not each.creating
            if self._runtime.backend.topic(each.topic) is not None
        ]

    def _find_owners(self, topic: str) -> Completion[Owners]:
        try:
            return self._runtime.backend.holders(self._group.name, topic, self._until)
        except DdmqError as error:
            return failed(error)

    def _list_foreign(self, subscription: Subscription, owners: Completion[Owners]) -> list[QueueRef]:
        """Return the queues of the topic that other proxies are known to own."""
        if owners.error is not None:
            return []
        own, address = subscription.buffer.queues, self._runtime.address
        return [ref for ref, at in owners.value.items() if ref not in own and (not at or at != address)]

    def _check(self) -> None:
        """Read on; end the request if everything is read, or if its time is over."""
        if self._checking or self.done.done:
            return
        self._checking = True
        now = self._runtime.now()
        complete = [self._read(each, now) for each in self._list_ordered()]  # all of them, not only the first
        self._checking = False
        if all(complete):
            self._end()
            self.done.succeed(None)
        elif now >= self._until or self._runtime.stopping:
            self._end()
            self._fail(f"its queues were not loaded at this proxy within {LOAD_S:g} s")
        else:
            self._runtime.timers.set(self, now + POLL_INTERVAL_S)

    def _read(self, subscription: Subscription, now: float) -> bool:
        """Read a subscription ahead if it is joined; return whether that is complete."""
        if subscription in self._foreign:
            return True
        if not subscription.joined and subscription in self._acquired:
            _join(subscription, now)  # the first attempt failed
            return False
        if not subscription.joined:
            return True
        self._request_ends(subscription)
        return _read_ahead(subscription, now)

    def _request_ends(self, subscription: Subscription) -> None:
        """Request the ends of the queues, once; messages stored before may not have been announced yet."""
        if subscription.halted or not subscription.membership.claims.complete:
            return
        for scope in subscription.buffer.ordered_scopes():
            if scope.open and scope not in self._requested_scopes:
                self._requested_scopes.add(scope)
                request = scope.request_ends()
                if request is not None:
                    subscription.reading.request_ends(request)

    def _end(self) -> None:
        self._group.waiting.observers.remove(self._check)

    def _fail(self, reason: str) -> None:
        self.done.fail(
            TryLaterError(f"the keys of group {self._group.name} are not known: {reason}; try again")
        )


def _join(subscription: Subscription, now: float) -> None:
    """Join the group as for a pull, and stay joined for HOLD_S."""
    for each in subscription.group.sharing_members() if subscription.group_wide else [subscription]:
        each.order.held_until = now + HOLD_S
        if not each.joined and not each.creating:
            each.join()
        each.wake(each.order.held_until)


def _read_ahead(subscription: Subscription, now: float) -> bool:
    """Read the ordered queues of a joined subscription without a delivery, to find the heads of their keys.

    Returns whether that is complete; if not, the group's observers are called when there is news.
    """
    buffer, claims = subscription.buffer, subscription.membership.claims
    if subscription.halted or claims.loading:
        return False
    if not (claims.complete and all(scope.open for scope in buffer.ordered_scopes())):
        return now >= subscription.order.held_until  # another proxy may own the queues
    for _ in range(READS_MAX):
        step = buffer.next_read(READY_MAX, READY_BYTES_MAX)
        if step is None:
            break
        if isinstance(step, EndsRequest):
            subscription.reading.request_ends(step)
        else:
            subscription.group.subscription_of(step.queue).reading.read(step)
    else:
        subscription.wake(now + SOON_S)
        return False
    if buffer.stopped_early:
        subscription.wake(now + SOON_S)
    return not any(scope.is_reading for scope in buffer.ordered_scopes())
