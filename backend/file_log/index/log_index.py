"""The index of one log: lookups by key and id over all segments; writing, sealing, rebuilding and dropping.

No file and no list of files stays open between lookups, so another thread may seal, rebuild or delete a
segment at any time; a lookup skips a segment that disappears.

Rules: results are candidates, to be compared with the record itself; they come strictly newest first.

Threads: `add_many`, `flush`, `start_segment` and the start of a lookup belong to the hub. `recover`,
`write_blocks`, `sync`, reading results, steps, `drop_segment` and `close` block and belong in a native
thread, one of them per segment at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from backend.file_log.core.names import (
    UNFINISHED,
    entries_name,
    indexed_segments,
    parse_index_file,
    sorted_name,
)
from backend.file_log.index import entries, sorted_table
from backend.file_log.index.entries import (
    HEADER_BYTES,
    ID_COLUMN,
    KEY_COLUMN,
    IndexDamage,
    OnDamage,
    id_hash,
    key_hash,
)
from backend.file_log.index.sorted_table import IndexRow, IndexTable
from backend.file_log.index.writer import IndexWriter
from backend.file_log.storage import File, Storage
from ddmq_common.errors import DamagedError, newer_format

LogRange = tuple[int, int]
"""A range `[start, end)` of log positions, such as a segment."""

DAMAGE_REMEMBERED_MAX = 1_024


def refuse_newer_index(storage: Storage, folder: str) -> None:
    """Raise NewerFormatError if a newer release wrote a file of the index. Blocking."""
    for name in storage.list(folder):
        parsed = parse_index_file(name)
        if parsed is not None:
            with closing(storage.open(f"{folder}/{name}")) as file:
                try:
                    data = file.pread(HEADER_BYTES, 0)
                except OSError:
                    continue  # it will be rebuilt
            for header in (entries, sorted_table):
                version = entries.version_of(data, parsed[0], header.MAGIC)
                if version is not None and version > header.VERSION:
                    raise newer_format(f"the index file {folder}/{name}", version, header.VERSION)


class LogIndex:
    """One index folder, opened for writing. `on_damage` is called once for each damage, in any thread."""

    def __init__(self, storage: Storage, folder: str, on_damage: OnDamage) -> None:
        self._storage = storage
        self._folder = folder
        self._on_damage = on_damage
        self._reported: set[IndexDamage] = set()
        self.damaged: set[int] = set()  # starts of segments to rebuild once they are not live
        self.writer = IndexWriter(storage, folder, self.damaged)
        self.published = self.writer.published  # the hot path, without another call
        self.add_many = self.writer.add_many
        self.skip_to = self.writer.skip_to
        self.flush = self.writer.flush
        self.start_segment = self.writer.start_segment
        self.write_blocks = self.writer.write_blocks
        self.sync = self.writer.sync

    def _record_damage(self, damage: IndexDamage) -> None:
        self.damaged.add(damage.segment_start)
        if damage not in self._reported and len(self._reported) < DAMAGE_REMEMBERED_MAX:
            self._reported.add(damage)
            self._on_damage(damage)

    # --- start

    def recover_files(self, segment_ranges: Sequence[LogRange]) -> list[LogRange]:
        """Bring the folder up to date with the log's segments and return the gaps to fill.

        `segment_ranges` ascend, the last one is live. Files of other segments and unfinished files are
        removed. A gap in the live segment is filled by `add_many`, a gap elsewhere by `repair_steps` of its
        segment, whose start is then in `damaged`.
        """
        if not segment_ranges:
            raise ValueError("a log has at least one segment")
        self._storage.make_folder(self._folder)
        self._remove_strangers({start for start, _ in segment_ranges})
        gaps: list[LogRange] = []
        for log_range in segment_ranges[:-1]:
            missing = self._gaps_of_full(log_range)
            if missing:
                self.damaged.add(log_range[0])
            gaps += missing
        start, end = segment_ranges[-1]
        self._storage.remove(f"{self._folder}/{sorted_name(start)}")
        covered = self.writer.resume_segment(start, end)
        return [*gaps, (covered, end)] if covered < end else gaps

    def _remove_strangers(self, starts: set[int]) -> None:
        for name in self._storage.list(self._folder):
            parsed = parse_index_file(name)
            if name.endswith(UNFINISHED) or (parsed is not None and parsed[0] not in starts):
                self._storage.remove(f"{self._folder}/{name}")

    def _gaps_of_full(self, log_range: LogRange) -> list[LogRange]:
        start, end = log_range
        try:
            source = self._storage.open(f"{self._folder}/{entries_name(start)}")
        except FileNotFoundError:
            return [log_range]
        with closing(source):
            if self._has_table(log_range, source.size()):
                return []
            self._storage.remove(f"{self._folder}/{sorted_name(start)}")
            return list(entries.find_gaps(source, start, end, self._record_damage))

    def _has_table(self, log_range: LogRange, entries_bytes: int) -> bool:
        try:
            file = self._storage.open(f"{self._folder}/{sorted_name(log_range[0])}")
        except FileNotFoundError:
            return False
        with closing(file):
            header = read_table_header(file, log_range[0])
        if header is None:
            return False
        covers = header.covers_from <= log_range[0] and header.covers_to >= log_range[1]
        return covers and header.entries_bytes == entries_bytes

    # --- lookups

    def find_key(self, topic: str, key: bytes, count_max: int) -> Iterator[int]:
        """Find candidate log positions, newest first. Call it on the hub, iterate in a native thread."""
        if not key:
            raise ValueError("the key is empty")
        return islice(
            self._find_newest(KEY_COLUMN, key_hash(topic, key), self.writer.list_unsaved()), count_max
        )

    def find_id(self, message_id: bytes, count_max: int) -> Iterator[int]:
        """Find candidates like `find_key`, by a 16-byte message id."""
        return islice(
            self._find_newest(ID_COLUMN, id_hash(message_id), self.writer.list_unsaved()), count_max
        )

    def _find_newest(
        self, which: int, hash_value: int, unsaved: Sequence[tuple[int, bytes]]
    ) -> Iterator[int]:
        below = 1 << 64
        for position in self._find_candidates(which, hash_value, unsaved):
            if position < below:  # a block written meanwhile, or read twice after damage, repeats positions
                below = position
                yield position

    def _find_candidates(
        self, which: int, hash_value: int, unsaved: Sequence[tuple[int, bytes]]
    ) -> Iterator[int]:
        for start, block in reversed(unsaved):
            yield from entries.find_in_body(block[HEADER_BYTES:], start, which, hash_value)
        for start in reversed(indexed_segments(self._storage.list(self._folder))):
            try:
                yield from self._in_table(start, hash_value)
            except (DamagedError, FileNotFoundError):
                yield from self._in_entries(start, which, hash_value)

    def _in_table(self, start: int, hash_value: int) -> Iterator[int]:
        with closing(self._storage.open(f"{self._folder}/{sorted_name(start)}")) as file:
            header = self._read_header(file, start)
            try:
                for position in sorted_table.newest_with_hash(file.salvage, header, hash_value):
                    yield start + position
            except DamagedError:
                self._record_damage(IndexDamage(start, sorted_name(start), HEADER_BYTES, "page"))
                raise

    def _read_header(self, file: File, start: int) -> IndexTable:
        header = read_table_header(file, start)
        if header is None:
            self._record_damage(IndexDamage(start, sorted_name(start), 0, "header"))
            raise DamagedError(f"the header of the sorted index of segment {start} is damaged")
        with closing(self._storage.open(f"{self._folder}/{entries_name(start)}")) as source:
            size = source.size()
        if size != header.entries_bytes:
            raise DamagedError(f"the sorted index of segment {start} is out of date")
        return header

    def _in_entries(self, start: int, which: int, hash_value: int) -> Iterator[int]:
        try:
            file = self._storage.open(f"{self._folder}/{entries_name(start)}")
        except FileNotFoundError:
            return
        with closing(file):
            yield from entries.newest_with_hash(file, start, which, hash_value, self._record_damage)

    # --- segments that no longer grow

    def list_unsealed(self) -> list[int]:
        """Return the starts of the full segments without a sorted table, ascending. Blocking."""
        names = set(self._storage.list(self._folder))
        live = self.writer.segment_start
        return [
            start for start in indexed_segments(names) if start != live and sorted_name(start) not in names
        ]

    def seal_steps(self, log_range: LogRange) -> Iterator[None]:
        """Create the sorted table in steps.

        On DamagedError the segment, now in `damaged`, must be rebuilt.
        """
        self._refuse_live(log_range[0])
        self.writer.write_blocks()
        try:
            yield from sorted_table.seal_steps(self._storage, self._folder, log_range, self._record_damage)
        except (DamagedError, FileNotFoundError):
            self.damaged.add(log_range[0])
            raise

    def repair_steps(self, log_range: LogRange, rows: Callable[[], Iterable[IndexRow]]) -> Iterator[None]:
        """Rebuild the table in steps, and the entries too if they are damaged or incomplete.

        `rows()` returns all records of the segment in log order; it is called only if needed.
        """
        start = log_range[0]
        self._refuse_live(start)
        try:
            self._storage.remove(f"{self._folder}/{sorted_name(start)}")
            yield from self.seal_steps(log_range)
        except (DamagedError, FileNotFoundError):
            yield from sorted_table.rebuild_steps(
                self._storage, self._folder, log_range, rows(), self._record_damage
            )
        self.damaged.discard(start)
        self._reported = {damage for damage in self._reported if damage.segment_start != start}

    def drop_segment(self, segment_start: int) -> None:
        """Remove the files of a segment, if it has any. Blocking."""
        self._refuse_live(segment_start)
        self.writer.write_blocks()  # else its last blocks would create the file again
        for name in (sorted_name(segment_start), entries_name(segment_start)):
            self._storage.remove(f"{self._folder}/{name}")
        self.damaged.discard(segment_start)

    def _refuse_live(self, segment_start: int) -> None:
        if segment_start >= self.writer.segment_start:
            raise ValueError(
                f"segment {segment_start} is live; only older ones can be sealed, rebuilt, dropped"
            )

    def close(self) -> None:
        """Write the waiting blocks and close."""
        self.writer.close()


def read_table_header(file: File, segment_start: int) -> IndexTable | None:
    """Return the header of a sorted table if it is valid and the file has the stated length, else None."""
    header = sorted_table.unpack_header(file.salvage(sorted_table.HEADER_BYTES, 0), segment_start)
    return header if header is not None and file.size() == header.size else None
