"""The one writer of the index: rows in on the hub, finished blocks out in a native thread.

The hot path only extends lists; a block is hashed and packed once it is full, and waits until
`write_blocks` runs in a thread that may block.
Rules: rows of a segment come in log order and whole (what `add_many` covers has no holes); a block that
finds the disk full waits here, where lookups see it, for as long as its segment is live (else nothing of a
segment may wait behind a call of `write_blocks`: it is about to be sealed or dropped); one that cannot be
written, or that finds UNWRITTEN_MAX others waiting, is dropped and counted, and `dropped_because` says why:
the segment then has a gap, found when it is sealed and filled from the log.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from backend.file_log.commit.packing import PackedFrame
from backend.file_log.core.names import entries_name
from backend.file_log.index import entries
from backend.file_log.index.entries import (
    BLOCK_ROWS,
    ROW_BYTES,
    ROWS_MAX,
    SEGMENT_BYTES_MAX,
    U32_MAX,
    Seeds,
    id_column,
    key_column,
    little,
    pack_header,
)
from backend.file_log.storage import File, Storage, is_full

UNWRITTEN_MAX = 512  # blocks, about 8 MB
WRITE_BLOCKS = 8  # waiting ones that are worth a call in another thread before their time


class Rows:
    """Rows that are not packed yet, column by column. Owned by one thread."""

    __slots__ = ("keys", "message_ids", "positions", "runs", "topics")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.topics: list[str] = []
        self.keys: list[bytes] = []
        self.message_ids: list[bytes] = []
        self.runs: list[tuple[int, int]] = []  # (how many, their store time)

    def add(
        self,
        positions: Sequence[int],
        topics: Sequence[str],
        keys: Sequence[bytes],
        message_ids: Sequence[bytes],
        stored_ms: int,
    ) -> None:
        """One value per record, positions ascending; `stored_ms` is not below the one before."""
        self.positions += positions
        self.topics += topics
        self.keys += keys
        self.message_ids += message_ids
        self.runs.append((len(positions), stored_ms))

    def takes(self, stored_ms: int) -> bool:
        """Whether that store time still fits behind the first one."""
        return not self.runs or stored_ms - self.runs[0][1] <= U32_MAX

    def last_ms(self, before: int) -> int:
        """Store time of the last row; `before` when there are none."""
        return self.runs[-1][1] if self.runs else before

    def pack(self, segment_start: int, covers: tuple[int, int], last_ms: int, seeds: Seeds) -> bytes:
        """The block; `last_ms` is the store time before these rows, shown when there are none."""
        first = self.runs[0][1] if self.runs else last_ms
        last = self.last_ms(last_ms)
        times = array("I")
        for count, stored_ms in self.runs:
            times.extend(array("I", (stored_ms - first,)) * count)
        body = b"".join(
            (
                id_column(self.message_ids),
                little(key_column(self.topics, self.keys, seeds)),
                little(array("I", [position - segment_start for position in self.positions])),
                little(times),
            )
        )
        if len(body) != ROW_BYTES * len(self.positions):
            raise ValueError("columns of different length")
        return pack_header(segment_start, covers, (first, last), len(self.positions), body) + body


class IndexWriter:
    """Appends to the live segment's entries file. All but `write_blocks` and `sync` belong to the hub.

    `gaps` takes the starts of segments of which it leaves something out. `on_roll` is called when a segment
    is full, `on_blocks` when enough blocks wait to be worth a call of `write_blocks`.
    """

    def __init__(self, storage: Storage, folder: str, gaps: set[int]) -> None:
        self.on_roll: Callable[[], object] = lambda: None
        self.on_blocks: Callable[[], object] = lambda: None
        self._gaps = gaps
        self._storage = storage
        self._folder = folder
        self._seeds = Seeds()
        self._rows = Rows()
        self._unwritten: deque[tuple[int, bytes]] = deque()
        self._lock = threading.Lock()  # held by whoever writes; never taken on the hub
        self._file: File | None = None
        self._file_start = -1
        self._file_end = 0
        self._block_from = 0
        self._last_ms = 0
        self.segment_start = 0
        self.covered_to = 0  # log position; all below is in the index, on disk or waiting
        self.blocks_dropped = 0
        self.dropped_because = ""

    def resume(self, segment_start: int, log_end: int) -> int:
        """Continue the live segment as its file stands; the position from which the log must be added again.

        Blocking. Cuts the file behind the last sound block that lies below `log_end`.
        """
        with self._lock:
            self._switch_file(segment_start)
            file = self._file
            assert file is not None
            self._file_end, self.covered_to, self._last_ms = entries.sound_prefix(
                file, segment_start, log_end
            )
            file.truncate(self._file_end)
        self.segment_start, self._block_from, self._rows = segment_start, self.covered_to, Rows()
        return self.covered_to

    def published(self, frame: PackedFrame, segment_start: int) -> None:
        """A commit counts now, and lies in the segment that starts there."""
        if segment_start != self.segment_start:
            self.roll(segment_start)
            self.on_roll()
        if frame.position > self.covered_to:  # the log moved its unsynced end here; the old file has it
            self.skip_to(frame.position)
        if self.add_many(*frame.columns, frame.stored_ms, frame.end) >= WRITE_BLOCKS:
            self.on_blocks()

    def add_many(
        self,
        positions: Sequence[int],
        topics: Sequence[str],
        keys: Sequence[bytes],
        message_ids: Sequence[bytes],
        stored_ms: int,
        end: int,
    ) -> int:
        """Records of one commit, one value each in log order; `end` is the log position behind the commit.

        The columns may be empty: the commit then held nothing to index. `stored_ms` is one time for all.
        How many blocks wait for `write_blocks`.
        """
        if end < self.covered_to or end - self.segment_start > SEGMENT_BYTES_MAX or len(positions) > ROWS_MAX:
            raise ValueError(
                f"{len(positions)} rows up to log position {end} do not fit behind {self.covered_to} "
                f"in segment {self.segment_start}"
            )
        rows = self._rows
        if positions:
            stored_ms = max(stored_ms, rows.last_ms(self._last_ms))
            if not rows.takes(stored_ms) or len(rows.positions) + len(positions) > ROWS_MAX:
                self.flush()
                rows = self._rows
            rows.add(positions, topics, keys, message_ids, stored_ms)
        self.covered_to = end
        if len(rows.positions) >= BLOCK_ROWS:
            self.flush()
        return len(self._unwritten)

    def skip_to(self, position: int) -> None:
        """Leave what lies below `position` out: lookups miss it until the segment is full and repaired."""
        if not self.covered_to <= position:
            raise ValueError(f"log position {position} is below {self.covered_to}, which is indexed")
        self.flush()
        self.covered_to = self._block_from = position
        self._gaps.add(self.segment_start)

    def flush(self) -> None:
        """Close the current block, so that `write_blocks` shows it to other processes."""
        if self.covered_to == self._block_from:
            return
        rows, self._rows = self._rows, Rows()
        covers = (self._block_from, self.covered_to)
        block = rows.pack(self.segment_start, covers, self._last_ms, self._seeds)
        self._last_ms, self._block_from = rows.last_ms(self._last_ms), self.covered_to
        if len(self._unwritten) < UNWRITTEN_MAX:
            self._unwritten.append((self.segment_start, block))
        else:
            self._dropped(f"{UNWRITTEN_MAX} blocks wait to be written, that is the bound")

    def roll(self, segment_start: int) -> None:
        """A new segment starts at this log position; the one before gets no more rows.

        It may start below `covered_to` (the log moved its unsynced end to a new file): add those rows again.
        """
        self.covered_to = max(self.covered_to, segment_start)
        self.flush()
        self.segment_start = self._block_from = self.covered_to = segment_start

    def unsaved(self) -> list[tuple[int, bytes]]:
        """(segment start, block) of what is not in a file yet, oldest first; taken on the hub."""
        waiting = list(self._unwritten)
        if self._rows.positions:
            covers = (self._block_from, self.covered_to)
            waiting.append(
                (self.segment_start, self._rows.pack(self.segment_start, covers, self._last_ms, self._seeds))
            )
        return waiting

    def write_blocks(self) -> None:
        """Write what waits, to the page cache. Blocking; in any native thread. Never raises OSError."""
        with self._lock:
            while self._unwritten:
                start, block = self._unwritten[0]
                try:
                    self._write(start, block)
                except OSError as error:
                    self._cut_torn_block()
                    if is_full(error) and start == self.segment_start:
                        return
                    self._dropped(str(error))
                self._unwritten.popleft()

    def _dropped(self, why: str) -> None:
        self.blocks_dropped += 1
        self.dropped_because = why

    def _write(self, start: int, block: bytes) -> None:
        if self._file is None or self._file_start != start:
            self._switch_file(start)
        assert self._file is not None
        self._file.pwrite(block, self._file_end)
        self._file_end += len(block)

    def _cut_torn_block(self) -> None:
        try:
            if self._file is not None:
                self._file.truncate(self._file_end)
        except OSError:
            return  # the next block overwrites it, or a reader passes over it as damage

    def _switch_file(self, start: int) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._file = self._storage.open(f"{self._folder}/{entries_name(start)}", write=True)
        self._file_start, self._file_end = start, self._file.size()

    def sync(self) -> None:
        """Write what waits and make the live file durable, so that a power loss costs little re-reading."""
        self.write_blocks()
        with self._lock:
            if self._file is not None:
                self._file.sync()

    def close(self) -> None:
        """Write everything and close. Blocking."""
        self.flush()
        self.write_blocks()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
