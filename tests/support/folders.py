"""Folders that other users of the machine can reach, wherever the tree and TMPDIR are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATH_BYTES_MAX = 40  # so that a socket's path below it stays under the system's limit of 107 bytes


@contextmanager
def reachable_folder(near: Path | None = None) -> Iterator[Path]:
    """Make a folder with a short path that every user can enter and run programs in; delete it afterwards.

    With `near`, one on the file system of that folder is preferred.
    """
    base = find_reachable_base(near)
    with tempfile.TemporaryDirectory(prefix="ddmq-", dir=base, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def find_reachable_base(near: Path | None = None) -> Path:
    """Return the folder for temporary files below which `reachable_folder` creates its own."""
    folders = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    if near is not None:
        device = near.stat().st_dev
        folders.sort(key=lambda folder: not folder.exists() or folder.stat().st_dev != device)
    folder = next(filter(is_usable, folders), None)
    assert folder is not None, f"no folder that other users can reach among {[*map(str, folders)]}"
    return folder


def is_usable(folder: Path) -> bool:
    """Return whether we may write there, others may enter, programs may run, and the path is short."""
    if len(os.fsencode(folder)) > PATH_BYTES_MAX or not os.access(folder, os.W_OK | os.X_OK):
        return False
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC and is_open_to_others(folder)


def is_open_to_others(folder: Path) -> bool:
    """Return whether every user may enter the folder."""
    return all(above.stat().st_mode & 0o001 for above in (folder, *folder.parents))


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address for the Unix socket `path` that is short enough, however long the path is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
