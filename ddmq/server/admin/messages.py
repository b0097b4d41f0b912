"""Messages as an operator finds them: by id, key, offset or time, with their state for one group.

Nothing here changes anything. A message's state for a group: progress says what is finished. A finished
message may have gone on: to the retry path or to the dead letters, where its id finds it. Of an unfinished
one the proxy that holds its queue knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gevent.lock import BoundedSemaphore

from backend.port import Backend
from backend.records import ONE_GROUP, Bounds, ProgressView, QueueRef, ReadStatus, StoredRecord
from ddmq.server.admin.offsets import check_group, is_broadcast
from ddmq.server.admin.topics import WAIT_S, require_topic
from ddmq.server.http.pace import paced, yield_if_long
from ddmq.server.http.routing import AdminRequest
from ddmq_common import delivery, names
from ddmq_common.errors import CallerError, UnknownTopicError, UnsupportedError
from ddmq_common.plain_text import body_fields
from proxy_consumer.groups.group import subscription_key
from proxy_consumer.groups.stats import DONE, LEFT, NOT_YET, RETRYING, LiveState

FIND_MAX = 1_000  # messages in one answer
READ_BYTES_MAX = 4 << 20
READ_S_PER_BYTE = 1.5e-9  # processor time that the backend takes
FIND_S = 2e-4  # the same, for one topic
ANSWER_BYTES_MAX = 4 << 20  # of messages in one answer; a single one comes whole
BACK_MAX = 16_000  # offsets that are looked at for the newest messages of one queue
SEARCH_BYTES_MAX = 64 << 20  # of the messages from which one listing is chosen
STATES_MAX = 100  # messages whose state one request may ask for
DEAD = "dead"
OTHER_GROUP = "resent to another group alone"
EACH_ITS_OWN = "broadcast: every instance has its own place"
Live = Callable[[str, str, QueueRef, int], LiveState | None]


class MessageSearch:
    """Finds messages for the admin API. `live`: returns the state of a message at the consumer proxy; None if
    no proxy runs in this process."""

    def __init__(self, backend: Backend, live: Live | None) -> None:
        self._backend = backend
        self._live = live
        self.lock = BoundedSemaphore()

    def by_id(self, request: AdminRequest) -> Any:
        """Return the message with the id in the path, from any topic: a list of one or none."""
        return self.describe_records(find_by_id(self._backend, None, request.path["id"]), request.query.group)

    def in_topic(self, request: AdminRequest) -> Any:
        """Return messages of a topic. One search runs at a time, because each may hold many messages."""
        with self.lock:
            return self._in_topic(request)

    def _in_topic(self, request: AdminRequest) -> list[dict[str, Any]]:
        topic, query = request.topic, request.query
        count = min(query.count, FIND_MAX)
        by_offset = query.id is None and query.key is None and query.offset is not None
        if query.id is not None:
            records = find_by_id(self._backend, topic, query.id)
        elif query.key is not None:
            records = find_by_key(self._backend, topic, query.key, count)
        elif query.offset is not None:
            records = find_by_offset(self._backend, topic, query.queue, query.offset, count)
        elif query.time_ms is not None:
            records = find_by_time(self._backend, topic, query.time_ms, count)
        else:
            records = find_newest(self._backend, topic, count)
        return self.describe_records(records, query.group, in_full=by_offset)

    def describe_records(
        self, records: Sequence[StoredRecord], group: str | None, *, in_full: bool = False
    ) -> list[dict[str, Any]]:
        """Return a row per message, at most ANSWER_BYTES_MAX in total unless they are wanted in full. With a
        group, each row contains the message's state for that group."""
        share = ANSWER_BYTES_MAX // max(len(records), 1)
        is_complete = len(records) == 1 or in_full
        rows = [message_row(record, None if is_complete else share) for record in paced(records)]
        if group is None:
            return rows
        return MessageStates(self._backend, group, self._live).add(rows, records)


def message_row(record: StoredRecord, bytes_max: int | None = None) -> dict[str, Any]:
    """Return a stored message as a row for people and programs; a body that is not UTF-8 is base64.

    `bytes_max`: key, tags, properties and body are truncated to this size in total, which `cut` states.
    `one_group`: the only group that gets the message, if it was resent to one.
    """
    content = delivery.decode(record.delivery)
    budget = _ByteBudget(bytes_max)
    row: dict[str, Any] = {
        "id": record.message_id.hex(),
        "topic": record.topic,
        "queue": record.queue_id,
        "offset": record.offset,
        "position": record.position,
        "key": budget.text(content.key),
        "tags": budget.text(content.tag),
        "properties": {
            budget.text(name): budget.text(value)
            for name, value in content.properties.items()
            if budget.has_capacity
        },
        "born_ms": record.born_ms,
        "stored_ms": record.stored_ms,
        "body_bytes": len(content.value),
    }
    row |= body_fields(budget.body(content.value))
    if ONE_GROUP in record.system:
        row["one_group"] = record.system[ONE_GROUP]
    return row | ({"cut": True} if budget.is_truncated else {})


class _ByteBudget:
    """The number of bytes of a message that its row may still take up; None means no limit.
    `is_truncated`: something was left out."""

    def __init__(self, bytes_max: int | None) -> None:
        self._remaining = bytes_max
        self.is_truncated = False

    @property
    def has_capacity(self) -> bool:
        self.is_truncated = self.is_truncated or self._remaining == 0
        return self._remaining != 0

    def text(self, value: bytes) -> str:
        return self._take_bytes(value).decode("utf-8", "replace")

    def body(self, value: bytes) -> bytes:
        """Return as much of a body as the budget allows, and subtract it. A text is truncated between
        two characters."""
        head = self._take_bytes(value)
        if len(head) == len(value):
            return value
        start = len(head)
        while start and len(head) - start < 3 and value[start] & 0xC0 == 0x80:
            start -= 1
        return head[:start]

    def _take_bytes(self, value: bytes) -> bytes:
        if self._remaining is None:
            return value
        head = value[: self._remaining]
        self._remaining -= len(head)
        self.is_truncated = self.is_truncated or len(head) < len(value)
        return head


def read(
    backend: Backend,
    queue: QueueRef,
    offset: int,
    count: int,
    bytes_max: int,
    *,
    used_bytes: int | None = None,
) -> list[StoredRecord]:
    """Read up to `count` records of one queue from `offset` on (clamped to the readable range).

    Reading ends before `bytes_max` is exceeded, but after at least one record. With `used_bytes`, the bytes
    that other records of the same answer take up, exceeding `bytes_max` in total raises CallerError instead.
    """
    bounds = backend.bounds([queue]).wait(WAIT_S)[0]
    if bounds is None:
        return []
    records: list[StoredRecord] = []
    at, size = max(offset, bounds.min), used_bytes or 0
    while len(records) < count:
        batch = backend.read(queue, at, count - len(records), READ_BYTES_MAX).wait(WAIT_S)
        if batch.status is not ReadStatus.DATA:
            break
        for index in range(len(batch.offsets)):
            record = batch.record(index)
            size += len(record.delivery)
            if size > bytes_max and used_bytes is not None:
                raise too_much_error()
            if size > bytes_max and records:
                return records
            records.append(record)
        yield_if_long(sum(map(len, batch.deliveries)) * READ_S_PER_BYTE)
        at = batch.next_offset
    return records


def too_much_error() -> CallerError:
    """Return the error for an answer that would be too large; its text says how to request less."""
    return CallerError(
        f"these messages have more than {SEARCH_BYTES_MAX >> 20} MiB together; ask for fewer with count, or "
        "for a part of them with queue and offset"
    )


def find_by_id(backend: Backend, topic: str | None, message_id: str) -> list[StoredRecord]:
    """Find a message by the 32 hex digits of its id. Without a topic, all topics are searched, internal ones
    last."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise CallerError(f"{message_id!r} is not a message id (32 hex digits)")
    if topic is not None:
        require_topic(backend, topic)
        return backend.find(topic, message_id=raw).wait(WAIT_S)
    trace_topics = {names.TRACE_TOPIC}  # what is there is about messages
    for name in sorted(
        backend.topics().keys() - trace_topics, key=lambda name: (names.is_internal(name), name)
    ):
        records = backend.find(name, message_id=raw).wait(WAIT_S)
        yield_if_long(FIND_S)
        if records:
            return records
    return []


def find_by_key(backend: Backend, topic: str, key: str, count: int) -> list[StoredRecord]:
    """Find messages by their key, newest first."""
    require_topic(backend, topic)
    if not count:
        return []
    most, count_max = backend.capabilities.body_bytes_max, 0
    records: list[StoredRecord] = []
    while count_max < min(count, FIND_MAX) and len(records) == count_max:
        free_bytes = SEARCH_BYTES_MAX - sum(len(record.delivery) for record in records)
        if free_bytes < most and records:
            raise too_much_error()
        count_max = min(count, FIND_MAX, count_max + max(1, free_bytes // most))
        records = backend.find(topic, key=key.encode(), count_max=count_max).wait(WAIT_S)
    return records


def find_by_offset(
    backend: Backend, topic: str, queue_id: int, offset: int, count: int
) -> list[StoredRecord]:
    """Read messages of one queue from an offset on, as many as fit into an answer; the caller continues after
    the last one."""
    info = require_topic(backend, topic)
    if not 0 <= queue_id < info.queues:
        raise UnknownTopicError(f"topic {topic!r} has no queue {queue_id}; it has 0 to {info.queues - 1}")
    return read(backend, info.refs()[queue_id], offset, min(count, FIND_MAX), ANSWER_BYTES_MAX)


def find_by_time(backend: Backend, topic: str, wall_ms: int, count: int) -> list[StoredRecord]:
    """Find the first messages stored at or after `wall_ms`, over all queues, oldest first."""
    count = min(count, FIND_MAX)
    records: list[StoredRecord] = []
    for queue in require_topic(backend, topic).refs():
        offset = backend.offset_for_time(queue, wall_ms).wait(WAIT_S)
        records += read(backend, queue, offset, count, SEARCH_BYTES_MAX, used_bytes=_total_bytes(records))
        records = sorted(records, key=_stored_order)[:count]
    return records


def find_newest(backend: Backend, topic: str, count: int) -> list[StoredRecord]:
    """Read the last `count` messages (at most FIND_MAX) of a topic, oldest first."""
    count = min(count, FIND_MAX)
    queues: Sequence[QueueRef] = require_topic(backend, topic).refs()
    bounds = backend.bounds(queues).wait(WAIT_S)
    records: list[StoredRecord] = []
    for queue, b in zip(queues, bounds, strict=True):
        if b is not None and count:
            records += read_last(backend, queue, b, count, _total_bytes(records))
            records = sorted(records, key=_stored_order)[-count:]
    return records


def read_last(
    backend: Backend, queue: QueueRef, bounds: Bounds, count: int, used_bytes: int
) -> list[StoredRecord]:
    """Read the last `count` messages of a queue. If some offsets hold no message, read from further back."""
    back = count
    while True:
        first = max(bounds.min, bounds.next - back)
        count_max = min(back, bounds.next - first)
        records = read(backend, queue, first, count_max, SEARCH_BYTES_MAX, used_bytes=used_bytes)
        records = [record for record in records if record.offset < bounds.next]
        if len(records) >= count or first == bounds.min or back >= BACK_MAX:
            return records[-count:]
        back = min(2 * back, BACK_MAX)


def _stored_order(record: StoredRecord) -> tuple[int, int]:
    return record.stored_ms, record.position


def _total_bytes(records: Sequence[StoredRecord]) -> int:
    return sum(len(record.delivery) for record in records)


class MessageStates:
    """Determines the states of messages for one group, within one request. `live`: returns the state at the
    consumer proxy; None if no proxy runs in this process."""

    def __init__(self, backend: Backend, group: str, live: Live | None) -> None:
        check_group(backend, group)
        self._backend = backend
        self._group = group
        self._live = live
        self._views: dict[tuple[str, QueueRef], ProgressView] = {}

    def add(self, rows: Sequence[dict[str, Any]], records: Sequence[StoredRecord]) -> list[dict[str, Any]]:
        """Return the rows with the message's `state` and its details added."""
        if len(rows) > STATES_MAX:
            raise CallerError(f"{len(rows)} messages with their state are asked for; allowed: {STATES_MAX}")
        return [row | self._message_state(record) for row, record in zip(rows, records, strict=True)]

    def _message_state(self, record: StoredRecord) -> dict[str, Any]:
        key = subscription_key(self._group, record.topic)
        if self._backend.setting(key) is None:
            return {"state": f"{self._group} does not consume {record.topic}"}
        if is_broadcast(self._backend, self._group, record.topic):
            return {"state": EACH_ITS_OWN}
        if record.system.get(ONE_GROUP, self._group) != self._group:
            return {"state": OTHER_GROUP}
        info = self._backend.topic(record.topic)
        if info is None:
            return {"state": "gone with its topic"}
        queue = QueueRef(info.name, info.incarnation, record.queue_id)
        view = self._read_progress(self._group, queue)
        if _is_finished(view, record.offset):
            return self._moved_state(record) or self._finished_state()
        return self._unfinished_state(record.topic, queue, record.offset, view)

    def _finished_state(self) -> dict[str, Any]:
        ways = (names.retry_topic(self._group), names.dlq_topic(self._group))
        if self._backend.capabilities.find_by_key or not any(map(self._backend.topic, ways)):
            return {"state": DONE}
        engine = self._backend.capabilities.engine
        explanation = (
            f"acknowledged, or gone on to a retry or a dead letter, where {engine} finds nothing by its id"
        )
        return {"state": LEFT, "note": explanation}

    def _unfinished_state(
        self, topic: str, queue: QueueRef, offset: int, view: ProgressView
    ) -> dict[str, Any]:
        live = None if self._live is None else self._live(self._group, topic, queue, offset)
        if live is not None:
            state = {"state": live.state, "deliveries": live.deliveries}
            return state | ({"last_error": live.error} if live.error else {})
        if offset in view.attempts:
            return {"state": RETRYING}
        return {
            "state": NOT_YET,
            "note": "its queue is not held by this proxy: another may have it in flight",
        }

    def _moved_state(self, record: StoredRecord) -> dict[str, Any] | None:
        """Return the state of a message that became a dead letter or is on the retry path; None if it is
        neither."""
        for topic, state in (
            (names.dlq_topic(self._group), DEAD),
            (names.retry_topic(self._group), RETRYING),
        ):
            for copy in self._find_in_topic(topic, record.message_id):
                if copy.position < record.position:
                    continue  # it was sent again from there
                queue = self._queue_of(copy)
                if state == DEAD:
                    return {"state": DEAD, "dead_letter_offset": copy.offset}
                if queue is not None and not _is_finished(
                    self._read_progress(self._group, queue), copy.offset
                ):
                    view = self._read_progress(self._group, queue)
                    return self._unfinished_state(record.topic, queue, copy.offset, view) | {
                        "on_retry_path": True
                    }
        for copy in self._find_in_topic(names.SCHEDULE_TOPIC, record.message_id):
            queue = self._queue_of(copy)
            if queue is not None and not _is_finished(
                self._read_progress(names.LEVELS_GROUP, queue), copy.offset
            ):
                return {"state": RETRYING, "on_retry_path": True, "due_ms": copy.due_ms}
        return None

    def _find_in_topic(self, topic: str, message_id: bytes) -> list[StoredRecord]:
        if self._backend.topic(topic) is None:
            return []
        try:
            return self._backend.find(topic, message_id=message_id).wait(WAIT_S)
        except UnsupportedError:
            return []

    def _queue_of(self, record: StoredRecord) -> QueueRef | None:
        info = self._backend.topic(record.topic)
        return None if info is None else QueueRef(info.name, info.incarnation, record.queue_id)

    def _read_progress(self, group: str, queue: QueueRef) -> ProgressView:
        view = self._views.get((group, queue))
        if view is None:
            view = self._views[group, queue] = self._backend.progress(group, [queue]).wait(WAIT_S)[0]
        return view


def _is_finished(view: ProgressView, offset: int) -> bool:
    if offset < (view.committed or 0):
        return True
    return any(start <= offset < end for start, end in view.finished)
