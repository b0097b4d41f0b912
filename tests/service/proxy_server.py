"""A proxy on its own thread and hub: memory engine, real RPC server, loopback port."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
import gevent.event

from ddmq_common.clock import SystemClock
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Service
from ddmq_rpc.server import RpcServer
from ddmq_rpc.traffic import RpcLimits
from tests.played_memory import PlayedMemory

T = TypeVar("T")
PATIENCE_S = 60


class ProxyServer(ABC):
    """Started by the constructor; `do` runs something on its hub and gives the result back."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the server did not start"

    @abstractmethod
    def open(self) -> Service:
        """Make the proxy over `backend`, on the hub."""

    @abstractmethod
    def end(self) -> None:
        """Stop the proxy, on the hub; nobody connects any more."""

    def _run(self) -> None:
        self.clock = SystemClock()
        self.metrics = Registry()
        self.backend = PlayedMemory(self.clock)
        server = RpcServer(self.open(), "127.0.0.1", 0, RpcLimits(), self.metrics, self.clock)
        server.start()
        self.port = server.address[1]
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(lambda: gevent.spawn(self._work))
        self._stopped = gevent.event.Event()
        self._ready.set()
        self._stopped.wait()
        server.stop_accepting()
        self.end()
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

    def stop(self) -> None:
        self._tasks.put(None)
        self._wake.send()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"
