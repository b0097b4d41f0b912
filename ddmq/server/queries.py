"""What people ask of a running server, answered from the backend port as plain data.

The admin API serves these; the web console will serve the same. Nothing here changes anything.
Times are wall-clock milliseconds, sizes bytes. Each call may wait on the backend, so it runs in a
greenlet, never on the hub.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from backend.port import Backend
from backend.records import QueueRef, ReadStatus, StoredRecord, TopicInfo
from ddmq.server.config import DURABILITY_WORDS
from ddmq_common import delivery, names
from ddmq_common.errors import CallerError, NoSuchTopicError

WAIT_S = 10.0
FIND_MAX = 1_000
READ_BYTES_MAX = 4 << 20


def queues_of(info: TopicInfo) -> list[QueueRef]:
    """All queues of one topic."""
    return [QueueRef(info.name, info.incarnation, queue_id) for queue_id in range(info.queues)]


def known_topic(backend: Backend, name: str) -> TopicInfo:
    """The topic, or NoSuchTopicError that says how to see what there is."""
    info = backend.topic(name)
    if info is None:
        raise NoSuchTopicError(f"topic {name!r} does not exist; `ddmq topic list` shows those that do")
    return info


def topic_row(info: TopicInfo) -> dict[str, Any]:
    """A topic's settings."""
    return {
        "topic": info.name,
        "queues": info.queues,
        "durability": DURABILITY_WORDS[info.durability],
        "readable": info.readable,
        "writable": info.writable,
        "delay": info.delay,
        "delay_dialects": list(info.delay_dialects),
        "body_bytes_max": info.body_bytes_max,
        "incarnation": info.incarnation,
        "source": info.source,
        "internal": names.is_internal(info.name),
    }


def topics(backend: Backend, *, internal: bool) -> list[dict[str, Any]]:
    """Every topic with its message count."""
    infos = [info for info in backend.topics().values() if internal or not names.is_internal(info.name)]
    return [_with_messages(backend, info) for info in sorted(infos, key=lambda info: info.name)]


def _with_messages(backend: Backend, info: TopicInfo) -> dict[str, Any]:
    bounds = backend.bounds(queues_of(info)).wait(WAIT_S)
    known = [b for b in bounds if b is not None]
    return topic_row(info) | {
        "messages": sum(b.next - b.min for b in known),
        "stored": sum(b.next for b in known),
    }


def topic_detail(backend: Backend, name: str) -> dict[str, Any]:
    """One topic with each queue's bounds."""
    info = known_topic(backend, name)
    queues = queues_of(info)
    rows = [
        {"queue": queue.queue_id, "min": b.min, "next": b.next, "messages": b.next - b.min}
        for queue, b in zip(queues, backend.bounds(queues).wait(WAIT_S), strict=True)
        if b is not None
    ]
    return topic_row(info) | {"messages": sum(int(row["messages"]) for row in rows), "by_queue": rows}


def message_row(record: StoredRecord, *, body: bool = True) -> dict[str, Any]:
    """One stored message as people and programs read it; a body that is not UTF-8 comes in base64."""
    content = delivery.decode(record.delivery)
    row: dict[str, Any] = {
        "id": record.message_id.hex(),
        "topic": record.topic,
        "queue": record.queue_id,
        "offset": record.offset,
        "position": record.position,
        "key": content.key.decode("utf-8", "replace"),
        "tags": content.tag.decode("utf-8", "replace"),
        "properties": {
            name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for name, value in content.properties.items()
        },
        "born_ms": record.born_ms,
        "stored_ms": record.stored_ms,
        "body_bytes": len(content.value),
    }
    return row | body_fields(content.value) if body else row


def body_fields(value: bytes) -> dict[str, str]:
    """A body whole: `body`, or `body_base64` where it is not UTF-8."""
    try:
        return {"body": value.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(value).decode()}


def read(backend: Backend, queue: QueueRef, offset: int, count: int) -> list[StoredRecord]:
    """Up to `count` records of one queue from `offset` on (clamped to what is readable)."""
    bounds = backend.bounds([queue]).wait(WAIT_S)[0]
    if bounds is None:
        return []
    found: list[StoredRecord] = []
    at = max(offset, bounds.min)
    while len(found) < count:
        batch = backend.read(queue, at, count - len(found), READ_BYTES_MAX).wait(WAIT_S)
        if batch.status is not ReadStatus.DATA:
            break
        found += [batch.record(index) for index in range(len(batch.offsets))]
        at = batch.next_offset
    return found


def find_by_id(backend: Backend, topic: str | None, message_id: str) -> list[StoredRecord]:
    """By the 32 hex digits of a message id; without a topic in all, those of the system last."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise CallerError(f"{message_id!r} is not a message id (32 hex digits)")
    if topic is not None:
        known_topic(backend, topic)
        return backend.find(topic, message_id=raw).wait(WAIT_S)
    for name in sorted(backend.topics(), key=lambda name: (names.is_internal(name), name)):
        found = backend.find(name, message_id=raw).wait(WAIT_S)
        if found:
            return found
    return []


def find_by_key(backend: Backend, topic: str, key: str, count: int) -> list[StoredRecord]:
    """By message key, newest first."""
    known_topic(backend, topic)
    if not count:
        return []
    return backend.find(topic, key=key.encode(), count_max=min(count, FIND_MAX)).wait(WAIT_S)


def find_by_offset(
    backend: Backend, topic: str, queue_id: int, offset: int, count: int
) -> list[StoredRecord]:
    """From one offset of one queue on."""
    info = known_topic(backend, topic)
    if not 0 <= queue_id < info.queues:
        raise NoSuchTopicError(f"topic {topic!r} has no queue {queue_id}; it has 0 to {info.queues - 1}")
    return read(backend, queues_of(info)[queue_id], offset, min(count, FIND_MAX))


def find_by_time(backend: Backend, topic: str, wall_ms: int, count: int) -> list[StoredRecord]:
    """The first messages stored at or after `wall_ms`, over all queues, oldest first."""
    found: list[StoredRecord] = []
    for queue in queues_of(known_topic(backend, topic)):
        offset = backend.offset_for_time(queue, wall_ms).wait(WAIT_S)
        found += read(backend, queue, offset, min(count, FIND_MAX))
    return sorted(found, key=lambda record: (record.stored_ms, record.position))[:count]


def newest(backend: Backend, topic: str, count: int) -> list[StoredRecord]:
    """The last `count` messages of each queue (at most FIND_MAX), oldest first."""
    count = min(count, FIND_MAX)
    queues: Sequence[QueueRef] = queues_of(known_topic(backend, topic))
    bounds = backend.bounds(queues).wait(WAIT_S)
    found: list[StoredRecord] = []
    for queue, b in zip(queues, bounds, strict=True):
        if b is not None:
            found += read(backend, queue, max(b.min, b.next - count), count)
    return sorted(found, key=lambda record: (record.stored_ms, record.position))
