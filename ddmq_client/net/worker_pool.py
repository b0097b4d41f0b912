# Generated from ddmq_client/aio/worker_pool.py by tools/unasync.py: change that one.
"""Run a consumer: per proxy one flusher and a puller for each topic; workers for its handlers.

Names are resolved every 30 s: new proxies get their pullers, the pullers of removed proxies end, and the
pending results of removed proxies go through another proxy.

A puller is bound to one connection; results ride on its pulls. If no pull carries them in time, the flusher
submits them over a connection of its own. A failed call is followed by a pause and a new connection, and its
results are resent: a proxy applies repeated results once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from ddmq_client.core.acks import AckBatch
from ddmq_client.core.nodes import (
    RESOLVE_EVERY_S,
    UNRESOLVED_RETRY_S,
    Pace,
    ProxyAddress,
    describe_unresolved,
    is_literal,
)
from ddmq_client.core.prefetch_buffer import ProxyConnection, Source
from ddmq_client.errors import PullError
from ddmq_client.net.connection import FramedConnection, resolve_addresses
from ddmq_client.net.coordinator import Coordinator
from ddmq_client.net.sync import Activity, Condition, Handle, Lock, get_clock, join_activities
from ddmq_client.notifications import PullFailures
from ddmq_client.wire.consuming import (
    FAILURES,
    Pulled,
    PullSettings,
    pull_frame,
    read_pulled,
    read_settled,
    read_submitted,
    settle_frame,
    submit_frame,
    to_login_error,
)
from ddmq_client.wire.producing import UNKNOWN_METHOD, ProxyCallError

ABORT_S = 0.5  # for a flusher whose connection was closed to end
_log = logging.getLogger("ddmq_client.consumer")


class Pulling(Protocol):
    """An activity that fetches messages for the coordinator."""

    activity: Activity

    def end(self) -> None:
        """Stop after the call in progress."""

    def abort(self) -> None:
        """Interrupt the call in progress."""


class WorkerPool:
    """Starts and ends all activities of one consumer: pullers, flushers and workers."""

    def __init__(
        self, coordinator: Coordinator, proxies: Sequence[ProxyAddress], pulls: PullSettings
    ) -> None:
        self._coordinator = coordinator
        self._proxies = proxies
        self._pulls = pulls
        self._address_cache: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._lock = Lock()  # of the tables below, and of starting workers
        self._stopped = Condition(self._lock)
        self._stopping = False
        self._pullers: dict[ProxyAddress, list[Pulling]] = {}
        self._flushers: dict[ProxyAddress, Flusher] = {}
        self._leaving: list[Activity] = []
        self._workers: list[Activity] = []
        self._upkeep = Activity(self._keep_up, "ddmq-consumer-upkeep")
        self._leases = Activity(self._keep_leases, "ddmq-consumer-leases")

    def start(self, workers: int, batch: int, handle: Handle | None) -> None:
        """Start pulling; with `handle`, also workers that call it with at most `batch` messages."""
        if all(map(is_literal, self._proxies)):
            self._refresh_proxies()
        else:
            self._upkeep.start()
        if not self._coordinator.settings.broadcasting:
            self._leases.start()
        if handle is None:
            return
        with self._lock:  # a worker's handler may stop the consumer: not before all have been started
            for number in range(workers):
                work = partial(self._run_worker, batch, handle)
                self._workers.append(Activity(work, f"ddmq-worker-{number}"))
            for worker in self._workers:
                worker.start()

    def stop(self, deadline: float, flush_deadline: float) -> bool:
        """End pulls, then handlers, then flushers; return False if one was aborted at its deadline."""
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
            clean = join_activities(pulling, deadline)
            for puller in pullers:
                puller.abort()
            alone = self.is_worker() and len(self._workers) == 1
            clean = coordinator.wait_handled(deadline, alone) and clean
            coordinator.stop_handing()
            clean = join_activities(self._workers, deadline) and clean
            coordinator.stop_keeping()
            for flusher in flushers:
                flusher.closing_deadline = flush_deadline
            coordinator.stop_flushing()
            clean = join_activities(flushing, flush_deadline) and clean
            for flusher in flushers:
                flusher.abort()
            join_activities([*flushing, self._leases], flush_deadline + ABORT_S)
            return not coordinator.abandon_results() and clean
        finally:
            coordinator.replies.close()
            for activity in (*pulling, *flushing, *self._workers, self._leases):
                activity.cancel()

    def is_worker(self) -> bool:
        """Return whether the caller is one of the workers, so that it was called by a handler."""
        return any(worker.is_current for worker in self._workers)

    def _keep_leases(self) -> None:
        while self._coordinator.keep_leases():
            pass

    def _keep_up(self) -> None:
        """Resolve the proxies' names periodically, and start and end pullers accordingly.

        The first resolution is made here too, because a name server may take its time.
        """
        while True:
            self._refresh_proxies()
            with self._lock:
                if not self._stopping:
                    self._stopped.wait(RESOLVE_EVERY_S if self._pullers else UNRESOLVED_RETRY_S)
                if self._stopping:
                    return

    def _refresh_proxies(self) -> None:
        addresses = resolve_addresses(self._proxies, self._address_cache)
        if not addresses:
            self._coordinator.last_error = describe_unresolved(self._proxies)
            _log.warning("none of %s resolves", ", ".join(map(str, self._proxies)))
            return
        self._coordinator.replies.set_proxies(addresses)
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
        proxy = self._coordinator.get_proxy(str(address))
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
        self._leaving = [activity for activity in self._leaving if activity.is_alive]

    def _run_worker(self, batch: int, handle: Handle) -> None:
        while messages := self._coordinator.next_messages(batch):
            errors = 0
            try:
                errors = handle(messages)
            finally:
                self._coordinator.finish_messages(messages, errors)


class Puller:
    """Pulls one topic, or all topics of the group, from one proxy."""

    def __init__(
        self, coordinator: Coordinator, source: Source, address: ProxyAddress, pulls: PullSettings
    ) -> None:
        self._coordinator = coordinator
        self._source = source
        self._pulls = pulls
        self._clock = get_clock()
        self._connection = FramedConnection(address)
        self._pace = Pace(pulls.linger_ms / 1000, random.random)
        self._failures = PullFailures(coordinator.notifications)
        self.activity = Activity(self._run, f"ddmq-pull-{address}")

    def end(self) -> None:
        """Stop after the pull in progress."""
        self._coordinator.end(self._source)

    def abort(self) -> None:
        """Interrupt the pull in progress."""
        self._coordinator.end(self._source)
        self._connection.close()

    def _run(self) -> None:
        try:
            while (work := self._coordinator.wait_capacity(self._source)) is not None:
                pause = self._pull(*work)
                if pause:
                    self._coordinator.pause_puller(self._source, pause)
        finally:
            self._connection.close()

    def _pull(self, batch: int, linger_ms: int, acks: AckBatch | None) -> float:
        """Pull once; return the seconds to pause after it."""
        started = self._clock()
        try:
            answer = self._call(batch, linger_ms, acks)
        except FAILURES as failure:
            error = to_login_error(failure, self._source.proxy.name)
            if isinstance(failure, PullError):
                failure.proxy = self._source.proxy.name
            else:
                self._connection.close()
            self._coordinator.pull_failed(self._source, acks, error)
            self._log_failure(error)
            return self._pace.pause_after_failure()
        except BaseException as error:
            self._coordinator.pull_failed(self._source, acks, error)
            raise
        self._coordinator.add_pulled(self._source, answer)
        self._coordinator.report_unapplied(acks, answer.unapplied)
        self._coordinator.notifications.log_notice(self._source.proxy.name, answer.notice)
        return self._pace.pause_after_answer(len(answer.messages), self._clock() - started, linger_ms / 1000)

    def _call(self, batch: int, linger_ms: int, acks: AckBatch | None) -> Pulled:
        pulls = self._pulls._replace(linger_ms=linger_ms)

        def frame(now: float, sequence_id: int) -> bytes:
            return pull_frame(pulls, self._source.topic, batch, acks, sequence_id)

        timeout_s = (linger_ms + self._coordinator.settings.timeout_ms) / 1000
        payload, sequence_id = self._connection.call(frame, self._clock() + timeout_s)
        return read_pulled(payload, sequence_id)

    def _log_failure(self, error: Exception) -> None:
        if self._coordinator.pulling_stopped or self._source.closing:
            return
        repeated = self._pace.is_failing
        self._failures.report_failure(self._source.proxy.name, error, self._clock(), repeated=repeated)


CLOSING_TRIES = 3


class Flusher:
    """Submits due results to one proxy until the consumer stops, then the rest before its deadline."""

    def __init__(
        self,
        coordinator: Coordinator,
        proxy: ProxyConnection,
        address: ProxyAddress,
        pulls: PullSettings,
    ) -> None:
        self._coordinator = coordinator
        self._pulls = pulls
        self.proxy = proxy
        self._clock = get_clock()
        self._connection = FramedConnection(address)
        self._pace = Pace(0.0, random.random)
        self.closing_deadline = 0.0  # monotonic seconds; set before flushing is stopped
        self.activity = Activity(self._run, f"ddmq-acks-{address}")

    def abort(self) -> None:
        """Interrupt the submit in progress; its results count as not delivered."""
        self._connection.close()

    def _run(self) -> None:
        coordinator, proxy = self._coordinator, self.proxy
        try:
            while (acks := coordinator.wait_due(proxy)) is not None:
                error = self._deliver_acks(acks, self._clock() + coordinator.settings.timeout_ms / 1000)
                if error is None:
                    self._pace.pause_after_answer(1, 0.0)
                else:
                    self._log_failure(error)
                    coordinator.pause_flusher(proxy, self._pace.pause_after_failure())
            self._deliver_rest()
        finally:
            self._connection.close()

    def _deliver_rest(self) -> None:
        """Submit the remaining results while the proxy answers and time is left; retry a failed call."""
        failures = 0
        while self._clock() < self.closing_deadline and failures < CLOSING_TRIES:
            acks = self._coordinator.take_rest(self.proxy)
            if acks is None:
                return
            error = self._deliver_acks(acks, self.closing_deadline)
            if error is not None:
                failures += 1
                _log.warning("results not submitted to %s: %s", self.proxy.name, error)

    def _deliver_acks(self, acks: AckBatch, deadline: float) -> Exception | None:
        """Submit results and report the outcome to the coordinator; return the error, if any."""
        try:
            error = self._submit_acks(acks, deadline)
        except BaseException as end:
            self._coordinator.on_submitted(self.proxy, acks, end)
            raise
        self._coordinator.on_submitted(self.proxy, acks, error)
        return error

    def _submit_acks(self, acks: AckBatch, deadline: float) -> Exception | None:
        try:
            if self.proxy.settles and self._settle_acks(acks, deadline):
                return None
            payload, sequence_id = self._connection.call(
                lambda now, number: submit_frame(acks, number), deadline
            )
            if not read_submitted(payload, sequence_id):
                return PullError("proxy answered false to submit")
        except FAILURES as error:
            self._connection.close()
            return error
        return None

    def _settle_acks(self, acks: AckBatch, deadline: float) -> bool:
        """Submit results by `settle`, and report those that the proxy did not apply.

        Returns False if the proxy does not have this call, so that `submit` must be used.
        """
        leave = self._coordinator.pulling_stopped
        try:
            answer = self._connection.call(
                lambda now, number: settle_frame(self._pulls, acks, leave, number), deadline
            )
            self._coordinator.report_unapplied(acks, read_settled(*answer))
        except ProxyCallError as error:
            if error.kind != UNKNOWN_METHOD:
                raise
            self.proxy.settles = False
        return self.proxy.settles or not acks

    def _log_failure(self, error: Exception) -> None:
        level = logging.DEBUG if self._pace.is_failing else logging.WARNING
        _log.log(level, "submit to %s failed: %s", self.proxy.name, error)
