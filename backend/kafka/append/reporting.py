"""A producer that the hub calls, and one native thread that waits for its reports.

librdkafka takes the interpreter's lock anew for each report, and a thread that shares it with a busy hub
waits each time. So the thread takes the first report alone (its callback raises: librdkafka keeps the others
for the next poll) and the hub, once woken, the others.

A producer that Kafka (a fatal error) or its owner gave up on is replaced by a new one; what the old one has
is purged, and reported as that.
"""

from __future__ import annotations

import logging
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException, Producer

from backend.kafka.bridge import Bridge
from backend.kafka.faults import RAISED, cause_of
from backend.kafka.options import APPENDING
from ddmq_common.clock import Clock

log = logging.getLogger(__name__)
POLL_S = 0.1
CLOSE_S = 5.0
REQUEST_MS = 10_000  # a request that was not answered is sent again, as what it was


class _FirstReport(Exception):
    """Ends the thread's `poll`: there are reports, and the hub takes them."""


def _unheard(_: KafkaError) -> None:
    """That brokers are away the topics' survey says, once."""


class ReportingProducer:
    """`settle` is called on the hub when reports have come. A report's callback ends with `has_report`.

    `made_at`: when the present one was, by the monotonic clock.
    """

    def __init__(
        self, settings: Mapping[str, object], bridge: Bridge, clock: Clock, settle: Callable[[], None]
    ) -> None:
        self._settings = {"socket.timeout.ms": REQUEST_MS, **settings, **APPENDING, "error_cb": _unheard}
        self._bridge = bridge
        self._clock = clock
        self._settle = settle
        self._hub_takes = False  # reports, now; or nobody waits for them any more
        self._unsettled = False
        self._taken = allocate_lock()
        self._taken.acquire()
        self._closed = False
        self._wrong = ""  # with the present one
        self.made_at = clock.monotonic()
        self._producer = Producer(self._settings)
        self.produce = self._producer.produce
        self._thread = threading.Thread(target=self._serve, name="kafka-producer", daemon=True)
        self._thread.start()

    def touch(self, kafka_name: str) -> None:
        """Have the producer know a topic, and where its partitions are; in a native thread, it may wait."""
        try:
            self._producer.list_topics(kafka_name, 5)
        except KafkaException as error:
            log.warning("topic %s: the producer could not ask for it: %s", kafka_name, error)

    def give_up(self, reason: str) -> None:
        """Have it replaced by a new one, soon."""
        self._wrong = reason

    def close(self) -> None:
        """Send what the brokers have begun with, forget the rest, and settle it; bounded."""
        self._closed = self._hub_takes = True
        if self._taken.locked():
            self._taken.release()
        self._thread.join(CLOSE_S + POLL_S)
        self._settle()

    def _take_reports(self) -> None:
        """On the hub. The thread has the first report: take the others, and have it wait for the next."""
        if self._closed:
            return
        self._hub_takes = True
        try:
            self._poll(0)
            self._unsettled = False
            self._settle()
        finally:
            self._hub_takes = False
            self._taken.release()

    # --- in the native thread

    def has_report(self) -> None:
        """At the end of a report's callback."""
        self._unsettled = True
        if not self._hub_takes:
            raise _FirstReport

    def _serve(self) -> None:
        while not self._closed:
            try:
                self._await_reports()
                if self._wrong:
                    self._replace()
            except Exception:  # whatever it was: who waits must be answered
                log.exception("serving Kafka's reports has failed; it goes on")
                time.sleep(POLL_S)
        self._producer.purge(in_queue=True, in_flight=False)
        self._producer.flush(CLOSE_S)

    def _await_reports(self) -> None:
        """Until there are reports, and the hub has taken them."""
        try:
            self._poll(POLL_S)
        except _FirstReport:
            pass
        finally:
            if self._unsettled and not self._closed:
                self._bridge.call(self._take_reports)
                self._taken.acquire()

    def _poll(self, timeout_s: float) -> None:
        """A fatal error, after which the producer sends nothing, comes out here (faults.cause_of)."""
        try:
            self._producer.poll(timeout_s)
        except RAISED as error:
            found = cause_of(error)
            if not found.fatal():
                raise
            self._wrong = str(found)

    def _replace(self) -> None:
        made, self.made_at = Producer(self._settings), self._clock.monotonic()
        old, self._producer = self._producer, made
        self.produce = made.produce
        log.error("Kafka gave up on the producer: %s; there is a new one", self._wrong)
        self._wrong = ""
        self._hub_takes = True
        try:
            old.purge()
            old.flush(CLOSE_S)
        finally:
            self._hub_takes = False
            self._unsettled = False
            self._bridge.call(self._settle)
