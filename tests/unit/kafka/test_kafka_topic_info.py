"""What is known of a topic: from Kafka, and from what is kept beside it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from backend.kafka.errors import is_unknown_topic, to_ddmq_error, to_undelivered_result
from backend.kafka.options import incarnation_of
from backend.kafka.topic_info import (
    ClusterTopic,
    decode_info,
    encode_info,
    kafka_settings,
    rejection_of,
    to_kafka_topic,
)
from backend.records import AppendStatus, Durability, NewRecord, TopicInfo
from ddmq_common.delivery import encode
from ddmq_common.errors import (
    CallerError,
    DdmqError,
    RemoteError,
    StorageError,
    TryLaterError,
    UnknownTopicError,
)

OTHER_RECORD_INVALID = -138  # as librdkafka numbers it: not this record, but one of its batch
DESCRIBED = ClusterTopic("orders", "id-1", 4, 1, 1_000_000, False)
INFO = TopicInfo(
    "orders",
    incarnation_of("id-1"),
    4,
    Durability.REPLICATED,
    False,
    False,
    "only",
    77,
    "x.yaml",
    ("amq",),
    1,
)


def test_a_topic_of_others_has_what_all_have() -> None:
    topic = to_kafka_topic("orders", DESCRIBED, None)
    assert topic.info == TopicInfo(
        "orders", incarnation_of("id-1"), 4, Durability.WRITTEN, replication_factor=1
    )
    assert (topic.kafka_name, topic.topic_id, topic.message_bytes_max) == ("orders", b"id-1", 1_000_000)


def test_stored_settings_of_a_topic_are_decoded() -> None:
    assert to_kafka_topic("orders", DESCRIBED, encode_info(INFO)).info == INFO
    assert to_kafka_topic("orders", DESCRIBED._replace(partitions=9), encode_info(INFO)).info == replace(
        INFO, queues=9
    )


def test_stored_settings_of_an_earlier_incarnation_do_not_count() -> None:
    described = DESCRIBED._replace(topic_id="id-2")
    assert to_kafka_topic("orders", described, encode_info(INFO)) == to_kafka_topic("orders", described, None)


@pytest.mark.parametrize("stored", [None, b"", b"{", b'{"incarnation":"x"}'])
def test_what_cannot_be_read_does_not_count(stored: bytes | None) -> None:
    assert decode_info(stored) is None
    assert to_kafka_topic("orders", DESCRIBED, stored) == to_kafka_topic("orders", DESCRIBED, None)


def test_settings_of_kafkas_are_what_kafka_says() -> None:
    described = DESCRIBED._replace(replicas=3, min_insync=2, retention_ms=-1)
    requested = replace(INFO, replication_factor=1, min_insync=1, retention_ms=60_000)
    info = to_kafka_topic("orders", described, encode_info(requested)).info
    assert (info.replication_factor, info.min_insync, info.retention_ms) == (3, 2, -1)
    assert kafka_settings(requested) == {"min.insync.replicas": "1", "retention.ms": "60000"}
    assert kafka_settings(INFO) == {}


def test_stored_settings_count_the_changes_of_kafkas_settings() -> None:
    assert encode_info(INFO, 1) != encode_info(INFO)
    stored = decode_info(encode_info(INFO, 7))
    assert stored is not None
    assert stored.changes == 7


def test_what_a_later_release_keeps_is_passed_over() -> None:
    stored = encode_info(INFO)[:-1] + b',"later":1}'
    assert to_kafka_topic("orders", DESCRIBED, stored).info == INFO


@pytest.mark.parametrize(
    ("replicas", "flushed", "reached"),
    [
        (1, False, Durability.WRITTEN),
        (1, True, Durability.DURABLE),
        (2, False, Durability.REPLICATED),
        (3, True, Durability.REPLICATED),
    ],
)
def test_the_answer_says_what_it_is(replicas: int, flushed: bool, reached: Durability) -> None:
    described = DESCRIBED._replace(replicas=replicas, flushed=flushed)
    assert to_kafka_topic("orders", described, encode_info(INFO)).durability is reached


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, AppendStatus.REFUSED, CallerError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, AppendStatus.REFUSED, UnknownTopicError),
        (KafkaError.INVALID_RECORD, AppendStatus.REFUSED, CallerError),
        (OTHER_RECORD_INVALID, AppendStatus.NOT_STORED, TryLaterError),
        (KafkaError.NOT_ENOUGH_REPLICAS, AppendStatus.NOT_STORED, TryLaterError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AppendStatus.NOT_STORED, StorageError),
        (KafkaError._PURGE_QUEUE, AppendStatus.UNKNOWN, RemoteError),
        (KafkaError._MSG_TIMED_OUT, AppendStatus.UNKNOWN, RemoteError),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, AppendStatus.UNKNOWN, DdmqError),
    ],
)
def test_what_became_of_a_record(code: int, status: AppendStatus, kind: type[Exception]) -> None:
    result = to_undelivered_result(KafkaError(code), "orders", 2_000, 1_000)
    assert (result.status, result.offset) == (status, -1)
    assert isinstance(result.error, kind)
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        assert "2000" in str(result.error)
        assert "1000" in str(result.error)


def test_errors_keep_kafka_s_reason() -> None:
    error = KafkaException(KafkaError(KafkaError.TOPIC_EXCEPTION, "no such luck"))
    assert "no such luck" in str(to_ddmq_error(error, "topic x"))
    assert is_unknown_topic(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    assert not is_unknown_topic(ValueError())
    bug = ValueError("a bug")
    assert to_ddmq_error(bug, "topic x") is bug


def record(size: int = 1, key: bytes = b"", queue_id: int = 0, **terms: Any) -> NewRecord:
    return NewRecord("orders", queue_id, bytes(16), 1, encode(key, b"x" * size, b"", None), key, **terms)


@pytest.mark.parametrize(
    ("described", "sent", "reason"),
    [
        (DESCRIBED, record(), None),
        (DESCRIBED, record(queue_id=4), "no queue 4"),
        (DESCRIBED._replace(message_bytes_max=1_000), record(900), "1000 there .max.message.bytes"),
        (DESCRIBED._replace(message_bytes_max=1_000), record(system={"s": "x" * 900}), "1000 there"),
        (DESCRIBED._replace(keyed=True), record(key=b"k"), None),
        (DESCRIBED._replace(keyed=True), record(), "without a key.*compact"),
        (DESCRIBED._replace(writable=False), record(), "access control.*Write on topic orders"),
    ],
)
def test_what_a_topic_does_not_take(described: ClusterTopic, sent: NewRecord, reason: str | None) -> None:
    refused = rejection_of(sent, to_kafka_topic("orders", described, None))
    assert (refused is None) == (reason is None)
    assert reason is None or re.search(reason, str(refused))
