"""The delay store in memory: the model that RocksDB is held to, and what tests of the engine use.

Sorted lists and dicts; nothing survives the process. `flush` does nothing, `checkpoint` is refused.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ddmq_common.delays.command import read_sender
from ddmq_common.errors import StorageError, UnsupportedError
from delay_service.store.port import (
    UNBOUNDED,
    DelayStore,
    DueKey,
    DueTimeCounts,
    IdState,
    Pending,
    Scan,
    StoreChanges,
    weigh_message,
)

MINUTE_MS = 60_000
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Ordered:
    """Messages by their keys."""

    __slots__ = ("keys", "messages")

    def __init__(self) -> None:
        self.keys: list[DueKey] = []
        self.messages: dict[DueKey, Pending] = {}

    def put(self, message: Pending) -> None:
        key = message.key
        if key not in self.messages:
            insort(self.keys, key)
        self.messages[key] = message

    def take(self, key: DueKey) -> None:
        if self.messages.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def behind(self, after: DueKey | None) -> Iterator[Pending]:
        start = 0 if after is None else bisect_right(self.keys, after)
        return (self.messages[key] for key in self.keys[start:])


class MemoryDelayStore(DelayStore):
    """A shard that is forgotten with its process."""

    def __init__(self) -> None:
        self._due = _Ordered()
        self._aside: dict[str, _Ordered] = {}
        self._ids: dict[bytes, IdState] = {}
        self._counts: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._senders: Counter[str] = Counter()
        self._meta: dict[str, bytes] = {}
        self._closed = False

    def write(self, changes: StoreChanges) -> None:
        self._check()
        self._leave(changes.removed)
        self._leave(changes.deferred)
        self._leave_aside([*changes.undeferred, *changes.removed_deferred])
        self._come([*changes.undeferred, *changes.added], changes.deferred)
        self._count(changes.added, 1)
        self._count(changes.removed, -1)
        self._count(changes.removed_deferred, -1)
        _overwrite_values(self._ids, changes.ids)
        _overwrite_values(self._meta, changes.meta)

    def _leave(self, messages: Iterable[Pending]) -> None:
        for message in messages:
            self._due.take(message.key)

    def _leave_aside(self, messages: Iterable[Pending]) -> None:
        for message in messages:
            ordered = self._aside.get(message.topic)
            if ordered is not None:
                ordered.take(message.key)
                if not ordered.keys:
                    del self._aside[message.topic]

    def _come(self, due: Iterable[Pending], deferred: Iterable[Pending]) -> None:
        for message in due:
            self._due.put(message)
        for message in deferred:
            self._aside.setdefault(message.topic, _Ordered()).put(message)

    def _count(self, messages: Iterable[Pending], step: int) -> None:
        for message in messages:
            sender = read_sender(message.command)
            if sender:
                self._senders[sender] += step
            count = self._counts.get(message.topic, 0) + step
            self._counts[message.topic] = count
            self._sizes[message.topic] = self._sizes.get(message.topic, 0) + step * weigh_message(message)
            if not count:
                del self._counts[message.topic], self._sizes[message.topic]

    def flush(self) -> None:
        self._check()

    def due(self, until_ms: int, limit: int, bytes_max: int, after: DueKey | None = None) -> list[Pending]:
        self._check()
        matches: list[Pending] = []
        size = 0
        for message in self._due.behind(after):
            size += len(message.delivery)
            if message.due_ms > until_ms or len(matches) >= limit or (matches and size > bytes_max):
                break
            matches.append(message)
        return matches

    def next_due(self, after: DueKey | None = None) -> DueKey | None:
        self._check()
        return next((message.key for message in self._due.behind(after)), None)

    def get(self, key: DueKey) -> Pending | None:
        self._check()
        for ordered in (self._due, *self._aside.values()):
            if key in ordered.messages:
                return ordered.messages[key]
        return None

    def ids(self, uuids: Sequence[bytes]) -> list[IdState | None]:
        self._check()
        return [self._ids.get(uuid) for uuid in uuids]

    def list_id_states(self, after: bytes, limit: int) -> list[tuple[bytes, IdState]]:
        self._check()
        return sorted((uuid, state) for uuid, state in self._ids.items() if uuid > after)[:limit]

    def forgettable(self, now_ms: int, limit: int) -> list[bytes]:
        self._check()
        passed = [
            (state.forget_ms, uuid) for uuid, state in self._ids.items() if 0 < state.forget_ms <= now_ms
        ]
        return [uuid for _, uuid in sorted(passed)[:limit]]

    def read_deferred(self, topic: str, limit: int, bytes_max: int = UNBOUNDED) -> list[Pending]:
        self._check()
        ordered = self._aside.get(topic, _Ordered())
        matches: list[Pending] = []
        for key in ordered.keys[:limit]:
            message = ordered.messages[key]
            bytes_max -= len(message.delivery)
            if matches and bytes_max < 0:
                break
            matches.append(message)
        return matches

    def deferred_topics(self) -> list[str]:
        self._check()
        return sorted(self._aside)

    def scan(self, scan: Scan) -> list[Pending]:
        self._check()
        topic, from_ms, to_ms, limit, after, bytes_max = scan
        walks = (ordered.behind(after) for ordered in (self._due, *self._aside.values()))
        matches = (
            message
            for message in merge(*walks, key=lambda message: message.key)
            if from_ms <= message.due_ms < to_ms and topic in (None, message.topic)
        )
        messages: list[Pending] = []
        for message in islice(matches, limit):
            messages.append(message)
            bytes_max -= len(message.delivery)
            if bytes_max <= 0:
                break
        return messages

    def counts(self) -> Mapping[str, int]:
        return self._counts

    def sizes(self) -> Mapping[str, int]:
        return self._sizes

    def sender_counts(self) -> Mapping[str, int]:
        return +self._senders

    def count_due(self, topic: str | None, from_minute: int, to_minute: int, step: int) -> DueTimeCounts:
        self._check()
        minutes = Counter(
            message.due_ms // MINUTE_MS
            for ordered in (self._due, *self._aside.values())
            for message in ordered.messages.values()
            if topic in (None, message.topic)
        )
        counts = Counter[int]()
        for minute, count in minutes.items():
            if from_minute <= minute < to_minute:
                counts[minute - minute % step] += count
        before = sum(count for minute, count in minutes.items() if minute < from_minute)
        after = sum(count for minute, count in minutes.items() if minute >= to_minute)
        first, end = (min(minutes) // 60 * 60, (max(minutes) // 60 + 1) * 60) if minutes else (None, None)
        return DueTimeCounts(dict(counts), before, after, first, end, complete=True)

    def meta(self, name: str) -> bytes | None:
        self._check()
        return self._meta.get(name)

    def checkpoint(self, folder: Path) -> None:
        raise UnsupportedError(f"a delay store in memory has nothing to copy to {folder}")

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StorageError("the delay store is closed")


def _overwrite_values(values: dict[_Key, _Value], changes: Mapping[_Key, _Value | None]) -> None:
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
