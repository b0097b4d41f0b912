"""A membership's listener that records its calls."""

from __future__ import annotations

from collections.abc import Sequence

from backend.port import Assignment
from backend.records import QueueRef


class RecordingListener:
    """`events`: (event, queue numbers) in order. `epochs`: those of the assignments."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []
        self.epochs: list[int] = []
        self.deadlines: list[float] = []  # those of the revocations

    def assigned(self, assignment: Assignment) -> None:
        self.epochs.append(assignment.epoch)
        self._record_event("assigned", assignment.queues)

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        self.deadlines.append(deadline)
        self._record_event("revoked", queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._record_event("lost", queues)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def _record_event(self, what: str, queues: Sequence[QueueRef]) -> None:
        self.events.append((what, [queue.queue_id for queue in queues]))
