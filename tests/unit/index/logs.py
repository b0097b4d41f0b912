"""A pretend log for index tests: rows by position, and what a right answer would be."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from backend.file_log.core.names import entries_name, indexed_segments
from backend.file_log.index import entries
from backend.file_log.index.log_index import LogIndex
from backend.file_log.index.sorted_table import IndexRow
from backend.file_log.storage import Storage


@dataclass
class PretendLog:
    """Records of 100 bytes in segments; the naive model of every lookup."""

    rows: list[IndexRow] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    end: int = 0

    def commit(self, index: LogIndex | None, rows: list[tuple[str, bytes, bytes]], stored_ms: int) -> None:
        """Append (topic, key, id) records as one commit, to the model and the index."""
        new = [IndexRow(self.end + 100 * n, *row, stored_ms) for n, row in enumerate(rows)]
        self.end += 100 * len(rows) + 10
        self.rows += new
        if index is not None:
            add(index, new, stored_ms, self.end)

    def roll(self, index: LogIndex) -> None:
        self.starts.append(self.end)
        index.start_segment(self.end)

    def segment_ranges(self) -> list[tuple[int, int]]:
        return list(zip(self.starts, [*self.starts[1:], self.end], strict=True))

    def rows_in(self, start: int, end: int) -> Iterator[IndexRow]:
        return (row for row in self.rows if start <= row.position < end)

    def positions(self) -> list[int]:
        return [row.position for row in self.rows]

    def by_key(self, topic: str, key: bytes) -> list[int]:
        return [r.position for r in reversed(self.rows) if (r.topic, r.key) == (topic, key)]

    def by_id(self, message_id: bytes) -> list[int]:
        return [r.position for r in reversed(self.rows) if r.message_id == message_id]

    def between(self, start_ms: int, end_ms: int) -> list[int]:
        return [r.position for r in self.rows if start_ms <= r.stored_ms < end_ms]


def add(index: LogIndex, rows: list[IndexRow], stored_ms: int, end: int) -> int:
    return index.add_many(
        [row.position for row in rows],
        [row.topic for row in rows],
        [row.key for row in rows],
        [row.message_id for row in rows],
        stored_ms,
        end,
    )


def stored_between(folder: Path, index: LogIndex, start_ms: int, end_ms: int) -> list[int]:
    """Log positions stored in `[start_ms, end_ms)` by the time column of all sound blocks, files first."""
    matches: set[int] = set()
    for start, block, body in [*_in_files(folder), *_unsaved(index)]:
        positions = entries.read_column(body, entries.POSITION_COLUMN)
        times = entries.read_column(body, entries.TIME_COLUMN)
        rows = zip(positions, times, strict=True)
        matches |= {start + at for at, time in rows if start_ms <= block.first_ms + time < end_ms}
        assert all(time <= block.last_ms - block.first_ms for time in times)
        assert list(times) == sorted(times)
    return sorted(matches)


def _in_files(folder: Path) -> Iterator[tuple[int, entries.Block, bytes]]:
    for start in indexed_segments(path.name for path in folder.iterdir()):
        with closing(Storage().open(str(folder / entries_name(start)))) as file:
            for one in entries.walk_blocks(file, start, lambda _: None):
                body = entries.read_body(file, one, lambda _: None)
                if body is not None:
                    yield start, one.block, body


def _unsaved(index: LogIndex) -> Iterator[tuple[int, entries.Block, bytes]]:
    for start, data in index.writer.list_unsaved():
        block = entries.unpack_header(data, start)
        assert block is not None
        yield start, block, data[entries.HEADER_BYTES :]


def fill_gaps(index: LogIndex, log: PretendLog, gaps: list[tuple[int, int]]) -> None:
    """What the log does after recovery: re-add the live tail, repair older segments."""
    segment_ranges = dict(log.segment_ranges())
    for start, end in gaps:
        if start >= log.starts[-1]:
            for row in log.rows_in(start, end):
                add(index, [row], row.stored_ms, row.position)
            index.add_many((), (), (), (), 0, end)
    for start in sorted(index.damaged):
        if start != log.starts[-1]:
            run(
                index.repair_steps(
                    (start, segment_ranges[start]), lambda at=start: log.rows_in(at, segment_ranges[at])
                )
            )


def run(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def some_rows(count: int, seed: int = 1, keys: int = 50) -> list[tuple[str, bytes, bytes]]:
    chance = random.Random(seed)
    return [
        (
            f"topic-{chance.randrange(3)}",
            b"key-%d" % chance.randrange(keys) if chance.random() < 0.8 else b"",
            chance.randbytes(16),
        )
        for _ in range(count)
    ]
