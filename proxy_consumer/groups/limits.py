"""The limits on groups and subscriptions, which an engine keeps for all proxies together."""

from __future__ import annotations

from backend.records import SettingsLimit
from proxy_consumer.config import ConsumerConfig
from proxy_consumer.groups.group import GROUP_PREFIX, SUBSCRIPTION_PREFIX


def build_limits(config: ConsumerConfig, group: str) -> tuple[SettingsLimit, ...]:
    """Return the limits of a commit that makes a subscription of `group`, and the group if need be."""
    groups, subscriptions = config.groups_max, config.subscriptions_max
    of_group = config.subscriptions_per_group_max
    return (
        SettingsLimit(GROUP_PREFIX, groups, f"there are {groups} groups; groups_max is {groups}"),
        SettingsLimit(
            f"{SUBSCRIPTION_PREFIX}{group}/",
            of_group,
            f"group {group} has {of_group} subscriptions; subscriptions_per_group_max is {of_group}",
        ),
        SettingsLimit(
            SUBSCRIPTION_PREFIX,
            subscriptions,
            f"there are {subscriptions} subscriptions; subscriptions_max is {subscriptions}",
        ),
    )
