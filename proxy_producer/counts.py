"""Metrics of the producer proxy: each answered message counts once by (topic, code).

Every code but 0 counts once more by reason.

Topic labels are names of topics that exist; what names none (unknown, malformed) counts under NO_TOPIC,
so that a client cannot grow memory by inventing names.
"""

from __future__ import annotations

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import MetricCell
from ddmq_common.metrics.registry import Registry
from proxy_producer.core.rejections import SendRejection

NO_TOPIC = "-"


class TopicCounts:
    """The metric cells for the stored messages of one topic."""

    def __init__(self, metrics: Registry, topic: str) -> None:
        self.stored = metrics.cell(catalogue.SENDS, topic, "0")
        self.stored_bytes = metrics.cell(catalogue.SEND_BYTES, topic)
        self.duplicates = metrics.cell(catalogue.SEND_DUPLICATES, topic)
        self.latency = metrics.histogram(catalogue.SEND_LATENCY, topic)

    def add_stored(self, messages: int, duplicates: int, body_bytes: int) -> None:
        """Add to the counts of stored messages. `messages` includes the duplicates, `body_bytes` does not."""
        self.stored.value += messages
        self.stored_bytes.value += body_bytes
        if duplicates:
            self.duplicates.value += duplicates


class SendCounts:
    """All send metrics of one producer proxy."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._rejected: dict[tuple[str, int, str], tuple[MetricCell, MetricCell]] = {}
        self.deferred = metrics.cell(catalogue.SEND_DEFERRED)
        self.inflight = metrics.cell(catalogue.SEND_INFLIGHT)

    def make_topic_counts(self, name: str) -> TopicCounts:
        return TopicCounts(self._metrics, name)

    def count_rejected(self, topic: str | None, rejection: SendRejection, messages: int = 1) -> None:
        """Count messages that are not stored. `topic`: the topic's name if it exists, else None."""
        code, reason, _ = rejection
        name = NO_TOPIC if topic is None else topic
        cells = self._rejected.get((name, code, reason))
        if cells is None:
            cells = (
                self._metrics.cell(catalogue.SENDS, name, str(int(code))),
                self._metrics.cell(catalogue.SEND_REFUSED, reason),
            )
            self._rejected[name, code, reason] = cells
        by_code, by_reason = cells
        by_code.value += messages
        by_reason.value += messages

    def count_rejected_change(self, rejection: SendRejection) -> None:
        """Count a rejected cancel or other change of a delayed message. No message is lost by it."""
        self._metrics.cell(catalogue.SEND_REFUSED, rejection[1]).value += 1
        self.count_outcome("refused")

    def count_late(self, stored: bool) -> None:
        """Count a request whose result came from the backend after the caller had been answered code 12."""
        self._metrics.cell(catalogue.SEND_LATE, "stored" if stored else "not stored").value += 1

    def count_created(self, outcome: str) -> None:
        """Count an attempt to create a topic on its first send, by outcome."""
        self._metrics.cell(catalogue.TOPICS_CREATED, outcome).value += 1

    def count_outcome(self, kind: str) -> None:
        """Count the outcome of a delay command, or a time-out while waiting for it."""
        self._metrics.cell(catalogue.DELAY_OUTCOMES, kind).value += 1
