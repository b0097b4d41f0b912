"""Damaged bytes: counted, logged, copied to `damaged/` once, and never served.

Bounded: past PIECES_MAX ranges or BYTES_MAX copied bytes, damage is only counted.
"""

from __future__ import annotations

import logging

from backend.file_log.core import names
from backend.file_log.segments import SegmentSet
from backend.file_log.storage import Storage
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

log = logging.getLogger(__name__)
RANGES_MAX = 1_000
BYTES_MAX = 64 << 20
RANGE_BYTES_MAX = 16 << 20


class LogDamage:
    """The damage that was detected in one log since it was opened."""

    def __init__(self, storage: Storage, directory: str, segments: SegmentSet, metrics: Registry) -> None:
        self._storage = storage
        self._folder = f"{directory}/{names.DAMAGED}"
        self._segments = segments
        self._metrics = metrics
        self._reported: set[tuple[str, int]] = set()
        self._bytes = 0
        self._copies = -1  # copies in the folder; -1: not counted yet
        self.ranges = 0

    def report_range(self, file: str, position: int, length: int, what: str) -> None:
        """Count and log a damaged range once.

        `file` is the kind of file: commitlog, consumequeue, checkpoint, index or sends.
        """
        if (file, position) in self._reported:
            return
        self.ranges += 1
        self._metrics.cell(catalogue.LOG_DAMAGED, file).value += 1
        if len(self._reported) >= RANGES_MAX:
            return
        self._reported.add((file, position))
        log.error("damaged: %s, %d bytes at %d: %s", file, length, position, what)
        if len(self._reported) == RANGES_MAX:
            log.error("damaged: more than %d ranges; from here on they are only counted", RANGES_MAX)

    def report_in_log(self, position: int, length: int, what: str) -> None:
        """Report damage in the commit log, and copy the bytes to `damaged/`."""
        before = len(self._reported)
        self.report_range("commitlog", position, length, what)
        segment = self._segments.locate(position)
        if len(self._reported) > before and segment is not None and self._bytes + length <= BYTES_MAX:
            self._copy(segment.start, position, segment.salvage(position, min(length, RANGE_BYTES_MAX)))

    def copy_tail(self, start: int, position: int, data: bytes) -> None:
        """Copy the incomplete end of the log to `damaged/` before it is truncated."""
        if data and self._bytes + len(data) <= BYTES_MAX:
            self._copy(start, position, data)

    def _copy(self, start: int, position: int, data: bytes) -> None:
        self._bytes += len(data)
        try:
            self._storage.make_folder(self._folder)
            if self._copies < 0:
                self._copies = len(self._storage.list(self._folder))
            if self._copies >= RANGES_MAX:
                return
            self._copies += 1
            name = names.damaged_name(start, position, len(data))
            file = self._storage.open(f"{self._folder}/{name}", write=True)
            try:
                file.pwrite(data, 0)
            finally:
                file.close()
        except OSError as error:
            log.error("damaged bytes could not be copied to damaged/: %s", error)
