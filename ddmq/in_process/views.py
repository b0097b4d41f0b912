"""The content of an InProcessServer as plain values: messages, dead letters, delayed messages, retries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backend.internal_topics import REAL_TOPIC, read_dead_letter
from backend.port import Backend
from backend.records import StoredRecord
from ddmq_client.idl.codes import FROM_CHRONOS
from ddmq_common.delivery import decode
from ddmq_common.names import SCHEDULE_TOPIC, dlq_topic, is_internal, retry_topic
from delay_service.core.held_messages import plain_due_ms
from delay_service.service import DelayService
from delay_service.store.port import Pending, Scan
from proxy_consumer.retries.headers import headers_of

PAGE, PAGE_BYTES = 1_000, 1 << 30
WAIT_S = 1.0
END_MS = 1 << 62


def read_records(backend: Backend, topic: str) -> Iterator[StoredRecord]:
    """Yield the records of a topic, queue by queue."""
    info = backend.topic(topic)
    for queue in [] if info is None else info.refs():
        offset = 0
        while True:
            batch = backend.read(queue, offset, PAGE, PAGE_BYTES).wait(WAIT_S)
            yield from (batch.record(index) for index in range(len(batch.offsets)))
            if not batch.offsets:
                break
            offset = batch.next_offset


def list_messages(backend: Backend, topic: str) -> list[dict[str, Any]]:
    """Return the messages of a topic as a client sees them, in the order in which they were stored."""
    rows = [message_row(record) for record in read_records(backend, topic)]
    return sorted(rows, key=lambda row: row.pop("position"))


def message_row(record: StoredRecord) -> dict[str, Any]:
    """Return one message as a dict: its place, key, tags, body and properties."""
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "offset": record.offset,
        "message_id": record.message_id.hex(),
        "stored_ms": record.stored_ms,
        "position": record.position,
        **content_row(record.delivery),
    }


def content_row(delivery: bytes) -> dict[str, Any]:
    """Return key, tags, body and properties of delivery bytes."""
    content = decode(bytes(delivery))
    return {
        "key": content.key.decode() or None,
        "tags": content.tag.decode() or None,
        "body": bytes(content.value),
        "properties": {
            name.decode(): text.decode("utf-8", "replace")
            for name, text in content.properties.items()
            if name != FROM_CHRONOS.encode()  # the system adds it to a delayed message
        },
    }


def list_dead_letters(backend: Backend, group: str) -> list[dict[str, Any]]:
    """Return the dead letters of a group, oldest first."""
    rows = []
    for record in read_records(backend, dlq_topic(group)):
        dead_letter = read_dead_letter(record)
        row = content_row(record.delivery)
        row["properties"] = {
            name: text for name, text in row["properties"].items() if not name.startswith("dead-letter-")
        }
        rows.append(
            row
            | {
                "group": group,
                "topic": dead_letter.topic,
                "queue_id": dead_letter.queue_id,
                "offset": dead_letter.offset,
                "message_id": record.message_id.hex(),
                "reason": dead_letter.reason,
                "error": dead_letter.error,
                "attempts": dead_letter.attempts,
                "died_ms": dead_letter.time_ms,
            }
        )
    return rows


def list_delays(service: DelayService) -> list[dict[str, Any]]:
    """Return the delayed messages that are not due yet, in the order of their due times."""
    everything = Scan(None, 0, END_MS, PAGE * PAGE, None, PAGE_BYTES)
    waiting: list[Pending] = []
    for shard in service.shards.values():
        if shard.store is not None:
            waiting += shard.store.scan(everything)
    return [
        {"topic": message.topic, "due_ms": plain_due_ms(message.due_ms), **content_row(message.delivery)}
        for message in sorted(waiting, key=lambda message: plain_due_ms(message.due_ms))
    ]


def count_retries(backend: Backend, positions: dict[int, int], group: str, topic: str) -> int:
    """Count the messages of a topic that wait in the delay levels for their retry in this group.

    `positions`: by level queue, the offset below which it has fired."""
    records = read_records(backend, SCHEDULE_TOPIC)
    return sum(
        record.system.get(REAL_TOPIC) == retry_topic(group)
        and record.offset >= positions.get(record.queue_id, 0)
        and headers_topic(record) == topic
        for record in records
    )


def headers_topic(record: StoredRecord) -> str:
    """Return the topic that a retried message was sent to."""
    return record.system.get("RETRY_TOPIC", "") or headers_of(record).topic


def application_topics(backend: Backend) -> list[str]:
    """Return the names of all topics except ddmq's internal ones, sorted."""
    return sorted(name for name in backend.topics() if not is_internal(name))
