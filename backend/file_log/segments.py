"""The files of the commit log: opened by name, mapped for reading, truncated and continued.

Rules:
* A segment holds the positions from its name up to the next segment's name; its bytes count up to `end`. No
  code reads a mapped byte at or past `end`: after a truncation the byte may not exist, and a process that
  touches it dies. Nor does code read a byte outside the range passed to `view`, whose page may be unreadable.
* Creating and truncating block; one owner changes the set, on the hub.
* An expired segment with young dead letters becomes a *dead-letter segment*: it is retained for them alone,
  under another name. Dead-letter segments come before all others, with holes between them; the log begins
  after them.
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

SPARE_BYTES_MAX = 1 << 20  # a file system's own rounding; more after a segment's end is released


class Segment:
    """One segment: a file of the commit log, mapped for reading."""

    __slots__ = ("_map", "dead_letters_only", "end", "file", "last_ms", "path", "salt", "start")

    def __init__(self, start: int, end: int, path: str, file: File, salt: int = 0) -> None:
        self.start = start
        self.end = end
        self.path = path
        self.file = file
        self.salt = salt  # the start value of all its CRCs; 0: none
        self.dead_letters_only = False  # retained for its dead letters alone
        self.last_ms = 0  # store time of its newest record, or a little later
        self._map: mmap.mmap | None = None

    def view(self, start: int, end: int) -> mmap.mmap:
        """Return the mapped file, after checking that the log positions `[start, end)` can be read.

        Raises OSError (EIO) when the file is shorter, or a page of the range cannot be read.
        """
        mapped = self._map
        if mapped is None or self.start + len(mapped) < end:
            mapped = self._map = self.file.map()
            if self.start + len(mapped) < end:
                raise OSError(errno.EIO, f"it ends at {self.start + len(mapped)}, before {end}", self.path)
        if start < end:
            self.file.check(mapped, start - self.start, end - self.start)
        return mapped

    def readable_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of `[start, end)` whose pages can be read, ascending."""
        try:
            self.view(start, end)
        except OSError:
            first = (start - self.start) // PAGE_BYTES
            last = (end - 1 - self.start) // PAGE_BYTES
            if first == last:
                return []
            middle = self.start + (first + last + 1) // 2 * PAGE_BYTES
            before, after = self.readable_ranges(start, middle), self.readable_ranges(middle, end)
            if before and after and before[-1][1] == after[0][0]:
                return [*before[:-1], (before[-1][0], after[0][1]), *after[1:]]
            return before + after
        return [(start, end)]

    def pread(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes from a log position on; fewer at the segment's end."""
        return self.file.pread(min(size, self.end - position), position - self.start)

    def salvage(self, position: int, size: int) -> bytes:
        """Read like `pread`, with zeros for the pages that cannot be read."""
        return self.file.salvage(min(size, self.end - position), position - self.start)

    def disk_bytes(self) -> int:
        """Return the disk space that the file takes, in bytes."""
        return os.fstat(self.file.fd).st_blocks * 512

    def close(self) -> None:
        """Close the file; its mapped pages are released with their last reader."""
        self._map = None
        self.file.close()


class SegmentSet:
    """The segment files of one log, in ascending order of their positions.

    A *dead-letter segment* has expired and stays only for its dead letters; it is no longer part of the log.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self.storage = storage
        self.folder = f"{directory}/{names.COMMIT_LOG}"
        self.salting = UNSALTED  # set before segments are opened or created
        self.starts: list[int] = []
        self.segments: list[Segment] = []
        self._first_index = (
            0  # of the first segment that belongs to the log; dead-letter segments come before it
        )

    def load(self) -> None:
        """Open the existing files, and close deleted ones. Members call it repeatedly."""
        paths, ends = self._list_files()
        starts = sorted(paths)
        opened = dict(zip(self.starts, self.segments, strict=True))
        for start in [start for start, segment in opened.items() if segment.file.is_deleted()]:
            opened.pop(start).close()  # another file may have its name
        segments = [
            opened.pop(start) if start in opened else self._open(start, paths[start]) for start in starts
        ]
        for closed in opened.values():
            closed.close()
        for segment, after in pairwise(segments):
            segment.end = min(after.start, segment.start + segment.file.size())
            segment.last_ms = segment.last_ms or self._first_ms(after)
        retained = list(takewhile(lambda segment: segment.start in ends, segments))
        for segment in retained:
            segment.path, segment.end, segment.dead_letters_only = (
                paths[segment.start],
                ends[segment.start],
                True,
            )
        self.starts, self.segments, self._first_index = starts, segments, len(retained)

    def _list_files(self) -> tuple[dict[int, str], dict[int, int]]:
        """List the segment files in the directory.

        Return the path of each segment by its start, and the end of each dead-letter segment by its start.
        """
        paths: dict[int, str] = {}
        ends: dict[int, int] = {}
        for name in self.storage.list(self.folder):
            start, range_ = names.parse_segment(name), names.parse_dead_letter_segment(name)
            if range_ is not None:
                start, ends[range_[0]] = range_
            if start is not None:
                paths[start] = f"{self.folder}/{name}"
        return paths, ends

    def _open(self, start: int, path: str) -> Segment:
        file = self.storage.open(path)
        return self._make_segment(start, start + file.size(), path, file)

    def _make_segment(self, start: int, end: int, path: str, file: File) -> Segment:
        return Segment(start, end, path, file, self.salting.of_segment(start))

    def _first_ms(self, segment: Segment) -> int:
        frame = unpack_frame(segment.file.salvage(FRAME_BYTES, 0), segment.start, segment.salt)
        return 0 if frame is None else frame.stored_ms

    def set_ages(self, newest_ms: int) -> None:
        """Give each segment without an age that of the next segment, and the last one `newest_ms`."""
        for segment in reversed(self.segments):
            segment.last_ms = newest_ms = segment.last_ms or newest_ms

    def path_of(self, start: int) -> str:
        """Return the path of the segment that starts at this log position."""
        return f"{self.folder}/{names.segment_name(start)}"

    def free_bytes(self) -> int:
        """Return the bytes of the disk that this process may still use. Blocking."""
        return self.storage.space(self.folder).free

    @property
    def last(self) -> Segment:
        """The segment that is being written, or was written last."""
        return self.segments[-1]

    @property
    def first_position(self) -> int:
        """The log position where the log starts: the first segment that is not a dead-letter segment.

        0 if empty.
        """
        if self._first_index < len(self.starts):
            return self.starts[self._first_index]
        return self.segments[-1].end if self.segments else 0

    def first_of(self, topic: str) -> int:
        """Return the log position from which a topic is readable.

        Dead letters may also be in dead-letter segments.
        """
        return self.starts[0] if self._first_index and is_dead_letters(topic) else self.first_position

    @property
    def is_empty(self) -> bool:
        """Whether the log has no segment, apart from dead-letter segments."""
        return self._first_index == len(self.segments)

    def locate(self, position: int) -> Segment | None:
        """Return the segment that holds a log position, or None if it was deleted or does not exist yet."""
        index = bisect_right(self.starts, position) - 1
        if index < 0 or position >= self.segments[index].end:
            return None
        return self.segments[index]

    def missing_ranges(self, end: int) -> list[tuple[int, int]]:
        """Return the ranges of the log below `end` that no file holds.

        Gaps between dead-letter segments, where deleted segments were, do not count.
        """
        ranges, at = [], self.first_position
        for segment in self.segments:
            if not segment.dead_letters_only:
                ranges.append((at, min(segment.start, end)))
                at = segment.end
        return [hole for hole in (*ranges, (at, end)) if hole[0] < hole[1]]

    def create(self, start: int, size: int) -> Segment:
        """Create an empty, durable segment that starts at `start`. Blocking; does not add it to the set."""
        path = self.path_of(start)
        file = self.storage.open(path, write=True)
        try:
            file.truncate(size)
            file.sync_all()
            self.storage.sync_folder(self.folder)
        except OSError:
            file.close()
            raise
        return self._make_segment(start, start, path, file)

    def create_with(self, start: int, data: bytes, size: int) -> Segment:
        """Create a durable segment that holds `data`, in place of one with the same start. Blocking."""
        path = self.path_of(start)
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
        return self._make_segment(start, start + len(data), path, file)

    def remove_after(self, position: int) -> None:
        """Remove the files of segments that start after a log position and are not in the set. Blocking."""
        for name in self.storage.list(self.folder):
            start = names.parse_segment(name)
            if start is not None and start > position:
                self.storage.remove(self.path_of(start))

    def reopen_last(self, end: int, size: int) -> None:
        """Make the last segment writable and truncate it at log position `end`, durably. Blocking."""
        last = self.segments[-1]
        file = self.storage.open(last.path, write=True)
        file.truncate(end - last.start)
        file.sync_all()
        file.truncate(max(size, end - last.start))
        file.sync_all()
        last.close()
        self.segments[-1] = self._make_segment(last.start, end, last.path, file)

    def release_space(self) -> None:
        """Release the space allocated after the end of all segments except the last. Blocking.

        Ignores errors of the disk.
        """
        for segment in self.segments[:-1]:
            size = segment.end - segment.start
            if segment.file.size() > size and segment.disk_bytes() > size + SPARE_BYTES_MAX:
                with suppress(OSError), closing(self.storage.open(segment.path, write=True)) as file:
                    file.truncate(size)

    def add(self, segment: Segment) -> None:
        """Add a new last segment; the bytes of the one before that it overlaps do not count any more."""
        if self.segments:
            segment.last_ms = max(segment.last_ms, self.segments[-1].last_ms)
        if self.segments and self.segments[-1].start >= segment.start:
            self.starts.pop()
            self.segments.pop().close()
        elif self.segments:
            self.segments[-1].end = min(self.segments[-1].end, segment.start)
        self.starts.append(segment.start)
        self.segments.append(segment)

    def remove(self, start: int) -> Segment:
        """Remove a dead-letter segment, or the oldest of the others, from the set; its file stays on disk.

        Raises StorageError for any other segment, and for the last.
        """
        index = self._check_oldest(start)
        self.starts.pop(index)
        segment = self.segments.pop(index)
        self._first_index -= segment.dead_letters_only
        return segment

    def keep_for_dead_letters(self, start: int) -> Callable[[], Callable[[], None]]:
        """Begin to retain the oldest segment of the log only for its dead letters. Raises the errors of
        `remove`.

        Returns the next step: a function for a native thread, which renames the segment's file durably and
        blocks meanwhile. That function returns the last step: a function for the hub, which marks the segment
        as a dead-letter segment.
        """
        segment = self.segments[self._check_oldest(start)]
        path = f"{self.folder}/{names.dead_letter_segment_name(segment.start, segment.end)}"

        def rename() -> Callable[[], None]:
            self.storage.rename(segment.path, path)
            segment.path = path
            self.storage.sync_folder(self.folder)
            return mark_dead_letters_only

        def mark_dead_letters_only() -> None:
            segment.dead_letters_only = True
            self._first_index += 1

        return rename

    def _check_oldest(self, start: int) -> int:
        index = bisect_right(self.starts, start) - 1
        if (
            not 0 <= index <= self._first_index
            or self.starts[index] != start
            or index == len(self.starts) - 1
        ):
            raise StorageError(f"segment {start} is not the oldest of several; it stays")
        return index

    def close(self) -> None:
        """Close all files and empty the set."""
        for segment in self.segments:
            segment.close()
        self.starts, self.segments, self._first_index = [], [], 0
