"""Turns a batch of changes into a batch of RocksDB: messages, ids, counts and named values.

Everything that can be wrong with the caller's values is found before anything in memory changes. What
changes in memory while a batch is made (fronts, counts) is only true once the batch is written; when that
fails the store is given up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddmq_common.delays.command import read_sender
from ddmq_common.rocks.database import Pair, WriteBatch
from delay_service.store import layout
from delay_service.store.due_ahead import DueAhead
from delay_service.store.due_counts import DueCounters
from delay_service.store.layout import encode_all, encode_count, encode_state
from delay_service.store.port import IdState, Pending, StoreChanges, weigh_message

OWN = "."  # names that start with it are the store's own
FRONT = ".front"
CACHED_KEYS_MAX = 65_536
RANGE_MIN = 64
FEW = 16  # keys that are inserted one by one
_COMPACT_AT = 4_096


def own_key(name: str) -> bytes:
    """Return the key of a small named value."""
    return layout.META + name.encode()


class Removal(NamedTuple):
    """Keys to delete: a range `[start, end)`, if any, and single keys."""

    start: bytes
    end: bytes
    keys: list[bytes]

    @property
    def is_range(self) -> bool:
        """Return whether the range from `start` to `end` is not empty."""
        return self.start < self.end


class Front:
    """Caches the beginning of a sorted range of keys, so that it is never searched twice.

    Messages leave the due order at its beginning, in storms. A search that starts at its old beginning walks
    over their remains (a tenth of a second for some 100,000). So the store remembers the first live key, and
    removes ranges instead of keys. Rules:
    * `start`: every live key is at or behind it.
    * Cached keys: the live ones in [start, horizon), in order, as scans returned them. Keys that are removed
      out of order are remembered as dead until all keys before them are removed too.
    * A removal of the first keys is one range up to the next live key, if they are enough for a range
      (RocksDB checks every range whenever it reads, so they must be few).
    * At most `CACHED_KEYS_MAX` keys are cached; behind them keys are removed one by one. Fewer cached keys
      are never wrong.
    """

    __slots__ = ("_cached_keys", "_dead", "_head", "_horizon", "start")

    def __init__(self, start: bytes) -> None:
        self.start = start
        self._horizon = start
        self._cached_keys: list[bytes] = []
        self._head = 0
        self._dead: set[bytes] = set()

    @property
    def first_key(self) -> bytes | None:
        """Return the first live key; None if it is not cached."""
        return self._cached_keys[self._head] if self._head < len(self._cached_keys) else None

    @property
    def key_count(self) -> int:
        """Return the number of cached live keys."""
        return len(self._cached_keys) - self._head

    def add_scanned(self, begin: bytes, keys: list[bytes]) -> None:
        """Add the result of a scan: these are the first live keys from `begin` on, in order."""
        if begin > self._horizon or not keys or keys[-1] < self._horizon:
            return
        fresh = keys[bisect_left(keys, self._horizon) :] if keys[0] < self._horizon else keys
        fresh = fresh[: CACHED_KEYS_MAX - self.key_count]
        if fresh:
            if self._head == len(self._cached_keys):
                self.start = fresh[0]
            self._cached_keys += fresh
            self._horizon = fresh[-1] + b"\0"

    def add(self, keys: list[bytes]) -> None:
        """Add keys that have been written."""
        if not keys or min(keys) >= self._horizon:
            return
        fresh = sorted(key for key in keys if key < self._horizon)
        self._dead.difference_update(fresh)
        index = bisect_left(self._cached_keys, fresh[0], self._head)
        if index == bisect_right(self._cached_keys, fresh[-1], index):
            self._cached_keys[index:index] = fresh  # side by side, as a storm comes in
        elif len(fresh) < FEW:
            for key in fresh:
                self._insert_key(key)
        else:
            self._cached_keys = sorted({*self._cached_keys[self._head :], *fresh})
            self._head = 0
        self.start = min(self.start, self._cached_keys[self._head])
        if self.key_count > CACHED_KEYS_MAX:
            self.forget()

    def _insert_key(self, key: bytes) -> None:
        index = bisect_left(self._cached_keys, key, self._head)
        if index == len(self._cached_keys) or self._cached_keys[index] != key:
            self._cached_keys.insert(index, key)

    def forget(self) -> None:
        """Drop all cached keys. The start remains, because it is always right."""
        self._horizon = self.start
        self._cached_keys, self._head, self._dead = [], 0, set()

    def remove(self, keys: list[bytes]) -> Removal:
        """Mark live keys as deleted; return how to delete them from the database."""
        begin, count = self.start, self._mark_removed(keys)
        if count < RANGE_MIN:
            return Removal(b"", b"", keys)
        end = self.start
        return Removal(begin, end, [key for key in keys if not begin <= key < end])

    def _mark_removed(self, keys: list[bytes]) -> int:
        """Mark keys as dead and skip the dead ones at the beginning; return how many were skipped."""
        cached_keys, head = self._cached_keys, self._head
        if cached_keys[head : head + len(keys)] == keys and not self._dead:
            self._head += len(keys)
            stepped = len(keys)
        else:
            self._dead.update(key for key in keys if key < self._horizon)
            stepped = self._step_over_dead()
        if stepped:
            self.start = cached_keys[self._head] if self._head < len(cached_keys) else self._horizon
            self._compact_cache()
        return stepped

    def _step_over_dead(self) -> int:
        cached_keys, dead, index = self._cached_keys, self._dead, self._head
        while index < len(cached_keys) and cached_keys[index] in dead:
            dead.discard(cached_keys[index])
            index += 1
        stepped, self._head = index - self._head, index
        return stepped

    def _compact_cache(self) -> None:
        if self._head >= _COMPACT_AT and 2 * self._head >= len(self._cached_keys):
            del self._cached_keys[: self._head]
            self._head = 0


class Fronts:
    """The fronts of all sorted ranges: due messages, deferred messages by topic, and expiries."""

    def __init__(self, due: bytes) -> None:
        self.due = Front(due)
        self.ahead = DueAhead()
        self.saved = due  # as it stands in the store
        self.aside: dict[str, Front] = {}
        self.forget = Front(layout.FORGET)
        self.forgettable: dict[bytes, bytes] = {}  # ids that `forgettable` named → their `x` keys
        self.stale: list[bytes] = []  # `x` keys whose id has another moment by now

    def of_topic(self, topic: str) -> Front:
        """Return the front of a topic's deferred messages."""
        front = self.aside.get(topic)
        if front is None:
            front = self.aside[topic] = Front(layout.aside_prefix(topic))
        return front


class PendingCounts:
    """The number and bytes (`weigh_message`) of waiting messages per topic, and the deferred ones among them.
    `senders`: the number per identity that sent them.

    Bytes of messages from the first release are unknown; the sums become right when none of those waits any
    more.
    """

    def __init__(self) -> None:
        self.pending: dict[str, int] = {}
        self.aside: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.senders: dict[str, int] = {}

    def load(self, topic: str, pending: int, aside: int, pending_bytes: int) -> None:
        """Set the counters of a topic from their stored values."""
        _set(self.sizes, topic, pending_bytes)
        _set(self.pending, topic, pending)
        _set(self.aside, topic, aside)

    def apply_changes(self, changes: StoreChanges) -> set[str]:
        """Apply a batch to the counters; return the topics that it changed."""
        pending, aside = Counter[str](), Counter[str]()
        pending.update(message.topic for message in changes.added)
        pending.subtract(message.topic for message in changes.removed)
        pending.subtract(message.topic for message in changes.removed_deferred)
        aside.update(message.topic for message in changes.deferred)
        aside.subtract(message.topic for message in changes.undeferred)
        aside.subtract(message.topic for message in changes.removed_deferred)
        for totals, steps in ((self.pending, pending), (self.aside, aside)):
            for topic, step in steps.items():
                _set(totals, topic, totals.get(topic, 0) + step)
        self._weigh_changes(changes)
        return {*pending, *aside}

    def count_senders(self, changes: StoreChanges) -> dict[str, int]:
        """Apply a batch to the counts of identities; return those that it changed, 0 for those that have no
        message any more."""
        steps = Counter[str]()
        for messages, step in ((changes.added, 1), (changes.removed, -1), (changes.removed_deferred, -1)):
            for message in messages:
                sender = read_sender(message.command)
                if sender:
                    steps[sender] += step
        for sender, step in steps.items():
            _set(self.senders, sender, self.senders.get(sender, 0) + step)
        return {sender: self.senders.get(sender, 0) for sender, step in steps.items() if step}

    def _weigh_changes(self, changes: StoreChanges) -> None:
        sizes = Counter[str]()
        for message in changes.added:
            sizes[message.topic] += weigh_message(message)
        for removed in (changes.removed, changes.removed_deferred):
            for message in removed:
                sizes[message.topic] -= weigh_message(message)
        for topic, step in sizes.items():
            _set(self.sizes, topic, self.sizes.get(topic, 0) + step if topic in self.pending else 0)


def _set(totals: dict[str, int], topic: str, count: int) -> None:
    if count > 0:
        totals[topic] = count
    else:
        totals.pop(topic, None)


def make_batch(
    changes: StoreChanges, fronts: Fronts, counts: PendingCounts, due_counters: DueCounters
) -> WriteBatch:
    """Build the RocksDB batch of these changes, and update fronts and counters."""
    batch = WriteBatch()
    leaving = layout.due_keys([*changes.removed, *changes.deferred])
    if changes.deferred:
        leaving.sort()
    coming = [*changes.undeferred, *changes.added]
    due_keys = layout.due_keys(coming)
    values = encode_all(coming)
    _delete(batch, fronts.due, leaving)
    fronts.due.add(due_keys)
    fronts.ahead.remove(leaving)
    fronts.ahead.add(_put(batch, due_keys, values))
    if changes.deferred or changes.undeferred or changes.removed_deferred:
        _put_aside(batch, changes, fronts)
    if changes.ids or fronts.stale:
        _put_ids(batch, changes.ids, fronts)
    _put_counts(batch, counts.apply_changes(changes), counts)
    for sender, count in counts.count_senders(changes).items():
        key = layout.SENDER + sender.encode()
        if count:
            batch.put(key, layout.encode_sender_count(count))
        else:
            batch.delete(key)
    due_counters.put_changes(batch, changes)
    _put_meta(batch, changes.meta)
    if fronts.due.start != fronts.saved:
        fronts.saved = fronts.due.start
        batch.put(own_key(FRONT), fronts.saved)
    return batch


def _put(batch: WriteBatch, names: Iterable[bytes], values: Iterable[bytes]) -> list[Pair]:
    """Add the pairs to the batch in key order, because RocksDB inserts neighbouring keys faster; return them
    sorted.
    """
    put = batch.put
    pairs = sorted(zip(names, values, strict=True))
    for name, value in pairs:
        put(name, value)
    return pairs


def _delete(batch: WriteBatch, front: Front, leaving: list[bytes]) -> None:
    if not leaving:
        return
    removal = front.remove(leaving)
    if removal.is_range:
        batch.delete_range(removal.start, removal.end)
    delete = batch.delete
    for key in removal.keys:
        delete(key)


def _by_topic(messages: Iterable[Pending]) -> dict[str, list[Pending]]:
    by_topic: dict[str, list[Pending]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message)
    return by_topic


def _put_aside(batch: WriteBatch, changes: StoreChanges, fronts: Fronts) -> None:
    for topic, messages in _by_topic([*changes.undeferred, *changes.removed_deferred]).items():
        leaving = sorted(layout.aside_key(topic, message.due_ms, message.offset) for message in messages)
        _delete(batch, fronts.of_topic(topic), leaving)
    for topic, messages in _by_topic(changes.deferred).items():
        deferred_keys = [layout.aside_key(topic, message.due_ms, message.offset) for message in messages]
        fronts.of_topic(topic).add(deferred_keys)
        _put(batch, deferred_keys, encode_all(messages))


def _put_ids(batch: WriteBatch, ids: Mapping[bytes, IdState | None], fronts: Fronts) -> None:
    leaving, fronts.stale = fronts.stale, []
    forget_keys: list[bytes] = []
    forgettable = fronts.forgettable
    for uuid, state in sorted(ids.items()):
        if state is not None:
            batch.put(layout.ID + uuid, encode_state(state))
            if state.forget_ms > 0:
                forget_keys.append(layout.forget_key(state.forget_ms, uuid))
        else:
            batch.delete(layout.ID + uuid)
            if uuid in forgettable:
                leaving.append(forgettable.pop(uuid))
    leaving.sort()
    _delete(batch, fronts.forget, leaving)
    fronts.forget.add(forget_keys)
    _put(batch, forget_keys, [b""] * len(forget_keys))


def _put_counts(batch: WriteBatch, topics: Iterable[str], counts: PendingCounts) -> None:
    for topic in topics:
        pending, aside = counts.pending.get(topic, 0), counts.aside.get(topic, 0)
        key = layout.COUNT + topic.encode()
        if pending or aside:
            batch.put(key, encode_count(pending, aside, counts.sizes.get(topic, 0)))
        else:
            batch.delete(key)


def _put_meta(batch: WriteBatch, meta: Mapping[str, bytes | None]) -> None:
    for name, value in meta.items():
        if name.startswith(OWN):
            raise ValueError(f"the name {name!r} is the store's own: names of others start with another sign")
        if value is None:
            batch.delete(own_key(name))
        else:
            batch.put(own_key(name), value)
