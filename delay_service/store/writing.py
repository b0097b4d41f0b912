"""How a batch of changes becomes RocksDB's: what is written for messages, ids, counts and names.

Everything that can be wrong with the caller's values is found before anything in memory changes. What
changes in memory while a batch is made (fronts, counts) is only true once the batch is written; when that
fails the store is given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ddmq_common.rocks.database import WriteBatch
from delay_service.core.weight import weight
from delay_service.store import keys
from delay_service.store.front import Front
from delay_service.store.port import IdState, Pending, StoreChanges
from delay_service.store.values import encode_all, encode_count, encode_state

OWN = "."  # names that start with it are the store's own
FRONT = ".front"


def own_key(name: str) -> bytes:
    """The key of a named value."""
    return keys.META + name.encode()


class Fronts:
    """What is known of the beginning of every sorted range: due, put aside by topic, to be forgotten."""

    __slots__ = ("aside", "due", "forget", "saved", "stale", "told")

    def __init__(self, due: bytes) -> None:
        self.due = Front(due)
        self.saved = due  # as it stands in the store
        self.aside: dict[str, Front] = {}
        self.forget = Front(keys.FORGET)
        self.told: dict[bytes, bytes] = {}  # ids that `forgettable` named → their `x` keys
        self.stale: list[bytes] = []  # `x` keys whose id has another moment by now

    def of_topic(self, topic: str) -> Front:
        """Of what is put aside."""
        front = self.aside.get(topic)
        if front is None:
            front = self.aside[topic] = Front(keys.aside_prefix(topic))
        return front


class Counts:
    """Per topic: messages pending in all, those put aside among them, and their bytes (core/weight.py). Bytes
    of messages that the first release stored are not known; they are right again when none of those is left
    and none waits."""

    __slots__ = ("aside", "pending", "sizes")

    def __init__(self) -> None:
        self.pending: dict[str, int] = {}
        self.aside: dict[str, int] = {}
        self.sizes: dict[str, int] = {}

    def load(self, topic: str, pending: int, aside: int, pending_bytes: int) -> None:
        """As stored."""
        _set(self.sizes, topic, pending_bytes)
        _set(self.pending, topic, pending)
        _set(self.aside, topic, aside)

    def change(self, changes: StoreChanges) -> set[str]:
        """Count a batch; the topics it touched."""
        pending, aside = Counter[str](), Counter[str]()
        pending.update(message.topic for message in changes.added)
        pending.subtract(message.topic for message in changes.removed)
        pending.subtract(message.topic for message in changes.removed_deferred)
        aside.update(message.topic for message in changes.deferred)
        aside.subtract(message.topic for message in changes.undeferred)
        aside.subtract(message.topic for message in changes.removed_deferred)
        for held, steps in ((self.pending, pending), (self.aside, aside)):
            for topic, step in steps.items():
                _set(held, topic, held.get(topic, 0) + step)
        self._weigh(changes)
        return {*pending, *aside}

    def _weigh(self, changes: StoreChanges) -> None:
        sizes = Counter[str]()
        for message in changes.added:
            sizes[message.topic] += weight(message)
        for left in (changes.removed, changes.removed_deferred):
            for message in left:
                sizes[message.topic] -= weight(message)
        for topic, step in sizes.items():
            _set(self.sizes, topic, self.sizes.get(topic, 0) + step if topic in self.pending else 0)


def _set(held: dict[str, int], topic: str, count: int) -> None:
    if count > 0:
        held[topic] = count
    else:
        held.pop(topic, None)


def make_batch(changes: StoreChanges, fronts: Fronts, counts: Counts) -> WriteBatch:
    """What to write."""
    batch = WriteBatch()
    leaving = keys.due_keys([*changes.removed, *changes.deferred])
    if changes.deferred:
        leaving.sort()
    coming = [*changes.undeferred, *changes.added]
    came = keys.due_keys(coming)
    values = encode_all(coming)
    _delete(batch, fronts.due, leaving)
    fronts.due.add(came)
    _put(batch, came, values)
    if changes.deferred or changes.undeferred or changes.removed_deferred:
        _put_aside(batch, changes, fronts)
    if changes.ids or fronts.stale:
        _put_ids(batch, changes.ids, fronts)
    _put_counts(batch, counts.change(changes), counts)
    _put_meta(batch, changes.meta)
    if fronts.due.start != fronts.saved:
        fronts.saved = fronts.due.start
        batch.put(own_key(FRONT), fronts.saved)
    return batch


def _put(batch: WriteBatch, names: Iterable[bytes], values: Iterable[bytes]) -> None:
    """Sorted, because RocksDB then finds the places of neighbours much faster."""
    put = batch.put
    for name, value in sorted(zip(names, values, strict=True)):
        put(name, value)


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
    found: dict[str, list[Pending]] = {}
    for message in messages:
        found.setdefault(message.topic, []).append(message)
    return found


def _put_aside(batch: WriteBatch, changes: StoreChanges, fronts: Fronts) -> None:
    for topic, messages in _by_topic([*changes.undeferred, *changes.removed_deferred]).items():
        leaving = sorted(keys.aside_key(topic, message.due_ms, message.offset) for message in messages)
        _delete(batch, fronts.of_topic(topic), leaving)
    for topic, messages in _by_topic(changes.deferred).items():
        came = [keys.aside_key(topic, message.due_ms, message.offset) for message in messages]
        fronts.of_topic(topic).add(came)
        _put(batch, came, encode_all(messages))


def _put_ids(batch: WriteBatch, ids: Mapping[bytes, IdState | None], fronts: Fronts) -> None:
    leaving, fronts.stale = fronts.stale, []
    came: list[bytes] = []
    told = fronts.told
    for uuid, state in sorted(ids.items()):
        if state is not None:
            batch.put(keys.ID + uuid, encode_state(state))
            if state.forget_ms > 0:
                came.append(keys.forget_key(state.forget_ms, uuid))
        else:
            batch.delete(keys.ID + uuid)
            if uuid in told:
                leaving.append(told.pop(uuid))
    leaving.sort()
    _delete(batch, fronts.forget, leaving)
    fronts.forget.add(came)
    _put(batch, came, [b""] * len(came))


def _put_counts(batch: WriteBatch, topics: Iterable[str], counts: Counts) -> None:
    for topic in topics:
        pending, aside = counts.pending.get(topic, 0), counts.aside.get(topic, 0)
        key = keys.COUNT + topic.encode()
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
