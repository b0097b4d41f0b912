"""The metrics of the Kafka clients of one process.

Nothing is measured per message. Commits are timed when they are handed to their thread and when their outcome
comes back; everything else is read by a collector when metrics are requested. librdkafka's statistics come
from one producer that knows only the system's topics, as text every STATISTICS_INTERVAL_MS; the text is small
and is decoded only if metrics are requested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from backend.kafka.clients.producers import Producers
from backend.kafka.clients.writing import WriteOutcome
from backend.kafka.coordination.memberships import KafkaMemberships
from backend.kafka.engine.appends import Appends
from ddmq_common.metrics import kafka_catalogue as catalogue
from ddmq_common.metrics.registry import Registry


class BrokerWindow(msgspec.Struct):
    """A rolling window of librdkafka's statistics over one measured value."""

    p99: int = 0
    max: int = 0


class BrokerStatistics(msgspec.Struct):
    """The statistics of the connection to one broker: round trips in µs, throttling in ms."""

    nodeid: int = -1
    rtt: BrokerWindow = msgspec.field(default_factory=BrokerWindow)
    throttle: BrokerWindow = msgspec.field(default_factory=BrokerWindow)


class ClientStatistics(msgspec.Struct):
    """The used part of the statistics of one client."""

    brokers: dict[str, BrokerStatistics] = {}


_decode = msgspec.json.Decoder(ClientStatistics).decode


class MeasuredProducers(Producers):
    """Producers that report how long each commit took, and its outcome.

    `monotonic`: the clock, in seconds.
    """

    def __init__(
        self, *arguments: Any, metrics: Registry, monotonic: Callable[[], float], **named: Any
    ) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        super().__init__(*arguments, **named)

    def write_plain(self, *arguments: Any, **named: Any) -> None:
        """Write records without a transaction, and measure it."""
        super().write_plain(*self._measure_write("plain", arguments), **named)

    def write_transaction(self, *arguments: Any, **named: Any) -> None:
        """Write records in a transaction, and measure it."""
        super().write_transaction(*self._measure_write("transaction", arguments), **named)

    def _measure_write(self, kind: str, arguments: tuple[Any, ...]) -> list[Any]:
        """Return the arguments of a write with its `then` wrapped."""
        at = next(number for number, argument in enumerate(arguments) if callable(argument))
        then, start = arguments[at], self._monotonic()

        def on_outcome(outcome: WriteOutcome) -> None:
            took_us = (self._monotonic() - start) * 1_000_000
            self._metrics.histogram(catalogue.KAFKA_COMMIT, kind).observe(took_us)
            self._metrics.cell(catalogue.KAFKA_COMMITS, kind, outcome.kind.value).value += 1
            then(outcome)

        return [*arguments[:at], on_outcome, *arguments[at + 1 :]]


class ClientCollector:
    """Fills the gauges of the Kafka clients when metrics are requested."""

    def __init__(
        self,
        metrics: Registry,
        appends: Appends,
        producers: Producers,
        members: KafkaMemberships,
        monotonic: Callable[[], float],
        level: Callable[[], int],
    ) -> None:
        self._metrics = metrics
        self._appends = appends
        self._producers = producers
        self._members = members
        self._monotonic = monotonic
        self._level = level
        self._decoded = ""
        metrics.add_collector(self.set_gauges)

    def set_gauges(self) -> None:
        """Set every gauge and counter that is not kept up to date all the time."""
        cell = self._metrics.cell
        records, size = self._appends.pending_records_and_bytes
        cell(catalogue.KAFKA_PENDING_RECORDS).value = records
        cell(catalogue.KAFKA_PENDING_BYTES).value = size
        cell(catalogue.KAFKA_PRODUCERS_REPLACED, "messages").value = self._appends.producer_replacements
        cell(catalogue.KAFKA_PRODUCERS_REPLACED, "progress").value = self._producers.replaced
        cell(catalogue.KAFKA_SENDS_REFUSED, "silent").value = self._appends.refused_silent
        cell(catalogue.KAFKA_SENDS_REFUSED, "share").value = self._appends.refused_by_share
        cell(catalogue.KAFKA_QUARANTINES).value = self._appends.quarantined_count
        cell(catalogue.KAFKA_RETIRED_IDS).value = len(self._producers.retired)
        cell(catalogue.KAFKA_FEATURE_LEVEL).value = self._level()
        sent_at, returned_at = self._members.heartbeat_times
        age_s = self._monotonic() - returned_at if returned_at and returned_at < sent_at else 0.0
        cell(catalogue.KAFKA_FOLLOWER_LAG).value = round(age_s * 1000)
        if self._producers.statistics != self._decoded:
            self._decoded = self._producers.statistics
            self._set_brokers(_decode(self._decoded))

    def _set_brokers(self, statistics: ClientStatistics) -> None:
        for broker in statistics.brokers.values():
            if broker.nodeid >= 0:  # else it is an address of `bootstrap`
                name = str(broker.nodeid)
                self._metrics.cell(catalogue.KAFKA_BROKER_RTT, name).value = broker.rtt.p99 / 1000
                self._metrics.cell(catalogue.KAFKA_THROTTLE, name).value = broker.throttle.max
