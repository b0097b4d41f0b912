"""A producer proxy on its own thread and hub: memory engine, real RPC server, loopback port."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import gevent

from backend.memory import MemoryBackend
from backend.records import QueueRef, StoredRecord, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.limits import RpcLimits
from ddmq_rpc.server import RpcServer
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService

T = TypeVar("T")
PATIENCE_S = 30


class ProducerServer:
    """Started by the constructor; `do` runs something on its hub and gives the result back."""

    def __init__(self, topics: Sequence[TopicInfo] = (), **config: Any) -> None:
        self._config = ProducerConfig(**config)
        self._topics = topics
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the server did not start"

    def _run(self) -> None:
        self.clock = SystemClock()
        self.metrics = Registry()
        self.backend = MemoryBackend(self.clock)
        self.proxy = ProducerService(self.backend, self._config, self.metrics, self.clock, Random())
        for info in self._topics:
            self.backend.put_topic(info, self.clock.monotonic() + PATIENCE_S).wait(PATIENCE_S)
        server = RpcServer(self.proxy.service(), "127.0.0.1", 0, RpcLimits(), self.metrics, self.clock)
        server.start()
        self.port = server.address[1]
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(lambda: gevent.spawn(self._work))
        self._stopped = gevent.event.Event()
        self._ready.set()
        self._stopped.wait()
        server.close()
        self.proxy.close()
        self.backend.close()
        self._wake.close()

    def _work(self) -> None:
        while not self._tasks.empty():
            task = self._tasks.get()
            if task is None:
                self._stopped.set()
            else:
                task()

    def do(self, act: Callable[[], T]) -> T:
        """Run `act` in a greenlet of the server's hub (it may wait on completions)."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def task() -> None:
            try:
                done.put((True, act()))
            except BaseException as error:
                done.put((False, error))

        self._tasks.put(task)
        self._wake.send()
        fine, value = done.get(timeout=PATIENCE_S)
        if not fine:
            raise value
        return value  # type: ignore[no-any-return]

    def stored(self, topic: str) -> list[StoredRecord]:
        """All records of a topic, queue by queue."""
        return self.do(lambda: self._stored(topic))

    def _stored(self, topic: str) -> list[StoredRecord]:
        info = self.backend.topic(topic)
        if info is None:
            return []
        found: list[StoredRecord] = []
        for queue_id in range(info.queues):
            ref = QueueRef(topic, info.incarnation, queue_id)
            batch = self.backend.read(ref, 0, 100_000, 1 << 30).wait(PATIENCE_S)
            found += [batch.record(index) for index in range(len(batch.offsets))]
        return found

    def stop(self) -> None:
        self._tasks.put(None)
        self._wake.send()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"
