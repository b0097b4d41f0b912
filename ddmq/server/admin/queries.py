"""Questions of people to a running server, answered from the backend port as plain data.

The admin API serves these; the web console will serve the same. Nothing here changes anything.
Times are wall-clock milliseconds, sizes bytes. Each call may wait on the backend, so it runs in a
greenlet, never on the hub.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import islice
from typing import Any

from backend.port import Backend
from backend.records import Bounds, QueueRef, ReadStatus, StoredRecord, TopicInfo
from ddmq.server.config import DURABILITY_WORDS
from ddmq.server.http.pace import breathe, paced
from ddmq.server.http.routing import WHOLE, Page
from ddmq_common import delivery, names
from ddmq_common.errors import CallerError, NoSuchTopicError

WAIT_S = 10.0
FIND_MAX = 1_000
READ_BYTES_MAX = 4 << 20
READ_S_PER_BYTE = 1.5e-9  # processor time that the backend takes
FIND_S = 2e-4  # the same, for one topic
TOPICS_AT_ONCE = 16
ANSWER_BYTES_MAX = 4 << 20  # of messages in one answer; a single one comes whole
LOOK_BYTES_MAX = 64 << 20  # that are held to choose those of a listing from


def queues_of(info: TopicInfo) -> list[QueueRef]:
    """Return all queues of one topic."""
    return [QueueRef(info.name, info.incarnation, queue_id) for queue_id in range(info.queues)]


def known_topic(backend: Backend, name: str) -> TopicInfo:
    """Return the topic. Raises NoSuchTopicError that says how to see what there is."""
    info = backend.topic(name)
    if info is None:
        raise NoSuchTopicError(f"topic {name!r} does not exist; `ddmq topic list` shows those that do")
    return info


def topic_row(info: TopicInfo) -> dict[str, Any]:
    """Return a topic's settings."""
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


def topics(backend: Backend, *, internal: bool, page: Page = WHOLE) -> list[dict[str, Any]]:
    """Return every topic with its message count, by name."""
    some = [info for info in backend.topics().values() if internal or not names.is_internal(info.name)]
    infos = page.of(some, lambda info: info.name)
    found: list[dict[str, Any]] = []
    for start in paced(range(0, len(infos), TOPICS_AT_ONCE)):
        some = infos[start : start + TOPICS_AT_ONCE]
        bounds = iter(backend.bounds([queue for info in some for queue in queues_of(info)]).wait(WAIT_S))
        found += [_with_messages(info, list(islice(bounds, info.queues))) for info in some]
    return found


def _with_messages(info: TopicInfo, bounds: Sequence[Bounds | None]) -> dict[str, Any]:
    known = [b for b in bounds if b is not None]
    return topic_row(info) | {
        "messages": sum(b.next - b.min for b in known),
        "stored": sum(b.next for b in known),
    }


def topic_detail(backend: Backend, name: str) -> dict[str, Any]:
    """Return one topic with each queue's bounds."""
    info = known_topic(backend, name)
    queues = queues_of(info)
    rows = [
        {"queue": queue.queue_id, "min": b.min, "next": b.next, "messages": b.next - b.min}
        for queue, b in zip(queues, backend.bounds(queues).wait(WAIT_S), strict=True)
        if b is not None
    ]
    return topic_row(info) | {"messages": sum(int(row["messages"]) for row in rows), "by_queue": rows}


def message_row(record: StoredRecord, bytes_max: int | None = None) -> dict[str, Any]:
    """Return a stored message as people and programs read it; a body that is not UTF-8 comes in base64.

    With `bytes_max` key, tags, properties and body together are cut to that, which `cut` says.
    """
    content = delivery.decode(record.delivery)
    left = _ByteBudget(bytes_max)
    row: dict[str, Any] = {
        "id": record.message_id.hex(),
        "topic": record.topic,
        "queue": record.queue_id,
        "offset": record.offset,
        "position": record.position,
        "key": left.text(content.key),
        "tags": left.text(content.tag),
        "properties": {
            left.text(name): left.text(value) for name, value in content.properties.items() if left.is_left
        },
        "born_ms": record.born_ms,
        "stored_ms": record.stored_ms,
        "body_bytes": len(content.value),
    }
    row |= body_fields(left.body(content.value))
    return row | ({"cut": True} if left.cut else {})


class _ByteBudget:
    """The bytes of a message that a row may still hold; None: all."""

    def __init__(self, bytes_max: int | None) -> None:
        self._left = bytes_max
        self.cut = False

    @property
    def is_left(self) -> bool:
        self.cut = self.cut or self._left == 0
        return self._left != 0

    def text(self, value: bytes) -> str:
        return self._taken(value).decode("utf-8", "replace")

    def body(self, value: bytes) -> bytes:
        """A text is cut between two characters."""
        taken = self._taken(value)
        if len(taken) == len(value):
            return value
        start = len(taken)
        while start and len(taken) - start < 3 and value[start] & 0xC0 == 0x80:
            start -= 1
        return taken[:start]

    def _taken(self, value: bytes) -> bytes:
        if self._left is None:
            return value
        taken = value[: self._left]
        self._left -= len(taken)
        self.cut = self.cut or len(taken) < len(value)
        return taken


def body_fields(value: bytes) -> dict[str, str]:
    """Return a whole body: `body`, or `body_base64` where it is not UTF-8."""
    try:
        return {"body": value.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(value).decode()}


def read(
    backend: Backend, queue: QueueRef, offset: int, count: int, bytes_max: int, *, held: int | None = None
) -> list[StoredRecord]:
    """Read up to `count` records of one queue from `offset` on (clamped to what is readable).

    Ends at `bytes_max`, with one record at least; with `held`, bytes of others, it raises CallerError there.
    """
    bounds = backend.bounds([queue]).wait(WAIT_S)[0]
    if bounds is None:
        return []
    found: list[StoredRecord] = []
    at, size = max(offset, bounds.min), held or 0
    while len(found) < count:
        batch = backend.read(queue, at, count - len(found), READ_BYTES_MAX).wait(WAIT_S)
        if batch.status is not ReadStatus.DATA:
            break
        for index in range(len(batch.offsets)):
            record = batch.record(index)
            size += len(record.delivery)
            if size > bytes_max and held is not None:
                raise too_much()
            if size > bytes_max and found:
                return found
            found.append(record)
        breathe(sum(map(len, batch.deliveries)) * READ_S_PER_BYTE)
        at = batch.next_offset
    return found


def too_much() -> CallerError:
    """Return the error that says how to ask for less."""
    return CallerError(
        f"these messages have more than {LOOK_BYTES_MAX >> 20} MiB together; ask for fewer with count, or "
        "for a part of them with queue and offset"
    )


def find_by_id(backend: Backend, topic: str | None, message_id: str) -> list[StoredRecord]:
    """Find a message by the 32 hex digits of its id; without a topic in all, those of the system last."""
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
        breathe(FIND_S)
        if found:
            return found
    return []


def find_by_key(backend: Backend, topic: str, key: str, count: int) -> list[StoredRecord]:
    """Find messages by their key, newest first."""
    known_topic(backend, topic)
    if not count:
        return []
    most, wanted = backend.capabilities.body_bytes_max, 0
    found: list[StoredRecord] = []
    while wanted < min(count, FIND_MAX) and len(found) == wanted:
        room = LOOK_BYTES_MAX - sum(len(record.delivery) for record in found)
        if room < most and found:
            raise too_much()
        wanted = min(count, FIND_MAX, wanted + max(1, room // most))
        found = backend.find(topic, key=key.encode(), count_max=wanted).wait(WAIT_S)
    return found


def find_by_offset(
    backend: Backend, topic: str, queue_id: int, offset: int, count: int
) -> list[StoredRecord]:
    """Read on from one offset of one queue, as much as fits into an answer; the next one is where to go
    on."""
    info = known_topic(backend, topic)
    if not 0 <= queue_id < info.queues:
        raise NoSuchTopicError(f"topic {topic!r} has no queue {queue_id}; it has 0 to {info.queues - 1}")
    return read(backend, queues_of(info)[queue_id], offset, min(count, FIND_MAX), ANSWER_BYTES_MAX)


def find_by_time(backend: Backend, topic: str, wall_ms: int, count: int) -> list[StoredRecord]:
    """Find the first messages stored at or after `wall_ms`, over all queues, oldest first."""
    count = min(count, FIND_MAX)
    found: list[StoredRecord] = []
    for queue in queues_of(known_topic(backend, topic)):
        offset = backend.offset_for_time(queue, wall_ms).wait(WAIT_S)
        found += read(backend, queue, offset, count, LOOK_BYTES_MAX, held=_bytes(found))
        found = sorted(found, key=_when)[:count]
    return found


def newest(backend: Backend, topic: str, count: int) -> list[StoredRecord]:
    """Read the last `count` messages (at most FIND_MAX) of a topic, oldest first."""
    count = min(count, FIND_MAX)
    queues: Sequence[QueueRef] = queues_of(known_topic(backend, topic))
    bounds = backend.bounds(queues).wait(WAIT_S)
    found: list[StoredRecord] = []
    for queue, b in zip(queues, bounds, strict=True):
        if b is not None and count:
            first = max(b.min, b.next - count)
            found += read(backend, queue, first, count, LOOK_BYTES_MAX, held=_bytes(found))
            found = sorted(found, key=_when)[-count:]
    return found


def _when(record: StoredRecord) -> tuple[int, int]:
    return record.stored_ms, record.position


def _bytes(records: Sequence[StoredRecord]) -> int:
    return sum(len(record.delivery) for record in records)
