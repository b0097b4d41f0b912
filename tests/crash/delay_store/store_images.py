"""Images of a store as a crash would leave it, to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

from ddmq_common.rocks.database import Rocks, RocksOptions
from delay_service.store.copies import CopyLock, clone_files, copies_of
from delay_service.store.opening import open_store
from tests.crash.delay_store.store_load import Load

SMALL = RocksOptions(write_buffer_bytes=128 << 10, block_bytes=2 << 10, file_bytes=128 << 10)
ONE_LOG = RocksOptions(write_buffer_bytes=4 << 20, block_bytes=2 << 10)
SHARD, EPOCH = 0, 1


def settle(copy: Path) -> None:
    """Everything into tables."""
    database = Rocks(copy, SMALL)
    database.compact(b"\0", b"\xff")
    database.close()


class Image:
    """A folder with one copy, taken while its store was open: `flushed` and `written` batches."""

    def __init__(self, folder: Path, seed: int, settled: int, flushed: int, written: int) -> None:
        """`settled` batches are in tables; what comes then is in one log, `flushed` or not."""
        self.folder, self.seed, self.flushed, self.written = folder, seed, flushed, written
        live = folder.with_name("live")
        load = Load(seed)
        store = open_store(live, SHARD, EPOCH, SMALL)
        while load.number < settled:
            store.write(load.next())
        store.close()
        settle(store.folder)
        store = open_store(live, SHARD, EPOCH, ONE_LOG)
        while load.number < flushed:
            store.write(load.next())
        store.flush()
        self.synced = {file.name: file.stat().st_size for file in store.folder.glob("*.log")}
        while load.number < written:
            store.write(load.next())
        copy = folder / store.folder.name
        copy.mkdir(parents=True)
        clone_files(store.folder, copy)
        store.close()
        shutil.rmtree(live)

    @property
    def copy(self) -> Path:
        """The folder of the newest copy."""
        return copies_of(self.folder, SHARD)[-1].path

    def newest(self, pattern: str) -> Path:
        """The newest file of a kind."""
        return max(self.copy.glob(pattern))

    def reopen(self, folder: Path) -> Image:
        """A second image of the same, to be damaged otherwise."""
        other = object.__new__(Image)
        other.folder, other.seed = folder, self.seed
        other.flushed, other.written, other.synced = self.flushed, self.written, self.synced
        shutil.copytree(self.folder, other.folder)
        return other


def flip(path: Path, position: int, bit: int) -> None:
    """One bit of one byte."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def unlocked(path: Path) -> bool:
    """Does nobody hold this copy?"""
    lock = CopyLock.try_take(path)
    if lock is not None:
        lock.release()
    return lock is not None


def lost_ids(listed: Path) -> set[tuple[bytes, int, int]]:
    """Uuid, due time and offset of each message that a salvage lists as lost."""
    rows = [line.split() for line in listed.read_text("ascii").splitlines()]
    return {(bytes.fromhex(uuid), int(due_ms), int(offset)) for uuid, due_ms, offset in rows}
