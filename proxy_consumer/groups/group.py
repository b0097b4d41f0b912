"""The settings that store consumer groups and their subscriptions.

Settings, the same at every proxy of one backend, JSON:

    group/NAME               {"created_ms": …, "source": "log" or the file that owns it}
    subscription/GROUP/TOPIC {"created_ms": …, "source": …, "settings": {what it sets itself}}, and
                             "paused_ms" while it is paused: since when
    parked/GROUP/DIGEST      an order key that is set aside, as its canonical text
    reset/GROUP/TOPIC        written together with a reset of offsets, so that connected proxies look again
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ddmq_common.config import ConfigLocation, build
from ddmq_common.errors import ConfigError
from ddmq_common.trace.events import WALL_MS_MAX
from proxy_consumer.config import SubscriptionDefaults

GROUP_PREFIX = "group/"
SUBSCRIPTION_PREFIX = "subscription/"
RESET_PREFIX = "reset/"
SOURCE_LOG = "log"


def group_key(group: str) -> str:
    return GROUP_PREFIX + group


def subscription_key(group: str, topic: str) -> str:
    return f"{SUBSCRIPTION_PREFIX}{group}/{topic}"


def encode_group(created_ms: int, source: str) -> bytes:
    """Encode the value of the setting `group/NAME`."""
    return msgspec.json.encode({"created_ms": created_ms, "source": source})


def encode_subscription(
    overrides: Mapping[str, Any], created_ms: int, source: str, paused_ms: int = 0
) -> bytes:
    """Encode the value of the setting `subscription/GROUP/TOPIC`; `overrides` overrides the defaults.

    `paused_ms`: since when it is paused, in epoch milliseconds; 0: it is not.
    """
    paused = {"paused_ms": paused_ms} if paused_ms else {}
    members = {"created_ms": created_ms, "source": source, "settings": dict(overrides)}
    return msgspec.json.encode(members | paused)


def changed_settings(config: SubscriptionDefaults, defaults: SubscriptionDefaults) -> dict[str, Any]:
    """Return the settings of `config` that differ from `defaults`."""
    values, base = dataclasses.asdict(config), dataclasses.asdict(defaults)
    return {name: value for name, value in values.items() if value != base[name]}


def decode_group(value: bytes) -> dict[str, Any]:
    """Decode the value of the setting `group/NAME` into its JSON members. Raises ConfigError."""
    return _decode_object(value, "group")


class StoredSubscription(NamedTuple):
    """The JSON members of the setting `subscription/GROUP/TOPIC`. `overrides`: the values that the
    subscription sets itself. `paused_ms`: since when it is paused; 0: it is not."""

    overrides: Mapping[str, Any]
    created_ms: int
    source: str
    paused_ms: int = 0

    def settings_over(self, defaults: SubscriptionDefaults, key: str) -> SubscriptionDefaults:
        """Return the settings in force over these defaults. Raises ConfigError that names the key and the
        value."""
        settings = dataclasses.asdict(defaults) | dict(self.overrides)
        return build(SubscriptionDefaults, settings, ConfigLocation(f"setting {key}", ""))


def stored_subscription(key: str, value: bytes) -> StoredSubscription:
    """Decode the value of `subscription/GROUP/TOPIC`. Raises ConfigError."""
    members = _decode_object(value, key)
    return StoredSubscription(
        members.get("settings", {}),
        int(members.get("created_ms", 0)),
        str(members.get("source", SOURCE_LOG)),
        _read_moment(key, members, "paused_ms"),
    )


def _read_moment(key: str, members: Mapping[str, Any], name: str) -> int:
    """Return the epoch milliseconds of a member, 0 if it is absent. Raises ConfigError."""
    value = members.get(name, 0)
    if type(value) is not int or not 0 <= value <= WALL_MS_MAX:
        raise ConfigError(f"setting {key}: {name} is {value!r:.40}; allowed: epoch milliseconds")
    return value


def _decode_object(value: bytes, what: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"setting {what}: is not a JSON object: {error}") from error
