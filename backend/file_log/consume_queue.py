"""Consume queues: the files, offset → entry, and which entries a read has to look at.

They are a view, which never decides what counts. Entries of a queue are written in order, without a sync, and
only for records that readers may see; other processes find the number of entries in the files' sizes. Reading
past what is written gives less; what is wrong in an entry is for the reader to find.

Choosing by tag touches no record. An entry whose checksum is wrong says nothing, not even its tag, so it is
always chosen and looked into; a run of entries is checked by one CRC over all of it. That one CRC suffices
because an entry ends in its own: each sound entry takes the CRC's state over to the next in the same way
whatever is in it, so that n sound entries have the CRC of n sound entries of any content.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import google_crc32c

from backend.file_log.core import names
from backend.file_log.core.layout import ENTRY_BYTES, GAP_ENTRY, entry_is_sound
from backend.file_log.storage import PAGE_BYTES, File, Storage
from backend.port import ReadCall
from backend.records import QueueRef

FILE_ENTRIES = 1 << 18
SYNC_EACH_MAX = 16  # more queues that were written are made durable in one call, not file by file …
OTHERS_BYTES_MAX = 64 << 20  # … unless it would have to write more than this of other files first,
EACH_BESIDE_MAX = 10_000  # and unless they are more than this: a checkpoint would take too long


class QueueFiles:
    """The consume queues of one directory; used from the hub and from native threads."""

    def __init__(self, storage: Storage, directory: str, open_max: int, *, write: bool) -> None:
        self._storage = storage
        self._directory = directory
        self._open_max = open_max
        self._write = write
        self._open: OrderedDict[tuple[QueueRef, int], File] = OrderedDict()
        self._unsynced: dict[QueueRef, set[int]] = {}
        self._named: set[QueueRef] = set()  # whose files have durable names
        self._lock = threading.Lock()

    def read(self, ref: QueueRef, offset: int, count: int) -> bytes:
        """Entries from `offset` on; fewer where the files end."""
        index, at = divmod(offset, FILE_ENTRIES)
        found = self._read_file(ref, index, at, min(count, FILE_ENTRIES - at))
        left = count - (FILE_ENTRIES - at)
        if left > 0 and len(found) == (FILE_ENTRIES - at) * ENTRY_BYTES:
            found += self.read(ref, offset + count - left, left)
        return found[: len(found) // ENTRY_BYTES * ENTRY_BYTES]

    def _read_file(self, ref: QueueRef, index: int, at: int, count: int) -> bytes:
        with self._lock:
            try:
                file = self._file(ref, index, write=False)
            except FileNotFoundError:
                return b""
            return file.salvage(count * ENTRY_BYTES, at * ENTRY_BYTES)

    def write(self, ref: QueueRef, offset: int, data: bytes) -> None:
        """Entries for `offset` and what follows it, to the page cache."""
        while data:
            index, at = divmod(offset, FILE_ENTRIES)
            chunk = data[: (FILE_ENTRIES - at) * ENTRY_BYTES]
            with self._lock:
                self._file(ref, index, write=True).pwrite(chunk, at * ENTRY_BYTES)
                self._unsynced.setdefault(ref, set()).add(index)
            offset += len(chunk) // ENTRY_BYTES
            data = data[len(chunk) :]

    def passes(self, ref: QueueRef, offset: int) -> bool:
        """Whether the file that `offset` belongs to has entries from there on. Opens nothing. Blocking."""
        return self.fit(ref, offset, offset)[1]

    def fit(self, ref: QueueRef, start: int, end: int) -> tuple[bool, bool]:
        """Whether the files are long enough for entries `[start, end)`, and whether the last goes on behind
        them. Opens nothing. Blocking."""
        last, at = divmod(end, FILE_ENTRIES)
        size = self._storage.size(self._path(ref, last)) or 0
        whole = end <= start or size >= at * ENTRY_BYTES
        for index in range(start // FILE_ENTRIES, last):
            whole = whole and (self._storage.size(self._path(ref, index)) or 0) >= FILE_ENTRIES * ENTRY_BYTES
        return whole, size > at * ENTRY_BYTES

    def cut(self, ref: QueueRef, offset: int) -> None:
        """Remove the entries from `offset` on. Blocking."""
        keep = offset // FILE_ENTRIES
        for index in self._indexes(ref):
            if index > keep:
                self._remove(ref, index)
            elif index == keep:
                with self._lock:
                    self._file(ref, index, write=True).truncate(offset % FILE_ENTRIES * ENTRY_BYTES)

    def drop_below(self, ref: QueueRef, offset: int) -> None:
        """Remove the files that hold nothing from `offset` on. Blocking."""
        for index in self._indexes(ref):
            if (index + 1) * FILE_ENTRIES <= offset:
                self._remove(ref, index)

    def _indexes(self, ref: QueueRef) -> Iterator[int]:
        """Of the files that there are, ascending."""
        for name in self._storage.list(self._folder(ref)):
            parsed = names.parse_queue_file(name)
            if parsed is not None and parsed.incarnation == ref.incarnation:
                yield parsed.start // FILE_ENTRIES

    def drop(self, ref: QueueRef) -> None:
        """Remove all files of a queue whose topic is gone, and folders that are empty then. Blocking."""
        self.drop_below(ref, 1 << 62)
        folder = self._folder(ref)
        with self._lock:
            self._unsynced.pop(ref, None)
            self._named.discard(ref)
            self._storage.remove_folder(folder)
            self._storage.remove_folder(os.path.dirname(folder))

    def close_deleted(self) -> None:
        """Give up files that another process has removed."""
        with self._lock:
            for key in [key for key, file in self._open.items() if file.deleted()]:
                self._open.pop(key).close()

    def sync(self) -> None:
        """Make durable what was written since the last time. Blocking.

        Group commits go on meanwhile, and must not wait for a disk that is busy with others' files.
        """
        with self._lock:
            unsynced, self._unsynced = self._unsynced, {}
        try:
            if self._sync_at_once(unsynced):
                return
            for ref, indexes in list(unsynced.items()):
                for index in indexes:
                    self._sync_file(ref, index)
                if ref not in self._named:
                    self._sync_folder(ref)
                del unsynced[ref]
        except OSError:
            with self._lock:
                for ref, indexes in unsynced.items():
                    self._unsynced.setdefault(ref, set()).update(indexes)
            raise

    def _sync_at_once(self, unsynced: dict[QueueRef, set[int]]) -> bool:
        """With one call, where that is cheaper than one for each; else the disk begins with all of them."""
        if len(unsynced) <= SYNC_EACH_MAX:
            return False
        others = self._storage.dirty_bytes() - sum(map(len, unsynced.values())) * PAGE_BYTES
        at_once = others <= OTHERS_BYTES_MAX or len(unsynced) > EACH_BESIDE_MAX
        if at_once and self._storage.sync_disk(self._directory):
            return True
        for ref, indexes in unsynced.items():
            for index in indexes:
                with suppress(FileNotFoundError), closing(self._storage.open(self._path(ref, index))) as file:
                    file.write_back()
        return False

    def _sync_file(self, ref: QueueRef, index: int) -> None:
        path = self._path(ref, index)
        try:
            file = self._storage.open(path)
        except FileNotFoundError:  # deleted meanwhile
            return
        with closing(file):
            file.sync()

    def _sync_folder(self, ref: QueueRef) -> None:
        with self._lock:
            self._named.add(ref)  # before: a file that is made meanwhile takes it out again
        try:
            self._storage.sync_folder(self._folder(ref))
        except FileNotFoundError:  # deleted meanwhile
            return
        except OSError:
            with self._lock:
                self._named.discard(ref)
            raise

    def _file(self, ref: QueueRef, index: int, *, write: bool) -> File:
        """Open or held open; the lock is held."""
        found = self._open.get((ref, index))
        if found is not None:
            self._open.move_to_end((ref, index))
            return found
        path = self._path(ref, index)
        if write:
            self._storage.make_folder(self._folder(ref))
            file = self._storage.open(path, write=True)
            if not file.size():  # made just now
                self._named.discard(ref)
        else:
            file = self._open_existing(path)
        self._open[ref, index] = file
        if len(self._open) > self._open_max:
            self._open.popitem(last=False)[1].close()
        return file

    def _open_existing(self, path: str) -> File:
        if not self._write:
            return self._storage.open(path)
        self._storage.open(path).close()  # raises when it is not there, rather than creating it
        return self._storage.open(path, write=True)

    def _remove(self, ref: QueueRef, index: int) -> None:
        with self._lock:
            file = self._open.pop((ref, index), None)
            if file is not None:
                file.close()
        self._storage.remove(self._path(ref, index))

    def _folder(self, ref: QueueRef) -> str:
        return f"{self._directory}/{names.queue_folder(ref.topic, ref.queue_id)}"

    def _path(self, ref: QueueRef, index: int) -> str:
        return f"{self._folder(ref)}/{names.queue_file_name(ref.incarnation, index * FILE_ENTRIES)}"

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


HUB_ENTRIES = 4096  # of them are looked through on the hub; a longer search goes to a thread
_TAG_AT = 12  # of the tag hash in an entry
_HASH = Struct("<I")


def entries_max(call: ReadCall) -> int:
    """How many entries are looked at first."""
    return call.count_max if call.tags is None else HUB_ENTRIES


class Picked(NamedTuple):
    """The entries to read records by, their offsets, and where to go on when all of them are read."""

    entries: bytes
    offsets: Sequence[int]
    after: int


def pick(call: ReadCall, entries: bytes) -> Picked:
    """Choose from `entries`, which start at the asked offset."""
    count = len(entries) // ENTRY_BYTES
    if call.tags is None:
        return Picked(entries, range(call.offset, call.offset + count), call.offset + count)
    places = list(_first(_places(entries, call.tags), call.count_max + 1))
    after = count
    if len(places) > call.count_max:
        after = places.pop()
    chosen = b"".join([entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES] for at in places])
    return Picked(chosen, [call.offset + at for at in places], call.offset + after)


def _first(places: Iterator[int], count: int) -> Iterator[int]:
    return (place for _, place in zip(range(count), places, strict=False))


def _places(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    return _tagged(entries, tags) if all_sound(entries) else _tagged_or_unsound(entries, tags)


def all_sound(entries: bytes) -> bool:
    """Whether every entry of a run has the right CRC."""
    return bool(google_crc32c.value(entries) == _crc_of_sound(len(entries) // ENTRY_BYTES))


@lru_cache(maxsize=8)
def _crc_of_sound(count: int) -> int:
    found: int = google_crc32c.value(GAP_ENTRY * count)
    return found


def _tagged(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    """Places of entries with one of the tag hashes: their lowest bytes first, with string searches."""
    lowest = entries[_TAG_AT::ENTRY_BYTES].translate(_is_lowest(tags))
    unpack = _HASH.unpack_from
    at = lowest.find(1)
    while at >= 0:
        if unpack(entries, at * ENTRY_BYTES + _TAG_AT)[0] in tags:
            yield at
        at = lowest.find(1, at + 1)


@lru_cache(maxsize=64)
def _is_lowest(tags: frozenset[int]) -> bytes:
    lowest = {tag & 255 for tag in tags}
    return bytes(byte in lowest for byte in range(256))


def _tagged_or_unsound(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    """The same where something is wrong: one by one."""
    for at in range(len(entries) // ENTRY_BYTES):
        entry = entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES]
        if _HASH.unpack_from(entry, _TAG_AT)[0] in tags or not entry_is_sound(entry):
            yield at


def search(call: ReadCall, files: QueueFiles, end: int) -> Picked:
    """Go on until something is chosen, or to `end`, or as far as the files reach. Blocking."""
    at = call.offset
    while True:
        entries = files.read(call.queue, at, min(HUB_ENTRIES, end - at))
        picked = pick(call._replace(offset=at), entries)
        if picked.entries or not entries or picked.after >= end:
            return picked
        at = picked.after
