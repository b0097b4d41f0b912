"""The index attached to a running log: fed by every commit, filled up at start, asked by `find`.

Rules:
* Only what counts is indexed: frames are added when they are published to readers.
* Everything that reads the log or index files runs in a native thread (log_rows.py).
* After start at most `fill_bytes_max` are read again to fill the live segment's gap; a larger gap stays
  until the segment is full, and is then repaired in the background.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import gevent

from backend.file_log.commit.packing import PackedFrame
from backend.file_log.core import names
from backend.file_log.core.record import Record
from backend.file_log.index.damage import IndexDamage
from backend.file_log.index.keeper import IndexKeeper
from backend.file_log.index.log_index import LogIndex, Span
from backend.file_log.index.log_rows import Found, is_id, is_key, rows_of, verified
from backend.file_log.segments import SegmentSet
from backend.file_log.storage import Storage
from ddmq_common.hub_timer import HubTimer
from ddmq_common.native_threads import off_hub

log = logging.getLogger(__name__)

CANDIDATES_MAX = 10_000  # that one lookup looks at; hashes of strangers among them are passed over
FILL_BYTES_MAX = 64 << 20
FLUSH_S = 1.0
WRITE_BLOCKS = 8  # waiting blocks that are worth a call in another thread before that

DamageFound = Callable[[str, int, int, str], None]  # kind of file, place, length, what


class AttachedIndex:
    """The writer's index. `recover` blocks; the rest belongs to the hub, except where it says otherwise."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        segments: SegmentSet,
        on_damage: DamageFound,
        fill_bytes_max: int = FILL_BYTES_MAX,
    ) -> None:
        self.index = LogIndex(storage, f"{directory}/{names.INDEX}", self._damaged)
        self._segments = segments
        self._on_damage = on_damage
        self._fill_bytes_max = fill_bytes_max
        self._keeper = IndexKeeper(
            self.index, self.spans, lambda span: rows_of(self._segments.segments, span)
        )
        self._hub: Any = gevent.get_hub()
        self._timer = HubTimer()
        self._writing = False
        self._drops_told = 0

    def _damaged(self, damage: IndexDamage) -> None:
        self._on_damage("index", damage.segment_start + damage.offset, 0, f"{damage.file}: {damage.what}")

    def spans(self) -> list[Span]:
        """The log's segments, `[start, end)`."""
        segments = self._segments.segments
        ends = [*self._segments.starts[1:], segments[-1].end]
        return [
            (segment.start, segment.end if segment.kept else end)
            for segment, end in zip(segments, ends, strict=True)
        ]

    # --- start and end

    def recover(self) -> None:
        """Bring the index in line with the recovered log. Blocking."""
        live = self._segments.last
        for start, end in self.index.recover(self.spans()):
            if start < live.start:
                continue
            if end - start > self._fill_bytes_max:
                self.index.skip_to(end)
                log.warning(
                    "the index lacks %d bytes of the live segment; it is made anew later", end - start
                )
            else:
                self._fill(start, end)
        self.index.write_blocks()

    def _fill(self, start: int, end: int) -> None:
        for row in rows_of(self._segments.segments, (start, end)):
            columns = ((row.position,), (row.topic,), (row.key,), (row.message_id,))
            if self.index.add_many(*columns, row.stored_ms, row.position):
                self.index.write_blocks()
        self.index.add_many((), (), (), (), 0, end)

    def start(self) -> None:
        """Begin sealing and repairing, and showing rows to other processes within FLUSH_S."""
        self._timer.every(FLUSH_S, self._tick)
        self._keeper.start()

    def close(self) -> None:
        """Write what waits. Blocking."""
        self._keeper.stop()
        self._timer.stop()
        self.index.close()

    # --- feeding

    def published(self, frame: PackedFrame) -> None:
        """A frame counts now."""
        index, start = self.index, self._segments.last.start
        if start != index.writer.segment_start:
            index.roll(start)
            self._keeper.wake()
        if frame.position > index.covered_to:  # the log moved its unsynced end here; the old file has it
            index.skip_to(frame.position)
        if index.add_many(*frame.columns, frame.stored_ms, frame.end) >= WRITE_BLOCKS:
            self._write()

    def _tick(self) -> None:
        self.index.flush()
        self._write()

    def _write(self) -> None:
        if not self._writing:
            self._writing = True
            off_hub(self.index.write_blocks, self._written)

    def _written(self, _: object, error: Exception | None) -> None:
        self._writing = False
        if error is not None:
            log.error("the index was not written: %s", error, exc_info=error)
        writer = self.index.writer
        dropped, self._drops_told = writer.blocks_dropped - self._drops_told, writer.blocks_dropped
        if dropped:
            log.warning(
                "%d blocks of the index dropped: %s; until the segment is full, lookups by key and id miss "
                "what was in them", dropped, writer.dropped_because,
            )  # fmt: skip

    # --- asking

    def find_key(self, topic: str, incarnation: int, key: bytes, count_max: int) -> Callable[[], list[Found]]:
        """The blocking call that gives the newest records of that key, newest first."""
        candidates = self.index.find_key(topic, key, CANDIDATES_MAX)
        return lambda: self._verified(candidates, lambda one: is_key(one, topic, incarnation, key), count_max)

    def find_id(
        self, topic: str, incarnation: int, message_id: bytes, count_max: int
    ) -> Callable[[], list[Found]]:
        """The same by message id."""
        candidates = self.index.find_id(message_id, CANDIDATES_MAX)
        return lambda: self._verified(
            candidates, lambda one: is_id(one, topic, incarnation, message_id), count_max
        )

    def _verified(
        self, candidates: Iterator[int], wanted: Callable[[Record], bool], count_max: int
    ) -> list[Found]:
        return list(islice(verified(candidates, self._segments.segments[:], wanted), count_max))
