"""A backend, a clock that is moved by hand, and what a test wants to see of the log."""

from __future__ import annotations

from itertools import count

from backend.port import Backend
from backend.records import QueueRef, StoredRecord, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from tests.played_memory import PlayedMemory
from tests.support.rig import Rig
from tests.support.waits import done


class BackendRig(Rig):
    """The memory engine, unless a backend is given. Who derives from it says what runs over it."""

    metrics: Registry

    def __init__(self, backend: Backend | None, clock: ManualClock | None) -> None:
        super().__init__()
        self.clock = clock or ManualClock()
        self.backend: Backend = backend or PlayedMemory(self.clock)
        self._ids = count(1)

    @property
    def memory(self) -> PlayedMemory:
        assert isinstance(self.backend, PlayedMemory)
        return self.backend

    def next_id(self) -> bytes:
        """The id of one more message."""
        return next(self._ids).to_bytes(16, "big")

    def make(self, name: str, queues: int = 1, **rest: object) -> TopicInfo:
        return self.change(TopicInfo(name, 0, queues, **rest))  # type: ignore[arg-type]

    def change(self, info: TopicInfo) -> TopicInfo:
        return done(self.backend.put_topic(info, self.clock.monotonic() + 60))

    def delete(self, name: str) -> None:
        done(self.backend.delete_topic(name, self.clock.monotonic() + 60))

    def queue(self, topic: str, queue_id: int = 0) -> QueueRef:
        info = self.backend.topic(topic)
        assert info is not None
        return QueueRef(topic, info.incarnation, queue_id)

    def stored(self, topic: str = "orders", queue_id: int = 0) -> list[StoredRecord]:
        """Everything that lies in a queue."""
        if self.backend.topic(topic) is None:
            return []
        batch = done(self.backend.read(self.queue(topic, queue_id), 0, 100_000, 1 << 30))
        return [batch.record(index) for index in range(len(batch.offsets))]

    def committed(self, group: str, queue: QueueRef) -> int | None:
        """How far a group's progress is on record."""
        return done(self.backend.progress(group, [queue]))[0].committed

    def value(self, name: str, **labels: str) -> float:
        """The sum of a metric's cells that carry these labels."""
        rows = self.metrics.snapshot().get(name, [])
        return sum(float(row["value"]) for row in rows if labels.items() <= row.items())
