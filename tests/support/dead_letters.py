"""A memory engine with dead letters of a group."""

from __future__ import annotations

from typing import Any

from backend.records import CommitBatch, ProgressDelta, QueueRef, StoredRecord, TopicInfo
from ddmq.server.admin import dlq, dlq_changes
from ddmq.server.admin.contract.bodies import DeadLetterPurgeBody, DeadLetterResendBody
from ddmq.server.admin.dlq import DeadLetterFilter
from ddmq.server.admin.search import dead_letters as dlq_search
from ddmq.server.http.parameters import read_body
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.names import DONE_GROUP
from proxy_consumer.groups.group import encode_subscription, subscription_key
from proxy_consumer.retries.headers import RetryHeaders, dead_letter
from tests.played_memory import PlayedMemory


class DeadLettersRig:
    """A memory engine with dead letters of group G."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = PlayedMemory(self.clock)
        for topic in ("T", "U", "%DLQ%G"):
            self.make(topic)
        for topic in ("T", "U", "gone"):
            self.subscribe("G", topic)

    def subscribe(self, group: str, *topics: str) -> None:
        value = encode_subscription({}, 1, "log")
        settings = {subscription_key(group, topic): value for topic in topics}
        self.backend.commit(CommitBatch(settings=settings), self.deadline()).wait(20)

    def deadline(self) -> float:
        return self.clock.monotonic() + 60

    def make(self, topic: str) -> None:
        self.backend.put_topic(TopicInfo(topic, 0, 1), self.deadline()).wait(20)

    def die(
        self, count: int, topic: str = "T", reason: str = "failed", error: str = "", body: bytes = b"v"
    ) -> None:
        letters = []
        for number in range(count):
            delivery = encode(b"k%d" % number, body, b"", None)
            record = StoredRecord(topic, 0, number, 0, number.to_bytes(16, "big"), 1, 1, 0, 0, delivery, {})
            headers = RetryHeaders(0, topic, 0, number, 4, 0, error)
            letters.append(dead_letter("G", record, headers, reason, self.clock.wall_ms()))
        self.backend.append(letters, self.deadline()).wait(20)

    def close(self, *offsets: int) -> None:
        """Mark these dead letters as done."""
        info = self.backend.topic("%DLQ%G")
        assert info is not None
        (queue,) = info.refs()
        (done,) = self.backend.progress(DONE_GROUP, (queue,)).wait(20)
        ranges = [(offset, offset + 1) for offset in offsets]
        delta = ProgressDelta(DONE_GROUP, queue, done.epoch, done.generation, finished=ranges)
        self.backend.commit(CommitBatch(progress=(delta,)), self.deadline()).wait(20)

    def show(self, count: int = 20, *, newest: bool = False, start: int | None = None, **choice: Any) -> Any:
        order = dlq_search.SearchOrder(newest, start)
        which = DeadLetterFilter(**choice)
        return dlq_search.show_dead_letters(self.backend, self.clock, "G", which, order, count)

    def facets(self, *, newest: bool = False, start: int | None = None, **choice: Any) -> Any:
        order = dlq_search.SearchOrder(newest, start)
        which = DeadLetterFilter(**choice)
        return dlq_search.count_facets(self.backend, self.clock, "G", which, order)

    def resend(self, **body: Any) -> dict[str, Any]:
        return dlq_changes.resend(self.backend, self.clock, "G", read_body(DeadLetterResendBody, body))

    def purge(self, **body: Any) -> int:
        checked = read_body(DeadLetterPurgeBody, body)
        purged: int = dlq_changes.purge(self.backend, self.clock, "G", checked)["purged"]
        return purged

    def stored(self, topic: str) -> list[StoredRecord]:
        info = self.backend.topic(topic)
        assert info is not None
        batch = self.backend.read(QueueRef(topic, info.incarnation, 0), 0, 10_000, 1 << 24).wait(20)
        return [batch.record(index) for index in range(len(batch.offsets))]

    def letters(self) -> int:
        (row,) = dlq.list_dead_letters(self.backend)
        count: int = row["letters"]
        return count
