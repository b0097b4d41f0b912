"""A producer proxy to talk to over loopback."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from backend.records import QueueRef, StoredRecord, TopicInfo
from ddmq_rpc.api import Service
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.service.proxy_server import PATIENCE_S, ProxyServer


class ProducerServer(ProxyServer):
    """See ProxyServer."""

    def __init__(self, topics: Sequence[TopicInfo] = (), **config: Any) -> None:
        self._config = ProducerConfig(**config)
        self._topics = topics
        super().__init__()

    def open(self) -> Service:
        self.proxy = ProducerService(self.backend, self._config, self.metrics, self.clock, Random())
        for info in self._topics:
            self.backend.put_topic(info, self.clock.monotonic() + PATIENCE_S).wait(PATIENCE_S)
        return self.proxy.service()

    def end(self) -> None:
        self.proxy.close()

    def stored(self, topic: str) -> list[StoredRecord]:
        """All records of a topic, queue by queue."""
        return self.do(lambda: self._stored(topic))

    def _stored(self, topic: str) -> list[StoredRecord]:
        info = self.backend.topic(topic)
        if info is None:
            return []
        records: list[StoredRecord] = []
        for queue_id in range(info.queues):
            ref = QueueRef(topic, info.incarnation, queue_id)
            batch = self.backend.read(ref, 0, 100_000, 1 << 30).wait(PATIENCE_S)
            records += [batch.record(index) for index in range(len(batch.offsets))]
        return records
