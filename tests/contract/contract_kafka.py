"""The Kafka engine on a real broker: it needs Java, or a broker that runs (tests/support/kafka.py)."""

from __future__ import annotations

import time
from typing import ClassVar

from backend.kafka.engine.backend import KafkaBackend
from backend.kafka.options import KafkaOptions, StoreOnce
from backend.testing.kit import Engine, KitClock
from tests.support.kafka import broker, delete_topics, fresh_name
from tests.support.waits import until


class BrokerClock(KitClock):
    """The real time: what a test sets is not what the broker stamps."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class KafkaEngine(Engine):
    """A namespace, and a prefix of topics, of its own on the broker of the run."""

    persists: ClassVar[bool] = True
    fills_batches: ClassVar[bool] = False
    stamps: ClassVar[bool] = False
    gapless: ClassVar[bool] = False
    store_once: ClassVar[StoreOnce] = StoreOnce.ALL
    name = ""

    def open(self) -> None:
        if not self.name:
            self.name = fresh_name()
            self.clock = BrokerClock()
        options = KafkaOptions(
            broker(), namespace=self.name, topic_prefix=self.name + ".", store_once=self.store_once
        )
        self.backend = KafkaBackend(options, self.clock)
        until(lambda: self.backend.health().ready, lambda: self.backend.health().reason)

    def close(self) -> None:
        super().close()
        delete_topics(self.name)
