"""What the metrics of the Kafka clients say, from fakes: commits when they end, the rest when it is asked."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from backend.kafka.client_metrics import ClientCollector, MeasuredProducers
from backend.kafka.clients.producers import Producers
from backend.kafka.clients.writing import OutcomeKind, WriteOutcome
from ddmq_common.metrics import kafka_catalogue as catalogue
from ddmq_common.metrics.registry import Registry


def broker(number: int, rtt_us: int, throttled_ms: int) -> dict[str, Any]:
    window = {"min": 0, "avg": 1, "cnt": 9}
    return {
        "name": f"b{number}:9092", "nodeid": number, "rtt": {**window, "p99": rtt_us, "max": rtt_us},
        "throttle": {**window, "max": throttled_ms, "p99": 0}, "toppars": {},
    }  # fmt: skip


class CollectorRig:
    def __init__(self) -> None:
        self.metrics, self.now = Registry(), 100.0
        self.appends: Any = SimpleNamespace(
            pending_records_and_bytes=(3, 4_000), producer_replacements=1, refused_silent=5,
            refused_by_share=6, quarantined_count=7,
        )  # fmt: skip
        self.producers: Any = SimpleNamespace(statistics="", replaced=2, retired={3, 4})
        self.members: Any = SimpleNamespace(heartbeat_times=(0.0, 0.0))
        ClientCollector(self.metrics, self.appends, self.producers, self.members, lambda: self.now, lambda: 2)

    def value(self, metric: Any, *labels: str) -> float:
        self.metrics.run_collectors()
        return self.metrics.cell(metric, *labels).value


def test_what_is_on_its_way_and_what_was_replaced() -> None:
    rig = CollectorRig()
    assert rig.value(catalogue.KAFKA_PENDING_RECORDS) == 3
    assert rig.value(catalogue.KAFKA_PENDING_BYTES) == 4_000
    assert rig.value(catalogue.KAFKA_PRODUCERS_REPLACED, "messages") == 1
    assert rig.value(catalogue.KAFKA_PRODUCERS_REPLACED, "progress") == 2


def test_rejected_sends_quarantines_and_retired_ids_are_counted() -> None:
    rig = CollectorRig()
    assert rig.value(catalogue.KAFKA_SENDS_REFUSED, "silent") == 5
    assert rig.value(catalogue.KAFKA_SENDS_REFUSED, "share") == 6
    assert rig.value(catalogue.KAFKA_QUARANTINES) == 7
    assert rig.value(catalogue.KAFKA_RETIRED_IDS) == 2


def test_the_lag_is_the_age_of_the_last_heartbeat_that_came_back() -> None:
    rig = CollectorRig()
    assert rig.value(catalogue.KAFKA_FOLLOWER_LAG) == 0, "it has no membership"
    rig.members.heartbeat_times = 99.5, 99.5
    assert rig.value(catalogue.KAFKA_FOLLOWER_LAG) == 0
    rig.members.heartbeat_times = 99.5, 98.0
    assert rig.value(catalogue.KAFKA_FOLLOWER_LAG) == 2_000


def test_round_trips_and_throttling_of_each_broker() -> None:
    rig = CollectorRig()
    seed = broker(-1, 9_000, 0)
    statistics = {"name": "rdkafka#producer-1", "brokers": {"a": broker(1, 2_500, 0), "b": broker(2, 1, 40)}}
    statistics["brokers"] |= {"seed": seed}  # type: ignore[operator]
    rig.producers.statistics = json.dumps(statistics)
    assert rig.value(catalogue.KAFKA_BROKER_RTT, "1") == 2.5
    assert rig.value(catalogue.KAFKA_THROTTLE, "1") == 0
    assert rig.value(catalogue.KAFKA_THROTTLE, "2") == 40
    assert b'broker="-1"' not in rig.metrics.exposition()


def test_a_commit_is_timed_from_its_call_to_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Any] = []
    monkeypatch.setattr(Producers, "__init__", lambda self: None)
    monkeypatch.setattr(Producers, "write_plain", lambda self, writes, then: waiting.append(then))
    monkeypatch.setattr(Producers, "write_transaction", lambda self, *args: waiting.append(args[3]))
    now = [5.0]
    metrics, outcomes = Registry(), list[WriteOutcome]()
    producers = MeasuredProducers(metrics=metrics, monotonic=lambda: now[0])
    producers.write_plain([], outcomes.append)
    producers.write_transaction([], False, 5.0, outcomes.append, lambda blocked: None)
    now[0] += 0.25
    results = [WriteOutcome(OutcomeKind.STORED, [], None), WriteOutcome(OutcomeKind.REFUSED, [], None)]
    for then, outcome in zip(waiting, results, strict=True):
        then(outcome)
    assert outcomes == results
    assert metrics.cell(catalogue.KAFKA_COMMITS, "plain", "stored").value == 1
    assert metrics.cell(catalogue.KAFKA_COMMITS, "transaction", "refused").value == 1
    assert metrics.histogram(catalogue.KAFKA_COMMIT, "transaction").total == 250_000
