"""The history is fed each second: rates of counters, gauges as collected, the busiest names only."""

from __future__ import annotations

import pytest

from ddmq.server.live import sampler as sampling
from ddmq.server.live.core.rings import HistoryRange
from ddmq.server.live.core.series import SeriesKey
from ddmq.server.live.sampler import GAUGES_S, WATCHED_GAUGES_S, Sampler
from ddmq_common.clock import ManualClock
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry


class Sampled:
    """A sampler over its own registry, whose gauges are computed by a collector that counts its calls."""

    def __init__(self, *, with_consumer: bool = True) -> None:
        self.clock, self.metrics, self.collections, self.lag = ManualClock(), Registry(), 0, 0
        self.sampler = Sampler(self.metrics, self.clock, with_consumer=with_consumer)
        self.metrics.add_collector(self.collect)

    def collect(self) -> None:
        self.collections += 1
        self.metrics.cell(catalogue.LAG, "g", "t").value = self.lag

    def send(self, topic: str, count: int) -> None:
        self.metrics.cell(catalogue.SENDS, topic, "0").value += count

    def pass_seconds(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.sampler.take_sample()

    def values(self, name: str, seconds: int, topic: str = "", group: str = "") -> list[float | None]:
        now_s = self.clock.wall_ms() // 1000
        return self.sampler.history.read(SeriesKey(name, group, topic), HistoryRange(now_s - seconds + 1, 1))


def test_a_rate_is_the_growth_of_its_counter() -> None:
    sampled = Sampled()
    sampled.send("orders", 1_000)
    sampled.pass_seconds()
    sampled.send("orders", 5)
    sampled.pass_seconds()
    sampled.clock.advance(3.0)
    sampled.send("orders", 8)
    sampled.pass_seconds()
    assert sampled.values("in_per_s", 6) == [None, 5, None, None, None, 2]
    assert sampled.values("in_per_s", 6, topic="orders") == [None, 5, None, None, None, 2]
    assert sampled.sampler.totals["in_per_s"] == 2


def test_gauges_are_collected_rarely_and_read_after_their_answers() -> None:
    sampled = Sampled()
    sampled.lag = 7
    sampled.pass_seconds(2)
    assert sampled.collections == 1
    assert sampled.sampler.totals["lag"] == 7
    sampled.lag = 9
    sampled.pass_seconds(int(GAUGES_S) - 2)
    assert sampled.collections == 1
    assert sampled.sampler.totals["lag"] == 7
    sampled.pass_seconds(2)
    assert sampled.collections == 2
    assert sampled.sampler.totals["lag"] == 9


def test_a_collection_of_others_is_used() -> None:
    sampled = Sampled()
    for _ in range(40):
        sampled.metrics.run_collectors()
        sampled.pass_seconds()
    assert sampled.collections == 40
    assert sampled.sampler.totals["lag"] == 0


def test_who_watches_gets_fresher_gauges() -> None:
    sampled = Sampled()
    sampled.pass_seconds(1)
    for _ in range(10):
        sampled.sampler.note_watched()
        sampled.pass_seconds()
    assert sampled.collections == 1 + 10 // WATCHED_GAUGES_S


def test_a_process_without_consumer_proxy_knows_no_lag() -> None:
    totals = []
    for with_consumer in (True, False):
        metrics, clock = Registry(), ManualClock()
        sampler = Sampler(metrics, clock, with_consumer=with_consumer)
        for _ in range(2):
            clock.advance(1.0)
            sampler.take_sample()
        totals.append((sampler.totals["lag"], sampler.totals["log_bytes"]))
    assert totals == [(0, None), (None, None)]


def test_only_the_busiest_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "TOPICS_MAX", 2)
    sampled = Sampled()
    for number, topic in enumerate(("idle", "slow", "busy", "busier")):
        sampled.send(topic, number * 10)
    sampled.pass_seconds()
    assert sampled.sampler.recorded_topics == ["busier", "busy"]
    sampled.send("slow", 1_000)
    sampled.pass_seconds(11)
    assert sampled.sampler.recorded_topics == ["busier", "slow"]
    keys = list(sampled.sampler.history)
    assert {key.topic for key in keys if key.topic and not key.group} == {"busier", "slow"}


def test_a_lagging_subscription_is_recorded() -> None:
    sampled = Sampled()
    sampled.lag = 3
    sampled.pass_seconds(30)
    assert sampled.sampler.recorded_subscriptions == [("g", "t")]
    assert sampled.values("lag", 1, group="g", topic="t") == [3]


def test_the_clock_is_set_back_and_the_history_begins_again() -> None:
    sampled = Sampled()
    sampled.pass_seconds(5)
    sampled.clock.step_wall(-3_600)
    sampled.pass_seconds(2)
    start_s, tails = sampled.sampler.read_tails()
    assert start_s == sampled.clock.wall_ms() // 1000 - 59
    assert tails["in_per_s"] == [None] * 58 + [0, 0]
