"""When the oldest unfinished message of a queue was stored: one record read, and remembered.

A queue is looked up again only when its committed offset has moved. Per look at most READS_MAX queues are,
those first that were not for the longest time; the others keep the store time of an earlier message, so
that their age shows too high rather than too low. What is read is told when it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backend.completion import Completion
from backend.records import QueueRef, ReadBatch, ReadStatus
from proxy_consumer.runtime import Runtime

READS_MAX = 64
Key = tuple[str, QueueRef]  # group, queue
Late = tuple[str, QueueRef, int]  # group, queue, committed offset


class Head:
    """One queue of one group. `offset`: for which `stored_ms` was read, −1 = for none yet."""

    __slots__ = ("asked_at", "offset", "reading", "stored_ms")

    def __init__(self) -> None:
        self.offset = -1
        self.stored_ms = 0  # epoch milliseconds
        self.asked_at = 0.0  # monotonic seconds
        self.reading = False


class Oldest:
    """The heads of all queues with a lag; those that have none are forgotten. `found(group, queue)` follows
    whenever one was read."""

    def __init__(
        self, runtime: Runtime, found: Callable[[str, QueueRef], None], reads_max: int = READS_MAX
    ) -> None:
        self._runtime = runtime
        self._found = found
        self._reads_max = reads_max
        self._reads_left = reads_max
        self._heads: dict[Key, Head] = {}

    def look_up(self, late: Iterable[Late]) -> None:
        """A new look: `late` is every queue with a lag."""
        wanted = {(group, queue): offset for group, queue, offset in late}
        self._heads = {key: self._heads.get(key) or Head() for key in wanted}
        self._reads_left = self._reads_max
        self._ask(wanted)

    def more(self, late: Iterable[Late]) -> None:
        """These have a lag, too: of the same look."""
        wanted = {(group, queue): offset for group, queue, offset in late}
        for key in wanted:
            self._heads.setdefault(key, Head())
        self._ask(wanted)

    def _ask(self, wanted: dict[Key, int]) -> None:
        moved = [
            (head.asked_at, key)
            for key, head in ((key, self._heads[key]) for key in wanted)
            if head.offset != wanted[key] and not head.reading
        ]
        for _, key in sorted(moved)[: self._reads_left]:
            self._reads_left -= 1
            self._read(key, wanted[key])

    def _read(self, key: Key, offset: int) -> None:
        head = self._heads[key]
        head.asked_at, head.reading = self._runtime.now(), True
        try:
            asked = self._runtime.backend.read(key[1], offset, 1, 1)
        except BaseException:
            head.reading = False
            raise
        asked.then(lambda read: self._read_done(key, head, offset, read))

    def _read_done(self, key: Key, head: Head, offset: int, read: Completion[ReadBatch]) -> None:
        if _take(head, offset, read):
            self._found(*key)

    def stored_ms(self, group: str, queues: Iterable[QueueRef]) -> int | None:
        """The store time of the oldest of their messages, epoch milliseconds; None while it is not known."""
        heads = [self._heads.get((group, queue)) for queue in queues]
        return min((head.stored_ms for head in heads if head is not None and head.stored_ms), default=None)


def _take(head: Head, offset: int, read: Completion[ReadBatch]) -> bool:
    """Whether it says when the message was stored."""
    head.reading = False
    if read.error is not None or read.value.status is not ReadStatus.DATA or not read.value.offsets:
        return False
    stored_ms = read.value.stored_ms(0)
    if stored_ms:
        head.offset, head.stored_ms = offset, stored_ms
    return bool(stored_ms)
