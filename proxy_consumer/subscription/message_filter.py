"""What a subscription delivers: its filter first, then the actions in front of a pull."""

from __future__ import annotations

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.queue_feed import Filter, Refusal
from proxy_consumer.filters.message_filters import filter_for
from proxy_consumer.push.chain import filter_for_actions

_NAMES = ("tags", "sql", "actions", "push")


def filter_of(config: SubscriptionDefaults) -> Filter | None:
    """Everything that may keep a message from being delivered; None: nothing does."""
    wanted = filter_for(config.tags, config.sql)
    actions = filter_for_actions(config.actions, config.push)
    if wanted is None or actions is None:
        return wanted or actions
    return _Both(wanted, actions)


def same_filter(one: SubscriptionDefaults, other: SubscriptionDefaults) -> bool:
    """Whether two settings let the same messages through."""
    return all(getattr(one, name) == getattr(other, name) for name in _NAMES)


class _Both:
    __slots__ = ("_first", "_second", "tags")

    def __init__(self, first: Filter, second: Filter) -> None:
        self._first = first
        self._second = second
        self.tags = first.tags

    def judge(self, delivery: bytes) -> Refusal | None:
        return self._first.judge(delivery) or self._second.judge(delivery)
