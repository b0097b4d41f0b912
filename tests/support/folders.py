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
    place = reachable_place(near)
    with tempfile.TemporaryDirectory(prefix="ddmq-", dir=place, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def reachable_place(near: Path | None = None) -> Path:
    """Return the folder for temporary files below which `reachable_folder` makes its own."""
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    if near is not None:
        device = near.stat().st_dev
        places.sort(key=lambda place: not place.exists() or place.stat().st_dev != device)
    place = next(filter(is_usable, places), None)
    assert place is not None, f"no folder that other users can reach among {[*map(str, places)]}"
    return place


def is_usable(place: Path) -> bool:
    """Return whether we may write there, others may enter, programs may run, and the path is short."""
    if len(os.fsencode(place)) > PATH_BYTES_MAX or not os.access(place, os.W_OK | os.X_OK):
        return False
    return not os.statvfs(place).f_flag & os.ST_NOEXEC and is_open_to_others(place)


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
