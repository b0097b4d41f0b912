"""The series of generated samples: each knows the constant end of its lines and adds only a number to it.

A line of a sample file is a head that all lines of the file share (process, sequence number, interval) and
a tail of its own. Here are the tails: counters with a daily load, gauges that come and go, histograms drawn
from a few ready ones per load. Every series counts what it gave out, so that a reader can be checked.
"""

from __future__ import annotations

import json
from random import Random
from typing import Protocol

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.cells import upper_edge

LEVELS, TEMPLATES = 8, 24  # ready histograms: this many per level of load


class Series(Protocol):
    """One metric with one set of labels in one process."""

    metric: str

    def tail(self, load: float, draw: float) -> str | None:
        """The rest of the line for an interval of this load (0 to 1), or None when there is nothing to say;
        `draw` is uniform in [0, 1)."""


def labelled(metric: str, values: dict[str, str]) -> str:
    """The constant part of a tail; labels in the order of the catalogue, those not given say "other"."""
    labels = {name: values.get(name, "other") for name in CATALOGUE[metric].labels}
    return f'"metric":"{metric}","labels":{json.dumps(labels, separators=(",", ":"))},'


class Counter:
    """Deltas around `rate` per interval at full load; nothing is written for 0."""

    def __init__(self, metric: str, values: dict[str, str], rate: float) -> None:
        self.metric, self.rate, self.total = metric, rate, 0
        self._start = labelled(metric, values) + '"value":'

    def tail(self, load: float, draw: float) -> str | None:
        delta = int(self.rate * load * (0.75 + draw / 2) + draw)
        if not delta:
            return None
        self.total += delta
        return f"{self._start}{delta}}}"


class Gauge:
    """Up to `most` at full load; 0 for a part of the time, which is written once."""

    def __init__(self, metric: str, values: dict[str, str], most: float) -> None:
        self.metric, self.most, self._shown = metric, most, 0
        self._start = labelled(metric, values) + '"value":'

    def tail(self, load: float, draw: float) -> str | None:
        value = 0 if draw < 0.1 else int(self.most * load * draw)
        if not value and not self._shown:
            return None
        self._shown = value
        return f"{self._start}{value}}}"


class Histogram:
    """Up to `rate` observations an interval around the bucket `middle`, with a tail of slow ones."""

    def __init__(self, metric: str, values: dict[str, str], rate: int, middle: int, random: Random) -> None:
        self.metric, self.observed = metric, 0
        self._ready = [
            [self._template(random, max(1, rate * (level + 1) // LEVELS), middle) for _ in range(TEMPLATES)]
            for level in range(LEVELS)
        ]
        self._start = labelled(metric, values)

    @staticmethod
    def _template(random: Random, count: int, middle: int) -> tuple[str, int]:
        bucket_counts: dict[int, int] = {}
        for _ in range(min(count, 40)):  # as many lines' worth of spread as a real interval shows
            slow = random.random() < 0.04
            index = min(215, max(0, int(random.gauss(middle + (30 if slow else 0), 5))))
            bucket_counts[index] = bucket_counts.get(index, 0) + max(1, count // 40)
        buckets = sorted(bucket_counts)
        counts = [bucket_counts[index] for index in buckets]
        total = sum(upper_edge(index) * 0.95 * number for index, number in bucket_counts.items())
        shown = [json.dumps(one, separators=(",", ":")) for one in (buckets, counts)]
        return f'"sum":{round(total, 1)},"buckets":{shown[0]},"counts":{shown[1]}}}', sum(counts)

    def tail(self, load: float, draw: float) -> str | None:
        if load < 0.05 and draw < 0.5:
            return None
        text, count = self._ready[min(LEVELS - 1, int(load * LEVELS))][int(draw * TEMPLATES)]
        self.observed += count
        return self._start + text


def producer_series(random: Random, topics: list[str]) -> list[Series]:
    """What a producer proxy says."""
    series: list[Series] = []
    for topic in topics:
        of, rate = {"topic": topic}, random.randrange(40, 4_000)
        series += [
            Counter("ddmq_sends_total", of | {"code": "0"}, rate),
            Counter("ddmq_sends_total", of | {"code": "12"}, 0.05),
            Counter("ddmq_send_bytes_total", of, rate * 1_000),
            Histogram("ddmq_send_latency_us", of, rate, 60, random),
        ]
    series += [
        Counter("ddmq_send_refused_total", {"reason": "rate"}, 0.2),
        Gauge("ddmq_send_inflight", {}, 200),
        Histogram("ddmq_hub_blocked_us", {}, 900, 40, random),
    ]
    return series


def consumer_series(random: Random, topics: list[str], groups: list[str]) -> list[Series]:
    """What a consumer proxy says."""
    series: list[Series] = [Histogram("ddmq_hub_blocked_us", {}, 900, 40, random)]
    for topic in topics:
        for group in groups:
            series += _subscription(random, {"group": group, "topic": topic})
    return series


def _subscription(random: Random, of: dict[str, str]) -> list[Series]:
    rate = random.randrange(20, 2_000)
    return [
        Counter("ddmq_delivered_total", of, rate * 1.02),
        Counter("ddmq_acked_total", of, rate),
        Counter("ddmq_failed_total", of, rate * 0.01),
        Counter("ddmq_redelivered_total", of, rate * 0.02),
        Counter("ddmq_lease_timeouts_total", of, 0.02),
        Counter("ddmq_retry_steps_total", of | {"step": "1"}, rate * 0.008),
        Counter("ddmq_dead_letters_total", of | {"reason": "attempts"}, 0.02),
        Histogram("ddmq_queue_wait_us", of, rate, 100, random),
        Histogram("ddmq_process_us", of, rate, 90, random),
        Gauge("ddmq_lag", of, rate * 12),
        Gauge("ddmq_lag_age_ms", of, 9_000),
        Gauge("ddmq_inflight", of, 64),
        Gauge("ddmq_retrying", of, 20),
        Gauge("ddmq_blocked_keys", of, 3),
        Gauge("ddmq_blocked_key_age_ms", of, 4_000),
        Gauge("ddmq_ack_span", of, 500),
    ]


def delay_series(random: Random, topics: list[str]) -> list[Series]:
    """What a delay service says."""
    series: list[Series] = [Counter("ddmq_delay_orders_total", {"outcome": "added"}, 300)]
    for topic in topics:
        of = {"topic": topic}
        series += [
            Counter("ddmq_delay_fired_total", of, 120),
            Gauge("ddmq_delay_pending", of, 80_000),
            Histogram("ddmq_delay_lateness_us", of, 120, 80, random),
        ]
    return series
