"""A storage that fails where it is told to, and knows what would be left after a power loss.

Files are real (so that they can be mapped) and play the page cache. Beside them stands what the disk
holds for certain: what was synced, under names whose folder was synced. Rules, as ext4 may behave:
* Written, truncated, created, renamed, removed: gone after a power loss unless synced.
* After a failed sync the pages count as clean: a later sync says yes without writing them.
* Folders themselves are durable at once (a simplification; missing ones are made again anyway).

Every call that changes something is a numbered point. `plan` says what happens at a point:
    fail      nothing happens, EIO          nospace   nothing happens, ENOSPC
    short     half is written, then EIO     crash     nothing happens, and nothing works from then on
    crashed   it happens, and nothing works from then on
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from backend.file_log.storage import File, Storage

SECTOR = 512
FAULTS = ("fail", "short", "nospace", "crash", "crashed")


class PowerLostError(OSError):
    """The machine is off: nothing works any more."""


class Inode:
    """One file: what the disk has of it, and what only the cache has."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.dirty: list[tuple[int, int]] = []  # ranges not synced
        self.path = ""  # where the real file is now

    def cached(self) -> bytes:
        try:
            return Path(self.path).read_bytes()
        except FileNotFoundError:
            return b""

    def sync(self, size: int) -> None:
        cached = self.cached()
        self.resize(size)
        for start, end in self.dirty:
            self.durable[start:end] = cached[start:end]
        self.dirty.clear()
        self.resize(size)

    def resize(self, size: int) -> None:
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))


class FaultyFile(File):
    """A file of a FaultyStorage."""

    __slots__ = ("inode", "storage")

    def __init__(self, path: str, fd: int, inode: Inode, storage: FaultyStorage) -> None:
        super().__init__(path, fd)
        self.inode = inode
        self.storage = storage

    def pwrite(self, data: bytes, offset: int) -> None:
        with self.storage.point("write", self.path) as fault:
            written_data = data[: len(data) // 2] if fault == "short" else data
            super().pwrite(written_data, offset)
            self.inode.dirty.append((offset, offset + len(written_data)))

    def write_through(self, data: bytes, offset: int) -> None:
        with self.storage.point("write through", self.path) as fault:
            written_data = data[: len(data) // 2] if fault == "short" else data
            super().pwrite(written_data, offset)
            if fault == "short":  # perhaps on the disk, perhaps not: here not
                self.inode.dirty.append((offset, offset + len(written_data)))
                return
            durable = self.inode.durable
            self.inode.resize(max(len(durable), offset + len(data)))
            durable[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        with self.storage.point("truncate", self.path):
            before = self.size()
            super().truncate(size)
            self.inode.dirty.append((min(before, size), max(before, size)))

    def allocate(self, offset: int, size: int) -> None:
        with self.storage.point("allocate", self.path):
            if offset + size > self.size():
                super().truncate(offset + size)

    def sync(self) -> None:
        self._sync("sync")

    def sync_all(self) -> None:
        self._sync("sync all")

    def _sync(self, what: str) -> None:
        try:
            with self.storage.point(what, self.path):
                self.inode.sync(self.size())
        except PowerLostError:
            raise
        except OSError:
            self.inode.dirty.clear()  # lost: the kernel says so once
            raise


class Point:
    """One numbered call; what the plan says about it."""

    def __init__(self, storage: FaultyStorage, fault: str | None) -> None:
        self._storage = storage
        self._fault = fault

    def __enter__(self) -> str | None:
        if self._fault == "fail":
            raise OSError(errno.EIO, "planned fault")
        if self._fault == "nospace":
            raise OSError(errno.ENOSPC, "planned fault")
        if self._fault == "crash":
            self._storage.lost = True
            raise PowerLostError(errno.EIO, "the power is lost")
        return self._fault

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            return
        if self._fault == "short":
            raise OSError(errno.EIO, "planned fault")
        if self._fault == "crashed":
            self._storage.lost = True
            raise PowerLostError(errno.EIO, "the power is lost")


class FaultyStorage(Storage):
    """See the module's text. `root` must be empty at first, or an image of another one."""

    def __init__(self, root: Path, plan: Mapping[int, str] | None = None) -> None:
        self.root = root
        self.plan = dict(plan or {})
        self.points = 0
        self.trace: list[str] = []
        self.lost = False
        self._lock = threading.RLock()
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        for path in sorted(root.rglob("*")):
            if path.is_file():
                inode = self._inode(str(path))
                inode.durable = bytearray(path.read_bytes())
                self._durable_names[str(path)] = inode

    def point(self, what: str, path: str) -> Point:
        """Number a call that changes something."""
        with self._lock:
            if self.lost:
                raise PowerLostError(errno.EIO, "the power is lost")
            self.points += 1
            self.trace.append(f"{self.points} {what} {os.path.relpath(path, self.root)}")
            return Point(self, self.plan.get(self.points))

    def _inode(self, path: str) -> Inode:
        inode = self._names.get(path)
        if inode is None:
            inode = self._names[path] = Inode()
            inode.path = path
        return inode

    # --- Storage

    def open(self, path: str, *, write: bool = False) -> File:
        if self.lost:
            raise PowerLostError(errno.EIO, "the power is lost")
        if write and not os.path.exists(path):
            with self.point("create", path):
                self._names.pop(path, None)
                fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        else:
            fd = os.open(path, os.O_RDWR if write else os.O_RDONLY)
        return FaultyFile(path, fd, self._inode(path), self)

    def rename(self, old: str, new: str) -> None:
        with self.point("rename", new):
            super().rename(old, new)
            inode = self._names.pop(old, Inode())
            inode.path = new
            self._names[new] = inode

    def remove(self, path: str) -> None:
        if not os.path.exists(path):
            return
        with self.point("remove", path):
            super().remove(path)
            self._names.pop(path, None)

    def sync_folder(self, folder: str) -> None:
        with self.point("sync folder", folder):
            for names in (self._durable_names, self._names):
                for path in [path for path in names if os.path.dirname(path) == folder]:
                    if names is self._durable_names:
                        del names[path]
                    else:
                        self._durable_names[path] = self._names[path]

    def sync_disk(self, folder: str) -> bool:
        with self.point("sync disk", folder):
            for inode in self._names.values():
                with suppress(FileNotFoundError):
                    inode.sync(os.path.getsize(inode.path))
            self._durable_names = dict(self._names)
        return True

    # --- after the end

    def image(self, target: Path, seed: int | None = None) -> Path:
        """What a power loss would leave, as a new folder.

        `seed` None: nothing that was not synced. Else each changed sector may be there or not, by chance,
        and the names are those of the cache or of the disk.
        """
        self.lost = True
        chance = None if seed is None else random.Random(seed)
        names = self._durable_names if chance is None or chance.random() < 0.5 else self._names
        for folder in sorted(self.root.rglob("*")):
            if folder.is_dir():
                (target / folder.relative_to(self.root)).mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        for path, inode in sorted(names.items()):
            content = bytes(inode.durable) if chance is None else _surviving_bytes(inode, chance)
            copy = target / Path(path).relative_to(self.root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        return target

    def cache(self, target: Path) -> Path:
        """What a kill -9 leaves: everything that was written."""
        self.lost = True
        shutil.copytree(self.root, target)
        return target


def _surviving_bytes(inode: Inode, chance: random.Random) -> bytes:
    cached, durable = inode.cached(), bytes(inode.durable)
    size = chance.choice((len(cached), len(durable)))
    out = bytearray(max(len(cached), len(durable)))
    out[: len(durable)] = durable
    for start, end in inode.dirty:
        for sector in range(start // SECTOR, -(-end // SECTOR)):
            low, high = max(start, sector * SECTOR), min(end, (sector + 1) * SECTOR, len(cached))
            if low < high and chance.random() < 0.5:
                out[low:high] = cached[low:high]
    return bytes(out[:size])
