"""The metric cells of messages with any due time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddmq_common.errors import DdmqError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.catalogue import Metric
from ddmq_common.metrics.cells import Histogram, MetricCell
from ddmq_common.metrics.registry import Registry
from delay_service.core.fire_command import FireCommand
from delay_service.store.port import Pending


class DelayCounts:
    """Of one delay service."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._fired: dict[str, tuple[MetricCell, Histogram]] = {}
        self._pending: set[str] = set()
        self._sizes: set[str] = set()
        self.shards: MetricCell = metrics.cell(catalogue.DELAY_SHARDS)
        self.full: MetricCell = metrics.cell(catalogue.DELAY_FULL)
        self.stale: MetricCell = metrics.cell(catalogue.DELAY_STALE)

    def commands(self, tally: Mapping[str, int]) -> None:
        """So many came to these outcomes."""
        for outcome, count in tally.items():
            self._metrics.cell(catalogue.DELAY_ORDERS, outcome).value += count

    def fired(self, fires: Iterable[FireCommand], wall_ms: int) -> None:
        """They are durable in their topics."""
        per_topic = self._fired
        for one in fires:
            if one.reason:
                self._metrics.cell(catalogue.DELAY_DEAD, one.reason).value += 1
                continue
            topic = one.message.topic
            cells = per_topic.get(topic)
            if cells is None:
                cells = per_topic[topic] = (
                    self._metrics.cell(catalogue.DELAY_FIRED, topic),
                    self._metrics.histogram(catalogue.DELAY_LATENESS, topic),
                )
            cells[0].value += 1
            message = one.message
            late_ms = wall_ms - message.due_ms
            if message.due_ms < message.born_ms and not message.occurrence:
                late_ms = wall_ms - message.born_ms  # it was due before it came
            cells[1].observe(max(late_ms, 0) * 1_000)

    def dead(self, reason: str, count: int) -> None:
        """Commands that became dead letters."""
        self._metrics.cell(catalogue.DELAY_DEAD, reason).value += count

    def aside(self, messages: Iterable[Pending]) -> None:
        """They wait for their topic."""
        for message in messages:
            self._metrics.cell(catalogue.DELAY_ASIDE, message.topic).value += 1

    def lost(self, reason: str, count: int) -> None:
        """Commands that should be in the inner topic."""
        self._metrics.cell(catalogue.DELAY_LOST, reason).value += count

    def lag(self, shard: int, count: int) -> None:
        """Commands not taken in."""
        self._metrics.cell(catalogue.DELAY_LAG, str(shard)).value = count

    def overdue(self, shard: int, age_ms: int) -> None:
        """How long ago the oldest message that waits was due."""
        self._metrics.cell(catalogue.DELAY_OVERDUE, str(shard)).value = age_ms

    def pending(self, per_topic: Mapping[str, int]) -> None:
        """What waits in all shards of this process."""
        self._pending = self._gauge(catalogue.DELAY_PENDING, self._pending, per_topic)

    def pending_bytes(self, per_topic: Mapping[str, int]) -> None:
        """How many bytes that is, as `weight` of the store counts them."""
        self._sizes = self._gauge(catalogue.DELAY_PENDING_BYTES, self._sizes, per_topic)

    def _gauge(self, metric: Metric, before: set[str], per_topic: Mapping[str, int]) -> set[str]:
        for topic in before - per_topic.keys():
            self._metrics.cell(metric, topic).value = 0
        for topic, number in per_topic.items():
            self._metrics.cell(metric, topic).value = number
        return set(per_topic)

    def replies_dropped(self, reason: str, count: int) -> None:
        """Their callers are told nothing."""
        self._metrics.cell(catalogue.DELAY_REPLIES_DROPPED, reason).value += count

    def failed(self, what: str, error: Exception) -> None:
        """It is tried again."""
        reason = type(error).__name__ if isinstance(error, DdmqError) else "error"
        self._metrics.cell(catalogue.DELAY_FAILED, what, reason).value += 1
