"""A message on its way through a delay level: the schedule record made of it, and the way back.

A schedule record is the message's own record put into SCHEDULE_TOPIC, due so many milliseconds after it is
stored; delivery bytes, key, tags, flags, message id, born time and system properties stay as they are. Where
it goes afterwards stands in two more system properties, under RocketMQ's names.
"""

from __future__ import annotations

from backend.records import NewRecord, StoredRecord
from ddmq_common.delays.levels import Levels
from ddmq_common.delivery import key_and_tags
from ddmq_common.errors import DamagedError
from ddmq_common.names import SCHEDULE_TOPIC

REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"


def schedule_record(record: NewRecord, level: int, levels: Levels) -> NewRecord:
    """What to append so that `record` is appended when `level` has passed; above the last is the last.

    Raises ValueError for level 0 or less: that is no delay.
    """
    clamped = levels.clamp(level)
    if clamped == 0:
        raise ValueError(f"level {level} is no delay; allowed: 1 or more")
    return NewRecord(
        SCHEDULE_TOPIC,
        clamped - 1,
        record.message_id,
        record.born_ms,
        record.delivery,
        record.key,
        record.tags,
        record.flags,
        -levels.wait_ms(clamped),
        {**(record.system or {}), REAL_TOPIC: record.topic, REAL_QUEUE: str(record.queue_id)},
    )


def real_record(stored: StoredRecord) -> NewRecord:
    """The record that a stored schedule record holds, to append now.

    Raises DamagedError when it does not say where it belongs.
    """
    system = dict(stored.system)
    topic, queue = system.pop(REAL_TOPIC, ""), system.pop(REAL_QUEUE, "")
    if not topic or not (queue.isascii() and queue.isdigit()):
        raise DamagedError(
            f"schedule record {stored.queue_id}/{stored.offset} has {REAL_TOPIC} {topic!r} and {REAL_QUEUE} "
            f"{queue!r}; a topic and a queue number are wanted"
        )
    key, tags = key_and_tags(stored.delivery)
    return NewRecord(
        topic,
        int(queue),
        stored.message_id,
        stored.born_ms,
        bytes(stored.delivery),
        key,
        tags,
        stored.flags,
        0,
        system or None,
    )
