"""The limits on groups and subscriptions, which an engine keeps for all proxies together."""

from __future__ import annotations

from collections.abc import Mapping

from backend.records import SettingsLimit
from ddmq_common.errors import BoundReachedError
from proxy_consumer.config import ConsumerConfig
from proxy_consumer.groups.group import GROUP_PREFIX, SUBSCRIPTION_PREFIX
from proxy_consumer.subscription.subscription import Group


def check_limits(config: ConsumerConfig, groups: Mapping[bytes, Group], name: str) -> None:
    """Raise BoundReachedError where one more subscription of the group is too many, by what is known here."""
    group = groups.get(name.encode())
    if group is None and len(groups) >= config.groups_max:
        raise BoundReachedError(f"there are {len(groups)} groups; groups_max is {config.groups_max}")
    if group is not None and len(group.subscriptions) >= config.subscriptions_per_group_max:
        raise BoundReachedError(
            f"group {name} has {len(group.subscriptions)} subscriptions; "
            f"subscriptions_per_group_max is {config.subscriptions_per_group_max}"
        )
    count = sum(len(each.subscriptions) for each in groups.values())
    if count >= config.subscriptions_max:
        raise BoundReachedError(
            f"there are {count} subscriptions; subscriptions_max is {config.subscriptions_max}"
        )


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
