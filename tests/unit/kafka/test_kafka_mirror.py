"""The thread that commits to Kafka's own groups, without a cluster."""

from __future__ import annotations

import time

from confluent_kafka import TopicPartition

from backend.kafka.mirror import CLOSE_S, _Committer
from backend.kafka.options import KafkaOptions


def test_it_ends_in_time_though_no_broker_answers() -> None:
    told: list[tuple[str, str | None]] = []
    committer = _Committer(KafkaOptions("127.0.0.1:1"), lambda group, error: told.append((group, error)))
    committer.ask("g", [TopicPartition("orders", 0, 7)])
    began = time.monotonic()
    committer.close()
    assert time.monotonic() - began < CLOSE_S + 20.0, "the client's own time-outs take a minute"
    assert all(error for _, error in told), "nothing was committed"
