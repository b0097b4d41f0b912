"""Secrets in files of their own: a setting says `file:NAME`, and the text is in that file of one folder.

What is kept, logged and handed on is the setting; the text is read by who uses it, when it begins to. Only
names in a folder that the operator chose: who may change settings must not send any file of the server's
user somewhere.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from pathlib import Path
from typing import TypeVar

from ddmq_common.errors import ConfigError

PREFIX = "file:"
SECRET_BYTES_MAX = 4096
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}\Z")

T = TypeVar("T")


def reveal(config: T, folder: str) -> T:
    """The dataclass with every secret field that says `file:NAME` filled from `folder`, nested ones too.

    Raises ConfigError when such a file is missing, empty, or not for this user alone.
    """
    found: dict[str, object] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = reveal(value, folder)
        elif field.metadata.get("secret") and value.startswith(PREFIX):
            found[field.name] = _text(value, folder)
    changed = {name: value for name, value in found.items() if value is not getattr(config, name)}
    return dataclasses.replace(config, **changed) if changed else config  # type: ignore[type-var]


def _text(setting: str, folder: str) -> str:
    name = setting.removeprefix(PREFIX)
    if not _NAME.match(name):
        raise ConfigError("a secret's file: is no file name; allowed: file:NAME, of letters, digits, _ - .")
    if not folder:
        raise ConfigError(f"{setting}: the proxy's secrets_dir is not set; name the folder of {name} there")
    path = Path(folder, name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if why := _fault(path, os.fstat(descriptor)):
                raise ConfigError(why)
            text = file.read(SECRET_BYTES_MAX + 1).decode().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"{path}: cannot be read: {why}") from None
    if not text or len(text.encode()) > SECRET_BYTES_MAX:
        raise ConfigError(f"{path}: is empty or too long; allowed: 1 to {SECRET_BYTES_MAX} bytes")
    return text


def _fault(path: Path, found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return f"{path}: is no file"
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path}: belongs to user {found.st_uid}; allowed: {os.geteuid()}, or root"
    if found.st_mode & 0o077:
        return (
            f"{path}: has mode {stat.S_IMODE(found.st_mode):04o}: others may read it; run: chmod 400 {path}"
        )
    return None
