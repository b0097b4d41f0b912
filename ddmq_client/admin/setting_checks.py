"""Check settings before they are sent: names of other systems, and order keys with two readings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddmq_client.admin.settings import GroupSettings, TopicSettings
from ddmq_client.application.arguments import explain_foreign_name
from ddmq_client.application.order_keys import unambiguous_order_keys
from ddmq_client.errors import OptionError

SETTINGS_PAGE = "docs/configuration.md"


def check_topic_settings(settings: Mapping[str, Any]) -> None:
    """Raise OptionError for a setting of a topic that has another name in ddmq, or another place."""
    _check_names("topic", settings, list(TopicSettings.__annotations__))


def check_group_settings(settings: Mapping[str, Any]) -> None:
    """Raise OptionError for a setting of a group that has another name in ddmq, or another place, and for KEY
    or QID in another case."""
    _check_names("group", settings, list(GroupSettings.__annotations__))
    order_key = settings.get("order_key")
    if allowed := unambiguous_order_keys(order_key):
        raise OptionError(f"order_key={order_key!r}; {allowed}")


def _check_names(kind: str, settings: Mapping[str, Any], names: list[str]) -> None:
    """Raise OptionError for another system's name.

    The server judges all other names, because a newer server may have more settings.
    """
    for name in settings.keys() - names:
        if explanation := explain_foreign_name(name, names, SETTINGS_PAGE):
            raise OptionError(f"a {kind} has no setting {name!r}; {explanation}")
