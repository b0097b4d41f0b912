"""The series of the history: how each is computed from metrics, and how processes' values are combined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import MetricCell
from ddmq_common.metrics.metric import Metric

STORED = "0"  # the result code of a send that is stored
Families = Mapping[str, Mapping[tuple[str, ...], MetricCell]]  # metric name → labels → cell
Steps = tuple[int, Sequence[float | None]]  # the time of the first step in seconds, and the values


class HistorySeries(NamedTuple):
    """One series of numbers. A `rate` is the sum of its counters' growth per second. Other kinds are the
    `sum`, `max` or `min` of gauges, times `scale`, and combine those of several processes in the same way.

    `last_label`: if not empty, only cells with this last label. `of_consumer`: a process with a consumer
    proxy knows it, also while no cell exists.
    """

    name: str
    kind: Literal["rate", "sum", "max", "min"]
    metrics: tuple[Metric, ...]
    last_label: str = ""
    scale: float = 1.0
    of_consumer: bool = False

    def read(self, families: Families, labels: tuple[str, ...] | None = None) -> float | None:
        """Return the number for the present cells: of all, or of those with these labels; None if there is no
        cell. Of a rate, return the sum of its counters."""
        values: list[float] = []
        for metric in self.metrics:
            cells = families.get(metric.name)
            if cells is None:
                continue
            if labels is not None:
                cell = cells.get((*labels, self.last_label) if self.last_label else labels)
                values += [] if cell is None else [cell.value]
            elif self.last_label:
                values += [cell.value for key, cell in cells.items() if key[-1] == self.last_label]
            else:
                values += [cell.value for cell in cells.values()]
        combined = self._combine_numbers(values)
        return None if combined is None else combined * self.scale

    def combine_values(self, values: Iterable[float | None]) -> float | None:
        """Return the value of several processes together. A process without a value does not count."""
        return self._combine_numbers([value for value in values if value is not None])

    def _combine_numbers(self, values: Sequence[float]) -> float | None:
        if not values:
            return None
        if self.kind == "max":
            return max(values)
        return min(values) if self.kind == "min" else sum(values)


class SeriesKey(NamedTuple):
    """A series in the history: of everything, of a topic, or of a subscription."""

    name: str
    group: str = ""
    topic: str = ""


IN = HistorySeries("in_per_s", "rate", (catalogue.SENDS,), STORED)
IN_BYTES = HistorySeries("in_bytes_per_s", "rate", (catalogue.SEND_BYTES,))
DELIVERED = HistorySeries("delivered_per_s", "rate", (catalogue.DELIVERED, catalogue.FETCHED))
ACKED = HistorySeries("acked_per_s", "rate", (catalogue.ACKED,))
LAG = HistorySeries("lag", "sum", (catalogue.LAG,), of_consumer=True)
OLDEST_WAIT = HistorySeries("oldest_wait_s", "max", (catalogue.LAG_AGE,), scale=0.001, of_consumer=True)
TOTALS = (
    IN,
    IN_BYTES,
    DELIVERED,
    ACKED,
    HistorySeries("failed_per_s", "rate", (catalogue.FAILED,)),
    HistorySeries("dead_letters_per_s", "rate", (catalogue.DEAD_LETTERS,)),
    HistorySeries("fired_per_s", "rate", (catalogue.DELAY_FIRED, catalogue.LEVELS_FIRED)),
    LAG,
    OLDEST_WAIT,
    HistorySeries("in_flight", "sum", (catalogue.INFLIGHT,), of_consumer=True),
    HistorySeries("retrying", "sum", (catalogue.RETRYING,), of_consumer=True),
    HistorySeries("retry_waiting", "sum", (catalogue.RETRY_WAITING,), of_consumer=True),
    HistorySeries("blocked_keys", "sum", (catalogue.BLOCKED_KEYS,), of_consumer=True),
    HistorySeries("delayed", "sum", (catalogue.DELAY_PENDING,)),
    HistorySeries("log_bytes", "max", (catalogue.LOG_BYTES,)),
    HistorySeries("disk_free_bytes", "min", (catalogue.LOG_DISK_FREE,)),
)
OF_TOPIC = (IN, IN_BYTES)
OF_SUBSCRIPTION = (DELIVERED, ACKED, LAG, OLDEST_WAIT)
BY_NAME = {series.name: series for series in TOTALS}


def series_of(group: str, topic: str) -> tuple[HistorySeries, ...]:
    """Return the series that exist for a subscription, for a topic (no group), or in total (neither)."""
    if group:
        return OF_SUBSCRIPTION
    return OF_TOPIC if topic else TOTALS


def combine_steps(
    series: HistorySeries, start_s: int, count: int, step_s: int, processes: Sequence[Steps]
) -> list[float | None]:
    """Return the combined values of several processes, `count` of them from `start_s` on, `step_s` apart;
    the values of a process may begin and end at other times."""
    aligned = [_align_values(values, (start_s - begin_s) // step_s, count) for begin_s, values in processes]
    return (
        [series.combine_values(values) for values in zip(*aligned, strict=True)]
        if aligned
        else [None] * count
    )


def _align_values(values: Sequence[float | None], first: int, count: int) -> list[float | None]:
    """Return `count` values from the one at `first` on, with None where there is none."""
    head: list[float | None] = [None] * min(max(0, -first), count)
    part = [*head, *values[max(0, first) : max(0, first + count)]][:count]
    return [*part, *([None] * (count - len(part)))]
