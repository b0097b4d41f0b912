"""Tells whether a subscription with lag is being consumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backend.completion import Completion
from backend.port import Backend
from backend.records import QueueRef
from ddmq.server.admin.topics import WAIT_S
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from proxy_consumer.groups.stats import SubscriptionStats
from proxy_consumer.service import ConsumerService

Owners = Mapping[int, str]
OwnersLookup = Completion[Mapping[QueueRef, str]]


def start_owners_lookup(backend: Backend, clock: Clock, group: str, topic: str) -> OwnersLookup | None:
    """Ask the engine which proxies own the queues of a topic for the group; None if it cannot be asked."""
    try:
        return backend.holders(group, topic, clock.monotonic() + WAIT_S)
    except DdmqError:
        return None


def read_owners(lookup: OwnersLookup | None) -> Owners | None:
    """Wait for a lookup, and return the proxy that owns each queue; None while the engine cannot say."""
    try:
        owners = None if lookup is None else lookup.wait(WAIT_S + 1)
    except (DdmqError, TimeoutError):
        return None
    return None if owners is None else {queue.queue_id: address for queue, address in owners.items()}


def find_owners(backend: Backend, clock: Clock, group: str, topic: str) -> Owners | None:
    """Return the proxy that owns each queue of a topic for the group; None while the engine cannot say."""
    return read_owners(start_owners_lookup(backend, clock, group, topic))


def is_consumed(
    consumer: ConsumerService, stats: SubscriptionStats, find_owners: Callable[[], Owners | None]
) -> bool | None:
    """Return whether some client consumes a subscription; None if that is not known, or if it is paused.

    False means: no client at this proxy pulls or fetches the topic for the group, no message is in flight or
    pushed, and no other proxy owns one of its queues.
    """
    if stats.paused_ms:
        return None
    if stats.in_flight or stats.waiters or consumer.is_used(stats.group, stats.topic):
        return True
    if not stats.lag:
        return None
    owners = find_owners()
    if owners is None:
        return None
    own = {queue.queue_id for queue in stats.queues if queue.held}
    return None if owners.keys() - own else False


def is_held_elsewhere(
    stats: SubscriptionStats, own_address: str, find_owners: Callable[[], Owners | None]
) -> bool | None:
    """Return whether other proxies own all queues that have unfinished messages; None if that is not
    known."""
    behind = [queue for queue in stats.queues if queue.unfinished]
    if not behind or any(queue.held for queue in behind):
        return False
    owners = find_owners()
    if owners is None:
        return None
    return all(owners.get(queue.queue_id) not in (None, own_address) for queue in behind)
