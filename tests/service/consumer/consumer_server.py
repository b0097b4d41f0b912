"""A consumer proxy to talk to over loopback."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from backend.records import NewRecord, QueueRef, TopicInfo
from ddmq_common.delivery import encode
from ddmq_rpc.api import Service
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.service import ConsumerService
from tests.service.proxy_server import PATIENCE_S, ProxyServer


class ConsumerServer(ProxyServer):
    """See ProxyServer."""

    def __init__(self, config: ConsumerConfig | None = None) -> None:
        self._config = config or ConsumerConfig(drain_leases_ms=0)
        super().__init__()

    def open(self) -> Service:
        self.proxy = ConsumerService(self.backend, self._config, self.metrics, self.clock, Random())
        self.proxy.start()
        return self.proxy.service()

    def end(self) -> None:
        self.proxy.drain(self.clock.monotonic() + 1).wait(PATIENCE_S)

    def topic(self, name: str, queues: int = 1) -> None:
        deadline = self.clock.monotonic() + PATIENCE_S
        self.do(lambda: self.backend.put_topic(TopicInfo(name, 0, queues), deadline).wait(PATIENCE_S))

    def subscribe(self, group: str, topic: str, config: SubscriptionDefaults | None = None) -> None:
        defaults = config or SubscriptionDefaults(start="first")
        self.do(lambda: self.proxy.subscribe(group, topic, defaults).wait(PATIENCE_S))

    def send(self, topic: str, values: Sequence[bytes], queue_id: int = 0) -> None:
        records = [
            NewRecord(topic, queue_id, bytes(16), 1, encode(b"k", value, b"", {b"n": b"\xc3\xa9"}))
            for value in values
        ]
        deadline = self.clock.monotonic() + PATIENCE_S
        self.do(lambda: self.backend.append(records, deadline).wait(PATIENCE_S))

    def committed(self, group: str, topic: str, queue_id: int = 0) -> int | None:
        def read_committed() -> int | None:
            info = self.backend.topic(topic)
            assert info is not None
            ref = QueueRef(topic, info.incarnation, queue_id)
            return self.backend.progress(group, [ref]).wait(PATIENCE_S)[0].committed

        return self.do(read_committed)
