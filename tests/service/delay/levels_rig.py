"""The level service over a backend, with a clock and alarms that tests move by hand."""

from __future__ import annotations

from collections.abc import Iterable

import gevent

from backend.internal_topics import schedule_record
from backend.port import Backend
from backend.records import AppendStatus, NewRecord
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC
from delay_service.config import DelayConfig
from delay_service.levels.service import LevelService
from tests.service.delay.hand_alarm import HandAlarm, HandAlarms
from tests.support.backend_rig import BackendRig
from tests.support.waits import PATIENCE_S, until

FAR = float("inf")


class LevelsRig(BackendRig):
    """One service. The backend is the rig's own unless it is given."""

    def __init__(
        self,
        config: DelayConfig | None = None,
        backend: Backend | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        super().__init__(backend, clock)
        self.config = config or DelayConfig()
        self.start()

    def start(self, owned_levels: int | None = None) -> None:
        """A service, as after a start of the process; it is to hold every level, or so many."""
        self.metrics = Registry()
        self.alarm, self.check_alarm = HandAlarms(), HandAlarm()
        self.service = LevelService(
            self.backend, self.config, self.metrics, self.clock, self.alarm, check_alarm=self.check_alarm
        )
        self.service.start()
        expected = len(self.config.levels) if owned_levels is None else owned_levels
        until(lambda: self.service.owned_count == expected, f"{expected} levels are held")

    def close(self) -> None:
        self.service.close()
        self.backend.close()

    def settle(self) -> None:
        """Let everything that can happen at this time happen."""
        for _ in range(30):
            gevent.sleep(0)

    def advance(self, seconds: float) -> None:
        """Move both clocks, ring the alarms, let the hub run."""
        self.clock.advance(seconds)
        self.alarm.ring()
        self.settle()

    # --- topics and messages

    def record(self, topic: str, body: bytes, queue_id: int = 0) -> NewRecord:
        return NewRecord(
            topic, queue_id, self.next_id(), self.clock.wall_ms(), encode(b"k", body, b"red", {b"a": b"b"}),
            b"k", b"red",
        )  # fmt: skip

    def send(self, level: int, bodies: Iterable[bytes], topic: str = "orders", queue_id: int = 0) -> None:
        records = [
            schedule_record(self.record(topic, body, queue_id), level, self.config.table) for body in bodies
        ]
        results = self.backend.append(records, self.clock.monotonic() + 60).wait(PATIENCE_S)
        assert {result.status for result in results} == {AppendStatus.STORED}
        self.settle()

    def position(self, level: int) -> int | None:
        """How far the level's progress is on record."""
        return self.committed(LEVELS_GROUP, self.queue(SCHEDULE_TOPIC, level - 1))
