"""When the oldest unfinished message of a queue was stored: one record read, and remembered.

A queue is looked up again only when its committed offset has moved. Per look at most READS_MAX queues are,
those first that were not for the longest time; the others keep the store time of an earlier message, so
that their age shows too high rather than too low. A read that has to wait for the disk is answered later
and used by the next look.
"""

from __future__ import annotations

from collections.abc import Iterable

from backend.completion import Completion
from backend.records import QueueRef, ReadBatch, ReadStatus
from proxy_consumer.runtime import Runtime

READS_MAX = 64
Key = tuple[str, QueueRef]  # group, queue


class Head:
    """One queue of one group. `offset`: for which `stored_ms` was read, −1 = for none yet."""

    __slots__ = ("asked_at", "offset", "reading", "stored_ms")

    def __init__(self) -> None:
        self.offset = -1
        self.stored_ms = 0  # epoch milliseconds
        self.asked_at = 0.0  # monotonic seconds
        self.reading = False


class Oldest:
    """The heads of all queues with a lag; those that have none are forgotten."""

    def __init__(self, runtime: Runtime, reads_max: int = READS_MAX) -> None:
        self._runtime = runtime
        self._reads_max = reads_max
        self._heads: dict[Key, Head] = {}

    def look_up(self, late: Iterable[tuple[str, QueueRef, int]]) -> None:
        """`late`: group, queue and committed offset of every queue with a lag."""
        wanted = {(group, queue): offset for group, queue, offset in late}
        self._heads = {key: self._heads.get(key) or Head() for key in wanted}
        moved = [
            (head.asked_at, key)
            for key, head in self._heads.items()
            if head.offset != wanted[key] and not head.reading
        ]
        for _, key in sorted(moved)[: self._reads_max]:
            self._read(key, wanted[key])

    def _read(self, key: Key, offset: int) -> None:
        head = self._heads[key]
        head.asked_at, head.reading = self._runtime.now(), True
        try:
            asked = self._runtime.backend.read(key[1], offset, 1, 1)
        except BaseException:
            head.reading = False
            raise
        asked.then(lambda read: _take(head, offset, read))

    def stored_ms(self, group: str, queues: Iterable[QueueRef]) -> int | None:
        """The store time of the oldest of their messages, epoch milliseconds; None while it is not known."""
        heads = [self._heads.get((group, queue)) for queue in queues]
        return min((head.stored_ms for head in heads if head is not None and head.stored_ms), default=None)


def _take(head: Head, offset: int, read: Completion[ReadBatch]) -> None:
    head.reading = False
    if read.error is not None or read.value.status is not ReadStatus.DATA or not read.value.offsets:
        return
    stored_ms = read.value.stored_ms(0)
    if stored_ms:
        head.offset, head.stored_ms = offset, stored_ms
