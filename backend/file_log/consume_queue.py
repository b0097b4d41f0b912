"""Consume queues: files that lead from an offset to an entry, the entries that wait to be written, and the
selection of entries for a read.

They are a view of the log and never decide which records count. Entries of a queue are written in order,
without a sync, and only for records that readers may see; other processes learn the number of entries from
the sizes of the files. A read past the end returns less. The reader checks each entry.

Selecting by tag touches no record. In an entry with a wrong checksum not even the tag can be trusted, so such
an entry is always selected and then checked. One CRC over a run of entries checks all of them: because each
entry ends in its own CRC, a valid entry leaves the state of the running CRC independent of its content, so
that n valid entries of any content have the same CRC.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

import google_crc32c

from backend.file_log.core import names
from backend.file_log.core.layout import ENTRY_BYTES, GAP_ENTRY, is_valid_entry
from backend.file_log.options import FileLogOptions
from backend.file_log.state import LogQueue
from backend.file_log.storage import PAGE_BYTES, File, Storage
from backend.port import ReadCall
from backend.records import QueueRef
from ddmq_common.hub_timer import HubTimer
from ddmq_common.native_threads import off_hub

FILE_ENTRIES = 1 << 18
SYNC_EACH_MAX = 16  # more queues than this are synced in one call, not file by file …
OTHERS_BYTES_MAX = 64 << 20  # … unless that call had to write more than this of other files first …
EACH_BESIDE_MAX = 10_000  # … but always above this number of queues: a checkpoint would take too long


class QueueFiles:
    """The consume queues of one directory; used from the hub and from native threads."""

    def __init__(self, storage: Storage, directory: str, open_max: int, *, write: bool) -> None:
        self._storage = storage
        self._directory = directory
        self._open_max = open_max
        self._write = write
        self._open: OrderedDict[tuple[QueueRef, int], File] = OrderedDict()
        self._unsynced: dict[QueueRef, set[int]] = {}
        self._durable_names: set[QueueRef] = set()  # queues whose file names are durable
        self._lock = threading.Lock()

    def read(self, ref: QueueRef, offset: int, count: int) -> bytes:
        """Return up to `count` entries from `offset` on; fewer at the end of the files."""
        index, at = divmod(offset, FILE_ENTRIES)
        entries = self._read_file(ref, index, at, min(count, FILE_ENTRIES - at))
        remaining = count - (FILE_ENTRIES - at)
        if remaining > 0 and len(entries) == (FILE_ENTRIES - at) * ENTRY_BYTES:
            entries += self.read(ref, offset + count - remaining, remaining)
        return entries[: len(entries) // ENTRY_BYTES * ENTRY_BYTES]

    def _read_file(self, ref: QueueRef, index: int, at: int, count: int) -> bytes:
        with self._lock:
            try:
                file = self._open_file(ref, index, write=False)
            except FileNotFoundError:
                return b""
            return file.salvage(count * ENTRY_BYTES, at * ENTRY_BYTES)

    def write(self, ref: QueueRef, offset: int, data: bytes) -> None:
        """Write entries for `offset` and the offsets after it to the page cache."""
        while data:
            index, at = divmod(offset, FILE_ENTRIES)
            chunk = data[: (FILE_ENTRIES - at) * ENTRY_BYTES]
            with self._lock:
                self._open_file(ref, index, write=True).pwrite(chunk, at * ENTRY_BYTES)
                self._unsynced.setdefault(ref, set()).add(index)
            offset += len(chunk) // ENTRY_BYTES
            data = data[len(chunk) :]

    def has_entries_from(self, ref: QueueRef, offset: int) -> bool:
        """Return whether the file of `offset` has entries from there on. Opens nothing. Blocking."""
        return self.check_extent(ref, offset, offset)[1]

    def check_extent(self, ref: QueueRef, start: int, end: int) -> tuple[bool, bool]:
        """Return whether the files have all entries `[start, end)`, and whether the last file has more after
        them.

        Opens nothing. Blocking.
        """
        last, at = divmod(end, FILE_ENTRIES)
        size = self._storage.size(self._path_of(ref, last)) or 0
        complete = end <= start or size >= at * ENTRY_BYTES
        for index in range(start // FILE_ENTRIES, last):
            complete = (
                complete
                and (self._storage.size(self._path_of(ref, index)) or 0) >= FILE_ENTRIES * ENTRY_BYTES
            )
        return complete, size > at * ENTRY_BYTES

    def truncate_at(self, ref: QueueRef, offset: int) -> None:
        """Remove the entries from `offset` on. Blocking."""
        keep = offset // FILE_ENTRIES
        for index in self._list_indexes(ref):
            if index > keep:
                self._remove(ref, index)
            elif index == keep:
                with self._lock:
                    self._open_file(ref, index, write=True).truncate(offset % FILE_ENTRIES * ENTRY_BYTES)

    def drop_below(self, ref: QueueRef, offset: int) -> None:
        """Remove the files whose entries are all below `offset`. Blocking."""
        for index in self._list_indexes(ref):
            if (index + 1) * FILE_ENTRIES <= offset:
                self._remove(ref, index)

    def _list_indexes(self, ref: QueueRef) -> Iterator[int]:
        """Return the indexes of the queue's existing files, ascending."""
        for name in self._storage.list(self._folder_of(ref)):
            parsed = names.parse_queue_file(name)
            if parsed is not None and parsed.incarnation == ref.incarnation:
                yield parsed.start // FILE_ENTRIES

    def remove_queue(self, ref: QueueRef) -> None:
        """Remove all files of a queue whose topic was deleted, and the folders that are empty then.

        Blocking.
        """
        self.drop_below(ref, 1 << 62)
        folder = self._folder_of(ref)
        with self._lock:
            self._unsynced.pop(ref, None)
            self._durable_names.discard(ref)
            self._storage.remove_folder(folder)
            self._storage.remove_folder(os.path.dirname(folder))

    def close_deleted(self) -> None:
        """Close the files that another process has removed."""
        with self._lock:
            for key in [key for key, file in self._open.items() if file.is_deleted()]:
                self._open.pop(key).close()

    def sync(self) -> None:
        """Make all entries written since the last call durable. Blocking.

        Group commits continue meanwhile, and must not wait for a disk that is busy with other files.
        """
        with self._lock:
            unsynced, self._unsynced = self._unsynced, {}
        try:
            if self._sync_at_once(unsynced):
                return
            for ref, indexes in list(unsynced.items()):
                for index in indexes:
                    self._sync_file(ref, index)
                if ref not in self._durable_names:
                    self._sync_folder(ref)
                del unsynced[ref]
        except OSError:
            with self._lock:
                for ref, indexes in unsynced.items():
                    self._unsynced.setdefault(ref, set()).update(indexes)
            raise

    def _sync_at_once(self, unsynced: dict[QueueRef, set[int]]) -> bool:
        """Sync everything in one call and return True where that is cheaper; else start write-back of each
        file.
        """
        if len(unsynced) <= SYNC_EACH_MAX:
            return False
        others = self._storage.dirty_bytes() - sum(map(len, unsynced.values())) * PAGE_BYTES
        at_once = others <= OTHERS_BYTES_MAX or len(unsynced) > EACH_BESIDE_MAX
        if at_once and self._storage.sync_disk(self._directory):
            return True
        for ref, indexes in unsynced.items():
            for index in indexes:
                with (
                    suppress(FileNotFoundError),
                    closing(self._storage.open(self._path_of(ref, index))) as file,
                ):
                    file.write_back()
        return False

    def _sync_file(self, ref: QueueRef, index: int) -> None:
        path = self._path_of(ref, index)
        try:
            file = self._storage.open(path)
        except FileNotFoundError:  # deleted meanwhile
            return
        with closing(file):
            file.sync()

    def _sync_folder(self, ref: QueueRef) -> None:
        with self._lock:
            self._durable_names.add(ref)  # before the sync: a file created meanwhile removes it
        try:
            self._storage.sync_folder(self._folder_of(ref))
        except FileNotFoundError:  # deleted meanwhile
            return
        except OSError:
            with self._lock:
                self._durable_names.discard(ref)
            raise

    def _open_file(self, ref: QueueRef, index: int, *, write: bool) -> File:
        """Return file `index` of a queue, from the cache of open files if it is there. The caller holds the
        lock."""
        cached = self._open.get((ref, index))
        if cached is not None:
            self._open.move_to_end((ref, index))
            return cached
        path = self._path_of(ref, index)
        if write:
            self._storage.make_folder(self._folder_of(ref))
            file = self._storage.open(path, write=True)
            if not file.size():  # made just now
                self._durable_names.discard(ref)
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
        self._storage.remove(self._path_of(ref, index))

    def _folder_of(self, ref: QueueRef) -> str:
        return f"{self._directory}/{names.queue_folder(ref.topic, ref.queue_id)}"

    def _path_of(self, ref: QueueRef, index: int) -> str:
        return f"{self._folder_of(ref)}/{names.queue_file_name(ref.incarnation, index * FILE_ENTRIES)}"

    def close(self) -> None:
        """Close all consume-queue files."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


HUB_ENTRIES = 4096  # searched on the hub; a longer search goes to a thread
_TAG_AT = 12  # index of the tag hash in an entry
_HASH = Struct("<I")


def entries_max(call: ReadCall) -> int:
    """Return how many entries the first attempt of a read examines."""
    return call.count_max if call.tags is None else HUB_ENTRIES


class SelectedEntries(NamedTuple):
    """The entries selected for a read, their offsets, and the offset at which to continue after them."""

    entries: bytes
    offsets: Sequence[int]
    after: int


def select_entries(call: ReadCall, entries: bytes) -> SelectedEntries:
    """Select the entries that `call` requests. The first of `entries` must be at the offset of `call`."""
    count = len(entries) // ENTRY_BYTES
    if call.tags is None:
        return SelectedEntries(entries, range(call.offset, call.offset + count), call.offset + count)
    indexes = list(_take_first(_match_indexes(entries, call.tags), call.count_max + 1))
    after = count
    if len(indexes) > call.count_max:
        after = indexes.pop()
    matches = b"".join([entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES] for at in indexes])
    return SelectedEntries(matches, [call.offset + at for at in indexes], call.offset + after)


def _take_first(indexes: Iterator[int], count: int) -> Iterator[int]:
    return (index for _, index in zip(range(count), indexes, strict=False))


def _match_indexes(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    return _find_tagged(entries, tags) if are_all_valid(entries) else _find_tagged_or_damaged(entries, tags)


def are_all_valid(entries: bytes) -> bool:
    """Return whether every entry of a run has the right CRC."""
    return bool(google_crc32c.value(entries) == _crc_of_valid(len(entries) // ENTRY_BYTES))


@lru_cache(maxsize=8)
def _crc_of_valid(count: int) -> int:
    crc: int = google_crc32c.value(GAP_ENTRY * count)
    return crc


def _find_tagged(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    """Yield the indexes of entries with one of the tag hashes.

    A string search compares the lowest byte of each hash first.
    """
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


def _find_tagged_or_damaged(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    """Yield the indexes of entries that are damaged or have one of the tag hashes, checking each entry."""
    for at in range(len(entries) // ENTRY_BYTES):
        entry = entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES]
        if _HASH.unpack_from(entry, _TAG_AT)[0] in tags or not is_valid_entry(entry):
            yield at


def search_entries(call: ReadCall, files: QueueFiles, end: int) -> SelectedEntries:
    """Search the files until an entry is selected, `end` is reached or the files end. Blocking."""
    at = call.offset
    while True:
        entries = files.read(call.queue, at, min(HUB_ENTRIES, end - at))
        picked = select_entries(call._replace(offset=at), entries)
        if picked.entries or not entries or picked.after >= end:
            return picked
        at = picked.after


# --- entries that wait in memory
#
# Entries of visible records wait in memory, per queue, and go to the files in bulk, off the hub: past
# `tail_bytes_max`, or `tail_ms` after the first. While another process reads the files (`at_once`), they go
# there at every commit. Entries leave memory only when they are in the file.

log = logging.getLogger(__name__)
Write = tuple[LogQueue, int, bytes]  # queue, offset of the first entry, entries


class Tails:
    """The entries of all queues that are in no file yet. Belongs to the hub."""

    def __init__(self, files: QueueFiles, options: FileLogOptions) -> None:
        self._files = files
        self._bytes_max = options.tail_bytes_max
        self._period_s = options.tail_ms / 1000
        self._timer = HubTimer()
        self._waiting: dict[QueueRef, LogQueue] = {}
        self._busy = self._ticking = self._closed = self._failing = False
        self.at_once = False
        self.bytes = 0

    def add_bytes(self, queue: LogQueue, size: int) -> None:
        """Count `size` bytes that were added to a queue's tail."""
        if not queue.is_deleted:  # deleted by the same commit: `forget_queue` has counted the bytes
            self._waiting[queue.ref] = queue
        self.bytes += size

    def add_unwritten(self, queues: Iterable[LogQueue]) -> None:
        """Add the entries that recovery could not write to the files."""
        for queue in queues:
            if queue.tail:
                self.add_bytes(queue, len(queue.tail))
        self.on_commit()

    def on_commit(self) -> None:
        """Write the entries that a commit added to the queues' tails, or schedule writing them.

        They are written at once if other processes read the files, and when the tails are too large.
        """
        if self.at_once and not self._busy:
            self._drop_written(self._write(self.list_writes()))
        elif self.bytes >= self._bytes_max and not self._busy:
            self.flush()
        elif not self._ticking and self._waiting:
            self._ticking = True
            self._timer.every(self._period_s, self._flush_waiting)

    def _flush_waiting(self) -> None:
        if self._waiting:
            self.flush()
        elif not self._busy:
            self._timer.stop()
            self._ticking = False

    def flush(self) -> None:
        """Write the waiting entries in a native thread."""
        if not self._busy and not self._closed:
            self._busy = True
            off_hub(self._write, self._on_written, self.list_writes())

    def list_writes(self) -> list[Write]:
        """Return the waiting writes for a checkpoint that performs them; writing them twice is harmless."""
        return [(queue, queue.flushed, bytes(queue.tail)) for queue in self._waiting.values()]

    def put(self, write: Write) -> None:
        """Write entries to their file, unless the queue was deleted meanwhile. Blocking. Raises OSError."""
        queue, offset, entries = write
        self._files.write(queue.ref, offset, entries)
        if queue.is_deleted:  # deleted meanwhile, before this write created the file again
            self._files.remove_queue(queue.ref)

    def _write(self, writes: list[Write]) -> list[Write]:
        """Perform writes until one fails; return those that succeeded. Blocking."""
        written: list[Write] = []
        try:
            for write in writes:
                self.put(write)
                written.append(write)
        except OSError as error:
            if not self._failing:
                log.error("consume-queue entries cannot be written, they stay in memory: %s", error)
            self._failing = True
            return written
        if self._failing:
            log.warning("consume-queue entries are written again")
        self._failing = False
        return written

    def _on_written(self, written: Any, _: Exception | None) -> None:
        self._busy = False
        if self._closed:
            return
        self._drop_written(written or [])

    def _drop_written(self, written: list[Write]) -> None:
        for queue, _, data in written:
            if self._waiting.get(queue.ref) is not queue:
                continue
            del queue.tail[: len(data)]
            queue.flushed += len(data) // ENTRY_BYTES
            self.bytes -= len(data)
            if not queue.tail:
                self._waiting.pop(queue.ref, None)

    def forget_queue(self, queue: LogQueue) -> None:
        """Forget the entries of a queue whose topic was deleted."""
        queue.is_deleted = True
        self._waiting.pop(queue.ref, None)
        self.bytes -= len(queue.tail)

    def close(self) -> None:
        """Write the waiting entries now, on this thread."""
        self._closed = True
        self._timer.stop()
        if not self._busy:
            self._drop_written(self._write(self.list_writes()))
