"""The way of DELAY=n: the delay levels as this proxy knows them, and their topic."""

from __future__ import annotations

from backend.levels import schedule_record
from backend.port import Backend
from backend.records import NewRecord
from ddmq_common.clock import Clock
from ddmq_common.levels import Levels
from ddmq_common.names import SCHEDULE_TOPIC
from proxy_producer.internal_topic import InternalTopic


class DelayLevels:
    """Of one producer proxy. `topic`: where messages wait, a queue for each level."""

    __slots__ = ("_levels", "topic")

    def __init__(self, backend: Backend, levels: Levels, clock: Clock, timeout_s: float) -> None:
        self._levels = levels
        self.topic = InternalTopic(backend, SCHEDULE_TOPIC, len(levels), clock, timeout_s)

    def wrap(self, record: NewRecord, level: int) -> NewRecord:
        """The schedule record of `record`, whose queue has been chosen."""
        return schedule_record(record, level, self._levels)
