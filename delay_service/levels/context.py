"""The context that the runners of all levels of one process share: backend, settings and metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from backend.port import Backend
from ddmq_common.clock import Clock
from ddmq_common.delays.levels import Levels
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import MetricCell
from ddmq_common.metrics.registry import Registry
from delay_service.config import DelayConfig
from delay_service.core.level_targets import LevelFire
from delay_service.due.counts import DueCounts, LabelledCells


class LevelCounts(DueCounts):
    """The metrics of one level service. Levels count from 1. `pending`: waiting messages by level."""

    failures, age = catalogue.LEVELS_FAILED, catalogue.LEVELS_OVERDUE

    def __init__(self, metrics: Registry) -> None:
        super().__init__(metrics)
        self._lateness = metrics.histogram(catalogue.LEVELS_LATENESS)
        self._fired = LabelledCells(metrics, catalogue.LEVELS_FIRED)
        self.owned: MetricCell = metrics.cell(catalogue.LEVELS_HELD)
        self.pending = LabelledCells(metrics, catalogue.LEVELS_PENDING)
        self.removed = LabelledCells(metrics, catalogue.LEVELS_REMOVED)

    def count_fired(self, level: int, fires: Sequence[LevelFire], clock_ms: int) -> None:
        """Count fires that became durable at `clock_ms` of the store's clock."""
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
            self._fired[level].value += alive

    def count_lost(self, level: int, reason: str, count: int) -> None:
        """Count offsets whose messages are missing, by reason."""
        self._metrics.cell(catalogue.LEVELS_LOST, str(level), reason).value += count


class LevelsContext(NamedTuple):
    """The objects that all level runners of one service share.

    `reacquire()`: called when the outcome of a fire is uncertain, or the claim to a level has ended.
    """

    backend: Backend
    config: DelayConfig
    levels: Levels
    clock: Clock
    counts: LevelCounts
    reacquire: Callable[[], None]
