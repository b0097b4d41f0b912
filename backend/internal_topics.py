"""The system's own topics, made on first need, and the records in them: delayed ones and dead letters.

They are made also where topics are not created automatically: no client sends to these, so that no mistyped
name makes one.

A schedule record is the message's own record put into SCHEDULE_TOPIC, due so many milliseconds after it is
stored; delivery bytes, key, tags, flags, message id, born time and system properties stay as they are. Where
it goes afterwards stands in two more system properties, under RocketMQ's names.

A dead letter keeps key, tag, value, message id, born time and the application's properties, and gains those
of these that are known (none of them a reserved name):

    dead-letter-reason     failed | timed-out | whatever else the core says
    dead-letter-error      the last error text that a client gave; left out when there is none
    dead-letter-topic      where it was sent to: topic, queue number and offset there, also when it
    dead-letter-queue      came to its end on the retry path
    dead-letter-offset
    dead-letter-place      instead of queue and offset, of one that was still delayed: its queue is this
                           modulo the topic's queues; left out when any will do
    dead-letter-level      of the delay level that it waited in, from 1
    dead-letter-due        when a delay message was due, epoch milliseconds
    dead-letter-attempts   deliveries made in all, over every step
    dead-letter-time       epoch milliseconds
    dead-letter-resent     how often it was sent again from the dead-letter topic; left out at first
    dead-letter-delay      of a transaction's message that was to be delayed from the commit on: how
    dead-letter-transaction  its id

Where a message cannot carry them (its bytes do not parse, or it would become too large) they stand in the
record's system properties, and its bytes are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from backend.completion import Completion, failed, succeeded
from backend.port import Backend
from backend.records import FLAG_ONE_GROUP, ONE_GROUP, Durability, NewRecord, StoredRecord, TopicInfo
from ddmq_common.delays.levels import Levels
from ddmq_common.delivery import Content, decode, encode, key_and_tags
from ddmq_common.errors import DamagedError, DdmqError
from ddmq_common.names import SCHEDULE_TOPIC
from ddmq_common.send_identity import IDENTITY


def ready_topic(backend: Backend, name: str, queues: int, deadline: float) -> Completion[TopicInfo]:
    """The internal topic `name`, made or grown to `queues` queues if need be; it never shrinks.

    `deadline`: monotonic seconds. Fails with the engine's error, also where the engine refuses at once.
    """
    found = backend.topic(name)
    if found is None:
        wanted = TopicInfo(name, 0, queues, durability=Durability.DURABLE)
    elif found.queues < queues:  # creating gives an existing one back as it is: growing is a change of it
        wanted = replace(found, queues=queues)
    else:
        return succeeded(found)
    try:
        return backend.put_topic(wanted, deadline)
    except DdmqError as error:
        return failed(error)


REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"


def schedule_record(record: NewRecord, level: int, levels: Levels) -> NewRecord:
    """What to append so that `record` is appended when `level` has passed; above the last is the last.

    Raises ValueError for level 0 or less: that is no delay.
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
    return _again(stored, topic, int(queue), bytes(stored.delivery), system)


class Dying(Protocol):
    """What another record is made of: a stored record, or what else holds delivery bytes."""

    @property
    def message_id(self) -> bytes: ...
    @property
    def born_ms(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def delivery(self) -> bytes: ...


def _again(record: Dying, topic: str, queue_id: int, delivery: bytes, system: Mapping[str, str]) -> NewRecord:
    """The record to append to another queue: message id, born time, key, tags and flags stay.

    Its IDENTITY does not: that is the first one's, where the client's send put it. Nor does ONE_GROUP, which
    is about the queue that the record was resent to.
    """
    key, tags = key_and_tags(record.delivery)
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
QUEUE, OFFSET, PLACE = PREFIX + "queue", PREFIX + "offset", PREFIX + "place"
ATTEMPTS, TIME, RESENT = PREFIX + "attempts", PREFIX + "time", PREFIX + "resent"
LEVEL, DUE = PREFIX + "level", PREFIX + "due"
DELAY, TRANSACTION = PREFIX + "delay", PREFIX + "transaction"


class DeadLetter(NamedTuple):
    """A dead letter as it stands in its topic. `content` None: its bytes do not parse.

    `topic` "": it does not say where it comes from; `queue_id`, `offset` None: it was in no queue there yet,
    and `place` chooses one. `time_ms`: when it died. `delay` "": it is to be delivered at once.
    `transaction`: its id, "" for none.
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
    place: int
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
    """The record to append to a dead-letter topic; `facts`: what it gains, by the names above.

    `system`: what it keeps of its system properties. `bare`: its bytes are left alone.
    """
    content = None if bare else _content(record)
    key, tags = key_and_tags(record.delivery)
    delivery, kept = bytes(record.delivery), dict(system)
    if content is None:
        kept |= facts
    else:
        properties = _without_facts(content) | {name.encode(): text.encode() for name, text in facts.items()}
        delivery = encode(key, content.value, tags, properties)
    return _again(record, topic, 0, delivery, kept)


def read_dead_letter(record: StoredRecord) -> DeadLetter:
    """What a record of a dead-letter topic says about itself."""
    content = _content(record)
    found = {name: text for name, text in record.system.items() if name.startswith(PREFIX)}
    if REASON not in found and content is not None:
        found = {
            name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for name, value in content.properties.items()
        }
    resent = b"" if content is None else content.properties.get(RESENT.encode(), b"")
    return DeadLetter(
        record,
        content,
        found.get(REASON, ""),
        found.get(ERROR, ""),
        found.get(TOPIC, ""),
        _number(found[QUEUE]) if QUEUE in found else None,
        _number(found[OFFSET]) if OFFSET in found else None,
        _number(found.get(ATTEMPTS, "")),
        _number(found.get(TIME, "")) or record.stored_ms,
        _number(resent.decode("utf-8", "replace")),
        _number(found[PLACE]) if PLACE in found else record.offset,
        found.get(DELAY, ""),
        found.get(TRANSACTION, ""),
    )


def resent_record(letter: DeadLetter, queues: int, group: str = "") -> NewRecord:
    """The message again, for its original topic of `queues` queues: same queue if there is one, of what
    was in none the one it was to go to.

    `group`: the only consumer group that it reaches; "": every group of the topic. It keeps message id, born
    time, key, tag, value and the application's properties. A letter whose bytes do not parse goes as it is.
    """
    record = letter.record
    key, tags = key_and_tags(record.delivery)
    delivery = bytes(record.delivery)
    if letter.content is not None:
        properties = _without_facts(letter.content)
        properties[RESENT.encode()] = str(letter.resent + 1).encode()
        delivery = encode(key, letter.content.value, tags, properties)
    system = {name: text for name, text in record.system.items() if not name.startswith(PREFIX)}
    queue_id = (letter.place if letter.queue_id is None else letter.queue_id) % queues
    again = _again(record, letter.topic, queue_id, delivery, system)
    if group:
        again.flags |= FLAG_ONE_GROUP
        again.system = {**(again.system or {}), ONE_GROUP: group}
    return again


def _without_facts(content: Content) -> dict[bytes, bytes]:
    """The application's properties, and how often it was resent."""
    kept = RESENT.encode()
    return {
        name: value
        for name, value in content.properties.items()
        if name == kept or not name.startswith(PREFIX.encode())
    }


def _content(record: Dying) -> Content | None:
    try:
        return decode(record.delivery)
    except DamagedError:
        return None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
