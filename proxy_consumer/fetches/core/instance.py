"""One instance of a broadcasting group that pulls: its cursors and what it has not acknowledged. Pure.

It starts at the newest offset of the queues that exist when it first pulls; queues that appear later are
read from their first message. Nothing is retried: what is failed, or not acknowledged in time, is counted
and gone. Unacknowledged deliveries count against a bound, at which nothing more is handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from backend.records import QueueRef

Place = tuple[bytes, bytes]  # topic, qid


class _Batch:
    __slots__ = ("deadline", "left")

    def __init__(self, deadline: float, offsets: Iterable[int]) -> None:
        self.deadline = deadline
        self.left = set(offsets)


class Instance:
    """Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.seen_at = now
        self.placed = False  # the cursors of the queues of the first moment are known
        self.cursors: dict[QueueRef, int] = {}
        self.outstanding = 0
        self._batches: dict[Place, deque[_Batch]] = {}

    def place(self, newest: dict[QueueRef, int]) -> None:
        """Where the queues of the first moment ended then."""
        for queue, offset in newest.items():
            self.cursors.setdefault(queue, offset)
        self.placed = True

    def cursor(self, queue: QueueRef) -> int:
        """The next offset to deliver."""
        return self.cursors.setdefault(queue, 0)

    def claim(self, queue: QueueRef, first: int, after: int) -> bool:
        """Take `[first, after)` for one answer; False when another pull was quicker."""
        if self.cursors.get(queue) != first:
            return False
        self.cursors[queue] = after
        return True

    def delivered(self, place: Place, offsets: Iterable[int], deadline: float) -> None:
        """Handed out; to be acknowledged by `deadline`."""
        batch = _Batch(deadline, offsets)
        self._batches.setdefault(place, deque()).append(batch)
        self.outstanding += len(batch.left)

    def settle(self, place: Place, offsets: Iterable[int]) -> int:
        """Results that came in; how many of them were waited for."""
        batches = self._batches.get(place)
        if not batches:
            return 0
        found = 0
        for offset in offsets:
            for batch in batches:
                if offset in batch.left:
                    batch.left.discard(offset)
                    found += 1
                    break
        self._trim(place, batches)
        self.outstanding -= found
        return found

    def expire(self, now: float) -> int:
        """Deliveries whose time is over; they are forgotten."""
        lost = 0
        for place, batches in list(self._batches.items()):
            for batch in batches:
                if batch.deadline <= now:
                    lost += len(batch.left)
                    batch.left.clear()
            self._trim(place, batches)
        self.outstanding -= lost
        return lost

    def _trim(self, place: Place, batches: deque[_Batch]) -> None:
        kept = deque(batch for batch in batches if batch.left)
        if kept:
            self._batches[place] = kept
        else:
            self._batches.pop(place, None)
