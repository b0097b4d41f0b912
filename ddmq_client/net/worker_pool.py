# Generated from ddmq_client/aio/worker_pool.py by tools/unasync.py: change that one.
"""What a consumer runs: per proxy one flusher and a puller for each topic; workers for its handlers.

Names are resolved again every 30 s: new proxies get their pullers, those of vanished ones end, and what is
still owed to these goes through another proxy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from ddmq_client.core.addresses import RESOLVE_EVERY_S, UNRESOLVED_RETRY_S, ProxyAddress, is_literal
from ddmq_client.core.prefetch_buffer import Source
from ddmq_client.net.coordinator import Coordinator
from ddmq_client.net.flusher import Flusher
from ddmq_client.net.puller import Puller
from ddmq_client.net.resolver import resolve
from ddmq_client.net.sync import Activity, Condition, Handle, finish
from ddmq_client.wire.consuming import PullSettings

ABORT_S = 0.5  # for a flusher whose connection was closed to end
_log = logging.getLogger("ddmq_client.consumer")


class Pulling(Protocol):
    """Brings messages."""

    activity: Activity

    def end(self) -> None:
        """End after the call that is under way."""

    def abort(self) -> None:
        """Break off the call that is under way."""


class WorkerPool:
    """Starts and ends all activities of one consumer."""

    def __init__(
        self, coordinator: Coordinator, proxies: Sequence[ProxyAddress], pulls: PullSettings
    ) -> None:
        self._coordinator = coordinator
        self._proxies = proxies
        self._pulls = pulls
        self._known: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._lock = threading.Lock()  # of the tables below, and of starting workers
        self._stopped = Condition(self._lock)
        self._stopping = False
        self._pullers: dict[ProxyAddress, list[Pulling]] = {}
        self._flushers: dict[ProxyAddress, Flusher] = {}
        self._leaving: list[Activity] = []
        self._workers: list[Activity] = []
        self._upkeep = Activity(self._keep_up, "ddmq-consumer-upkeep")
        self._leases = Activity(self._keep_leases, "ddmq-consumer-leases")

    def start(self, workers: int, batch: int, handle: Handle | None) -> None:
        """Start pulling; with `handle`, also workers that feed it `batch` messages at most."""
        if all(map(is_literal, self._proxies)):
            self._refresh()
        else:
            self._upkeep.start()
        if not self._coordinator.settings.broadcasting:
            self._leases.start()
        if handle is None:
            return
        with self._lock:  # a worker's handler may stop the consumer: not before all have been started
            for number in range(workers):
                work = partial(self._work, batch, handle)
                self._workers.append(Activity(work, f"ddmq-worker-{number}"))
            for worker in self._workers:
                worker.start()

    def stop(self, deadline: float, flush_deadline: float) -> bool:
        """Finish in order: pulls, handlers, results. False where something was broken off at its deadline."""
        coordinator = self._coordinator
        with self._lock:
            self._stopping = True
            self._stopped.notify_all()
            pullers = [puller for group in self._pullers.values() for puller in group]
            flushers = list(self._flushers.values())
        pulling = [puller.activity for puller in pullers]
        flushing = [flusher.activity for flusher in flushers] + self._leaving
        try:
            self._upkeep.cancel()
            coordinator.stop_pulling()
            clean = finish(pulling, deadline)
            for puller in pullers:
                puller.abort()
            alone = self.is_worker() and len(self._workers) == 1
            clean = coordinator.wait_handled(deadline, alone) and clean
            coordinator.stop_handing()
            clean = finish(self._workers, deadline) and clean
            coordinator.stop_keeping()
            for flusher in flushers:
                flusher.closing_deadline = flush_deadline
            coordinator.stop_flushing()
            clean = finish(flushing, flush_deadline) and clean
            for flusher in flushers:
                flusher.abort()
            finish([*flushing, self._leases], flush_deadline + ABORT_S)
            return not coordinator.abandon() and clean
        finally:
            for activity in (*pulling, *flushing, *self._workers, self._leases):
                activity.cancel()

    def is_worker(self) -> bool:
        """Called by a handler."""
        return any(worker.current for worker in self._workers)

    def _keep_leases(self) -> None:
        while self._coordinator.keep():
            pass

    def _keep_up(self) -> None:
        """Names are resolved here from the first time on: a name server may take its time."""
        while True:
            self._refresh()
            with self._lock:
                if not self._stopping:
                    self._stopped.wait(RESOLVE_EVERY_S if self._pullers else UNRESOLVED_RETRY_S)
                if self._stopping:
                    return

    def _refresh(self) -> None:
        addresses = resolve(self._proxies, self._known)
        if not addresses:
            self._coordinator.last_error = "no proxy address is known: no name resolves"
            _log.warning("none of %s resolves", ", ".join(map(str, self._proxies)))
            return
        with self._lock:
            if self._stopping:
                return
            for address in addresses:
                if address not in self._pullers:
                    self._start_proxy(address)
            failover = self._flushers[addresses[0]]
            for address in set(self._pullers) - set(addresses):
                self._end_proxy(address, failover)

    def _start_proxy(self, address: ProxyAddress) -> None:
        proxy = self._coordinator.proxy(str(address))
        flusher = self._flushers[address] = Flusher(self._coordinator, proxy, address, self._pulls)
        topics = self._coordinator.settings.topics or (None,)
        self._pullers[address] = [
            Puller(self._coordinator, Source(proxy, topic), address, self._pulls) for topic in topics
        ]
        flusher.activity.start()
        for puller in self._pullers[address]:
            puller.activity.start()

    def _end_proxy(self, address: ProxyAddress, failover: Flusher) -> None:
        for puller in self._pullers.pop(address):
            puller.end()
            self._leaving.append(puller.activity)
        flusher = self._flushers.pop(address)
        self._coordinator.fail_over(flusher.proxy, failover.proxy)
        self._leaving.append(flusher.activity)
        self._leaving = [activity for activity in self._leaving if activity.alive]

    def _work(self, batch: int, handle: Handle) -> None:
        while messages := self._coordinator.next(batch):
            errors = 0
            try:
                errors = handle(messages)
            finally:
                self._coordinator.handled(messages, errors)
