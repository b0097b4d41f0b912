"""What travels with a message along the retry path, and which step comes next. Pure.

It stands in the record's system properties, which no client ever sees:

    RECONSUME_TIME     steps taken; RocketMQ's name
    RETRY_TOPIC        the topic it was sent to; RocketMQ's name
    retry-queue        and its queue number and offset there
    retry-offset
    retry-deliveries   deliveries in all, over every step
    retry-since-ms     when the quick retries were spent, epoch milliseconds
    retry-error        the last error text that a client gave, if any
    retry-life         when its subscription was made, epoch milliseconds: one made anew later passes it over

Message id, key, tag, value, born time, flags and the application's properties stay as they are, and so do
system properties of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend.records import NewRecord, StoredRecord
from ddmq_common.delivery import decode
from ddmq_common.errors import DamagedError
from ddmq_common.names import RETRY_PREFIX, retry_topic
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs.retry import policy_of
from proxy_consumer.core.jobs.upstream_job import UpstreamJob

STEPS = "RECONSUME_TIME"
TOPIC = "RETRY_TOPIC"
QUEUE = "retry-queue"
OFFSET = "retry-offset"
DELIVERIES = "retry-deliveries"
SINCE = "retry-since-ms"
ERROR = "retry-error"
LIFE = "retry-life"
OWN_NAMES = frozenset((STEPS, TOPIC, QUEUE, OFFSET, DELIVERIES, SINCE, ERROR, LIFE))

LEVEL_BEFORE_FIRST_STEP = 2  # step 1 waits level 3, 10 s; step 16 waits level 18, 2 h
ERROR_CHARS_MAX = 200
_LINE_OF = dict.fromkeys((*range(32), *range(127, 160)), " ")


class Trail(NamedTuple):
    """Where a message comes from, and what it has been through. `since_ms` 0: not retried yet."""

    steps: int
    topic: str
    queue_id: int
    offset: int
    deliveries: int
    since_ms: int
    error: str

    def system(self) -> dict[str, str]:
        """As system properties."""
        found = {
            STEPS: str(self.steps),
            TOPIC: self.topic,
            QUEUE: str(self.queue_id),
            OFFSET: str(self.offset),
            DELIVERIES: str(self.deliveries),
            SINCE: str(self.since_ms),
        }
        return found | {ERROR: self.error} if self.error else found


def trail_of(record: StoredRecord) -> Trail:
    """The trail of a record in a retry topic; of any other, the beginning of one."""
    system = record.system
    if not record.topic.startswith(RETRY_PREFIX) or TOPIC not in system:
        return Trail(0, record.topic, record.queue_id, record.offset, 0, 0, "")
    return Trail(
        _number(system, STEPS),
        system[TOPIC],
        _number(system, QUEUE),
        _number(system, OFFSET),
        _number(system, DELIVERIES),
        _number(system, SINCE),
        system.get(ERROR, ""),
    )


def trail_after(record: StoredRecord, job: UpstreamJob, wall_ms: int) -> Trail:
    """The trail with the deliveries of this step on it; the step itself is not counted yet."""
    before = trail_of(record)
    return before._replace(
        deliveries=before.deliveries + job.fails + job.timeouts,
        since_ms=before.since_ms or wall_ms,
        error=error_text(job.error) or before.error,
    )


def next_step(trail: Trail, job: UpstreamJob, config: SubscriptionDefaults) -> int:
    """The step to take, from 1; 0: dead letter."""
    policy = policy_of(config, retry_queue=trail.steps > 0)
    steps = trail.steps + max(0, policy.steps_beyond(job.fails) - 1)  # what waited in place was a step, too
    if job.final or config.scope or steps >= config.retry_steps:
        return 0
    return steps + 1


def level_of(step: int) -> int:
    """The delay level that `step` waits."""
    return LEVEL_BEFORE_FIRST_STEP + step


def attempts_before(system: Mapping[str, str]) -> int:
    """Deliveries made before the present step; 0 for a message that was never on the retry path."""
    return _number(system, DELIVERIES) if system else 0


def is_of_another_life(system: Mapping[str, str], created_ms: int) -> bool:
    """Whether a retried message failed in a subscription that was deleted since; those that do not say are
    of this one."""
    return LIFE in system and system[LIFE] != str(created_ms)


def retry_record(
    group: str, queue_id: int, record: StoredRecord, trail: Trail, created_ms: int = 0
) -> NewRecord:
    """The record for the group's retry topic, to be scheduled; `created_ms`: of its subscription."""
    life = {LIFE: str(created_ms)} if created_ms else {}
    key, tags = key_and_tags(record)
    return NewRecord(
        retry_topic(group),
        queue_id,
        record.message_id,
        record.born_ms,
        bytes(record.delivery),
        key,
        tags,
        record.flags,
        system=foreign_system(record) | trail.system() | life,
    )


def foreign_system(record: StoredRecord) -> dict[str, str]:
    """The system properties that are not the trail's."""
    return {name: value for name, value in record.system.items() if name not in OWN_NAMES}


def key_and_tags(record: StoredRecord) -> tuple[bytes, bytes]:
    """For the key index and the tag hash; none where the bytes do not parse."""
    try:
        content = decode(record.delivery)
    except DamagedError:
        return b"", b""
    return content.key, content.tag


def error_text(text: str | bytes) -> str:
    """An error as it is kept: one line without control characters, at most ERROR_CHARS_MAX of them."""
    head = text[: 4 * ERROR_CHARS_MAX]
    raw = head if isinstance(head, bytes) else head.encode("utf-8", "replace")
    return raw.decode("utf-8", "replace").translate(_LINE_OF).strip()[:ERROR_CHARS_MAX]


def _number(system: Mapping[str, str], name: str) -> int:
    """0 for what is not there or is no number: a message is not held up by what it says of itself."""
    text = system.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def since_ms(record: StoredRecord) -> int:
    """When a record of the retry path was put on it, epoch milliseconds; else when it was stored."""
    since = record.system.get(SINCE, "")
    return int(since) if since.isascii() and since.isdigit() else record.stored_ms
