"""Tells whether a subscription with lag is being consumed."""

from __future__ import annotations

from backend.port import Backend
from ddmq.server.admin.topics import WAIT_S
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from proxy_consumer.groups.stats import SubscriptionStats
from proxy_consumer.service import ConsumerService


def is_consumed(
    backend: Backend, consumer: ConsumerService, clock: Clock, stats: SubscriptionStats
) -> bool | None:
    """Return whether some client consumes a subscription; None if that is not known.

    False means: no client at this proxy pulls or fetches the topic for the group, no message is in flight or
    pushed, and no other proxy owns one of its queues.
    """
    if stats.in_flight or stats.waiters or consumer.is_used(stats.group, stats.topic):
        return True
    if not stats.lag:
        return None
    try:
        owners = backend.holders(stats.group, stats.topic, clock.monotonic() + WAIT_S)
        owned = {queue.queue_id for queue in owners.wait(WAIT_S + 1)}
    except (DdmqError, TimeoutError):
        return None
    own = {queue.queue_id for queue in stats.queues if queue.held}
    return None if owned - own else False
