"""KafkaProcess on a real broker with topics that exist only in its registry, and calls for tests."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine.process import KafkaProcess
from backend.kafka.options import KafkaOptions
from backend.kafka.records import ProducerRecord
from backend.kafka.topic_info import KafkaTopic, TopicRegistry
from backend.port import Assignment, Join, Sharing
from backend.records import CommitBatch, Durability, NewRecord, ProgressDelta, QueueRef, TopicInfo
from ddmq_common.clock import SystemClock
from tests.support.kafka import broker
from tests.support.waits import done, soon, until

TOPICS = {"orders": 4, "moved": 1}
_names = itertools.count(1)


def options(**rest: Any) -> KafkaOptions:
    """Return options of a new installation."""
    name = f"s{secrets.token_hex(4)}-{next(_names)}"
    return KafkaOptions(broker(), namespace=name, topic_prefix=f"{name}.", **rest)


class StatedTopics(TopicRegistry):
    """Topics that exist only in this registry; a record is only its bytes."""

    def __init__(self, options: KafkaOptions, infos: Mapping[str, TopicInfo]) -> None:
        super().__init__(options.names)
        for name, info in infos.items():
            self.topics[name] = KafkaTopic(info, self.kafka_name(name), Durability.WRITTEN, 1_000_000, b"id")

    def to_producer_record(self, record: NewRecord) -> ProducerRecord:
        return ProducerRecord(self.kafka_name(record.topic), record.queue_id, None, record.delivery)


class ProcessKit:
    """The Kafka engine of one process; several may be on one hub."""

    def __init__(self, options: KafkaOptions, topics: Mapping[str, int] | None = None) -> None:
        self.options = options
        self.infos = {
            name: TopicInfo(name, 7, queues, Durability.WRITTEN)
            for name, queues in (topics or TOPICS).items()
        }
        self.changed: list[str] = []
        self.bridge = Bridge()
        self.stalled: list[Callable[[], None]] | None = None  # while set, commits with records wait here
        table = StatedTopics(options, self.infos)
        self.process = KafkaProcess(
            options,
            self.bridge,
            SystemClock(),
            table,
            self._when_appended,
            self.changed.append,
            self.changed.append,
        )
        self.state, self.commits = self.process.state, self.process.commits
        self.members = self.process.members

    def _when_appended(self, queues: object, then: Callable[[], None]) -> None:
        if self.stalled is None:
            then()
        else:
            self.stalled.append(then)

    def _kafka_name(self, topic: str) -> str:
        return self.options.names.to_kafka(topic)

    def make_topics(self) -> None:
        """Create the topics in Kafka, too, for records."""
        admin = AdminClient({"bootstrap.servers": self.options.bootstrap})
        new_topics = [NewTopic(self._kafka_name(name), info.queues, 1) for name, info in self.infos.items()]
        for answer in admin.create_topics(new_topics).values():
            answer.result()

    def queue(self, number: int = 0, topic: str = "orders") -> QueueRef:
        return QueueRef(topic, 7, number)

    def commit(
        self,
        records: Sequence[NewRecord] = (),
        progress: Sequence[ProgressDelta] = (),
        settings: dict[str, bytes | None] | None = None,
        absent: Sequence[str] = (),
    ) -> Any:
        return self.commits.commit(CommitBatch(records, progress, settings or {}, absent), soon())

    def ready(self) -> ProcessKit:
        until(lambda: self.state.ready and self.commits.name, "ready")
        return self

    def close(self) -> None:
        self.process.close()
        self.bridge.close()


class QueueOwner:
    """A listener that records its calls; it releases revoked queues at once, unless `lazy`."""

    def __init__(
        self, kit: ProcessKit, group: str = "g", topic: str = "orders", lazy: bool = False, **terms: Any
    ) -> None:
        self.owned: dict[QueueRef, int] = {}
        self.lost_so_far: list[QueueRef] = []
        self.losses = 0
        self._lazy = lazy
        self.membership = kit.members.join(Join(group, topic, **terms), self)

    @property
    def numbers(self) -> list[int]:
        return sorted(queue.queue_id for queue in self.owned)

    def assigned(self, assignment: Assignment) -> None:
        self.owned.update(dict.fromkeys(assignment.queues, assignment.epoch))

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        if not self._lazy:
            self._drop(queues)
            self.membership.release(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self.losses += 1
        self.lost_so_far += queues
        self._drop(queues)

    def _drop(self, queues: Sequence[QueueRef]) -> None:
        for queue in queues:
            self.owned.pop(queue, None)


__all__ = ["TOPICS", "ProcessKit", "QueueOwner", "Sharing", "done", "options"]
