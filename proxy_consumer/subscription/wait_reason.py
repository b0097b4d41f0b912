"""Finds what holds up the deliveries of a subscription, for its trace (docs/story.md)."""

from __future__ import annotations

from typing import Protocol

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.membership import SubscriptionMembership
from proxy_consumer.tracing import waits


class TracedSubscription(Protocol):
    """The state of a subscription that decides whether it delivers (subscription.py)."""

    runtime: Runtime
    config: SubscriptionDefaults
    buffer: PullBuffer
    membership: SubscriptionMembership
    paused_ms: int
    halted: int
    readable: bool

    @property
    def joined(self) -> bool: ...


def find_wait_reason(subscription: TracedSubscription, waiting: int) -> str:
    """Return the reason that holds up deliveries now (tracing/waits.py). `waiting`: pulls that wait for
    messages."""
    if subscription.paused_ms:
        return waits.PAUSED
    if subscription.halted:
        return waits.RELOAD
    if not subscription.readable:
        return waits.CLOSED
    if not subscription.joined:
        return waits.NO_PULL
    if not subscription.membership.claims.complete:
        return waits.BETWEEN
    config, budget = subscription.config, subscription.buffer.budget
    if budget.leased >= config.concurrency or (config.pushed and not waiting):
        return waits.CONCURRENCY
    if budget.leased_bytes >= config.in_flight_bytes_max:
        return waits.BYTES
    if budget.retrying >= config.retrying_max:
        return waits.RETRYING
    if subscription.runtime.now() < subscription.buffer.rate_allows_at < NEVER:
        return waits.RATE
    return waits.CLIENT_WAITS if waiting else waits.NO_PULL
