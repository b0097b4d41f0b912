"""Settings under the names of other systems: the error says what to set instead. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddmq_client.admin.settings import GroupSettings, TopicSettings
from ddmq_client.application.arguments import explain_foreign_name
from ddmq_client.errors import OptionError

SETTINGS_PAGE = "docs/configuration.md"


def check_setting_names(settings: Mapping[str, Any], *, of_topic: bool) -> None:
    """Raise OptionError for a setting that has another name in ddmq, or another place.

    The server judges all other names, because a newer server may have more settings.
    """
    names = list((TopicSettings if of_topic else GroupSettings).__annotations__)
    for name in settings.keys() - names:
        if explanation := explain_foreign_name(name, names, SETTINGS_PAGE):
            raise OptionError(f"a {'topic' if of_topic else 'group'} has no setting {name!r}; {explanation}")
