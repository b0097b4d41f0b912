"""One topic: its state in Kafka, and the settings that are stored beside it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import msgspec

from backend.kafka.options import incarnation
from backend.kafka.records import size_in_kafka
from backend.records import Durability, NewRecord, TopicInfo
from ddmq_common.errors import CallerError, UnknownTopicError


class FoundTopic(NamedTuple):
    """One topic as the cluster has it."""

    kafka_name: str
    topic_id: str
    partitions: int
    replicas: int
    message_bytes_max: int
    flushed: bool  # each message is synced before it is answered
    kept: bool = True  # nothing in it goes by age or size; also where this user may not see that
    min_insync: int | None = None  # None, also of the next: this user may not see it
    retention_ms: int | None = None
    compacted: bool = (
        True  # of each key the last record stays, for ever; also where this user may not see that
    )
    keyed: bool = False  # it is compacted, or also: Kafka takes no record without a key
    writes: bool = True  # Kafka's access control lets this user write to it, as far as can be seen


class StoredInfo(msgspec.Struct, forbid_unknown_fields=False, omit_defaults=True):
    """What Kafka does not know of a topic, as it is kept."""

    incarnation: int
    durability: int = Durability.DURABLE
    readable: bool = True
    writable: bool = True
    delay: str = "both"
    body_bytes_max: int | None = None
    source: str = "log"
    delay_dialects: tuple[str, ...] = ()
    changes: int = 0  # how often Kafka's own settings were changed here: others hear of it by that


class KafkaTopic(NamedTuple):
    """One living topic."""

    info: TopicInfo
    kafka_name: str
    durability: Durability  # that an answered append has
    message_bytes_max: int
    topic_id: bytes
    keyed: bool = False
    writes: bool = True


_decode_info = msgspec.json.Decoder(StoredInfo).decode


def stored_bytes(info: TopicInfo, changes: int = 0) -> bytes:
    """What is kept of a topic."""
    fields = {name: getattr(info, name) for name in StoredInfo.__struct_fields__ if name != "changes"}
    fields["durability"] = int(info.durability)
    return msgspec.json.encode(StoredInfo(**fields, changes=changes))


def kafka_settings(info: TopicInfo) -> dict[str, str]:
    """What is asked for of Kafka's own settings."""
    asked = {"min.insync.replicas": info.min_insync, "retention.ms": info.retention_ms}
    return {name: str(value) for name, value in asked.items() if value is not None}


def topic_of(name: str, found: FoundTopic, kept: bytes | None) -> KafkaTopic:
    """The topic from what Kafka says and what is kept."""
    number = incarnation(found.topic_id)
    reached = Durability.WRITTEN
    if found.replicas >= 2:
        reached = Durability.REPLICATED
    elif found.flushed:
        reached = Durability.DURABLE
    info = TopicInfo(name, number, found.partitions, reached)
    known = kept_info(kept)
    if known is not None and known.incarnation == number:
        info = TopicInfo(
            name, number, found.partitions, Durability(known.durability), known.readable, known.writable,
            known.delay, known.body_bytes_max, known.source, known.delay_dialects,
        )  # fmt: skip
    info = replace(
        info,
        replication_factor=found.replicas,
        min_insync=found.min_insync,
        retention_ms=found.retention_ms,
    )
    return KafkaTopic(
        info, found.kafka_name, reached, found.message_bytes_max, found.topic_id.encode(), found.keyed,
        found.writes,
    )  # fmt: skip


def refusal_of(record: NewRecord, topic: KafkaTopic) -> CallerError | None:
    """Why a record is not taken; its topic is there."""
    name = record.topic
    if not 0 <= record.queue_id < topic.info.queues:
        has = f"it has 0 to {topic.info.queues - 1}"
        return UnknownTopicError(f"topic {name} has no queue {record.queue_id}; {has}")
    if not topic.info.writable:
        return CallerError(f"topic {name} is not writable")
    if not topic.writes:
        wanted = f"allow it Write on topic {topic.kafka_name} (kafka-acls.sh)"
        return CallerError(f"topic {name}: Kafka's access control lets this user not write to it; {wanted}")
    if topic.keyed and not record.key:
        kept = "Kafka keeps the last record of each key there (cleanup.policy has compact)"
        return CallerError(f"topic {name}: a message without a key; {kept} and takes none without one")
    try:
        size = size_in_kafka(record, topic.message_bytes_max)
    except CallerError as error:
        return error
    if size > topic.message_bytes_max:
        takes = f"Kafka takes at most {topic.message_bytes_max} there (max.message.bytes)"
        return CallerError(f"topic {name}: a record of {size} bytes; {takes}")
    return None


def kept_info(kept: bytes | None) -> StoredInfo | None:
    """What is kept, where there is something that can be read."""
    if kept is None:
        return None
    try:
        return _decode_info(kept)
    except msgspec.MsgspecError:
        return None
