"""Every setting of a configuration, as `ddmq config show` prints it: its value, and where that comes from."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddmq.server.config import KEYS, Configuration
from ddmq.server.setting_keys import SettingKey
from ddmq_common.config import SIZE_UNITS, Overlay, resolved

DEFAULT, COMMAND_LINE = "default", "command line"
_BACKEND_KEYS = {"engine": "backend.engine", "bootstrap": "backend.kafka.bootstrap"}


class EffectiveSetting(NamedTuple):
    """A configuration key, its value with secrets masked, and where the value comes from: `default`,
    FILE:LINE, `variable NAME` or `command line`."""

    key: SettingKey
    value: Any
    source: str
    is_changed: bool  # it is not the default

    def format_value(self) -> str:
        """Return the value as a file would contain it."""
        if isinstance(self.value, str) and self.value:
            return self.value
        if isinstance(self.value, int) and self.value and "bytes" in self.key.path[-1]:
            return _format_size(self.value)
        return json.dumps(self.value, ensure_ascii=False)


def list_settings(config: Configuration) -> list[EffectiveSetting]:
    """Return all settings, in the order of the files."""
    flags = {f"ddmq.{name}" for name in config.flags} | {_BACKEND_KEYS[name] for name in config.backend_flags}
    values, defaults = _to_plain(config), _to_plain(Configuration())
    settings = []
    for key in KEYS:
        value, default = _value_of(values, key), _value_of(defaults, key)
        source = COMMAND_LINE if key.name in flags else config.sources.get(key.name, DEFAULT)
        settings.append(EffectiveSetting(key, value, source, value != default))
    return settings


def _value_of(tree: Any, key: SettingKey) -> Any:
    for name in (key.section, *key.path):
        tree = tree[name]
    return tree


def _format_size(size: int) -> str:
    units = [(unit, factor) for unit, factor in SIZE_UNITS.items() if size % factor == 0]
    if not units:
        return str(size)
    unit, factor = units[-1]
    return f"{size // factor}{unit}"


def _to_plain(value: Any) -> Any:
    """Convert the value to text, numbers, lists and mappings, with secrets masked."""
    if isinstance(value, Overlay):
        return _to_plain(value.values)
    if dataclasses.is_dataclass(value):
        return _to_plain(value.shown() if hasattr(value, "shown") else resolved(value))
    if isinstance(value, Mapping):
        return {str(name): _to_plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_to_plain(inner) for inner in value]
    if isinstance(value, enum.Enum):
        return value.name.lower()
    return str(value) if isinstance(value, Path) else value
