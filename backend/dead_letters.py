"""Dead letters: made of a message that nobody could finish, read back, made into a message again. Pure.

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

Where a message cannot carry them (its bytes do not parse, or it would become too large) they stand in the
record's system properties, and its bytes are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend.records import NewRecord, StoredRecord
from ddmq_common.delivery import Content, decode, encode, key_and_tags
from ddmq_common.errors import DamagedError

PREFIX = "dead-letter-"
REASON, ERROR, TOPIC = PREFIX + "reason", PREFIX + "error", PREFIX + "topic"
QUEUE, OFFSET, PLACE = PREFIX + "queue", PREFIX + "offset", PREFIX + "place"
ATTEMPTS, TIME, RESENT = PREFIX + "attempts", PREFIX + "time", PREFIX + "resent"
LEVEL, DUE = PREFIX + "level", PREFIX + "due"


class DeadLetter(NamedTuple):
    """A dead letter as it stands in its topic. `content` None: its bytes do not parse.

    `topic` "": it does not say where it comes from; `queue_id`, `offset` None: it was in no queue there yet,
    and `place` chooses one. `time_ms`: when it died.
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


def dead_record(
    topic: str,
    record: StoredRecord,
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
    return NewRecord(
        topic,
        0,
        record.message_id,
        record.born_ms,
        delivery,
        key,
        tags,
        record.flags,
        system=kept or None,
    )


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
    )


def resent_record(letter: DeadLetter, queues: int) -> NewRecord:
    """The message again, for its original topic of `queues` queues: same queue if there is one, of what
    was in none the one it was to go to.

    It keeps message id, born time, key, tag, value and the application's properties. A letter whose bytes
    do not parse goes as it is.
    """
    record = letter.record
    key, tags = key_and_tags(record.delivery)
    delivery = bytes(record.delivery)
    if letter.content is not None:
        properties = _without_facts(letter.content)
        properties[RESENT.encode()] = str(letter.resent + 1).encode()
        delivery = encode(key, letter.content.value, tags, properties)
    system = {name: text for name, text in record.system.items() if not name.startswith(PREFIX)}
    return NewRecord(
        letter.topic,
        (letter.place if letter.queue_id is None else letter.queue_id) % queues,
        record.message_id,
        record.born_ms,
        delivery,
        key,
        tags,
        record.flags,
        system=system or None,
    )


def _without_facts(content: Content) -> dict[bytes, bytes]:
    """The application's properties, and how often it was resent."""
    kept = RESENT.encode()
    return {
        name: value
        for name, value in content.properties.items()
        if name == kept or not name.startswith(PREFIX.encode())
    }


def _content(record: StoredRecord) -> Content | None:
    try:
        return decode(record.delivery)
    except DamagedError:
        return None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
