"""The metric cells of what waits: what both services count, and what the delay service does.

The levels' own stand in levels/runner.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddmq_common.errors import DdmqError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import Histogram, MetricCell
from ddmq_common.metrics.metric import Metric
from ddmq_common.metrics.registry import Registry
from delay_service.core.fire_command import FireCommand


class LabelledCells(dict[str | int, MetricCell]):
    """The cells of one metric by label value. Each is looked up in the registry once."""

    def __init__(self, metrics: Registry, metric: Metric) -> None:
        super().__init__()
        self._metrics = metrics
        self._metric = metric

    def __missing__(self, label: str | int) -> MetricCell:
        cell = self[label] = self._metrics.cell(self._metric, str(label))
        return cell

    def add(self, numbers: Mapping[str, int]) -> None:
        """Add these numbers to the cells of their labels."""
        for label, number in numbers.items():
            self[label].value += number

    def show_numbers(self, numbers: Mapping[str, int]) -> None:
        """Set the gauges of these labels, and set all other gauges of the metric to 0."""
        for label in self.keys() - numbers.keys():
            self.pop(label).value = 0
        for label, number in numbers.items():
            self[label].value = number


class DueCounts:
    """The metrics that the delay service and the level service both have, each under its own names.

    `failures`: failed steps. `age`: how long the first message has been overdue, by shard or level.
    """

    failures: Metric
    age: Metric

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._ages = LabelledCells(metrics, self.age)
        self._first_ms: dict[int, int | None] = {}  # when the first message is due, by queue, as last known

    def count_failure(self, step: str, error: Exception) -> None:
        """Count a failed step that will be retried."""
        reason = type(error).__name__ if isinstance(error, DdmqError) else "error"
        self._metrics.cell(self.failures, step, reason).value += 1

    def report_overdue(
        self, due_by_queue: Mapping[int, int | None], unknown: Iterable[int], all_reported: bool, now_ms: int
    ) -> None:
        """Set the gauges of how long the first message of each queue has been overdue.

        `due_by_queue`: its due time, or None if no message waits. `unknown`: queues that cannot be checked
        now; their last known due time is used, or else the time when they became unknown. `all_reported`: all
        other queues belong to other processes and are set to 0.
        """
        first = self._first_ms
        others = first.keys() - due_by_queue.keys() - set(unknown) if all_reported else set()
        first.update(due_by_queue)
        for number in unknown:
            if first.get(number) is None:
                first[number] = now_ms
        for number in others:
            first[number] = None
        for number, due_ms in first.items():
            age_ms = 0 if due_ms is None else max(now_ms - due_ms, 0)
            self._ages[number].value = age_ms
        for number in others:
            del first[number]


class DelayCounts(DueCounts):
    """The metrics of one delay service.

    `commands`: by outcome. `dead`, `lost`, `replies_dropped`: by reason. `deferred`, `held`, `pending`,
    `pending_bytes` (see `weigh_message`): by topic. `lag`: commands not yet ingested, by shard.
    """

    failures, age = catalogue.DELAY_FAILED, catalogue.DELAY_OVERDUE

    def __init__(self, metrics: Registry) -> None:
        super().__init__(metrics)
        self._fired: dict[str, tuple[MetricCell, Histogram]] = {}
        self.shards: MetricCell = metrics.cell(catalogue.DELAY_SHARDS)
        self.full: MetricCell = metrics.cell(catalogue.DELAY_FULL)
        self.stale: MetricCell = metrics.cell(catalogue.DELAY_STALE)
        self.commands = LabelledCells(metrics, catalogue.DELAY_ORDERS)
        self.dead = LabelledCells(metrics, catalogue.DELAY_DEAD)
        self.lost = LabelledCells(metrics, catalogue.DELAY_LOST)
        self.replies_dropped = LabelledCells(metrics, catalogue.DELAY_REPLIES_DROPPED)
        self.deferred = LabelledCells(metrics, catalogue.DELAY_ASIDE)
        self.held = LabelledCells(metrics, catalogue.DELAY_HELD)
        self.pending = LabelledCells(metrics, catalogue.DELAY_PENDING)
        self.pending_bytes = LabelledCells(metrics, catalogue.DELAY_PENDING_BYTES)
        self.lag = LabelledCells(metrics, catalogue.DELAY_LAG)

    def count_fired(self, fires: Iterable[FireCommand], wall_ms: int) -> None:
        """Count fires that are durable in their topics, with their lateness."""
        per_topic = self._fired
        for fire in fires:
            if fire.reason:
                self.dead[fire.reason].value += 1
                continue
            topic = fire.message.topic
            cells = per_topic.get(topic)
            if cells is None:
                cells = per_topic[topic] = (
                    self._metrics.cell(catalogue.DELAY_FIRED, topic),
                    self._metrics.histogram(catalogue.DELAY_LATENESS, topic),
                )
            cells[0].value += 1
            message = fire.message
            late_ms = wall_ms - message.due_ms
            if message.due_ms < message.born_ms and not message.occurrence:
                late_ms = wall_ms - message.born_ms  # it was due before it came
            cells[1].observe(max(late_ms, 0) * 1_000)
