"""The only writer of the index: the hub adds rows, a native thread writes finished blocks.

The hot path only extends lists; a block is hashed and packed once it is full, and waits until
`write_blocks` runs in a thread that may block.
Rules:
* The rows of a segment come in log order and without holes.
* A block that meets a full disk waits here, where lookups see it, while its segment is live. Blocks of a full
  segment must not wait after `write_blocks`, because the segment is about to be sealed or dropped.
* A block that cannot be written, or for which UNWRITTEN_MAX others wait already, is dropped and counted, with
  the reason in `dropped_because`. The segment then has a gap, which is detected and filled when it is sealed.
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
    pack_header,
    to_little_endian,
)
from backend.file_log.storage import File, Storage, is_full

UNWRITTEN_MAX = 512  # blocks, about 8 MB
WRITE_BLOCKS = 8  # so many waiting blocks are worth a call in another thread before the next flush


class Rows:
    """Index rows that are not packed into a block yet, stored in columns. Owned by one thread."""

    __slots__ = ("keys", "message_ids", "positions", "runs", "topics")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.topics: list[str] = []
        self.keys: list[bytes] = []
        self.message_ids: list[bytes] = []
        self.runs: list[tuple[int, int]] = []  # (number of rows, their store time)

    def add(
        self,
        positions: Sequence[int],
        topics: Sequence[str],
        keys: Sequence[bytes],
        message_ids: Sequence[bytes],
        stored_ms: int,
    ) -> None:
        """Add one value per record to each column; positions ascend, and `stored_ms` does not decrease."""
        self.positions += positions
        self.topics += topics
        self.keys += keys
        self.message_ids += message_ids
        self.runs.append((len(positions), stored_ms))

    def can_take(self, stored_ms: int) -> bool:
        """Return whether a store time can be stored relative to the first one."""
        return not self.runs or stored_ms - self.runs[0][1] <= U32_MAX

    def last_ms(self, before: int) -> int:
        """Return the store time of the last row, or `before` if there are no rows."""
        return self.runs[-1][1] if self.runs else before

    def pack(self, segment_start: int, covers: tuple[int, int], last_ms: int, seeds: Seeds) -> bytes:
        """Encode the rows as a block; `last_ms` is the store time before them, used if there are no rows."""
        first = self.runs[0][1] if self.runs else last_ms
        last = self.last_ms(last_ms)
        times = array("I")
        for count, stored_ms in self.runs:
            times.extend(array("I", (stored_ms - first,)) * count)
        body = b"".join(
            (
                id_column(self.message_ids),
                to_little_endian(key_column(self.topics, self.keys, seeds)),
                to_little_endian(array("I", [position - segment_start for position in self.positions])),
                to_little_endian(times),
            )
        )
        if len(body) != ROW_BYTES * len(self.positions):
            raise ValueError("columns of different length")
        return pack_header(segment_start, covers, (first, last), len(self.positions), body) + body


class IndexWriter:
    """Appends to the live segment's entries file. All methods except `write_blocks` and `sync` belong to the
    hub.

    It adds the start of each segment with a gap to `gaps`. It calls `on_roll` when a segment is full, and
    `on_blocks` when enough blocks wait for a call of `write_blocks`.
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
        self._lock = threading.Lock()  # held while writing; never acquired on the hub
        self._file: File | None = None
        self._file_start = -1
        self._file_end = 0
        self._block_from = 0
        self._last_ms = 0
        self.segment_start = 0
        self.covered_to = 0  # log position; everything below is in the index, on disk or waiting
        self.blocks_dropped = 0
        self.dropped_because = ""

    def resume_segment(self, segment_start: int, log_end: int) -> int:
        """Continue the live segment's file; return the position from which the log must be added again.

        Blocking. Truncates the file after the last valid block that lies below `log_end`.
        """
        with self._lock:
            self._switch_file(segment_start)
            file = self._file
            assert file is not None
            self._file_end, self.covered_to, self._last_ms = entries.valid_prefix(
                file, segment_start, log_end
            )
            file.truncate(self._file_end)
        self.segment_start, self._block_from, self._rows = segment_start, self.covered_to, Rows()
        return self.covered_to

    def published(self, frame: PackedFrame, segment_start: int) -> None:
        """Add the records of a commit that counts and lies in the segment starting at `segment_start`."""
        if segment_start != self.segment_start:
            self.start_segment(segment_start)
            self.on_roll()
        if (
            frame.position > self.covered_to
        ):  # a rescue moved the log's unsynced end here; the old file has the rows
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
        """Add the records of one commit, one value per column in log order; return how many blocks wait.

        `end` is the log position after the commit, `stored_ms` the store time of all records. The columns are
        empty if the commit has nothing to index.
        """
        if end < self.covered_to or end - self.segment_start > SEGMENT_BYTES_MAX or len(positions) > ROWS_MAX:
            raise ValueError(
                f"{len(positions)} rows up to log position {end} do not fit behind {self.covered_to} "
                f"in segment {self.segment_start}"
            )
        rows = self._rows
        if positions:
            stored_ms = max(stored_ms, rows.last_ms(self._last_ms))
            if not rows.can_take(stored_ms) or len(rows.positions) + len(positions) > ROWS_MAX:
                self.flush()
                rows = self._rows
            rows.add(positions, topics, keys, message_ids, stored_ms)
        self.covered_to = end
        if len(rows.positions) >= BLOCK_ROWS:
            self.flush()
        return len(self._unwritten)

    def skip_to(self, position: int) -> None:
        """Skip the log below `position`: lookups miss its records until the segment is full and repaired."""
        if not self.covered_to <= position:
            raise ValueError(f"log position {position} is below {self.covered_to}, which is indexed")
        self.flush()
        self.covered_to = self._block_from = position
        self._gaps.add(self.segment_start)

    def flush(self) -> None:
        """Finish the current block, so that `write_blocks` writes it for other processes."""
        if self.covered_to == self._block_from:
            return
        rows, self._rows = self._rows, Rows()
        covers = (self._block_from, self.covered_to)
        block = rows.pack(self.segment_start, covers, self._last_ms, self._seeds)
        self._last_ms, self._block_from = rows.last_ms(self._last_ms), self.covered_to
        if len(self._unwritten) < UNWRITTEN_MAX:
            self._unwritten.append((self.segment_start, block))
        else:
            self._count_dropped(f"{UNWRITTEN_MAX} blocks wait to be written, that is the bound")

    def start_segment(self, segment_start: int) -> None:
        """Begin a new segment at this log position; the previous one gets no more rows.

        It may start below `covered_to`, if the log moved its unsynced end to a new file: add those rows
        again.
        """
        self.covered_to = max(self.covered_to, segment_start)
        self.flush()
        self.segment_start = self._block_from = self.covered_to = segment_start

    def list_unsaved(self) -> list[tuple[int, bytes]]:
        """Return (segment start, block) for everything that is in no file yet, oldest first.

        Call it on the hub.
        """
        waiting = list(self._unwritten)
        if self._rows.positions:
            covers = (self._block_from, self.covered_to)
            waiting.append(
                (self.segment_start, self._rows.pack(self.segment_start, covers, self._last_ms, self._seeds))
            )
        return waiting

    def write_blocks(self) -> None:
        """Write the waiting blocks to the page cache.

        Blocking, in any native thread. Never raises OSError.
        """
        with self._lock:
            while self._unwritten:
                start, block = self._unwritten[0]
                try:
                    self._write(start, block)
                except OSError as error:
                    self._truncate_partial_block()
                    if is_full(error) and start == self.segment_start:
                        return
                    self._count_dropped(str(error))
                self._unwritten.popleft()

    def _count_dropped(self, why: str) -> None:
        self.blocks_dropped += 1
        self.dropped_because = why

    def _write(self, start: int, block: bytes) -> None:
        if self._file is None or self._file_start != start:
            self._switch_file(start)
        assert self._file is not None
        self._file.pwrite(block, self._file_end)
        self._file_end += len(block)

    def _truncate_partial_block(self) -> None:
        try:
            if self._file is not None:
                self._file.truncate(self._file_end)
        except OSError:
            return  # the next block overwrites it, or a reader skips it as damage

    def _switch_file(self, start: int) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._file = self._storage.open(f"{self._folder}/{entries_name(start)}", write=True)
        self._file_start, self._file_end = start, self._file.size()

    def sync(self) -> None:
        """Write the waiting blocks and sync the live file, so that little has to be read after a power
        loss.
        """
        self.write_blocks()
        with self._lock:
            if self._file is not None:
                self._file.sync()

    def close(self) -> None:
        """Write all rows and close the file. Blocking."""
        self.flush()
        self.write_blocks()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
