"""The commit log's files: found by name, mapped for reading, cut and continued.

Rules:
* A segment holds the positions from its name up to the next segment's name; `end` says up to where its
  bytes count. Nothing reads a mapped byte at or past `end`: behind a cut it may be gone, and a process
  that touches it dies. Nor one that `view` was not asked for: its page may be unreadable, with the same end.
* Creating and cutting block; adding to and removing from the set is done on the hub, by one owner.
* A segment whose time has come but that holds young dead letters is *kept*: for them alone, under another
  name. Kept ones stand before all others, with holes between them; the log begins behind them.
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise, takewhile

from backend.file_log.core import names
from backend.file_log.core.layout import FRAME_BYTES, UNSALTED, unpack_frame
from backend.file_log.storage import PAGE_BYTES, File, Storage
from ddmq_common.errors import StorageError
from ddmq_common.names import is_dead_letters

SPARE_BYTES_MAX = 1 << 20  # a file system's own rounding; more behind a segment's end is given back


class Segment:
    """One file of the commit log."""

    __slots__ = ("_map", "end", "file", "kept", "last_ms", "path", "salt", "start")

    def __init__(self, start: int, end: int, path: str, file: File, salt: int = 0) -> None:
        self.start = start
        self.end = end
        self.path = path
        self.file = file
        self.salt = salt  # of all its CRCs; 0: none
        self.kept = False  # for its dead letters alone
        self.last_ms = 0  # store time of its newest record, or a little later
        self._map: mmap.mmap | None = None

    def view(self, start: int, end: int) -> mmap.mmap:
        """The file mapped; log positions `[start, end)` of it can be read now.

        Raises OSError (EIO) when the file is shorter, or a page of them cannot be read.
        """
        found = self._map
        if found is None or self.start + len(found) < end:
            found = self._map = self.file.map()
            if self.start + len(found) < end:
                raise OSError(errno.EIO, f"it ends at {self.start + len(found)}, wanted is {end}", self.path)
        if start < end:
            self.file.check(found, start - self.start, end - self.start)
        return found

    def readable(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of `[start, end)` that can be read, ascending; without the pages that cannot."""
        try:
            self.view(start, end)
        except OSError:
            first = (start - self.start) // PAGE_BYTES
            last = (end - 1 - self.start) // PAGE_BYTES
            if first == last:
                return []
            middle = self.start + (first + last + 1) // 2 * PAGE_BYTES
            before, after = self.readable(start, middle), self.readable(middle, end)
            if before and after and before[-1][1] == after[0][0]:
                return [*before[:-1], (before[-1][0], after[0][1]), *after[1:]]
            return before + after
        return [(start, end)]

    def pread(self, position: int, size: int) -> bytes:
        """Bytes from a log position on; shorter at the end of what counts."""
        return self.file.pread(min(size, self.end - position), position - self.start)

    def salvage(self, position: int, size: int) -> bytes:
        """The same; zeros where a page cannot be read."""
        return self.file.salvage(min(size, self.end - position), position - self.start)

    def disk_bytes(self) -> int:
        """Space taken."""
        return os.fstat(self.file.fd).st_blocks * 512

    def close(self) -> None:
        """Mapped pages go when their last reader does."""
        self._map = None
        self.file.close()


class SegmentSet:
    """All segments of one log, ascending."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self.storage = storage
        self.folder = f"{directory}/{names.COMMIT_LOG}"
        self.salting = UNSALTED  # to be set before segments are opened or made
        self.starts: list[int] = []
        self.segments: list[Segment] = []
        self._kept = 0  # so many of them, the first ones

    def load(self) -> None:
        """Open what is there. Segments not known yet are added, so members call it again."""
        paths, ends = self._found()
        starts = sorted(paths)
        known = dict(zip(self.starts, self.segments, strict=True))
        for start in [start for start, segment in known.items() if segment.file.deleted()]:
            known.pop(start).close()  # another file may have its name
        segments = [
            known.pop(start) if start in known else self._open(start, paths[start]) for start in starts
        ]
        for gone in known.values():
            gone.close()
        for segment, after in pairwise(segments):
            segment.end = min(after.start, segment.start + segment.file.size())
            segment.last_ms = segment.last_ms or self._first_ms(after)
        kept = list(takewhile(lambda segment: segment.start in ends, segments))
        for segment in kept:
            segment.path, segment.end, segment.kept = paths[segment.start], ends[segment.start], True
        self.starts, self.segments, self._kept = starts, segments, len(kept)

    def _found(self) -> tuple[dict[int, str], dict[int, int]]:
        """Files by start, and the ends of the kept ones."""
        paths: dict[int, str] = {}
        ends: dict[int, int] = {}
        for name in self.storage.list(self.folder):
            start, kept = names.parse_segment(name), names.parse_kept(name)
            if kept is not None:
                start, ends[kept[0]] = kept
            if start is not None:
                paths[start] = f"{self.folder}/{name}"
        return paths, ends

    def _open(self, start: int, path: str) -> Segment:
        file = self.storage.open(path)
        return self._segment(start, start + file.size(), path, file)

    def _segment(self, start: int, end: int, path: str, file: File) -> Segment:
        return Segment(start, end, path, file, self.salting.of_segment(start))

    def _first_ms(self, segment: Segment) -> int:
        frame = unpack_frame(segment.file.salvage(FRAME_BYTES, 0), segment.start, segment.salt)
        return 0 if frame is None else frame.stored_ms

    def date(self, newest_ms: int) -> None:
        """Segments of unknown age are as young as what follows them; `newest_ms`: the log's newest record."""
        for segment in reversed(self.segments):
            segment.last_ms = newest_ms = segment.last_ms or newest_ms

    def path(self, start: int) -> str:
        """Of a segment's file."""
        return f"{self.folder}/{names.segment_name(start)}"

    def free_bytes(self) -> int:
        """Of the disk, for us. Blocking."""
        return self.storage.space(self.folder).free

    @property
    def last(self) -> Segment:
        """The one being written."""
        return self.segments[-1]

    @property
    def first_position(self) -> int:
        """Where the log starts, without what is kept; 0 when there is none."""
        if self._kept < len(self.starts):
            return self.starts[self._kept]
        return self.segments[-1].end if self.segments else 0

    def first_of(self, topic: str) -> int:
        """Where it starts for a topic: dead letters also stand in what is kept."""
        return self.starts[0] if self._kept and is_dead_letters(topic) else self.first_position

    @property
    def empty(self) -> bool:
        """Whether there is nothing, what is kept apart."""
        return self._kept == len(self.segments)

    def locate(self, position: int) -> Segment | None:
        """The segment that holds a log position, None when it was deleted or is not there yet."""
        index = bisect_right(self.starts, position) - 1
        if index < 0 or position >= self.segments[index].end:
            return None
        return self.segments[index]

    def holes(self, end: int) -> list[tuple[int, int]]:
        """Ranges of log positions below `end` that no file holds; behind a kept segment all was deleted."""
        found, at = [], self.first_position
        for segment in self.segments:
            if not segment.kept:
                found.append((at, min(segment.start, end)))
                at = segment.end
        return [hole for hole in (*found, (at, end)) if hole[0] < hole[1]]

    def create(self, start: int, size: int) -> Segment:
        """A new, empty, durable file for the log from `start` on. Blocking; not in the set yet."""
        path = self.path(start)
        file = self.storage.open(path, write=True)
        try:
            file.truncate(size)
            file.sync_all()
            self.storage.sync_folder(self.folder)
        except OSError:
            file.close()
            raise
        return self._segment(start, start, path, file)

    def create_with(self, start: int, data: bytes, size: int) -> Segment:
        """A new durable file that holds `data`, in place of one with the same start. Blocking."""
        path = self.path(start)
        unfinished = path + names.UNFINISHED
        self.storage.remove(unfinished)
        file = self.storage.open(unfinished, write=True)
        try:
            file.truncate(max(size, len(data)))
            file.pwrite(data, 0)
            file.sync_all()
            self.storage.rename(unfinished, path)
            self.storage.sync_folder(self.folder)
        except OSError:
            file.close()
            raise
        return self._segment(start, start + len(data), path, file)

    def remove_after(self, position: int) -> None:
        """Remove files of segments that start behind a log position; they are not in the set. Blocking."""
        for name in self.storage.list(self.folder):
            start = names.parse_segment(name)
            if start is not None and start > position:
                self.storage.remove(self.path(start))

    def reopen_last(self, end: int, size: int) -> None:
        """Make the last segment writable and cut it at log position `end`, durably. Blocking."""
        last = self.segments[-1]
        file = self.storage.open(last.path, write=True)
        file.truncate(end - last.start)
        file.sync_all()
        file.truncate(max(size, end - last.start))
        file.sync_all()
        last.close()
        self.segments[-1] = self._segment(last.start, end, last.path, file)

    def trim(self) -> None:
        """Give back the space that was set aside behind what counts in all segments but the last. Blocking.

        A disk that does not let it stays as it is.
        """
        for segment in self.segments[:-1]:
            size = segment.end - segment.start
            if segment.file.size() > size and segment.disk_bytes() > size + SPARE_BYTES_MAX:
                with suppress(OSError), closing(self.storage.open(segment.path, write=True)) as file:
                    file.truncate(size)

    def add(self, segment: Segment) -> None:
        """A new last one, as young as the one before; what it overlaps of that does not count any more."""
        if self.segments:
            segment.last_ms = max(segment.last_ms, self.segments[-1].last_ms)
        if self.segments and self.segments[-1].start >= segment.start:
            self.starts.pop()
            self.segments.pop().close()
        elif self.segments:
            self.segments[-1].end = min(self.segments[-1].end, segment.start)
        self.starts.append(segment.start)
        self.segments.append(segment)

    def drop(self, start: int) -> Segment:
        """Take a kept one, or the oldest of the others, out of the set; its file stays.

        Raises StorageError for any other, and for the last.
        """
        index = self._goes(start)
        self.starts.pop(index)
        segment = self.segments.pop(index)
        self._kept -= segment.kept
        return segment

    def keep(self, start: int) -> Callable[[], Callable[[], None]]:
        """For dead letters alone, from now on: the oldest that is not kept yet; raises as `drop`.

        Gives what renames its file durably (blocking), and that what notes it, for the hub.
        """
        segment = self.segments[self._goes(start)]
        path = f"{self.folder}/{names.kept_name(segment.start, segment.end)}"

        def rename() -> Callable[[], None]:
            self.storage.rename(segment.path, path)
            segment.path = path
            self.storage.sync_folder(self.folder)
            return note

        def note() -> None:
            segment.kept = True
            self._kept += 1

        return rename

    def _goes(self, start: int) -> int:
        index = bisect_right(self.starts, start) - 1
        if not 0 <= index <= self._kept or self.starts[index] != start or index == len(self.starts) - 1:
            raise StorageError(f"segment {start} is not the oldest of several; it stays")
        return index

    def close(self) -> None:
        """All files."""
        for segment in self.segments:
            segment.close()
        self.starts, self.segments, self._kept = [], [], 0
