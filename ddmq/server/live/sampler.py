"""Takes a sample of all series each second and records it in the history. With very many topics that takes
milliseconds, so other greenlets run in between.

Counters are read each second. Gauges are computed by the registry's collectors, which cost more, so they are
computed every GAUGES_S, or WATCHED_GAUGES_S while somebody watches, unless the metrics or the sample files
have done so meanwhile. Their values arrive a moment later: the next sample has them.

Besides the totals, the series of the busiest topics and subscriptions are recorded; every CHOICE_S they are
chosen again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ddmq.server.http.pace import Account, PacedGreenlet, paced, yield_if_long
from ddmq.server.live.core.busiest import Busiest
from ddmq.server.live.core.rings import History, HistoryRange
from ddmq.server.live.core.series import (
    DELIVERED,
    IN,
    LAG,
    OF_SUBSCRIPTION,
    OF_TOPIC,
    TOTALS,
    Families,
    HistorySeries,
    SeriesKey,
)
from ddmq.server.live.core.snapshot import TAIL_S
from ddmq_common.clock import Clock
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.registry import ANSWERS_S, Registry

GAUGES_S = 10.0
WATCHED_GAUGES_S = 5.0
WATCHED_FOR_S = 5.0  # after a snapshot was made
CHOICE_S = 10.0
TOPICS_MAX = 64  # whose series are recorded: with those of subscriptions and the totals 400 series of 37 KB
SUBSCRIPTIONS_MAX = 64
SAMPLE_AT_MS = 500  # of each second, so that a timer that is a little late does not miss a second
Name = tuple[str, str]  # group ("" for a topic's series), topic
log = logging.getLogger("ddmq.server")


class Sampler:
    """Samples the series of one process. `with_consumer`: whether its consumer proxy runs here."""

    def __init__(self, metrics: Registry, clock: Clock, *, with_consumer: bool) -> None:
        self.history: History[SeriesKey] = History()
        self.totals: dict[str, float | None] = dict.fromkeys((series.name for series in TOTALS), None)
        self._metrics = metrics
        self._clock = clock
        self._with_consumer = with_consumer
        self._topics: Busiest[Name] = Busiest(TOPICS_MAX)
        self._subscriptions: Busiest[Name] = Busiest(SUBSCRIPTIONS_MAX)
        self._counts: dict[SeriesKey, float] = {}  # of rates, at the last sample
        self._counts_at = 0.0
        self._gauges: dict[SeriesKey, float | None] = {}
        self._collected_at = self._watched_at = self._chosen_at = float("-inf")
        self._gauges_are_new = False
        self._activity: dict[Name, float] = {}  # the counters of all names when the busiest were chosen
        self._timer = HubTimer(ref=False)
        self._sampling: Any = None  # greenlet
        self._account = Account()
        self._has_failed = False
        for series in TOTALS:
            self.history.add(SeriesKey(series.name))
        metrics.add_collector(self._on_collected)

    def start(self) -> None:
        """Take a sample each second, until `stop`."""
        self._timer.once((SAMPLE_AT_MS - self._clock.wall_ms()) % 1000 / 1000, self._on_timer)

    def stop(self) -> None:
        """Take no further samples."""
        self._timer.stop()

    def _on_timer(self) -> None:
        if self._sampling is None:
            self._sampling = PacedGreenlet(self._sample_safely)
            self._sampling.account = self._account
            self._sampling.start()
        pause_ms = (SAMPLE_AT_MS - self._clock.wall_ms()) % 1000
        self._timer.once((pause_ms if pause_ms > SAMPLE_AT_MS else pause_ms + 1000) / 1000, self._on_timer)

    def _sample_safely(self) -> None:
        try:
            self.take_sample()
        except Exception:  # a defect of ours must not end the history, nor anything else
            if not self._has_failed:
                log.exception("a sample of the history failed; the next failures are not logged")
            self._has_failed = True
        finally:
            self._sampling = None

    def note_watched(self) -> None:
        """Compute gauges more often for a while, because somebody watches."""
        self._watched_at = self._clock.monotonic()

    def _on_collected(self) -> None:
        self._collected_at, self._gauges_are_new = self._clock.monotonic(), True

    def take_sample(self) -> None:
        """Take a sample now."""
        now = self._clock.monotonic()
        self._record_sample(now, {metric.name: cells for metric, cells in self._metrics.numbers()})
        is_watched = now < self._watched_at + WATCHED_FOR_S
        if now >= self._collected_at + (WATCHED_GAUGES_S if is_watched else GAUGES_S):
            self._metrics.run_collectors()

    def _record_sample(self, now: float, families: Families) -> None:
        if now >= self._chosen_at + CHOICE_S:
            self._chosen_at = now
            self._choose_busiest(families)
        if self._gauges_are_new and now >= self._collected_at + ANSWERS_S:
            self._gauges_are_new = False
            self._gauges = {
                key: self._read_gauge(series, key, families)
                for key, series in paced(self._list_recorded())
                if series.kind != "rate"
            }
        values = self._gauges | self._read_rates(now, families)
        self.totals = {series.name: values.get(SeriesKey(series.name)) for series in TOTALS}
        self.history.record_sample(self._clock.wall_ms() // 1000, values)

    def _list_recorded(self) -> Iterator[tuple[SeriesKey, HistorySeries]]:
        for series in TOTALS:
            yield SeriesKey(series.name), series
        for names, of_each in ((self._topics.names, OF_TOPIC), (self._subscriptions.names, OF_SUBSCRIPTION)):
            for group, topic in names:
                for series in of_each:
                    yield SeriesKey(series.name, group, topic), series

    def _read_gauge(self, series: HistorySeries, key: SeriesKey, families: Families) -> float | None:
        value = series.read(families, _labels_of(key))
        return 0.0 if value is None and series.of_consumer and self._with_consumer else value

    def _read_rates(self, now: float, families: Families) -> dict[SeriesKey, float | None]:
        before, elapsed = self._counts, now - self._counts_at
        self._counts_at = now
        self._counts = {
            key: series.read(families, _labels_of(key)) or 0.0
            for key, series in paced(self._list_recorded())
            if series.kind == "rate"
        }
        return {
            key: max(0.0, count - before[key]) / elapsed
            for key, count in self._counts.items()
            if key in before and elapsed > 0
        }

    def _choose_busiest(self, families: Families) -> None:
        """Choose the busiest topics and subscriptions, and begin or end their series."""
        topics, deliveries = _sum_by_name(IN, families), _sum_by_name(DELIVERED, families)
        before, self._activity = self._activity, topics | deliveries
        yield_if_long()
        self._topics.update({name: count - before.get(name, 0.0) for name, count in topics.items()})
        activity = _sum_by_name(LAG, families)
        for name, count in deliveries.items():
            activity[name] = activity.get(name, 0.0) + count - before.get(name, 0.0)
        yield_if_long()
        self._subscriptions.update(activity)
        recorded = {key for key, _ in self._list_recorded()}
        for key in [key for key in self.history if key not in recorded]:
            self.history.remove(key)
        for key in recorded:
            self.history.add(key)

    @property
    def recorded_topics(self) -> list[str]:
        """The topics whose series are recorded."""
        return sorted(topic for _, topic in self._topics.names)

    @property
    def recorded_subscriptions(self) -> list[Name]:
        """The groups and topics of the subscriptions whose series are recorded."""
        return sorted(self._subscriptions.names)

    def read_tails(self) -> tuple[int, dict[str, list[float | None]]]:
        """Return the values of all totals in the last TAIL_S seconds, and the time of the first value."""
        newest_s = self.history.newest_s or 0
        period = HistoryRange(newest_s - TAIL_S + 1, 1)
        return period.start_s, {
            series.name: self.history.read(SeriesKey(series.name), period) for series in TOTALS
        }


def _labels_of(key: SeriesKey) -> tuple[str, ...] | None:
    if not key.topic:
        return None
    return (key.group, key.topic) if key.group else (key.topic,)


def _sum_by_name(series: HistorySeries, families: Families) -> dict[Name, float]:
    """Return the sum of a series' cells by group and topic; the group is empty if the cells have none."""
    sums: dict[Name, float] = {}
    for metric in series.metrics:
        at = metric.labels.index("topic")
        for key, cell in families.get(metric.name, {}).items():
            if not series.last_label or key[-1] == series.last_label:
                name = (key[0] if at else "", key[at])
                sums[name] = sums.get(name, 0.0) + cell.value
        yield_if_long()
    return sums
