"""The index of a running log: every commit adds to it, the start fills its gaps, `find` looks things up in
it.

Rules:
* Only frames that count are indexed: they are added when they become visible to readers.
* All reads of the log and of index files run in a native thread, with pread and never from mapped memory: a
  page fault would hold the interpreter. Segments may be closed and deleted meanwhile; each record names its
  own position, so that other bytes are never taken for it.
* At start at most `fill_bytes_max` are read again to fill the live segment's gap. A larger gap stays until
  the segment is full, and is then repaired in the background.
* One greenlet seals full segments and repairs damaged ones, in steps in gevent's native threads with a pause
  after each, so that no step holds the hub longer than one C call (docs/formats-index.md, last section, has
  the measurements). A failure is logged, counted and retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import gevent
from gevent.event import Event

from backend.file_log.core import names
from backend.file_log.core.layout import FRAME_BYTES, RECORD_BYTES, Frame, Record, RecordKind, unpack_record
from backend.file_log.core.scan import scan_items
from backend.file_log.index.entries import IndexDamage
from backend.file_log.index.log_index import LogIndex, LogRange
from backend.file_log.index.sorted_table import IndexRow
from backend.file_log.segments import Segment, SegmentSet
from backend.file_log.storage import Storage
from ddmq_common.errors import DdmqError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.native_threads import in_thread, off_hub

log = logging.getLogger(__name__)

CANDIDATES_MAX = 10_000  # candidates that one lookup reads, including those with an equal hash only
FILL_BYTES_MAX = 64 << 20
FLUSH_S = 1.0

DamageReport = Callable[[str, int, int, str], None]  # kind of file, position, length, description


class AttachedIndex:
    """The index of the log's writer. `recover` blocks; all else belongs to the hub unless stated
    otherwise.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        segments: SegmentSet,
        on_damage: DamageReport,
        fill_bytes_max: int = FILL_BYTES_MAX,
    ) -> None:
        self.index = LogIndex(storage, f"{directory}/{names.INDEX}", self._on_damaged)
        self._segments = segments
        self._on_damage = on_damage
        self._fill_bytes_max = fill_bytes_max
        self._keeper = IndexKeeper(
            self.index, self.segment_ranges, lambda log_range: rows_of(self._segments.segments, log_range)
        )
        self.published = self.index.published
        self.index.writer.on_roll = self._keeper.wake
        self.index.writer.on_blocks = self._write
        self._timer = HubTimer()
        self._writing = False
        self._drops_reported = 0

    def _on_damaged(self, damage: IndexDamage) -> None:
        self._on_damage("index", damage.segment_start + damage.offset, 0, f"{damage.file}: {damage.what}")

    def segment_ranges(self) -> list[LogRange]:
        """Return the ranges `[start, end)` of the log's segments."""
        segments = self._segments.segments
        ends = [*self._segments.starts[1:], segments[-1].end]
        return [
            (segment.start, segment.end if segment.dead_letters_only else end)
            for segment, end in zip(segments, ends, strict=True)
        ]

    # --- start and end

    def recover(self) -> None:
        """Bring the index up to date with the recovered log. Blocking."""
        live = self._segments.last
        for start, end in self.index.recover_files(self.segment_ranges()):
            if start < live.start:
                continue
            if end - start > self._fill_bytes_max:
                self.index.skip_to(end)
                log.warning(
                    "the index lacks %d bytes of the live segment; it will be rebuilt later", end - start
                )
            else:
                self._fill_gap(start, end)
        self.index.write_blocks()

    def _fill_gap(self, start: int, end: int) -> None:
        for row in rows_of(self._segments.segments, (start, end)):
            columns = ((row.position,), (row.topic,), (row.key,), (row.message_id,))
            if self.index.add_many(*columns, row.stored_ms, row.position):
                self.index.write_blocks()
        self.index.add_many((), (), (), (), 0, end)

    def start(self) -> None:
        """Start the background work: seal full blocks, repair damaged ones, and every FLUSH_S write new rows
        to disk, where other processes read them."""
        self._timer.every(FLUSH_S, self._tick)
        self._keeper.start()

    def close(self) -> None:
        """Stop, and write the waiting blocks. Blocking."""
        self._keeper.stop()
        self._timer.stop()
        self.index.close()

    # --- feeding

    def _tick(self) -> None:
        self.index.flush()
        self._write()

    def _write(self) -> None:
        if not self._writing:
            self._writing = True
            off_hub(self.index.write_blocks, self._on_written)

    def _on_written(self, _: object, error: Exception | None) -> None:
        self._writing = False
        if error is not None:
            log.error("the index could not be written: %s", error, exc_info=error)
        writer = self.index.writer
        dropped, self._drops_reported = writer.blocks_dropped - self._drops_reported, writer.blocks_dropped
        if dropped:
            log.warning(
                "%d blocks of the index dropped: %s; lookups by key and id miss their messages until the "
                "segment is full", dropped, writer.dropped_because,
            )  # fmt: skip

    # --- queries

    def find_key(
        self, topic: str, incarnation: int, key: bytes, count_max: int
    ) -> Callable[[], list[IndexHit]]:
        """Return the blocking call that finds the newest records of a key, newest first."""
        candidates = self.index.find_key(topic, key, CANDIDATES_MAX)
        return lambda: self._verify_candidates(
            candidates, lambda record: is_key(record, topic, incarnation, key), count_max
        )

    def find_id(
        self, topic: str, incarnation: int, message_id: bytes, count_max: int
    ) -> Callable[[], list[IndexHit]]:
        """Return the blocking call that finds the records with a message id, newest first."""
        candidates = self.index.find_id(message_id, CANDIDATES_MAX)
        return lambda: self._verify_candidates(
            candidates, lambda record: is_id(record, topic, incarnation, message_id), count_max
        )

    def _verify_candidates(
        self, candidates: Iterator[int], matches: Callable[[Record], bool], count_max: int
    ) -> list[IndexHit]:
        return list(islice(verify_candidates(candidates, self._segments.segments[:], matches), count_max))


PAUSE_S = 0.001
ROUND_S = 30.0
_DONE = object()


def run_steps(steps: Iterator[None], pause_s: float = PAUSE_S) -> None:
    """Run all steps in native threads, with a pause after each. Raises the exception of a step."""
    while in_thread(next, steps, _DONE) is not _DONE:
        gevent.sleep(pause_s)


class IndexKeeper:
    """The greenlet that seals full segments of the index and repairs damaged ones.

    `segment_ranges()`: the log's segments `[start, end)`, ascending, the last one live. `rows_of(span)`: the
    records of a segment in log order, read lazily in a native thread. It works after `wake`, and every
    ROUND_S.
    """

    def __init__(
        self,
        index: LogIndex,
        segment_ranges: Callable[[], Sequence[LogRange]],
        rows_of: Callable[[LogRange], Iterable[IndexRow]],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._index = index
        self._segment_ranges = segment_ranges
        self._rows_of = rows_of
        self._pause_s = pause_s
        self._event = Event()
        self._greenlet: gevent.Greenlet | None = None
        self.failures = 0

    def start(self) -> None:
        """Start the greenlet; the first round runs at once."""
        self._greenlet = gevent.spawn(self._run)

    def wake(self) -> None:
        """Start a round, because a segment is full or damaged."""
        self._event.set()

    def stop(self) -> None:
        """Abandon the work under way; the next start repeats it. Blocks the calling greenlet."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _run(self) -> None:
        while True:
            try:
                self.work_once()
            except (OSError, DdmqError) as error:
                self.failures += 1
                log.warning("sealing and repairing the index failed: %s", error)
            self._event.wait(ROUND_S)
            self._event.clear()

    def work_once(self) -> None:
        """Seal all full segments and repair all damaged ones."""
        full = dict(self._segment_ranges()[:-1])
        for start in self._index.damaged - full.keys():
            if start < self._index.writer.segment_start:
                self._index.damaged.discard(start)  # deleted meanwhile
        unsealed = in_thread(self._index.list_unsealed)
        for start in sorted({*unsealed, *self._index.damaged} & full.keys()):
            self._work_on((start, full[start]), start in self._index.damaged)

    def _work_on(self, log_range: LogRange, damaged: bool) -> None:
        failure: Exception | None = None
        try:
            if damaged:
                log.warning("repairing the index of segment %d", log_range[0])
            run_steps(self._index.repair_steps(log_range, lambda: self._rows_of(log_range)), self._pause_s)
        except (OSError, DdmqError) as error:
            failure = error
        if log_range[0] not in dict(self._segment_ranges()):
            in_thread(self._index.drop_segment, log_range[0])  # deleted meanwhile
        elif failure is not None:
            self.failures += 1
            log.warning("the index of segment %d stays unsorted: %s", log_range[0], failure)


WINDOW_BYTES = 1 << 20
RECORD_BYTES_MAX = 64 << 20  # no record is larger
FIRST_READ_BYTES = 4_096

IndexHit = tuple[Record, bytes]  # a record and its delivery bytes


def is_key(record: Record, topic: str, incarnation: int, key: bytes) -> bool:
    """Return whether a record is a message of this incarnation of the topic and has this key."""
    return _is_message(record, topic, incarnation) and record.key == key


def is_id(record: Record, topic: str, incarnation: int, message_id: bytes) -> bool:
    """Return whether a record is the message with this id, or a copy of it."""
    return _is_message(record, topic, incarnation) and record.message_id == message_id


def _is_message(record: Record, topic: str, incarnation: int) -> bool:
    return record.kind == RecordKind.MESSAGE and record.incarnation == incarnation and record.topic == topic


def verify_candidates(
    candidates: Iterable[int], segments: Sequence[Segment], matches: Callable[[Record], bool]
) -> Iterator[IndexHit]:
    """Yield the candidates that are valid records and match `matches`. Reads the log, in a native thread."""
    for position in candidates:
        record = read_record(segments, position)
        if record is not None and matches(record[0]):
            yield record


def read_record(segments: Sequence[Segment], position: int) -> IndexHit | None:
    """Return the valid record at a log position with its delivery bytes, or None. Blocking."""
    segment = next(
        (candidate for candidate in reversed(segments) if candidate.start <= position < candidate.end), None
    )
    if segment is None:
        return None
    try:
        data = segment.salvage(position, FIRST_READ_BYTES)
        record = unpack_record(data, 0, position, segment.salt)
        size = _size_of(data) if record is None else record.size
        if size > len(data):
            data = segment.salvage(position, min(size, RECORD_BYTES_MAX))
            record = unpack_record(data, 0, position, segment.salt)
    except OSError:
        return None  # deleted meanwhile
    if record is None or len(data) < record.size:
        return None
    delivery = data[record.meta_bytes : record.size]
    return (record, delivery) if record.delivery_is(delivery) else None


def _size_of(data: bytes) -> int:
    return int.from_bytes(data[20:24], "little") if len(data) >= RECORD_BYTES else 0


def rows_of(segments: Sequence[Segment], log_range: tuple[int, int]) -> Iterator[IndexRow]:
    """Yield the index rows of all valid messages in a range `[start, end)` of one segment. Blocking."""
    at, end = log_range
    segment = next((candidate for candidate in segments if candidate.start <= at < candidate.end), None)
    if segment is None:
        return
    for item in records_of(segment, at, min(end, segment.end)):
        if item.kind == RecordKind.MESSAGE:
            yield IndexRow(item.position, item.topic, item.key, item.message_id, item.stored_ms)


def records_of(segment: Segment, at: int, end: int) -> Iterator[Record]:
    """Yield all valid records of a segment in `[at, end)`, read in windows. Blocking."""
    size = WINDOW_BYTES
    while at < end:
        data = segment.salvage(at, min(size, end - at))
        if not data:
            return
        after, stop = at, at + len(data)
        for item in scan_items(data, at, at, stop, segment.salt):
            if isinstance(item, Record):
                after = item.end
                yield item
            elif isinstance(item, Frame):
                after = item.position + FRAME_BYTES
            elif item.end < stop:
                after = item.end  # a damaged range with a valid item after it
        if after == at and size < RECORD_BYTES_MAX and stop < end:
            size *= 2  # perhaps a record that is larger than the window
        else:
            at, size = (stop if after == at else after), WINDOW_BYTES
