"""Retry headers: the record properties that accompany a message on the retry path, and its records. Pure.

They are system properties of the record, which no client sees:

    RECONSUME_TIME     steps taken; RocketMQ's name
    RETRY_TOPIC        the topic it was sent to; RocketMQ's name
    retry-queue        and its queue number and offset there
    retry-offset
    retry-deliveries   deliveries in all, over every step
    retry-since-ms     when the quick retries were used up, epoch milliseconds
    retry-error        the last error text from a client, if any
    retry-life         when its subscription was created, epoch milliseconds: one created later skips the
message

Message id, key, tag, value, born time, flags and the application's properties are not changed, and neither
are other system properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend import internal_topics as dead
from backend.records import FLAG_ONE_GROUP, ONE_GROUP, NewRecord, QueueRef, StoredRecord
from ddmq_common.delivery import key_and_tags
from ddmq_common.names import MOVED_PROPERTY, RETRY_PREFIX, dlq_topic
from ddmq_common.send_identity import IDENTITY
from proxy_consumer.core.jobs import UpstreamJob

STEPS = "RECONSUME_TIME"
TOPIC = "RETRY_TOPIC"
QUEUE = "retry-queue"
OFFSET = "retry-offset"
DELIVERIES = "retry-deliveries"
SINCE = "retry-since-ms"
ERROR = "retry-error"
LIFE = "retry-life"
OWN_NAMES = frozenset((STEPS, TOPIC, QUEUE, OFFSET, DELIVERIES, SINCE, ERROR, LIFE))

ERROR_CHARS_MAX = 200
ATTEMPTS_MAX = 1 << 30
_LINE_OF = dict.fromkeys((*range(32), *range(127, 160)), " ")


class RetryHeaders(NamedTuple):
    """The origin of a retried message, and its deliveries so far. `since_ms` 0: not retried yet."""

    steps: int
    topic: str
    queue_id: int
    offset: int
    deliveries: int
    since_ms: int
    error: str

    def as_system(self) -> dict[str, str]:
        """Return the headers as system properties."""
        entries = {
            STEPS: str(self.steps),
            TOPIC: self.topic,
            QUEUE: str(self.queue_id),
            OFFSET: str(self.offset),
            DELIVERIES: str(self.deliveries),
            SINCE: str(self.since_ms),
        }
        return entries | {ERROR: self.error} if self.error else entries


def headers_of(record: StoredRecord) -> RetryHeaders:
    """Return the headers of a record in a retry topic; for any other record, the initial headers."""
    system = record.system
    if not record.topic.startswith(RETRY_PREFIX) or TOPIC not in system:
        return RetryHeaders(0, record.topic, record.queue_id, record.offset, 0, 0, "")
    return RetryHeaders(
        _read_number(system, STEPS),
        system[TOPIC],
        _read_number(system, QUEUE),
        _read_number(system, OFFSET),
        _read_number(system, DELIVERIES),
        _read_number(system, SINCE),
        system.get(ERROR, ""),
    )


def headers_after(record: StoredRecord, job: UpstreamJob, wall_ms: int) -> RetryHeaders:
    """Return the headers after the deliveries of `job` in the present step; the step itself is not counted
    yet."""
    before = headers_of(record)
    return before._replace(
        deliveries=before.deliveries + job.fails + job.timeouts,
        since_ms=before.since_ms or wall_ms,
        error=error_text(job.error) or before.error,
    )


def attempts_before(system: Mapping[str, str]) -> int:
    """Return the deliveries before the present step; 0 for a message that was never on the retry path.

    The number is limited to 32 bits, because on Kafka any producer may have written the record.
    """
    return min(_read_number(system, DELIVERIES), ATTEMPTS_MAX) if system else 0


def is_of_another_life(system: Mapping[str, str], created_ms: int) -> bool:
    """Whether a retried message failed in an earlier subscription, since deleted; False for a message without
    the header."""
    return LIFE in system and system[LIFE] != str(created_ms)


def retry_record(
    queue: QueueRef, record: StoredRecord, headers: RetryHeaders, created_ms: int = 0
) -> NewRecord:
    """Build a message's record for a retry queue. The caller schedules the record for the end of the retry
    interval.

    `created_ms`: when the subscription was created; 0: not recorded.
    """
    life = {LIFE: str(created_ms)} if created_ms else {}
    key, tags = key_and_tags(record.delivery)
    return NewRecord(
        queue.topic,
        queue.queue_id,
        record.message_id,
        record.born_ms,
        bytes(record.delivery),
        key,
        tags,
        record.flags & ~FLAG_ONE_GROUP,
        system=foreign_system(record) | headers.as_system() | life,
    )


def dead_letter(
    group: str,
    record: StoredRecord,
    headers: RetryHeaders,
    reason: str,
    wall_ms: int,
    *,
    bare: bool = False,
) -> NewRecord:
    """Build the dead letter of a spent message. `bare`: without properties in its bytes
    (backend/internal_topics.py)."""
    facts = {
        dead.REASON: reason,
        dead.ERROR: headers.error,
        dead.TOPIC: headers.topic,
        dead.QUEUE: str(headers.queue_id),
        dead.OFFSET: str(headers.offset),
        dead.ATTEMPTS: str(headers.deliveries),
        dead.TIME: str(wall_ms),
    }
    if not headers.error:
        del facts[dead.ERROR]
    return dead.dead_record(dlq_topic(group), record, facts, foreign_system(record), bare=bare)


def foreign_system(record: StoredRecord) -> dict[str, str]:
    """Return the system properties that are neither retry headers nor marks of a copy."""
    own_names = OWN_NAMES | {MOVED_PROPERTY, IDENTITY, ONE_GROUP}
    return {name: value for name, value in record.system.items() if name not in own_names}


def error_text(text: str | bytes) -> str:
    """Return an error text as it is stored: one line without control characters, at most ERROR_CHARS_MAX
    characters."""
    head = text[: 4 * ERROR_CHARS_MAX]
    raw = head if isinstance(head, bytes) else head.encode("utf-8", "replace")
    return raw.decode("utf-8", "replace").translate(_LINE_OF).strip()[:ERROR_CHARS_MAX]


def _read_number(system: Mapping[str, str], name: str) -> int:
    """Return a header as a number; 0 if it is missing or invalid, so that a bad header does not block a
    message."""
    text = system.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def since_ms(record: StoredRecord) -> int:
    """Return when a record entered the retry path, in epoch milliseconds; otherwise when it was stored."""
    since = record.system.get(SINCE, "")
    return int(since) if since.isascii() and since.isdigit() else record.stored_ms
