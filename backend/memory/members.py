"""Memberships of the memory engine: a grant's epochs are recorded in the progress, at once."""

from __future__ import annotations

from collections.abc import Callable

from backend.assignment.decisions import Grant
from backend.assignment.memberships import Answered, Later, Memberships
from backend.memory.store import MemoryStore
from backend.records import QueueRef


class MemberTable(Memberships):
    """Every membership of one MemoryBackend; see backend.assignment.memberships."""

    def __init__(
        self,
        store: MemoryStore,
        later: Later,
        now: Callable[[], float],
        watch: Callable[[], object],
        lines_max: int,
    ) -> None:
        def living(name: str) -> list[QueueRef]:
            topic = store.topics.get(name)
            if topic is None:
                return []
            return [QueueRef(name, topic.info.incarnation, index) for index in range(topic.info.queues)]

        def recorded(group: str, queue: QueueRef) -> int:
            return store.progress.fence(group, queue).epoch

        def raise_epochs(grant: Grant, answered: Answered) -> None:
            for queue in grant.queues:
                store.raise_epoch(grant.seat.group, queue, grant.epoch)
            answered(None)

        super().__init__(living, recorded, raise_epochs, later, later, now, watch, lines_max)
