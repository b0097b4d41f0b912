"""Private files: a folder that only this user may open, and secrets in files of their own.

Bodies, settings and their secrets stand in the files of a data directory, and who may change the directory
may put files and sockets of his own in their place.

A setting may say `file:NAME`, and the secret's text is in that file of one folder. What is kept, logged and
handed on is the setting; the text is read by who uses it, when it begins to. Only names in a folder that the
operator chose: who may change settings must not send any file of the server's user somewhere.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import stat
from pathlib import Path
from typing import TypeVar

from ddmq_common.errors import ConfigError

log = logging.getLogger(__name__)
UMASK = 0o077  # of processes that write there


def make_private(folder: Path) -> None:
    """Create the folder with mode 0700, or remove other users' rights from an existing one.

    Raises ConfigError if another user owns it or others may write there, OSError if it cannot be created.
    """
    before = os.umask(UMASK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(before)
    if why := find_folder_error(folder):
        raise ConfigError(why)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & UMASK:
        folder.chmod(mode & ~UMASK)
        log.info(
            "others may no longer read the directory", extra={"directory": folder, "mode_was": f"{mode:04o}"}
        )


def find_folder_error(folder: Path) -> str | None:
    """Return why an existing folder may not hold confidential data, and the remedy; None if it may."""
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        return (
            f"{folder} belongs to user {status.st_uid}, and this process is user {os.geteuid()}: its owner "
            f"could replace every file in it; run: chown {os.geteuid()} {folder}, or choose a folder of "
            "your own"
        )
    if mode & 0o022:
        return (
            f"{folder} has mode {mode:04o}: others may replace files in it; run: chmod 700 {folder}, "
            "or choose another folder"
        )
    return None


PREFIX = "file:"
SECRET_BYTES_MAX = 4096
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}\Z")

T = TypeVar("T")


def reveal_secrets(config: T, folder: str) -> T:
    """Return the dataclass with each secret field `file:NAME`, also nested, replaced by that file's text in
    `folder`.

    Raises ConfigError if such a file is missing, empty, or readable by other users.
    """
    values: dict[str, object] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            values[field.name] = reveal_secrets(value, folder)
        elif field.metadata.get("secret") and value.startswith(PREFIX):
            values[field.name] = _read_secret(value, folder)
    changed = {name: value for name, value in values.items() if value is not getattr(config, name)}
    return dataclasses.replace(config, **changed) if changed else config  # type: ignore[type-var]


def _read_secret(setting: str, folder: str) -> str:
    name = setting.removeprefix(PREFIX)
    if not _NAME.match(name):
        raise ConfigError("a secret's file: is no file name; allowed: file:NAME, of letters, digits, _ - .")
    if not folder:
        raise ConfigError(f"{setting}: the proxy's secrets_dir is not set; name the folder of {name} there")
    path = Path(folder, name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if why := find_file_error(path, os.fstat(descriptor)):
                raise ConfigError(why)
            text = file.read(SECRET_BYTES_MAX + 1).decode().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"{path}: cannot be read: {why}") from None
    if not text or len(text.encode()) > SECRET_BYTES_MAX:
        raise ConfigError(f"{path}: is empty or too long; allowed: 1 to {SECRET_BYTES_MAX} bytes")
    return text


def find_file_error(path: Path, status: os.stat_result) -> str | None:
    """Return why an existing file may not hold a secret, and the remedy; None if it may."""
    if not stat.S_ISREG(status.st_mode):
        return f"{path}: is no file"
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path}: belongs to user {status.st_uid}; allowed: {os.geteuid()}, or root"
    if status.st_mode & 0o077:
        return (
            f"{path}: has mode {stat.S_IMODE(status.st_mode):04o}: others may read it; run: chmod 400 {path}"
        )
    return None
