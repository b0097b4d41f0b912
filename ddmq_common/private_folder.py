"""A folder that holds what others wrote in confidence: of this user alone, and nobody else's to change.

Bodies, settings and their secrets stand in the files of a data directory, and who may change the directory
may put files and sockets of his own in their place.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from ddmq_common.errors import ConfigError

log = logging.getLogger(__name__)
UMASK = 0o077  # of processes that write there


def make_private(folder: Path) -> None:
    """Make it with mode 0700 where it is missing; take the rights of others from one that is there.

    Raises ConfigError when it is of another user or others may write there, OSError when it cannot be made.
    """
    before = os.umask(UMASK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(before)
    if why := folder_fault(folder):
        raise ConfigError(why)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & UMASK:
        folder.chmod(mode & ~UMASK)
        log.info(
            "others may no longer read the directory", extra={"directory": folder, "mode_was": f"{mode:04o}"}
        )


def folder_fault(folder: Path) -> str | None:
    """Why nothing confidential can be kept in a folder that is there, and what to do; None: it can."""
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        return (
            f"{folder} belongs to user {found.st_uid}, and this process is user {os.geteuid()}: its owner "
            f"could replace every file in it; run: chown {os.geteuid()} {folder}, or choose a folder of "
            "your own"
        )
    if mode & 0o022:
        return (
            f"{folder} has mode {mode:04o}: others may replace files in it; run: chmod 700 {folder}, "
            "or choose another folder"
        )
    return None
