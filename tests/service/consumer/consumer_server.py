"""A consumer proxy on its own thread and hub: memory engine, real RPC server, loopback port."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import gevent
import gevent.event

from backend.memory import MemoryBackend
from backend.records import NewRecord, QueueRef, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.limits import RpcLimits
from ddmq_rpc.server import RpcServer
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.service import ConsumerService

T = TypeVar("T")
PATIENCE_S = 30


class ConsumerServer:
    """Started by the constructor; `do` runs something on its hub and gives the result back."""

    def __init__(self, config: ConsumerConfig | None = None) -> None:
        self._config = config or ConsumerConfig(drain_leases_ms=0)
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the server did not start"

    def _run(self) -> None:
        self.clock = SystemClock()
        self.metrics = Registry()
        self.backend = MemoryBackend(self.clock)
        self.proxy = ConsumerService(self.backend, self._config, self.metrics, self.clock, Random())
        self.proxy.start()
        server = RpcServer(self.proxy.service(), "127.0.0.1", 0, RpcLimits(), self.metrics, self.clock)
        server.start()
        self.port = server.address[1]
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(lambda: gevent.spawn(self._work))
        self._stopped = gevent.event.Event()
        self._ready.set()
        self._stopped.wait()
        server.stop_accepting()
        self.proxy.drain(self.clock.monotonic() + 1).wait(PATIENCE_S)
        server.close()
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

    def topic(self, name: str, queues: int = 1) -> None:
        deadline = self.clock.monotonic() + PATIENCE_S
        self.do(lambda: self.backend.put_topic(TopicInfo(name, 0, queues), deadline).wait(PATIENCE_S))

    def subscribe(self, group: str, topic: str, config: SubscriptionDefaults | None = None) -> None:
        wanted = config or SubscriptionDefaults(start="first")
        self.do(lambda: self.proxy.subscribe(group, topic, wanted).wait(PATIENCE_S))

    def send(self, topic: str, values: Sequence[bytes], queue_id: int = 0) -> None:
        records = [
            NewRecord(topic, queue_id, bytes(16), 1, encode(b"k", value, b"", {b"n": b"\xc3\xa9"}))
            for value in values
        ]
        deadline = self.clock.monotonic() + PATIENCE_S
        self.do(lambda: self.backend.append(records, deadline).wait(PATIENCE_S))

    def committed(self, group: str, topic: str, queue_id: int = 0) -> int | None:
        def ask() -> int | None:
            info = self.backend.topic(topic)
            assert info is not None
            ref = QueueRef(topic, info.incarnation, queue_id)
            return self.backend.progress(group, [ref]).wait(PATIENCE_S)[0].committed

        return self.do(ask)

    def stop(self) -> None:
        self._tasks.put(None)
        self._wake.send()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"
