"""Dead letters of the levels: messages whose topic is gone or will not have them.

They go to `%DLQ%SCHEDULE_TOPIC_XXXX`, made with the first of them. A dead letter keeps key, tag, value,
message id, born time, the application's and the internal properties, and gains:

    dead-letter-reason     topic gone | refused | unreadable (does not say where it belongs)
    dead-letter-topic      where it was to go: topic and queue number
    dead-letter-queue
    dead-letter-level      of the delay, from 1
    dead-letter-attempts   deliveries made: 0
    dead-letter-time       epoch milliseconds
"""

from __future__ import annotations

from backend import internal_topics as dead
from backend.internal_topics import REAL_QUEUE, REAL_TOPIC
from backend.records import NewRecord
from ddmq_common.delivery import decode, encode
from ddmq_common.errors import DamagedError
from ddmq_common.names import LEVELS_GROUP, dlq_topic
from delay_service.levels.core.targets import LevelFire

DEAD_TOPIC = dlq_topic(LEVELS_GROUP)


def dead_letter(fire: LevelFire, wall_ms: int) -> NewRecord:
    """The record to append. Of a message whose bytes do not parse the internal properties say the same."""
    record = fire.record
    delivery = bytes(record.delivery)
    system = {name: text for name, text in record.system.items() if name not in (REAL_TOPIC, REAL_QUEUE)}
    facts = _facts(fire, wall_ms)
    try:
        content = decode(delivery)
    except DamagedError:
        key, tag = b"", b""
        system |= facts
    else:
        key, tag = content.key, content.tag
        properties = {name.encode(): text.encode() for name, text in facts.items()}
        delivery = encode(key, content.value, tag, dict(content.properties) | properties)
    return NewRecord(
        DEAD_TOPIC,
        0,
        record.message_id,
        record.born_ms,
        delivery,
        key,
        tag,
        record.flags,
        0,
        system or None,
    )


def _facts(fire: LevelFire, wall_ms: int) -> dict[str, str]:
    texts = {
        dead.REASON: fire.reason,
        dead.TOPIC: fire.topic,
        dead.QUEUE: str(fire.queue_id),
        dead.LEVEL: str(fire.record.queue_id + 1),
        dead.ATTEMPTS: "0",
        dead.TIME: str(wall_ms),
    }
    return {name: text for name, text in texts.items() if text}
