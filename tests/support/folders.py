"""Folders that other users of the machine can reach, wherever the tree and TMPDIR are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATH_CHARS_MAX = 40  # so that a socket's path below it stays under the system's limit of 107 bytes


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """Make a folder with a short path that every user can enter and run programs in; delete it afterwards."""
    places = (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
    place = next((place for place in places if is_reachable(place)), None)
    assert place is not None, f"no folder that other users can reach among {[*map(str, places)]}"
    with tempfile.TemporaryDirectory(prefix="ddmq-", dir=place, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def is_reachable(place: Path) -> bool:
    """Return whether we may write there, others may enter, programs run, and the path is short."""
    if len(os.fsencode(place)) > PATH_CHARS_MAX or not os.access(place, os.W_OK | os.X_OK):
        return False
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        return False
    return all(folder.stat().st_mode & 0o001 for folder in (place, *place.parents))
