"""One topic: its state in Kafka and the settings stored beside it; and the table of all topics. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from backend.kafka.options import Names, incarnation_of
from backend.kafka.records import ProducerRecord, encode, size_in_kafka
from backend.kafka.targets import UnavailableTopics
from backend.records import Durability, NewRecord, QueueRef, TopicInfo
from ddmq_common.errors import CallerError, UnknownTopicError
from ddmq_common.names import COMPACTED_TOPICS


class ClusterTopic(NamedTuple):
    """A topic's properties in Kafka, as read from the cluster."""

    kafka_name: str
    topic_id: str
    partitions: int
    replicas: int
    message_bytes_max: int
    flushed: bool  # each message is synced before it is answered
    unlimited: bool = True  # no retention by age or size; also where this user may not see that
    min_insync: int | None = None  # None, also of the next: this user may not see it
    retention_ms: int | None = None
    compacted: bool = (
        True  # the last record of each key stays for ever; also where this user may not see that
    )
    keyed: bool = False  # it is compacted, or also: Kafka takes no record without a key
    writable: bool = True  # Kafka's access control lets this user write to it, as far as can be seen


class StoredInfo(msgspec.Struct, forbid_unknown_fields=False, omit_defaults=True):
    """The settings of a topic that Kafka has no equivalent for, as stored in the settings topic."""

    incarnation: int
    durability: int = Durability.DURABLE
    readable: bool = True
    writable: bool = True
    delay: str = "both"
    body_bytes_max: int | None = None
    source: str = "log"
    delay_dialects: tuple[str, ...] = ()
    changes: int = 0  # how often Kafka's own settings were changed here: other processes notice it by that


class KafkaTopic(NamedTuple):
    """An existing topic, as this process uses it."""

    info: TopicInfo
    kafka_name: str
    durability: Durability  # that an answered append has
    message_bytes_max: int
    topic_id: bytes
    keyed: bool = False
    writable: bool = True


class TopicRegistry:
    """The existing topics that this process knows, by our names. KafkaTopics keeps it up to date."""

    def __init__(self, names: Names, now: Callable[[], float] = time.monotonic) -> None:
        self._names = names
        self.topics: dict[str, KafkaTopic] = {}
        self.unavailable = UnavailableTopics(now)
        self.leaderless: frozenset[tuple[str, int]] = frozenset()  # partitions, by Kafka's names of topics

    def find_topic(self, name: str) -> KafkaTopic | None:
        """Return the topic named `name`, or None."""
        return self.topics.get(name)

    def find_queue_topic(self, queue: QueueRef) -> KafkaTopic | None:
        """Return the topic of a queue; None if the queue, its topic or incarnation does not exist."""
        topic = self.topics.get(queue.topic)
        if (
            topic is None
            or topic.info.incarnation != queue.incarnation
            or not 0 <= queue.queue_id < topic.info.queues
        ):
            return None
        return topic

    def rejection_of(self, record: NewRecord) -> Exception | None:
        """Return the error with which a record must be rejected, or None."""
        topic = self.topics.get(record.topic)
        if topic is None:
            return UnknownTopicError(f"topic {record.topic} does not exist")
        return rejection_of(record, topic)

    def incarnation_and_queues(self, name: str) -> tuple[int, int]:
        """Return the topic's incarnation and how many queues it has; (0, 0) if it does not exist."""
        topic = self.topics.get(name)
        return (0, 0) if topic is None else (topic.info.incarnation, topic.info.queues)

    def name_of(self, kafka_name: str) -> str | None:
        """Return our name of a topic in Kafka; None if it is one of the system's own, or not admitted."""
        return self._names.from_kafka(kafka_name)

    def min_insync(self, kafka_name: str) -> int:
        """Return how many replicas of a topic must be in sync to write to it; 0 if that is unknown."""
        topic = self.topics.get(self.name_of(kafka_name) or "")
        return 0 if topic is None else topic.info.min_insync or 0

    def kafka_name(self, name: str) -> str:
        """Return the name in Kafka of our topic `name`."""
        topic = self.topics.get(name)
        return self._names.to_kafka(name) if topic is None else topic.kafka_name

    def durability_of(self, name: str) -> Durability:
        """Return the durability of an acknowledged append to the topic."""
        topic = self.topics.get(name)
        return Durability.WRITTEN if topic is None else topic.durability

    def to_producer_record(self, record: NewRecord) -> ProducerRecord:
        """Convert a record for a producer; an empty value becomes a tombstone in a compacted topic."""
        key, value, headers = encode(record)
        stored_value = value or None if record.topic in COMPACTED_TOPICS else value
        return ProducerRecord(self.kafka_name(record.topic), record.queue_id, key, stored_value, headers)


_decode_info = msgspec.json.Decoder(StoredInfo).decode


def encode_info(info: TopicInfo, changes: int = 0) -> bytes:
    """Encode the topic settings that Kafka has no equivalent for, to be stored in the settings topic.

    `changes`: how often Kafka's own settings of the topic were changed; other processes describe the topic
    again when it increases.
    """
    fields = {name: getattr(info, name) for name in StoredInfo.__struct_fields__ if name != "changes"}
    fields["durability"] = int(info.durability)
    return msgspec.json.encode(StoredInfo(**fields, changes=changes))


def decode_info(data: bytes | None) -> StoredInfo | None:
    """Decode the stored settings of a topic; None if there are none or they cannot be decoded."""
    if data is None:
        return None
    try:
        return _decode_info(data)
    except msgspec.MsgspecError:
        return None


def kafka_settings(info: TopicInfo) -> dict[str, str]:
    """Return the Kafka topic settings that `info` requires."""
    settings = {"min.insync.replicas": info.min_insync, "retention.ms": info.retention_ms}
    return {name: str(value) for name, value in settings.items() if value is not None}


def to_kafka_topic(name: str, described: ClusterTopic, stored: bytes | None) -> KafkaTopic:
    """Combine the cluster's description of a topic with its stored settings."""
    incarnation = incarnation_of(described.topic_id)
    durability = Durability.WRITTEN
    if described.replicas >= 2:
        durability = Durability.REPLICATED
    elif described.flushed:
        durability = Durability.DURABLE
    info = TopicInfo(name, incarnation, described.partitions, durability)
    settings = decode_info(stored)
    if settings is not None and settings.incarnation == incarnation:
        info = TopicInfo(
            name, incarnation, described.partitions, Durability(settings.durability), settings.readable,
            settings.writable, settings.delay, settings.body_bytes_max, settings.source,
            settings.delay_dialects,
        )  # fmt: skip
    info = replace(
        info,
        replication_factor=described.replicas,
        min_insync=described.min_insync,
        retention_ms=described.retention_ms,
    )
    return KafkaTopic(
        info, described.kafka_name, durability, described.message_bytes_max, described.topic_id.encode(),
        described.keyed, described.writable,
    )  # fmt: skip


def rejection_of(record: NewRecord, topic: KafkaTopic) -> CallerError | None:
    """Return the error with which a record for the existing topic must be rejected, or None."""
    name = record.topic
    if not 0 <= record.queue_id < topic.info.queues:
        queues = f"it has 0 to {topic.info.queues - 1}"
        return UnknownTopicError(f"topic {name} has no queue {record.queue_id}; {queues}")
    if not topic.info.writable:
        return CallerError(f"topic {name} is not writable")
    if not topic.writable:
        remedy = f"allow it Write on topic {topic.kafka_name} (kafka-acls.sh)"
        return CallerError(f"topic {name}: Kafka's access control lets this user not write to it; {remedy}")
    if topic.keyed and not record.key:
        reason = "Kafka keeps the last record of each key there (cleanup.policy has compact)"
        return CallerError(f"topic {name}: a message without a key; {reason} and takes none without one")
    try:
        size = size_in_kafka(record, topic.message_bytes_max)
    except CallerError as error:
        return error
    if size > topic.message_bytes_max:
        bound = f"Kafka takes at most {topic.message_bytes_max} there (max.message.bytes)"
        return CallerError(f"topic {name}: a record of {size} bytes; {bound}")
    return None
