# Generated from ddmq_client/aio/broadcast.py by tools/unasync.py: change that one.
"""Run a broadcasting consumer: one activity that fetches, from one proxy at a time, and the workers.

Every proxy serves all queues to every instance, so the next proxy is called only when one fails. This client
manages its own offsets: see core.instance_offsets and offsets_file.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from ddmq_client.core.nodes import Pace, ProxyAddress, describe_unresolved
from ddmq_client.core.prefetch_buffer import Source
from ddmq_client.errors import PullError
from ddmq_client.net.connection import FramedConnection, resolve_addresses
from ddmq_client.net.coordinator import Coordinator
from ddmq_client.net.sync import Activity, Handle, get_clock, run_blocking
from ddmq_client.net.worker_pool import WorkerPool
from ddmq_client.notifications import PullFailures
from ddmq_client.offsets_file import OffsetsFile
from ddmq_client.received import FetchedQueue
from ddmq_client.wire.consuming import (
    FAILURES,
    FetchSettings,
    PullSettings,
    fetch_frame,
    read_fetched,
    to_login_error,
)

SAVE_EVERY_S = 1.0
_log = logging.getLogger("ddmq_client.consumer")


class BroadcastPuller:
    """Fetches messages of a broadcasting consumer from one proxy at a time, until the consumer stops."""

    def __init__(
        self,
        coordinator: Coordinator,
        proxies: Sequence[ProxyAddress],
        settings: FetchSettings,
        file: OffsetsFile | None,
    ) -> None:
        self._coordinator = coordinator
        self._proxies = proxies
        self._settings = settings
        self._file = file
        self._clock = get_clock()
        self._address_cache: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._proxy_index = 0
        self._source = Source(coordinator.get_proxy("broadcast"), None)
        self._connection: FramedConnection | None = None
        self._pace = Pace(coordinator.settings.linger_ms / 1000, random.random)
        self._failures = PullFailures(coordinator.notifications)
        self._saved_at = 0.0
        self.activity = Activity(self._run, "ddmq-broadcast")

    def end(self) -> None:
        """Stop after the fetch in progress."""
        self._coordinator.end(self._source)

    def abort(self) -> None:
        """Interrupt the fetch in progress."""
        self.end()
        if self._connection is not None:
            self._connection.close()
        if self._source.parked:
            self.activity.cancel()

    def save(self) -> bool:
        """Store the offsets of this instance in its file; return False if that failed."""
        self._saved_at = self._clock()
        if self._file is None:
            return True
        try:
            run_blocking(self._file.save, self._coordinator.safe_offsets())
        except OSError as error:
            self._coordinator.last_error = f"the offsets file cannot be written: {error}"
            _log.error("the offsets file cannot be written: %s", error)
            return False
        return True

    def _run(self) -> None:
        try:
            while (work := self._coordinator.wait_capacity(self._source)) is not None:
                pause = self._fetch(work[0], work[1])
                if self._clock() - self._saved_at >= SAVE_EVERY_S:
                    self.save()
                if pause:
                    self._coordinator.pause_puller(self._source, pause)
        finally:
            self._drop_connection()

    def _fetch(self, batch: int, linger_ms: int) -> float:
        """Fetch once; return the seconds to pause after it."""
        started = self._clock()
        try:
            queues = self._call(batch, linger_ms)
        except FAILURES as failure:
            name = "" if self._connection is None else self._connection.name
            error = to_login_error(failure, name)
            self._coordinator.pull_failed(self._source, None, error)
            if not (self._coordinator.pulling_stopped or self._source.closing):
                self._failures.report_failure(name, error, self._clock(), repeated=self._pace.is_failing)
            if isinstance(failure, PullError):
                failure.proxy = name
            else:
                self._proxy_index += 1
                self._drop_connection()
            return self._pace.pause_after_failure()
        except BaseException as error:
            self._coordinator.pull_failed(self._source, None, error)
            raise
        count = self._coordinator.add_fetched(self._source, self._settings.group, queues)
        return self._pace.pause_after_answer(count, self._clock() - started, linger_ms / 1000)

    def _call(self, batch: int, linger_ms: int) -> list[FetchedQueue]:
        offsets = self._coordinator.fetch_from()
        each = max(1, batch // max(1, sum(map(len, offsets.values()))))

        def frame(now: float, sequence_id: int) -> bytes:
            return fetch_frame(self._settings, offsets, each, linger_ms, sequence_id)

        connection = self._get_connection()
        timeout_s = (linger_ms + self._coordinator.settings.timeout_ms) / 1000
        payload, sequence_id = connection.call(frame, self._clock() + timeout_s)
        return read_fetched(payload, sequence_id)

    def _get_connection(self) -> FramedConnection:
        if self._connection is None:
            addresses = resolve_addresses(self._proxies, self._address_cache)
            if not addresses:
                raise PullError(describe_unresolved(self._proxies))
            self._connection = FramedConnection(addresses[self._proxy_index % len(addresses)])
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class BroadcastPool(WorkerPool):
    """The worker pool of a consumer with model="broadcasting"."""

    def __init__(
        self,
        coordinator: Coordinator,
        proxies: Sequence[ProxyAddress],
        pulls: PullSettings,
        settings: FetchSettings,
        file: OffsetsFile | None,
    ) -> None:
        super().__init__(coordinator, proxies, pulls)
        self._file = file
        self._puller = BroadcastPuller(coordinator, proxies, settings, file)

    def start(self, workers: int, batch: int, handle: Handle | None) -> None:
        """Start from the stored offsets. Raises OptionError if another consumer uses the offsets file."""
        if self._file is not None and self._coordinator.instance_offsets is not None:
            self._coordinator.instance_offsets.start(self._file.lock_and_load())
        super().start(workers, batch, handle)

    def stop(self, deadline: float, flush_deadline: float) -> bool:
        """Stop without waiting for the fetch in progress, which holds no lease; then store the offsets."""
        self._puller.abort()
        try:
            clean = super().stop(deadline, flush_deadline)
            return self._puller.save() and clean
        finally:
            if self._file is not None:
                self._file.leave()

    def _refresh_proxies(self) -> None:
        if not self._pullers:
            self._pullers[self._proxies[0]] = [self._puller]
            self._puller.activity.start()
