"""What keeps dead letters from being deleted for three days, whatever the reason to clean.

Asked by retention at each round, in its greenlet. Over the port only, so it knows no files. Cheap: a
queue's oldest young letter is remembered until it is three days old, and an empty queue is looked at
again only when something was appended to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from backend.file_log.core.retention import Hold
from backend.port import Backend
from backend.records import QueueRef, ReadStatus
from ddmq_common.clock import Clock
from ddmq_common.names import DLQ_PREFIX

KEEP_MS = 3 * 24 * 3_600_000
WAIT_S = 30.0


class _Oldest(NamedTuple):
    """The oldest young letter of one queue; position -1: there was none when the queue ended at `next`."""

    position: int
    stored_ms: int
    next: int


class DeadLetterHolds:
    """Call it for the holds. `keep_ms`: how long a dead letter stays at least. Raises as the port does."""

    def __init__(self, backend: Backend, clock: Clock, keep_ms: int = KEEP_MS) -> None:
        self._backend = backend
        self._clock = clock
        self._keep_ms = keep_ms
        self._known: dict[QueueRef, _Oldest] = {}

    def __call__(self) -> list[Hold]:
        young_from_ms = self._clock.wall_ms() - self._keep_ms + 1
        self._known = {ref: self._oldest(ref, end, young_from_ms) for ref, end in self._queues()}
        positions = [oldest.position for oldest in self._known.values() if oldest.position >= 0]
        if not positions:
            return []
        return [Hold(min(positions), f"dead letters under {self._keep_ms / 86_400_000:g} days")]

    def _queues(self) -> Iterator[tuple[QueueRef, int]]:
        refs = [
            QueueRef(name, info.incarnation, queue_id)
            for name, info in self._backend.topics().items()
            if name.startswith(DLQ_PREFIX)
            for queue_id in range(info.queues)
        ]
        if refs:
            bounds = self._backend.bounds(refs).wait(WAIT_S)
            yield from (
                (ref, known.next) for ref, known in zip(refs, bounds, strict=True) if known is not None
            )

    def _oldest(self, ref: QueueRef, end: int, young_from_ms: int) -> _Oldest:
        known = self._known.get(ref)
        if known is not None and (known.stored_ms >= young_from_ms or (-1, end) == known[::2]):
            return known
        offset = self._backend.offset_for_time(ref, young_from_ms).wait(WAIT_S)
        if offset < end:
            batch = self._backend.read(ref, offset, 1, 0).wait(WAIT_S)
            if batch.status is ReadStatus.DATA and batch.offsets:
                return _Oldest(batch.positions[0], batch.record(0).stored_ms, end)
        return _Oldest(-1, 0, end)
