"""RocksDB, as far as this project uses it. The one module that imports rocksdict, and what it hides:

* Iterator bounds are broken there (the lower one sets the upper one, and both dangle), so ranges are kept
  here by seeking and comparing keys.
* `write` holds the interpreter, even for a sync: write unsynced in batches of some hundreds, then call
  `sync` in a native thread, where it lets the interpreter go. `compact`, `checkpoint` and `close` belong
  there too.
* `close` keeps the folder locked while an iterator lives: none leaves this module, and `close` waits for
  calls in other threads.
* A database that exists is opened with the options it was made with, unless those of its column family are
  given by name.
* Whatever goes wrong is raised there as a bare Exception with RocksDB's text: here it is a DamagedError
  (bytes do not match their checksum) or a StorageError.
* Its write-ahead log is several files, and it replays what stands behind a gap between them
  (damage.py).
* After a failed write or sync RocksDB refuses more; close and open again. Whether the failed batch is there
  then is unknown, but it is there whole or not at all.

* Its sequence of pairs ends at a damaged block as if that were the end: here the end is always asked again
  of an iterator that says why it stopped. Reading behind the block works, and `salvage_from` finds the way.

Keys and values are bytes (raw mode), in one column family.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any
from weakref import WeakSet

import rocksdict

from ddmq_common.errors import DamagedError, StorageError
from ddmq_common.rocks.damage import check_files, find_damage_end
from ddmq_common.rocks.write_capacity import WriteCapacity

Pair = tuple[bytes, bytes]
_NEVER = 1 << 30
FIRST_CHUNK = 8
_LAST_CHUNK, _CHUNK_BYTES = 1024, 4 << 20
_key_of = itemgetter(0)


class WalRecovery(Enum):
    """The ways in which opening a database can handle damage in the files of its write-ahead log.

    COMPLETE: bytes that cannot be parsed, also at an end, raise DamagedError. PREFIX: everything before such
    bytes is used, the rest is ignored. MISSING_ENDS: as COMPLETE, but each file may lack an end that was
    never written. Use it only for a check, because later files may depend on the missing bytes.
    """

    COMPLETE = 1
    PREFIX = 2
    MISSING_ENDS = 3


@dataclass(frozen=True, slots=True)
class RocksOptions:
    """The memory options of a database.

    It uses at most `write_buffers` × `write_buffer_bytes` + `block_cache_bytes`, indexes and filters
    included, whatever the amount of data. The write buffers also bound what opening must replay.
    """

    write_buffer_bytes: int = 16 << 20
    write_buffers: int = 4
    block_cache_bytes: int = 64 << 20
    block_bytes: int = 16 << 10
    file_bytes: int = 32 << 20
    open_files_max: int = 512
    background_threads: int = 2
    bloom_bits: int = 10
    create: bool = True


class WriteBatch:
    """A batch of changes that are applied together in order. Its methods are RocksDB's own, for speed."""

    __slots__ = ("delete", "delete_range", "put", "raw")

    def __init__(self) -> None:
        self.raw = rocksdict.WriteBatch(raw_mode=True)
        self.put: Callable[[bytes, bytes], None] = self.raw.put
        self.delete: Callable[[bytes], None] = self.raw.delete
        self.delete_range: Callable[[bytes, bytes], None] = self.raw.delete_range

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def bytes(self) -> int:
        """Return the size of the batch in the write-ahead log."""
        return int(self.raw.size_in_bytes())


class Rocks:
    """An open database. Several threads may use it; `close` closes it for all of them."""

    def __init__(
        self, folder: Path, options: RocksOptions | None = None, recovery: WalRecovery = WalRecovery.COMPLETE
    ) -> None:
        """Open the database.

        Raises DamagedError, or StorageError if the folder is unusable or open already.
        """
        self.folder = folder
        self._idle = threading.Condition()
        self._busy = 0
        self._compacting = False
        options = options or RocksOptions()
        self._write_capacity = WriteCapacity(
            lambda name: self.read_property(name), folder, max(1, options.write_buffers - 1)
        )
        check_files(folder)
        with translate_errors(f"cannot open the store in {folder}"):
            raw = _raw_options(options, recovery)
            self._db: Any = rocksdict.Rdict(str(folder), raw, {"default": raw})
        self._open = True
        self._reading: WeakSet[Generator[list[Pair], None, None]] = WeakSet()

    def write(self, batch: WriteBatch) -> None:
        """Apply a batch atomically. It is visible at once, but not durable yet.

        Call `has_capacity` first: a write without capacity waits here (write_capacity.py). Raises
        StorageError, also when tables cannot be written and RocksDB would wait for ever.
        """
        self._write_capacity.wait_until_available()
        with translate_errors(f"cannot write to {self.folder}"):
            self._db.write(batch.raw)

    def has_capacity(self, growing: bool) -> bool:
        """Return whether a write would go through without waiting. Raises StorageError if tables cannot be
        written.

        `growing`: the write makes the database larger. It leaves a buffer for other writes, and waits while
        tables come faster than they are merged.
        """
        return self._write_capacity.is_available(growing)

    def sync(self) -> None:
        """Make all earlier writes durable. Blocks: native thread."""
        with self._hold_open(), translate_errors(f"cannot sync {self.folder}"):
            self._db.flush_wal(True)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        with translate_errors(f"cannot read {self.folder}"):
            value: bytes | None = self._db.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""
        if not keys:
            return []
        with translate_errors(f"cannot read {self.folder}"):
            values: list[bytes | None] = self._db.get(list(keys))
        return values

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """Return the first key in [start, end), or None."""
        with translate_errors(f"cannot read {self.folder}"):
            return _first_key(self._db.iter(), start, end)

    def read_chunks(
        self, start: bytes, end: bytes, limit: int | None = None, first: int = FIRST_CHUNK
    ) -> Iterator[list[Pair]]:
        """Yield the pairs in [start, end) in order, at most `limit`, in lists of `first` to about 1,000
        pairs or 4 MiB.

        Raises DamagedError at a damaged block, after everything before it. Finish or drop the iterator soon;
        `close` ends it.
        """
        reading = self._read_chunks(start, end, limit if limit is not None else 1 << 62, first)
        self._reading.add(reading)
        return reading

    def _read_chunks(
        self, start: bytes, end: bytes, remaining: int, size: int
    ) -> Generator[list[Pair], None, None]:
        pairs = self._iterate_pairs(start)
        try:
            while remaining > 0:
                count = min(size, remaining)
                with translate_errors(f"cannot read {self.folder}"):
                    chunk = list(islice(pairs, count))
                if chunk and chunk[-1][0] >= end:
                    if inside := chunk[: bisect_left(chunk, end, key=_key_of)]:
                        yield inside
                    return
                if chunk:
                    yield chunk
                    start = chunk[-1][0] + b"\0"
                    remaining -= len(chunk)
                    size = min(4 * size, _LAST_CHUNK, 1 + _CHUNK_BYTES // (1 + len(chunk[-1][1])))
                if len(chunk) < count:
                    if self.first_key(start, end) is None:
                        return
                    pairs = self._iterate_pairs(start)
        finally:
            del pairs  # not even the traceback of an error may keep it

    def _iterate_pairs(self, start: bytes) -> Iterator[Pair]:
        with translate_errors(f"cannot read {self.folder}"):
            pairs: Iterator[Pair] = self._db.items(from_key=start)
        return pairs

    def salvage_from(self, last: bytes) -> bytes | None:
        """Return the key at which reading can continue after a damaged block, or None.

        `last`: the last key read.
        """
        with translate_errors(f"cannot read {self.folder}"):
            return find_damage_end(self._is_readable, last)

    def _is_readable(self, key: bytes) -> bool:
        try:
            _first_key(self._db.iter(), key, key)
        except Exception:  # rocksdict raises nothing narrower
            return False
        return True

    def compact(self, start: bytes, end: bytes) -> None:
        """Reclaim the space of deleted keys in [start, end). Blocks for seconds: native thread.

        `close` interrupts it.
        """
        with self._hold_open():
            self._compacting = True
            try:
                self._db.compact_range(start, end)
            except Exception as error:  # rocksdict raises nothing narrower
                if self._open:
                    raise as_store_error(error, f"cannot compact {self.folder}") from error
            finally:
                self._compacting = False

    def checkpoint(self, folder: Path) -> None:
        """Write a consistent copy into `folder`, which must not exist, with hard links if possible."""
        with self._hold_open(), translate_errors(f"cannot copy {self.folder} to {folder}"):
            self._db.flush_wal(True)
            rocksdict.Checkpoint(self._db).create_checkpoint(str(folder))

    def read_property(self, name: str) -> int:
        """Return a numeric property of RocksDB, such as `rocksdb.total-sst-files-size`; 0 if it is
        unknown."""
        try:  # `translate_errors` costs five times as much; some are read before each step and write
            return int(self._db.property_int_value(name) or 0)
        except Exception as error:  # rocksdict raises nothing narrower
            raise as_store_error(error, f"cannot read {self.folder}") from error

    def close(self) -> None:
        """Cancel a compaction, wait for calls in other threads, and close the folder.

        May be called twice.
        """
        with self._idle:
            if not self._open:
                return
            self._open = False
            if self._compacting:
                self._db.cancel_all_background(False)
            self._idle.wait_for(lambda: not self._busy)
        for reading in list(self._reading):
            _end(reading)
        try:
            self._db.close()
        except Exception as error:  # rocksdict raises nothing narrower
            if not str(error).startswith("Shutdown in progress"):  # closed, with the log for the next opening
                raise as_store_error(error, f"cannot close {self.folder}") from error

    @contextmanager
    def _hold_open(self) -> Iterator[None]:
        with self._idle:
            if not self._open:
                raise StorageError(f"the store in {self.folder} is closed")
            self._busy += 1
        try:
            yield
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()


def lacks_only_log_ends(folder: Path, options: RocksOptions) -> bool:
    """Return whether a folder fails to open only because ends of its log were never written.

    Changes nothing.
    """
    raw = _raw_options(options, WalRecovery.MISSING_ENDS)
    try:
        rocksdict.Rdict(str(folder), raw, {"default": raw}, rocksdict.AccessType.read_only()).close()
    except Exception:  # rocksdict raises nothing narrower
        return False
    return True


def repair_folder(folder: Path) -> None:
    """Make a damaged folder readable again. Unreadable files are dropped."""
    with translate_errors(f"cannot repair {folder}"):
        rocksdict.Rdict.repair(str(folder), _raw_options(RocksOptions(), WalRecovery.PREFIX))


def _raw_options(options: RocksOptions, recovery: WalRecovery) -> Any:
    raw = rocksdict.Options(raw_mode=True)
    raw.create_if_missing(options.create)
    modes = rocksdict.DBRecoveryMode
    mode = {
        WalRecovery.COMPLETE: modes.absolute_consistency,
        WalRecovery.PREFIX: modes.point_in_time,
        WalRecovery.MISSING_ENDS: modes.tolerate_corrupted_tail_records,
    }
    raw.set_wal_recovery_mode(mode[recovery]())
    _set_memory(raw, options)
    raw.set_max_background_jobs(options.background_threads)
    raw.set_compression_per_level([rocksdict.DBCompressionType.none()] * 2 + _compressed_levels(5))
    raw.set_allow_concurrent_memtable_write(False)  # there is one writer
    raw.set_level_zero_file_num_compaction_trigger(8)
    # A write that RocksDB stops or slows down sleeps in there with the interpreter: see `has_capacity`.
    raw.set_level_zero_slowdown_writes_trigger(_NEVER)
    raw.set_level_zero_stop_writes_trigger(_NEVER)
    raw.set_soft_pending_compaction_bytes_limit(0)
    raw.set_hard_pending_compaction_bytes_limit(0)
    raw.set_level_compaction_dynamic_level_bytes(True)
    raw.set_target_file_size_base(options.file_bytes)
    raw.set_max_bytes_for_level_base(8 * options.write_buffer_bytes)
    raw.set_bytes_per_sync(1 << 20)
    raw.set_keep_log_file_num(2)
    raw.set_max_log_file_size(1 << 20)
    raw.set_stats_dump_period_sec(0)
    raw.set_stats_persist_period_sec(0)
    raw.set_skip_stats_update_on_db_open(True)
    return raw


def _compressed_levels(levels: int) -> list[Any]:
    return [rocksdict.DBCompressionType.lz4()] * levels


def _set_memory(raw: Any, options: RocksOptions) -> None:
    raw.set_write_buffer_size(options.write_buffer_bytes)
    raw.set_max_write_buffer_number(options.write_buffers)
    raw.set_max_total_wal_size(options.write_buffers * options.write_buffer_bytes)
    raw.set_max_open_files(options.open_files_max)
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(options.block_cache_bytes))
    table.set_block_size(options.block_bytes)
    table.set_format_version(5)
    table.set_bloom_filter(options.bloom_bits, False)
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4096)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_pin_top_level_index_and_filter(True)
    raw.set_block_based_table_factory(table)


def _end(reading: Generator[list[Pair], None, None]) -> None:
    """Close the generator of a database read.

    If another thread is using it now, wait for the end of its step, about a millisecond.
    """
    while True:
        try:
            reading.close()
        except ValueError:  # it is running
            time.sleep(0.0005)
        else:
            return


def _first_key(iterator: Any, start: bytes, end: bytes) -> bytes | None:
    try:
        iterator.seek(start)
        if iterator.valid():
            key: bytes = iterator.key()
            return key if key < end else None
        iterator.status()
        return None
    finally:
        del iterator


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Context manager that converts errors of RocksDB's library with `as_store_error`."""
    try:
        yield
    except (DamagedError, StorageError):
        raise
    except Exception as error:  # rocksdict raises nothing narrower
        raise as_store_error(error, what) from error


def as_store_error(error: Exception, what: str) -> StorageError:
    """Convert an error to DamagedError if a checksum does not match, else to StorageError."""
    text = str(error)
    if text.startswith("Corruption"):
        return DamagedError(f"{what}: damaged: {text}")
    return StorageError(f"{what}: {text}")
