"""The delay store in RocksDB: one shard, opened by its owner (`open_store` in opening.py).

What is read often from the beginning of a range (what is due, what is put aside, what to forget) is read
from its front, see Front in writing.py. Rules:
* One process, and in it one thread, writes and reads; `flush`, `tidy`, `checkpoint` and `close` are for
  native threads beside it, and `scan` may be called there.
* After a failed write, or once damage was met, every call is refused. StoreDamage also leaves a mark in the
  folder, so that the next opening copies what can be read into a new one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import merge
from pathlib import Path

from ddmq_common.errors import DamagedError, StorageError
from ddmq_common.rocks.database import FIRST_CHUNK, Pair, Rocks, WriteBatch
from delay_service.store import layout
from delay_service.store.copies import sync_path
from delay_service.store.due_ahead import BYTES_MAX
from delay_service.store.due_counts import DueCounters
from delay_service.store.layout import decode_all, decode_count, decode_pending, decode_state
from delay_service.store.port import (
    UNBOUNDED,
    DelayStore,
    DueKey,
    DueTimeCounts,
    IdState,
    Pending,
    Scan,
    StoreChanges,
)
from delay_service.store.salvage import StoreDamage, mark_damaged
from delay_service.store.writing import FRONT, Front, Fronts, PendingCounts, make_batch, own_key

TIDY_AT = 100_000  # removed messages that make a compaction worth it …
TIDY_BYTES = 64 << 20  # … or so many bytes of them, when they are half of what the tables hold
AT_ONCE_MAX = 16  # pairs of the due order: what follows may be as large as messages get
_COUNT_BYTES_MAX = 1 << 20  # of messages that `count_older` reads at once
_STALE_MAX = 4  # `forgettable` reads at most this many times its limit


class RocksStore(DelayStore):
    """A DelayStore in RocksDB. `damage`: what the opening had to leave out, or None.

    `released`: called once by `close`.
    """

    def __init__(
        self,
        database: Rocks,
        released: Callable[[], None],
        swept: Callable[[], None],
        damage: StoreDamage | None,
    ) -> None:
        self._db = database
        self._released = released
        self._swept = swept
        self._failed = ""
        self._closed = False
        self._removed = self._removed_bytes = 0
        self._at_once = FIRST_CHUNK  # pairs of the due order: as many as fit when they are like the last
        self.damage = damage
        self._counts = PendingCounts()
        self._due_counters = DueCounters(database.get_many, self._read_pairs)
        with self._guarded_calls():
            self._load()

    def _load(self) -> None:
        self._fronts = Fronts(self._db.get(own_key(FRONT)) or layout.DUE)
        for key, value in self._read_pairs(layout.COUNT, layout.COUNT_END):
            self._counts.load(key[1:].decode(), *decode_count(value))
        for key, value in self._read_pairs(layout.SENDER, layout.SENDER_END):
            self._counts.senders[key[1:].decode()] = layout.decode_sender_count(value)
        batch = WriteBatch()
        position = self._db.get(layout.COUNTED_KEY)
        self._due_counters.load(batch, position, sum(self._counts.pending.values()))
        self._db.write(batch)

    @property
    def folder(self) -> Path:
        """Return the folder of the store."""
        return self._db.folder

    @property
    def disk_bytes(self) -> int:
        """Return the size of the store's tables in bytes, including deleted data that is not reclaimed
        yet."""
        with self._guarded_calls():
            return self._db.read_property("rocksdb.total-sst-files-size")

    # --- writing

    def write(self, changes: StoreChanges) -> None:
        with self._guarded_calls(writing=True):
            self._db.write(make_batch(changes, self._fronts, self._counts, self._due_counters))
            self._removed += len(changes.removed) + len(changes.deferred)
            for removed in (changes.removed, changes.removed_deferred):
                self._removed_bytes += sum(len(message.delivery) for message in removed)

    def has_capacity(self, growing: bool) -> bool:
        with self._guarded_calls(writing=True):
            return self._db.has_capacity(growing)

    def flush(self) -> None:
        with self._guarded_calls(writing=True):
            self._db.sync()

    # --- reading

    def due(self, until_ms: int, limit: int, bytes_max: int, after: DueKey | None = None) -> list[Pending]:
        front = self._fronts.due
        end = layout.due_key(min(until_ms, layout.DUE_MS_MAX) + 1, 0) if until_ms >= 0 else layout.DUE
        start = front.start if after is None else layout.just_after(after)
        with self._guarded_calls():
            if after is None and front.first_key is not None and front.first_key >= end:
                return []
            return _front_messages(front, start, self._due_chunks(start, end, limit), bytes_max)

    def _due_chunks(self, start: bytes, end: bytes, limit: int) -> Iterator[list[Pair]]:
        """Read at most `limit` pairs in [start, end); extra pairs that were read are cached for the next
        call.
        """
        ahead = self._fronts.ahead
        if ahead.covers_key(start):
            if pairs := ahead.take_range(start, end, limit):
                yield pairs
                start, limit = pairs[-1][0] + b"\0", limit - len(pairs)
            if limit == 0 or ahead.end >= end:
                return
            start = ahead.end
        for chunk in self._db.read_chunks(start, layout.DUE_END, limit, self._at_once):
            self._at_once = min(AT_ONCE_MAX, 1 + BYTES_MAX // (1 + len(chunk[-1][1])))
            inside = bisect_left(chunk, (end,))
            if inside:
                start, limit = chunk[inside - 1][0] + b"\0", limit - inside
            if inside < len(chunk):
                ahead.hold_range(start, chunk[-1][0] + b"\0", chunk[inside:])
            if inside:
                yield chunk[:inside]
            if inside < len(chunk):
                return
        if limit > 0:
            ahead.hold_range(start, layout.DUE_END, [])

    def next_due(self, after: DueKey | None = None) -> DueKey | None:
        front = self._fronts.due
        start = front.start if after is None else layout.just_after(after)
        with self._guarded_calls():
            if after is None and front.first_key is not None:
                return layout.read_due(front.first_key)
            key = self._first_due(start)
        if key is None:
            return None
        front.add_scanned(start, [key])
        return layout.read_due(key)

    def _first_due(self, start: bytes) -> bytes | None:
        ahead = self._fronts.ahead
        if ahead.covers_key(start):
            key = ahead.first_key(start)
            if key is not None:
                return key
            start = ahead.end
        return self._db.first_key(start, layout.DUE_END) if start < layout.DUE_END else None

    def get(self, key: DueKey) -> Pending | None:
        names = [layout.due_key(*key), *(layout.aside_key(topic, *key) for topic in self._counts.aside)]
        with self._guarded_calls():
            for value in self._db.get_many(names):
                if value is not None:
                    return decode_pending(value)
        return None

    def ids(self, uuids: Sequence[bytes]) -> list[IdState | None]:
        with self._guarded_calls():
            values = self._db.get_many([layout.ID + uuid for uuid in uuids])
            return [None if value is None else decode_state(value) for value in values]

    def list_id_states(self, after: bytes, limit: int) -> list[tuple[bytes, IdState]]:
        start = layout.ID + after + (b"\0" if after else b"")
        with self._guarded_calls():
            for chunk in self._db.read_chunks(start, layout.ID_END, limit):
                return [(key[len(layout.ID) :], decode_state(value)) for key, value in chunk]
        return []

    def forgettable(self, now_ms: int, limit: int) -> list[bytes]:
        fronts = self._fronts
        fronts.forgettable, fronts.stale = {}, []
        start, end = fronts.forget.start, layout.forget_key(max(now_ms, 0) + 1, bytes(layout.UUID_BYTES))
        with self._guarded_calls():
            for chunk in self._db.read_chunks(start, end, _STALE_MAX * limit):
                names = [key for key, _ in chunk]
                fronts.forget.add_scanned(start, names)
                self._sort_out(names, limit)
                start = names[-1] + b"\0"
                if len(fronts.forgettable) >= limit:
                    break
        return list(fronts.forgettable)

    def _sort_out(self, names: list[bytes], limit: int) -> None:
        """Divide expiry (`x`) keys into valid ones and stale ones whose id has another expiry by now."""
        moments = [layout.read_forget(name) for name in names]
        states = self.ids([uuid for _, uuid in moments])
        for name, (moment_ms, uuid), state in zip(names, moments, states, strict=True):
            if state is None or state.forget_ms != moment_ms:
                self._fronts.stale.append(name)
            elif len(self._fronts.forgettable) < limit:
                self._fronts.forgettable[uuid] = name

    def read_deferred(self, topic: str, limit: int, bytes_max: int = UNBOUNDED) -> list[Pending]:
        front = self._fronts.of_topic(topic)
        end = layout.range_end(layout.aside_prefix(topic))
        with self._guarded_calls():
            return _front_messages(
                front, front.start, self._db.read_chunks(front.start, end, limit), bytes_max
            )

    def deferred_topics(self) -> list[str]:
        return sorted(self._counts.aside)

    def scan(self, scan: Scan) -> list[Pending]:
        topic, from_ms, to_ms, limit, after, bytes_max = scan
        if to_ms <= max(from_ms, 0) or (topic is not None and topic not in self._counts.pending):
            return []
        first = DueKey(max(from_ms, 0), 0) if after is None else max(DueKey(max(from_ms, 0), 0), after)
        messages: list[Pending] = []
        with self._guarded_calls():
            for message in merge(*self._topic_walks(topic, first, to_ms), key=_due_order):
                if message.key != after:
                    messages.append(message)
                    bytes_max -= len(message.delivery)
                if len(messages) >= limit or bytes_max <= 0:
                    break
        if self._closed:
            raise StorageError("the delay store was closed while it was read")
        return messages

    def _topic_walks(self, topic: str | None, first: DueKey, to_ms: int) -> Iterator[Iterator[Pending]]:
        start = max(layout.due_key(*first), self._fronts.due.start)
        yield self._of_topic(topic, start, layout.due_key(min(to_ms, layout.DUE_MS_MAX), 0))
        for name in (topic,) if topic is not None else tuple(self._counts.aside):
            if name in self._counts.aside:
                start, end = (
                    layout.aside_key(name, *first),
                    layout.aside_key(name, min(to_ms, layout.DUE_MS_MAX), 0),
                )
                yield self._of_topic(None, start, end)

    def _of_topic(self, topic: str | None, start: bytes, end: bytes) -> Iterator[Pending]:
        needle = (topic or "").encode()
        for _, value in self._read_pairs(start, end):
            if needle in value:  # much cheaper than to parse what another topic owns
                message = decode_pending(value)
                if topic is None or message.topic == topic:
                    yield message

    def _read_pairs(self, start: bytes, end: bytes) -> Iterator[Pair]:
        for chunk in self._db.read_chunks(start, end):
            yield from chunk

    def counts(self) -> Mapping[str, int]:
        return self._counts.pending

    def sizes(self) -> Mapping[str, int]:
        return self._counts.sizes

    def sender_counts(self) -> Mapping[str, int]:
        return self._counts.senders

    def count_due(self, topic: str | None, from_minute: int, to_minute: int, step: int) -> DueTimeCounts:
        with self._guarded_calls():
            return self._due_counters.read(topic, from_minute, to_minute, step)

    def count_older(self, limit: int) -> bool:
        counters = self._due_counters
        if counters.is_complete or limit == 0:
            return not counters.is_complete
        scan = Scan(None, 0, layout.DUE_MS_MAX, limit, counters.counted_to, _COUNT_BYTES_MAX)
        messages = self.scan(scan)
        with self._guarded_calls(writing=True):
            batch = WriteBatch()
            position = counters.put_older(batch, messages)
            self._db.write(batch)
            counters.move_to(position)
        return not counters.is_complete

    def meta(self, name: str) -> bytes | None:
        with self._guarded_calls():
            return self._db.get(own_key(name))

    # --- the folder

    def tidy(self) -> None:
        removed_bytes = self._removed_bytes
        compact_all = not self._counts.pending or (
            removed_bytes >= TIDY_BYTES and removed_bytes >= self.disk_bytes // 2
        )
        if self._removed >= TIDY_AT or (self._removed and compact_all):
            self._removed = 0
            if compact_all:
                self._removed_bytes = 0
            with self._guarded_calls():
                self._db.compact(layout.DUE, layout.DUE_END if compact_all else self._fronts.due.start)
        self._swept()

    def checkpoint(self, folder: Path) -> None:
        with self._guarded_calls():
            self._db.checkpoint(folder)
        try:
            sync_path(folder.parent)
        except OSError as error:
            raise StorageError(f"cannot make the copy {folder} durable: {error}") from error

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._db.close()
        finally:
            self._released()

    @contextmanager
    def _guarded_calls(self, writing: bool = False) -> Iterator[None]:
        """Reject calls after an earlier failure, and record a new failure."""
        if self._failed:
            raise StorageError(f"the delay store failed before, close and open it: {self._failed}")
        try:
            yield
        except DamagedError as damage:
            self._failed = str(damage)
            mark_damaged(self.folder, str(damage))
            raise
        except StorageError as error:
            if writing:
                self._failed = str(error)
            raise


def _front_messages(
    front: Front, start: bytes, chunks: Iterable[list[Pair]], bytes_max: int
) -> list[Pending]:
    """Decode the messages at the beginning of a range up to `bytes_max`, at least one if there is any."""
    front_messages: list[Pending] = []
    names: list[bytes] = []
    remaining_bytes = bytes_max
    for chunk in chunks:
        messages = decode_all(chunk)
        sizes = [len(message.delivery) for message in messages]
        fit = _count_fitting(sizes, remaining_bytes, not front_messages)
        front_messages += messages[:fit]
        names += [key for key, _ in chunk[:fit]]
        remaining_bytes -= sum(sizes)
        if fit < len(messages):
            break
    front.add_scanned(start, names)
    return front_messages


def _due_order(message: Pending) -> tuple[int, int]:
    return message[:2]


def _count_fitting(sizes: list[int], remaining_bytes: int, at_least_one: bool) -> int:
    """Return how many of the first sizes fit into `remaining_bytes`; at least one with `at_least_one`."""
    if sum(sizes) <= remaining_bytes:
        return len(sizes)
    for index, size in enumerate(sizes):
        remaining_bytes -= size
        if remaining_bytes < 0:
            return max(index, 1) if at_least_one else index
    return len(sizes)
