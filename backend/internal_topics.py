"""The internal topics, created on first need, and their records: delayed messages and dead letters.

They are created even if automatic creation of topics is off: no client sends to them, so a mistyped name
creates none.

A schedule record is the message's own record in SCHEDULE_TOPIC, due a number of milliseconds after it is
stored. Delivery bytes, key, tags, flags, message id, born time and system properties are unchanged. Two more
system properties, with RocketMQ's names, state the topic and queue to which it goes afterwards.

A dead letter keeps key, tag, value, message id, born time and the application's properties. The system adds
those of these properties that it knows (none of them is a reserved name):

    dead-letter-reason     failed | timed-out | another reason of the consumer's core
    dead-letter-error      the last error text of a client; left out if there is none
    dead-letter-topic      the topic, queue number and offset to which it was sent, also if its
    dead-letter-queue      attempts ended on the retry path
    dead-letter-offset
    dead-letter-place      instead of queue and offset, if it was still delayed: its queue is this number
                           modulo the topic's queues; left out if any queue will do
    dead-letter-level      the delay level in which it waited, from 1
    dead-letter-due        the due time of a delay message, epoch milliseconds
    dead-letter-attempts   all deliveries, over every step
    dead-letter-time       the time it became a dead letter, epoch milliseconds
    dead-letter-resent     how often it was resent from the dead-letter topic; left out at first
    dead-letter-delay      the delay, from the commit on, of a message in a transaction
    dead-letter-transaction  the id of its transaction

If a message cannot carry them (its bytes do not parse, or it would become too large) the record's system
properties hold them, and its bytes stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from backend.completion import Completion, failed, succeeded
from backend.port import Backend
from backend.records import FLAG_ONE_GROUP, ONE_GROUP, Durability, NewRecord, StoredRecord, TopicInfo
from ddmq_common.delays.levels import Levels
from ddmq_common.delivery import Content, decode, encode
from ddmq_common.errors import DamagedError, DdmqError
from ddmq_common.names import SCHEDULE_TOPIC
from ddmq_common.send_identity import IDENTITY


def ready_topic(backend: Backend, name: str, queues: int, deadline: float) -> Completion[TopicInfo]:
    """Return the internal topic `name`, created or grown to `queues` queues if necessary; it never shrinks.

    `deadline`: monotonic seconds. Fails with the engine's error, even if the engine raises it at once.
    """
    topic = backend.topic(name)
    if topic is None:
        target = TopicInfo(name, 0, queues, durability=Durability.DURABLE)
    elif topic.queues < queues:  # creating returns an existing topic unchanged: growing is a change
        target = replace(topic, queues=queues)
    else:
        return succeeded(topic)
    try:
        return backend.put_topic(target, deadline)
    except DdmqError as error:
        return failed(error)


REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"


def schedule_record(record: NewRecord, level: int, levels: Levels) -> NewRecord:
    """Return the record that delays `record` by `level`; a level above the last one means the last.

    Raises ValueError for level 0 or less, because it does not delay a message.
    """
    clamped = levels.clamp_level(level)
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
    """Return the delayed record that a stored schedule record holds, to append now.

    Raises DamagedError if it does not name a topic and queue.
    """
    system = dict(stored.system)
    topic, queue = system.pop(REAL_TOPIC, ""), system.pop(REAL_QUEUE, "")
    if not topic or not (queue.isascii() and queue.isdigit()):
        raise DamagedError(
            f"schedule record {stored.queue_id}/{stored.offset} has {REAL_TOPIC} {topic!r} and {REAL_QUEUE} "
            f"{queue!r}; a topic and a queue number are wanted"
        )
    content = _decode_content(stored)
    return _copy_record(stored, content, topic, int(queue), bytes(stored.delivery), system)


class Dying(Protocol):
    """A message to copy into a dead letter: a stored record, or another object with delivery bytes."""

    @property
    def message_id(self) -> bytes: ...
    @property
    def born_ms(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def delivery(self) -> bytes: ...


def _copy_record(
    record: Dying,
    content: Content | None,
    topic: str,
    queue_id: int,
    delivery: bytes,
    system: Mapping[str, str],
) -> NewRecord:
    """Return a copy of a message for another queue, with its message id, born time, key, tags and flags.
    `content`: that of the message; None if its bytes do not parse.

    The copy has no IDENTITY, which belongs to the record that the client's send stored, and no ONE_GROUP,
    which applies only to the queue that the record was resent to.
    """
    key, tags = (b"", b"") if content is None else (content.key, content.tag)
    properties = {name: text for name, text in system.items() if name not in (IDENTITY, ONE_GROUP)}
    return NewRecord(
        topic,
        queue_id,
        record.message_id,
        record.born_ms,
        delivery,
        key,
        tags,
        record.flags & ~FLAG_ONE_GROUP,
        0,
        properties or None,
    )


PREFIX = "dead-letter-"
REASON, ERROR, TOPIC = PREFIX + "reason", PREFIX + "error", PREFIX + "topic"
QUEUE, OFFSET, QUEUE_CHOICE = PREFIX + "queue", PREFIX + "offset", PREFIX + "place"
ATTEMPTS, TIME, RESENT = PREFIX + "attempts", PREFIX + "time", PREFIX + "resent"
LEVEL, DUE = PREFIX + "level", PREFIX + "due"
DELAY, TRANSACTION = PREFIX + "delay", PREFIX + "transaction"
_PREFIX_BYTES, _RESENT_BYTES = PREFIX.encode(), RESENT.encode()


class DeadLetter(NamedTuple):
    """A parsed dead letter.

    `topic` "": the origin is unknown. `queue_id`, `offset` None: it was in no queue there yet, and
    `queue_choice` selects one. `time_ms`: the time it became a dead letter. `delay` "": without delay.
    `transaction`: the id of its transaction, "" for none.
    """

    record: StoredRecord
    content: Content | None
    reason: str
    error: str
    topic: str
    queue_id: int | None
    offset: int | None
    attempts: int
    time_ms: int
    resent: int
    queue_choice: int
    delay: str
    transaction: str


def dead_record(
    topic: str,
    record: Dying,
    facts: Mapping[str, str],
    system: Mapping[str, str],
    *,
    bare: bool = False,
) -> NewRecord:
    """Return the record to append to a dead-letter topic; `facts`: the properties to add, named as above.

    `system`: the system properties to keep. `bare`: leave its bytes unchanged.
    """
    content = _decode_content(record)
    delivery, system_properties = bytes(record.delivery), dict(system)
    if content is None or bare:
        system_properties |= facts
    else:
        properties = _without_facts(content) | {name.encode(): text.encode() for name, text in facts.items()}
        delivery = encode(content.key, content.value, content.tag, properties)
    return _copy_record(record, content, topic, 0, delivery, system_properties)


def read_dead_letter(record: StoredRecord) -> DeadLetter:
    """Parse a record of a dead-letter topic."""
    content = _decode_content(record)
    texts = {name: text for name, text in record.system.items() if name.startswith(PREFIX)}
    if REASON not in texts and content is not None:
        texts = {
            name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for name, value in content.properties.items()
            if name.startswith(_PREFIX_BYTES)
        }
    resent = b"" if content is None else content.properties.get(_RESENT_BYTES, b"")
    return DeadLetter(
        record,
        content,
        texts.get(REASON, ""),
        texts.get(ERROR, ""),
        texts.get(TOPIC, ""),
        _parse_number(texts[QUEUE]) if QUEUE in texts else None,
        _parse_number(texts[OFFSET]) if OFFSET in texts else None,
        _parse_number(texts.get(ATTEMPTS, "")),
        _parse_number(texts.get(TIME, "")) or record.stored_ms,
        _parse_number(resent.decode("utf-8", "replace")),
        _parse_number(texts[QUEUE_CHOICE]) if QUEUE_CHOICE in texts else record.offset,
        texts.get(DELAY, ""),
        texts.get(TRANSACTION, ""),
    )


def resent_record(dead_letter: DeadLetter, queues: int, group: str = "") -> NewRecord:
    """Return the message of a dead letter as a record for its original topic. `queues`: the topic's queue
    count.

    It goes to its former queue, or to the one selected for it. `group`: the only consumer group that it
    reaches; "": every group of the topic. It keeps message id, born time, key, tag, value and the
    application's properties. If the bytes do not parse, they are resent unchanged.
    """
    record, content = dead_letter.record, dead_letter.content
    delivery = bytes(record.delivery)
    if content is not None:
        properties = _without_facts(content)
        properties[_RESENT_BYTES] = str(dead_letter.resent + 1).encode()
        delivery = encode(content.key, content.value, content.tag, properties)
    system = {name: text for name, text in record.system.items() if not name.startswith(PREFIX)}
    queue_id = (dead_letter.queue_choice if dead_letter.queue_id is None else dead_letter.queue_id) % queues
    copy = _copy_record(record, content, dead_letter.topic, queue_id, delivery, system)
    if group:
        copy.flags |= FLAG_ONE_GROUP
        copy.system = {**(copy.system or {}), ONE_GROUP: group}
    return copy


def _without_facts(content: Content) -> dict[bytes, bytes]:
    """Return the application's properties, and the count of resends."""
    return {
        name: value
        for name, value in content.properties.items()
        if not name.startswith(_PREFIX_BYTES) or name == _RESENT_BYTES
    }


def _decode_content(record: Dying) -> Content | None:
    try:
        return decode(record.delivery)
    except DamagedError:
        return None


def _parse_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
