"""Damage to a RocksDB folder: how files and errors tell of it, and where reading goes on behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ddmq_common.errors import DamagedError, StorageError


def check_files(folder: Path) -> None:
    """A folder with data whose list of tables is gone is damaged; RocksDB itself would begin a new database
    there, or say only that some file does not exist. One whose making was cut short has no data yet."""
    try:
        listed = (folder / "CURRENT").read_text("ascii", "replace").strip()
    except FileNotFoundError:
        listed = ""
        if not any(file.stat().st_size for pattern in ("*.sst", "*.log") for file in folder.glob(pattern)):
            return
    if not (listed and (folder / listed).is_file()):
        raise DamagedError(f"{folder}: damaged: CURRENT names {listed!r}, which is no list of tables there")


def behind_damage(readable: Callable[[bytes], bool], last: bytes) -> bytes | None:
    """The end of the unreadable stretch behind `last`: steps that double, then halves."""
    width = len(last) + 8
    top = 1 << (8 * width)
    low = int.from_bytes(last.ljust(width, b"\0"), "big")
    step = 1
    while low + step < top and not readable((low + step).to_bytes(width, "big")):
        low, step = low + step, 2 * step
    high = low + step
    if high >= top:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if readable(middle.to_bytes(width, "big")):
            high = middle
        else:
            low = middle
    return high.to_bytes(width, "big")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise what RocksDB's library raises as `translation` has it."""
    try:
        yield
    except (DamagedError, StorageError):
        raise
    except Exception as error:  # rocksdict raises nothing narrower
        raise translation(error, what) from error


def translation(error: Exception, what: str) -> StorageError:
    """A DamagedError where bytes do not match their checksum, else a StorageError."""
    text = str(error)
    if text.startswith("Corruption"):
        return DamagedError(f"{what}: damaged: {text}")
    return StorageError(f"{what}: {text}")
