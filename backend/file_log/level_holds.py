"""What keeps delayed messages of the levels from being deleted before they have fired, and orders to the
delay service before its store has them: what a group of ours has not finished of a topic of ours.

Asked by retention at each round, in its greenlet. Over the port only, so it knows no files. Cheap: a level
is looked at again only when its progress has moved, or when it was empty and is not any more.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.file_log.core.retention import Hold
from backend.port import Backend
from backend.records import QueueRef, ReadStatus
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC

WAIT_S = 30.0


class _Head(NamedTuple):
    """The oldest message not fired of one level; position -1: none."""

    offset: int
    next: int
    position: int


class LevelHolds:
    """Call it for the holds. Raises as the port does. `reason`: what is held, for people."""

    def __init__(
        self,
        backend: Backend,
        topic: str = SCHEDULE_TOPIC,
        group: str = LEVELS_GROUP,
        reason: str = "messages of delay levels that are not fired",
    ) -> None:
        self._backend = backend
        self._topic = topic
        self._group = group
        self._reason = reason
        self._known: dict[QueueRef, _Head] = {}

    def __call__(self) -> list[Hold]:
        info = self._backend.topic(self._topic)
        if info is None:
            return []
        refs = [QueueRef(info.name, info.incarnation, queue_id) for queue_id in range(info.queues)]
        views = self._backend.progress(self._group, refs).wait(WAIT_S)
        bounds = self._backend.bounds(refs).wait(WAIT_S)
        heads = {
            ref: self._head(ref, max(view.committed or 0, limits.min), limits.next)
            for ref, view, limits in zip(refs, views, bounds, strict=True)
            if limits is not None
        }
        self._known = heads
        positions = [head.position for head in heads.values() if head.position >= 0]
        return [Hold(min(positions), self._reason)] if positions else []

    def _head(self, ref: QueueRef, offset: int, end: int) -> _Head:
        if offset >= end:
            return _Head(offset, end, -1)
        known = self._known.get(ref)
        if known is not None and known.offset == offset and (known.position >= 0 or known.next == end):
            return known
        batch = self._backend.read(ref, offset, 1, 0).wait(WAIT_S)
        found = batch.status is ReadStatus.DATA and len(batch.offsets) > 0
        return _Head(offset, end, batch.positions[0] if found else -1)
