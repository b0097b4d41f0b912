# Generated from ddmq_client/aio/flusher.py by tools/unasync.py: change that one.
"""Submits results which no pull carries in time to one proxy, over a connection of its own."""

from __future__ import annotations

import logging
import random

from ddmq_client.core.acks import AckBatch
from ddmq_client.core.addresses import ProxyAddress
from ddmq_client.core.pacing import Pace
from ddmq_client.core.prefetch_buffer import ProxyConnection
from ddmq_client.errors import PullError
from ddmq_client.net.connection import FramedConnection
from ddmq_client.net.coordinator import Coordinator
from ddmq_client.net.puller import FAILURES
from ddmq_client.net.sync import Activity, clock
from ddmq_client.teller import UNKNOWN_METHOD
from ddmq_client.wire.consuming import (
    PullSettings,
    read_settled,
    read_submitted,
    settle_frame,
    submit_frame,
)
from ddmq_client.wire.producing import ProxyFault

CLOSING_TRIES = 3
_log = logging.getLogger("ddmq_client.consumer")


class Flusher:
    """Submits to one proxy until the consumer stops; then what is left, within the closing deadline."""

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
        self._clock = clock()
        self._connection = FramedConnection(address)
        self._pace = Pace(0.0, random.random)
        self.closing_deadline = 0.0  # monotonic seconds; set before flushing is stopped
        self.activity = Activity(self._run, f"ddmq-acks-{address}")

    def abort(self) -> None:
        """Break off the submit that is under way; its results count as not delivered."""
        self._connection.close()

    def _run(self) -> None:
        coordinator, proxy = self._coordinator, self.proxy
        try:
            while (acks := coordinator.wait_due(proxy)) is not None:
                error = self._deliver(acks, self._clock() + coordinator.settings.timeout_ms / 1000)
                if error is None:
                    self._pace.answered(1, 0.0)
                else:
                    self._log_failure(error)
                    coordinator.pause_flusher(proxy, self._pace.failed())
            self._deliver_rest()
        finally:
            self._connection.close()

    def _deliver_rest(self) -> None:
        """What is still owed, while the proxy answers and time is left; a failed call is tried again."""
        failures = 0
        while self._clock() < self.closing_deadline and failures < CLOSING_TRIES:
            acks = self._coordinator.take_rest(self.proxy)
            if acks is None:
                return
            error = self._deliver(acks, self.closing_deadline)
            if error is not None:
                failures += 1
                _log.warning("results not submitted to %s: %s", self.proxy.name, error)

    def _deliver(self, acks: AckBatch, deadline: float) -> Exception | None:
        """Submit, and tell the coordinator what came of it."""
        try:
            error = self._submit(acks, deadline)
        except BaseException as end:
            self._coordinator.submitted(self.proxy, acks, end)
            raise
        self._coordinator.submitted(self.proxy, acks, error)
        return error

    def _submit(self, acks: AckBatch, deadline: float) -> Exception | None:
        try:
            if self.proxy.settles and self._settle(acks, deadline):
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

    def _settle(self, acks: AckBatch, deadline: float) -> bool:
        """Submit and hear what came too late; False where the proxy has only `submit`."""
        leave = self._coordinator.pulling_stopped
        try:
            answer = self._connection.call(
                lambda now, number: settle_frame(self._pulls, acks, leave, number), deadline
            )
            self._coordinator.told(acks, read_settled(*answer))
        except ProxyFault as fault:
            if fault.kind != UNKNOWN_METHOD:
                raise
            self.proxy.settles = False
        return self.proxy.settles or not acks

    def _log_failure(self, error: Exception) -> None:
        level = logging.DEBUG if self._pace.failing else logging.WARNING
        _log.log(level, "submit to %s failed: %s", self.proxy.name, error)
