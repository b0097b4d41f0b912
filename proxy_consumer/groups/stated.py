"""Filters and scripts that may not be stated any more, though those in the settings go on.

A release may learn that an expression is a mistake, or costs more than the proxy can bear. What an earlier
release took keeps its meaning; whoever states it again is told.
"""

from __future__ import annotations

from ddmq_common.errors import CallerError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.filters.message_filters import check_stated as check_sql


def check_stated(config: SubscriptionDefaults, before: SubscriptionDefaults | None = None) -> None:
    """Raise CallerError for a filter or script that may not be stated; one that `before` had may stay."""
    if before is None or config.sql != before.sql:
        check_sql(config.sql)
    if config.actions and (before is None or _script_settings(config) != _script_settings(before)):
        _check_script(config)


def _script_settings(config: SubscriptionDefaults) -> tuple[object, ...]:
    return config.actions, config.push.script


def _check_script(config: SubscriptionDefaults) -> None:
    from proxy_consumer.push.chain import fault_before_pull  # CEL is loaded where actions are used

    fault = fault_before_pull(config.actions, config.push)
    if fault is not None:
        raise CallerError(fault)
