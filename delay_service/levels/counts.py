"""The levels' metric cells."""

from __future__ import annotations

from collections.abc import Sequence

from ddmq_common.errors import DdmqError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import MetricCell
from ddmq_common.metrics.registry import Registry
from delay_service.levels.core.targets import LevelFire


class Counts:
    """Of one delay service. Levels count from 1."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._lateness = metrics.histogram(catalogue.LEVELS_LATENESS)
        self.held: MetricCell = metrics.cell(catalogue.LEVELS_HELD)

    def fired(self, level: int, fires: Sequence[LevelFire], clock_ms: int) -> None:
        """They are durable in their topics, at `clock_ms` of the store's clock."""
        alive = 0
        for fire in fires:
            if fire.put_off_ms:
                self._metrics.cell(catalogue.LEVELS_PUT_OFF, str(level)).value += 1
            elif fire.reason:
                self._metrics.cell(catalogue.LEVELS_DEAD, str(level), fire.reason).value += 1
            else:
                alive += 1
                self._lateness.observe((clock_ms - fire.record.due_ms) * 1_000)
        if alive:
            self._metrics.cell(catalogue.LEVELS_FIRED, str(level)).value += alive

    def lost(self, level: int, reason: str, count: int) -> None:
        """Offsets without a message."""
        self._metrics.cell(catalogue.LEVELS_LOST, str(level), reason).value += count

    def pending(self, level: int, count: int) -> None:
        """So many wait in the level."""
        self._metrics.cell(catalogue.LEVELS_PENDING, str(level)).value = count

    def overdue(self, level: int, age_ms: int) -> None:
        """How long ago the head was due."""
        self._metrics.cell(catalogue.LEVELS_OVERDUE, str(level)).value = age_ms

    def failed(self, what: str, error: Exception) -> None:
        """It is tried again."""
        reason = type(error).__name__ if isinstance(error, DdmqError) else "error"
        self._metrics.cell(catalogue.LEVELS_FAILED, what, reason).value += 1
