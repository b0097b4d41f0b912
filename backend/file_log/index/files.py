"""What the index asks of the storage layer, and nothing more.

All of it may block: appends are called from one native thread, reads from anywhere. Errors are OSError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class IndexFile(Protocol):
    """One open file."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; shorter at the end of the file."""

    def pwrite(self, data: bytes, offset: int) -> None:
        """All of `data`, to the page cache."""

    def size(self) -> int:
        """Bytes."""

    def truncate(self, size: int) -> None:
        """Cut or extend."""

    def sync(self) -> None:
        """fdatasync."""

    def close(self) -> None:
        """Once."""


class IndexStorage(Protocol):
    """One folder tree. Names are paths as the folder was given."""

    def list(self, folder: str) -> list[str]:
        """Names in the folder; empty when it does not exist."""

    def make_folder(self, folder: str) -> None:
        """With its parents; harmless when it exists."""

    def open(self, path: str, *, write: bool = False) -> IndexFile:
        """For reading, or for writing: created when missing. Raises FileNotFoundError."""

    def rename(self, old: str, new: str) -> None:
        """Replaces `new`."""

    def remove(self, path: str) -> None:
        """Harmless when it is gone."""

    def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in it durable."""


class Damage(NamedTuple):
    """A piece whose checksum failed; it was not served."""

    segment_start: int
    file: str  # name in the index folder
    offset: int  # where the piece starts, bytes
    what: str  # header, body, page


OnDamage = Callable[[Damage], None]
