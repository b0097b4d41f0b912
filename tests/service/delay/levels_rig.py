"""The level service over a backend, with a clock and an alarm that tests move by hand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import gevent

from backend.internal_topics import schedule_record
from backend.port import Backend
from backend.records import AppendStatus, NewRecord, QueueRef, StoredRecord, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC
from delay_service.config import DelayConfig
from delay_service.levels.service import LevelService
from tests.played_memory import PlayedMemory
from tests.service.delay.hand_alarm import HandAlarm
from tests.support.waits import PATIENCE_S, until

FAR = float("inf")


class Rig:
    """One service. The backend is the rig's own unless it is given."""

    def __init__(
        self,
        config: DelayConfig | None = None,
        backend: Backend | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.backend: Backend = backend or PlayedMemory(self.clock)
        self.config = config or DelayConfig()
        self._ids = count(1)
        self.start()

    def start(self, held: int | None = None) -> None:
        """A service, as after a start of the process; it is to hold every level, or so many."""
        self.metrics = Registry()
        self.alarm, self.look_alarm = HandAlarm(), HandAlarm()
        self.service = LevelService(
            self.backend, self.config, self.metrics, self.clock, self.alarm, look_alarm=self.look_alarm
        )
        self.service.start()
        wanted = len(self.config.levels) if held is None else held
        until(lambda: self.service.held == wanted, f"{wanted} levels are held")

    @property
    def memory(self) -> PlayedMemory:
        assert isinstance(self.backend, PlayedMemory)
        return self.backend

    def close(self) -> None:
        self.service.close()
        self.backend.close()

    def settle(self) -> None:
        """Let everything that can happen at this time happen."""
        for _ in range(30):
            gevent.sleep(0)

    def advance(self, seconds: float) -> None:
        """Move both clocks, ring the alarm, let the hub run."""
        self.clock.advance(seconds)
        self.alarm.ring()
        self.settle()

    # --- topics and messages

    def make(self, name: str, queues: int = 1, **rest: object) -> TopicInfo:
        info = TopicInfo(name, 0, queues, **rest)  # type: ignore[arg-type]
        return self.backend.put_topic(info, self.clock.monotonic() + 60).wait(PATIENCE_S)

    def change(self, info: TopicInfo) -> None:
        self.backend.put_topic(info, self.clock.monotonic() + 60).wait(PATIENCE_S)

    def delete(self, name: str) -> None:
        self.backend.delete_topic(name, self.clock.monotonic() + 60).wait(PATIENCE_S)

    def record(self, topic: str, body: bytes, queue_id: int = 0) -> NewRecord:
        message_id = next(self._ids).to_bytes(16, "big")
        return NewRecord(
            topic, queue_id, message_id, self.clock.wall_ms(), encode(b"k", body, b"red", {b"a": b"b"}),
            b"k", b"red",
        )  # fmt: skip

    def send(self, level: int, bodies: Iterable[bytes], topic: str = "orders", queue_id: int = 0) -> None:
        records = [
            schedule_record(self.record(topic, body, queue_id), level, self.config.table) for body in bodies
        ]
        results = self.backend.append(records, self.clock.monotonic() + 60).wait(PATIENCE_S)
        assert {result.status for result in results} == {AppendStatus.STORED}
        self.settle()

    def queue(self, topic: str, queue_id: int = 0) -> QueueRef:
        info = self.backend.topic(topic)
        assert info is not None
        return QueueRef(topic, info.incarnation, queue_id)

    def stored(self, topic: str = "orders", queue_id: int = 0) -> list[StoredRecord]:
        if self.backend.topic(topic) is None:
            return []
        batch = self.backend.read(self.queue(topic, queue_id), 0, 10_000, 1 << 30).wait(PATIENCE_S)
        return [batch.record(index) for index in range(len(batch.offsets))]

    def position(self, level: int) -> int | None:
        """How far the level's progress is on record."""
        queue = self.queue(SCHEDULE_TOPIC, level - 1)
        return self.backend.progress(LEVELS_GROUP, [queue]).wait(PATIENCE_S)[0].committed

    def value(self, name: str, **labels: str) -> float:
        """The sum of a counter's cells that carry these labels."""
        rows = self.metrics.snapshot().get(name, [])
        return sum(
            float(row["value"])
            for row in rows
            if all(row.get(key) == wanted for key, wanted in labels.items())
        )
