"""The thread that submits results which no pull carries in time, over a connection of its own."""

from __future__ import annotations

import logging
import random
import threading
import time

from ddmq_client.core.acks import Parcel
from ddmq_client.core.addresses import Address
from ddmq_client.core.intake import Station
from ddmq_client.core.pacing import Pace
from ddmq_client.errors import PullError
from ddmq_client.net.connection import Connection
from ddmq_client.net.desk import Desk
from ddmq_client.net.puller import FAILURES
from ddmq_client.net.teller import UNKNOWN_METHOD
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

    def __init__(self, desk: Desk, station: Station, address: Address, pulls: PullSettings) -> None:
        self._desk = desk
        self._pulls = pulls
        self.station = station
        self._connection = Connection(address)
        self._pace = Pace(0.0, random.random)
        self.closing_deadline = 0.0  # monotonic seconds; set before flushing is stopped
        name = f"ddmq-acks-{address}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def abort(self) -> None:
        """Break off the submit that is under way; its results count as not delivered."""
        self._connection.close()

    def _run(self) -> None:
        desk, station = self._desk, self.station
        while (parcel := desk.wait_due(station)) is not None:
            error = self._submit(parcel, time.monotonic() + desk.settings.timeout_ms / 1000)
            desk.submitted(station, parcel, error)
            if error is None:
                self._pace.answered(1, 0.0)
            else:
                self._log_failure(error)
                desk.pause_flusher(station, self._pace.failed())
        self._submit_rest()
        self._connection.close()

    def _submit_rest(self) -> None:
        """What is still owed, while the proxy answers and time is left; a failed call is tried again."""
        failures = 0
        while time.monotonic() < self.closing_deadline and failures < CLOSING_TRIES:
            parcel = self._desk.take_rest(self.station)
            if parcel is None:
                return
            error = self._submit(parcel, self.closing_deadline)
            self._desk.submitted(self.station, parcel, error)
            if error is not None:
                failures += 1
                _log.warning("results not submitted to %s: %s", self.station.name, error)

    def _submit(self, parcel: Parcel, deadline: float) -> Exception | None:
        try:
            if self.station.settles and self._settle(parcel, deadline):
                return None
            payload, sequence_id = self._connection.call(
                lambda now, number: submit_frame(parcel, number), deadline
            )
            if not read_submitted(payload, sequence_id):
                return PullError("proxy answered false to submit")
        except FAILURES as error:
            self._connection.close()
            return error
        return None

    def _settle(self, parcel: Parcel, deadline: float) -> bool:
        """Submit and hear what came too late; False where the proxy has only `submit`."""
        leave = self._desk.pulling_stopped
        try:
            answer = self._connection.call(
                lambda now, number: settle_frame(self._pulls, parcel, leave, number), deadline
            )
            self._desk.told(parcel, read_settled(*answer))
        except ProxyFault as fault:
            if fault.kind != UNKNOWN_METHOD:
                raise
            self.station.settles = False
        return self.station.settles or not parcel

    def _log_failure(self, error: Exception) -> None:
        level = logging.DEBUG if self._pace.failing else logging.WARNING
        _log.log(level, "submit to %s failed: %s", self.station.name, error)
