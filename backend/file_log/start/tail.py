"""The end of the log after a crash: finds how far the log counts, and truncates it there.

All valid frame headers are searched for the highest proven durable position. From the first incomplete frame
at or above it on, the log is the partial tail, which was never acknowledged, or with an uncertain outcome. It
is truncated, and the truncation is synced, before anything is written again. Blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from backend.file_log.core.layout import FRAME_BYTES, Frame, unpack_frame
from backend.file_log.core.scan import is_complete, refuse_newer_records, scan_frames
from backend.file_log.damage import LogDamage
from backend.file_log.segments import Segment, SegmentSet
from backend.file_log.storage import Storage
from ddmq_common.errors import StorageError

log = logging.getLogger(__name__)
TAIL_COPY_MAX = 16 << 20  # bytes of a partial tail that are copied to damaged/


class Tail:
    """Finds and truncates the end of a log that is being opened."""

    def __init__(self, storage: Storage, segments: SegmentSet, damage: LogDamage, segment_bytes: int) -> None:
        self._storage = storage
        self._segments = segments
        self._damage = damage
        self._segment_bytes = segment_bytes
        self._end = 0
        self._ends: list[tuple[Segment, int]] = []

    def find_end(self, start: int, proven: int) -> int:
        """Find the end of the log, searching from the log position `start` on; changes nothing.

        `proven`: a position below which the log is durable. Raises NewerFormatError for frames of a newer
        release.
        """
        self._ends = self._data_ends(start)
        last = None
        for segment, end in self._ends:
            for item in self._scan_frames(segment, max(start, segment.start), end, last):
                last, proven = item, max(proven, item.durable)
        self._end = self._find_first_incomplete(self._ends, start, proven)
        return self._end

    def _scan_frames(self, segment: Segment, start: int, end: int, last: Frame | None) -> Iterator[Frame]:
        for first, after in segment.readable_ranges(start, end) if start < end else ():
            view = segment.view(first, after)
            for item in scan_frames(view, segment.start, first, after, segment.salt, last):
                if isinstance(item, Frame):
                    refuse_newer_records(view, segment.start, item, segment.salt)
                    yield item
                    last = item

    def truncate(self) -> int:
        """Truncate the log at the end that `find_end` returned, durably; return the bytes of the partial
        tail.

        Raises StorageError if the log would end before its first segment.
        """
        return self._truncate_at(self._end, self._ends)

    def _data_ends(self, start: int) -> list[tuple[Segment, int]]:
        """Return the segments from a position on, each with the end of its bytes other than zero."""
        ends = []
        for segment in self._segments.segments:
            if segment.end > start or segment is self._segments.last:
                inside = max(start - segment.start, 0)
                data_end = segment.start + segment.file.data_end(min(inside, segment.file.size()))
                ends.append((segment, min(segment.end, data_end)))
        return ends

    def _find_first_incomplete(self, ends: list[tuple[Segment, int]], start: int, proven: int) -> int:
        """Return the first position at or above `proven` where no complete frame starts."""
        at = max(start, proven)
        for segment, end in ends:
            last = segment is self._segments.last
            while segment.start <= at < end:
                frame = self._read_complete_frame(segment, at, end)
                if frame is None:
                    return at
                at = frame.end
            if segment.start <= at < segment.end and not last:
                return at  # the segment is too short, and nothing proves the following ones
        return at

    def _read_complete_frame(self, segment: Segment, at: int, end: int) -> Frame | None:
        base, salt = segment.start, segment.salt
        frame = unpack_frame(segment.salvage(at, FRAME_BYTES), at, salt)
        if frame is None or frame.end > end:
            return None
        try:
            return frame if is_complete(segment.view(at, frame.end), base, frame, salt) else None
        except OSError:
            return None  # a page of it cannot be read

    def _truncate_at(self, end: int, ends: list[tuple[Segment, int]]) -> int:
        tail_bytes = 0
        while self._segments.last.start > end and len(self._segments.segments) > 1:
            tail_bytes += self._keep_tail(self._segments.last, self._segments.last.start, ends)
            self._remove_last()
        last = self._segments.last
        if end < last.start:
            raise StorageError(f"the log ends at {end}, before its first segment {last.path}")
        tail_bytes += self._keep_tail(last, end, ends)
        if end > last.end:  # the range between is missing: _report_holes reports it
            self._segments.add(self._segments.create(end, self._segment_bytes))
        else:
            self._segments.reopen_last(end, self._segment_bytes)
        if tail_bytes:
            log.warning("truncated the log at position %d, a partial tail of %d bytes", end, tail_bytes)
        return tail_bytes

    def _keep_tail(self, segment: Segment, start: int, ends: list[tuple[Segment, int]]) -> int:
        """Copy the bytes to truncate to `damaged/`; return how many they are, without zeros at the end."""
        end = {other.start: end for other, end in ends}.get(segment.start, start)
        if end <= start:
            return 0
        data = segment.salvage(start, min(end - start, TAIL_COPY_MAX)).rstrip(b"\0")
        self._damage.copy_tail(segment.start, start, data)
        return len(data)

    def _remove_last(self) -> None:
        segment = self._segments.segments.pop()
        self._segments.starts.pop()
        segment.close()
        self._storage.remove(segment.path)
        self._storage.sync_folder(self._segments.folder)
