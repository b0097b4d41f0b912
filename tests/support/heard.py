"""A membership's listener that keeps what it hears."""

from __future__ import annotations

from collections.abc import Sequence

from backend.port import Assignment
from backend.records import QueueRef


class Heard:
    """`told`: what happened and the numbers of the queues, in order; `epochs` of what was assigned."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []
        self.epochs: list[int] = []
        self.deadlines: list[float] = []  # of what was revoked

    def assigned(self, assignment: Assignment) -> None:
        self.epochs.append(assignment.epoch)
        self._note("assigned", assignment.queues)

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        self.deadlines.append(deadline)
        self._note("revoked", queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._note("lost", queues)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def _note(self, what: str, queues: Sequence[QueueRef]) -> None:
        self.told.append((what, [queue.queue_id for queue in queues]))
