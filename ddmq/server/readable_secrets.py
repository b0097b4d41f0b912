"""Configuration files with a secret in them that every user of the machine may read.

A secret stands in a file when a setting holds its text; `file:NAME` is only a name. The group may read: so
the files may belong to root, and to the group of the server.
"""

from __future__ import annotations

import dataclasses
import logging
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backend.kafka.options import KafkaOptions
from ddmq.server.config import FILES, Configuration
from ddmq.server.setting_keys import is_variable
from ddmq_common.private_files import PREFIX
from proxy_consumer.config import SubscriptionDefaults

log = logging.getLogger("ddmq.server")


class ReadableSecret(NamedTuple):
    """A configuration file that contains secrets and is readable by every user. `keys`: the settings that are
    secrets."""

    path: Path
    mode: int
    keys: tuple[str, ...]

    @property
    def warning_text(self) -> str:
        """A sentence that names the file, its mode and the secrets that every user may read in it."""
        return f"{self.path} has mode {self.mode:04o}, so every user may read {', '.join(self.keys)} in it"

    @property
    def remedy(self) -> str:
        """The command that solves the problem."""
        return (
            f"run: chmod 640 {self.path} (owner root, group of the server's user), or write file:NAME in its "
            "place (docs/push.md)"
        )


def readable_secrets(config: Configuration) -> list[ReadableSecret]:
    """Return the configuration files whose secrets every user may read."""
    if config.folder is None:
        return []
    secrets = []
    for section, (name, _) in FILES.items():
        path = config.folder / name
        keys = tuple(dict.fromkeys(_file_secrets(config, section)))
        if keys and _is_readable_by_all(path):
            secrets.append(ReadableSecret(path, stat.S_IMODE(path.stat().st_mode), keys))
    return secrets


def warn_of_secrets(config: Configuration) -> None:
    """Log a warning for each readable secret."""
    for secret in readable_secrets(config):
        log.warning(
            "a configuration file with secrets is for all users to read",
            extra={
                "file": secret.path,
                "mode": f"{secret.mode:04o}",
                "keys": ",".join(secret.keys),
                "remedy": secret.remedy,
            },
        )


def _file_settings(config: Configuration, section: str) -> list[Any]:
    """Return the settings that one file itself sets."""
    if section != "groups":
        return [getattr(config, section)]
    nothing = SubscriptionDefaults()
    return [
        subscription.apply_to(nothing)
        for entry in config.groups.groups.values()
        for subscription in entry.topics.values()
    ]


def _file_secrets(config: Configuration, section: str) -> Iterator[str]:
    """Yield the keys of one section's secrets that are set by its file, and not by a variable of the
    environment."""
    stem = FILES[section][0].removesuffix(".yaml")
    for settings in _file_settings(config, section):
        for path, key in _secret_keys(settings, "groups" if section == "groups" else ""):
            if not is_variable(config.sources.get(f"{stem}.{path}", "")):
                yield key


def _secret_keys(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield each secret below `path` as its path and its name for a report."""
    if isinstance(value, KafkaOptions):
        for name in value.secret_names():
            yield f"{path}.librdkafka", name
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            content = getattr(value, field.name)
            # what a subscription of groups.yaml sets is one key with all groups
            inner = path if path == "groups" else f"{path}.{field.name}".removeprefix(".")
            if not field.metadata.get("secret"):
                yield from _secret_keys(content, inner)
            elif any(text and not text.startswith(PREFIX) for text in _list_texts(content)):
                yield inner, field.name


def _list_texts(content: str | Mapping[str, str]) -> Collection[str]:
    return (content,) if isinstance(content, str) else content.values()


def _is_readable_by_all(path: Path) -> bool:
    """Return whether every user may read the file and enter all folders above it."""
    path = path.resolve()
    return bool(path.stat().st_mode & stat.S_IROTH) and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in path.parents
    )
