"""A producer and a consumer of Kafka alone, beside the load: how long Kafka itself pauses under a fault.

They have the settings of librdkafka that ddmq has, and a topic with as many partitions and replicas as those
of the load. So what they wait for, everything on this cluster must wait for.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from backend.kafka.options import KafkaOptions

TOPIC = "bare"
SEND_EVERY_S = 0.05
CLOSE_S = 30.0


def longest_gap_s(times_ms: Iterable[int], since_ms: int, until_ms: int) -> float:
    """Return the longest time between two moments of a window in which nothing happened, in seconds."""
    within = {at for at in times_ms if since_ms < at < until_ms}
    return max(b - a for a, b in itertools.pairwise(sorted({since_ms, until_ms, *within}))) / 1000


class BareClients:
    """Send to each partition in turn, and read all of them, in threads of their own, until `close`."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._partitions = partitions
        self._settings: dict[str, Any] = KafkaOptions(bootstrap=bootstrap).client_settings()
        self._over = threading.Event()
        self._acknowledged_ms: list[int] = []
        self._delivered_ms: list[int] = []
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._receive)]

    def start(self) -> None:
        """Create the topic and begin."""
        admin = AdminClient(self._settings)
        [created] = admin.create_topics([NewTopic(TOPIC, self._partitions)]).values()
        created.result()
        for thread in self._threads:
            thread.start()

    def longest_pause_s(self, since_ms: int, until_ms: int) -> float:
        """Return the longest time in which nothing was acknowledged, or nothing delivered."""
        times = (list(self._acknowledged_ms), list(self._delivered_ms))
        return max(longest_gap_s(each, since_ms, until_ms) for each in times)

    def close(self) -> None:
        """End the threads."""
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(CLOSE_S)

    def _send(self) -> None:
        producer = Producer({**self._settings, "acks": "all", "enable.idempotence": True, "linger.ms": 0})

        def on_report(error: object, _: object) -> None:
            if error is None:
                self._acknowledged_ms.append(time.time_ns() // 1_000_000)

        for number in itertools.count():
            if self._over.is_set():
                return
            producer.produce(TOPIC, b"", partition=number % self._partitions, on_delivery=on_report)
            producer.poll(SEND_EVERY_S)

    def _receive(self) -> None:
        consumer = Consumer({
            **self._settings, "group.id": TOPIC, "enable.auto.commit": False, "auto.offset.reset": "latest",
        })  # fmt: skip
        consumer.assign([TopicPartition(TOPIC, number) for number in range(self._partitions)])
        try:
            while not self._over.is_set():
                if any(message.error() is None for message in consumer.consume(500, SEND_EVERY_S)):
                    self._delivered_ms.append(time.time_ns() // 1_000_000)
        finally:
            consumer.close()
