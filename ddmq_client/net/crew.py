"""Which threads a consumer runs: per proxy one flusher and a puller for each topic; workers for its handlers.

Names are resolved again every 30 s: new proxies get their threads, the threads of vanished ones end, and what
is still owed to those goes through another proxy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ddmq_client.core.addresses import ProxyAddress
from ddmq_client.core.prefetch_buffer import Source
from ddmq_client.net.coordinator import Coordinator
from ddmq_client.net.flusher import Flusher
from ddmq_client.net.puller import Puller
from ddmq_client.net.resolver import RESOLVE_EVERY_S, UNRESOLVED_RETRY_S, is_literal, resolve
from ddmq_client.received import Message
from ddmq_client.wire.consuming import PullSettings

_log = logging.getLogger("ddmq_client.consumer")
Handle = Callable[[list[Message]], int]


class Pulling(Protocol):
    """A thread that brings messages."""

    thread: threading.Thread

    def end(self) -> None:
        """End after the call that is under way."""

    def abort(self) -> None:
        """Break off the call that is under way."""


class Crew:
    """Starts and ends the threads of one consumer."""

    def __init__(
        self, coordinator: Coordinator, proxies: Sequence[ProxyAddress], pulls: PullSettings
    ) -> None:
        self._coordinator = coordinator
        self._proxies = proxies
        self._pulls = pulls
        self._known: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._lock = threading.Lock()  # of the tables below, and of starting workers
        self._pullers: dict[ProxyAddress, list[Pulling]] = {}
        self._flushers: dict[ProxyAddress, Flusher] = {}
        self._leaving: list[threading.Thread] = []
        self._workers: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._upkeep: threading.Thread | None = None

    def start(self, workers: int, batch: int, handle: Handle | None) -> None:
        """Start pulling; with `handle`, also workers that feed it `batch` messages at most."""
        if all(map(is_literal, self._proxies)):
            self._refresh()
        else:
            self._upkeep = threading.Thread(target=self._keep_up, name="ddmq-consumer-upkeep", daemon=True)
            self._upkeep.start()
        with self._lock:  # a worker's handler may stop the consumer: not before all have been started
            for number in range(workers if handle else 0):
                name = f"ddmq-worker-{number}"
                args = (batch, handle)
                self._workers.append(threading.Thread(target=self._work, args=args, name=name, daemon=True))
            for worker in self._workers:
                worker.start()
        if not self._coordinator.settings.broadcasting:
            threading.Thread(target=self._keep_leases, name="ddmq-consumer-leases", daemon=True).start()

    def stop(self, deadline: float, flush_deadline: float) -> bool:
        """Finish in order: pulls, handlers, results. False where something was broken off at its deadline."""
        coordinator = self._coordinator
        self._stopping.set()
        coordinator.stop_pulling()
        with self._lock:
            pullers = [puller for group in self._pullers.values() for puller in group]
            flushers = list(self._flushers.values())
        clean = _join([puller.thread for puller in pullers], deadline)
        for puller in pullers:
            puller.abort()
        alone = self.is_worker() and len(self._workers) == 1
        clean = coordinator.wait_handled(deadline, alone) and clean
        coordinator.stop_handing()
        clean = _join(self._workers, deadline) and clean
        coordinator.stop_keeping()
        for flusher in flushers:
            flusher.closing_deadline = flush_deadline
        coordinator.stop_flushing()
        threads = [flusher.thread for flusher in flushers] + self._leaving
        clean = _join(threads, flush_deadline) and clean
        for flusher in flushers:
            flusher.abort()
        _join(threads, flush_deadline + 0.5)
        return not coordinator.abandon() and clean

    def is_worker(self) -> bool:
        """Called by a handler."""
        return threading.current_thread() in self._workers

    def _keep_leases(self) -> None:
        while self._coordinator.keep():
            pass

    def _keep_up(self) -> None:
        """Names are resolved here from the first time on: a name server may take its time."""
        self._refresh()
        while not self._stopping.wait(RESOLVE_EVERY_S if self._pullers else UNRESOLVED_RETRY_S):
            self._refresh()

    def _refresh(self) -> None:
        addresses = resolve(self._proxies, self._known)
        if not addresses:
            self._coordinator.last_error = "no proxy address is known: no name resolves"
            _log.warning("none of %s resolves", ", ".join(map(str, self._proxies)))
            return
        with self._lock:
            if self._stopping.is_set():
                return
            for address in addresses:
                if address not in self._pullers:
                    self._hire(address)
            failover = self._flushers[addresses[0]]
            for address in set(self._pullers) - set(addresses):
                self._retire(address, failover)

    def _hire(self, address: ProxyAddress) -> None:
        proxy = self._coordinator.proxy(str(address))
        flusher = self._flushers[address] = Flusher(self._coordinator, proxy, address, self._pulls)
        topics = self._coordinator.settings.topics or (None,)
        self._pullers[address] = [
            Puller(self._coordinator, Source(proxy, topic), address, self._pulls) for topic in topics
        ]
        flusher.thread.start()
        for puller in self._pullers[address]:
            puller.thread.start()

    def _retire(self, address: ProxyAddress, failover: Flusher) -> None:
        for puller in self._pullers.pop(address):
            puller.end()
            self._leaving.append(puller.thread)
        flusher = self._flushers.pop(address)
        self._coordinator.retire(flusher.proxy, failover.proxy)
        self._leaving.append(flusher.thread)
        self._leaving = [thread for thread in self._leaving if thread.is_alive()]

    def _work(self, batch: int, handle: Handle) -> None:
        while messages := self._coordinator.next(batch):
            errors = 0
            try:
                errors = handle(messages)
            finally:
                self._coordinator.handled(messages, errors)


def _join(threads: Sequence[threading.Thread], deadline: float) -> bool:
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads if thread is not threading.current_thread())
