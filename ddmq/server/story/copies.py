"""Reads a record as a copy of a message at one stage of its way. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from backend.internal_topics import REAL_TOPIC, read_dead_letter
from backend.records import ONE_GROUP, StoredRecord
from ddmq.server.story.core.facts import CopyKind, MessageCopy
from ddmq_common import names
from ddmq_common.delays.command import ADD, COMMAND_PROPERTY, decode_command
from ddmq_common.errors import DamagedError
from proxy_consumer.retries import headers
from proxy_producer.transactions.codec import TRANSACTION, HalfMark, parse_mark

OCCURRENCE_BITS = 44  # of an id's second half; what is above counts the deliveries of a message that repeats


def first_id(message_id: bytes) -> bytes:
    """Return the id of the first delivery of a repeating message; for other messages, the id itself."""
    own = int.from_bytes(message_id[8:], "big") & ((1 << OCCURRENCE_BITS) - 1)
    return message_id[:8] + own.to_bytes(8, "big")


def topic_of(record: StoredRecord) -> str:
    """Return the topic that a message was sent to, from any of its records; "" if the record does not name
    it."""
    name = record.topic
    if name == names.SCHEDULE_TOPIC:
        name = record.system.get(REAL_TOPIC, "")
    if name.startswith(names.RETRY_PREFIX):
        return record.system.get(headers.TOPIC, "")
    if name == names.HALF_TOPIC:
        return mark.topic if (mark := _read_mark(record)) is not None else ""
    if name == names.DELAY_TOPIC:
        try:
            return decode_command(record.system.get(COMMAND_PROPERTY, "")).topic
        except DamagedError:
            return ""
    if names.is_dead_letters(name):
        return read_dead_letter(record).topic
    return name


def copies_of(record: StoredRecord, topic: str) -> Iterator[MessageCopy]:
    """Yield the MessageCopy of a record in another topic than the message's own; nothing if the record
    belongs to a different topic's message with the same id."""
    if not topic or topic_of(record) != topic:
        return
    if record.topic == names.DELAY_TOPIC:
        command = decode_command(record.system[COMMAND_PROPERTY])
        if command.op == ADD:
            due_ms, uuid = command.at_ms or command.due_ms, "" if command.unless_cancelled else command.uuid
            yield copy_of(record, CopyKind.COMMAND)._replace(due_ms=due_ms, reason=uuid)
    elif record.topic == names.HALF_TOPIC:
        mark = parse_mark(record.system[TRANSACTION])
        why = f"transaction {mark.id} of {mark.group}"
        yield copy_of(record, CopyKind.HALF)._replace(reason=why)
    elif record.topic == names.SCHEDULE_TOPIC:
        yield _level_copy(record)
    elif record.topic.startswith(names.RETRY_PREFIX):
        yield copy_of(record, CopyKind.RETRY)._replace(group=record.topic.removeprefix(names.RETRY_PREFIX))
    elif names.is_dead_letters(record.topic):
        yield _dead_copy(record)


def transaction_of(record: StoredRecord) -> bytes:
    """Return the id of the transaction that a half message belongs to."""
    return bytes.fromhex(parse_mark(record.system[TRANSACTION]).id)


def _read_mark(record: StoredRecord) -> HalfMark | None:
    try:
        return parse_mark(record.system.get(TRANSACTION, ""))
    except DamagedError:
        return None


def _dead_copy(record: StoredRecord) -> MessageCopy:
    dead_letter = read_dead_letter(record)
    copy = copy_of(record, CopyKind.DEAD)._replace(reason=dead_letter.reason, error=dead_letter.error)
    if record.topic == names.TRANSACTION_DEAD_TOPIC:
        checks = "1 check" if dead_letter.attempts == 1 else f"{dead_letter.attempts} checks"
        return copy._replace(reason=f"its transaction: {dead_letter.reason} after {checks}")
    group = "" if record.topic == names.DELAY_DLQ_TOPIC else record.topic.removeprefix(names.DLQ_PREFIX)
    return copy._replace(group=group, deliveries=dead_letter.attempts)


def _level_copy(record: StoredRecord) -> MessageCopy:
    real = record.system.get(REAL_TOPIC, "")
    copy = copy_of(record, CopyKind.LEVEL)._replace(due_ms=record.due_ms, step=record.queue_id + 1)
    if not real.startswith(names.RETRY_PREFIX):
        return copy
    retry_headers = headers.headers_of(record._replace(topic=real))
    return copy._replace(
        group=real.removeprefix(names.RETRY_PREFIX),
        step=retry_headers.steps,
        deliveries=retry_headers.deliveries,
        error=retry_headers.error,
    )


def copy_of(record: StoredRecord, kind: CopyKind) -> MessageCopy:
    """Return a MessageCopy with the fields that every record has."""
    return MessageCopy(
        kind, record.topic, record.queue_id, record.offset, record.born_ms, record.stored_ms,
        position=record.position,
    )  # fmt: skip


def main_of(record: StoredRecord) -> MessageCopy:
    """Return the MessageCopy of a record in the message's own topic. If it was resent to a group, it concerns
    only that group."""
    return copy_of(record, CopyKind.MAIN)._replace(group=record.system.get(ONE_GROUP, ""))


def is_at(copy: MessageCopy, record: StoredRecord) -> bool:
    """Return whether `copy` was made from `record`."""
    position = (record.topic, record.queue_id, record.offset)
    return (copy.topic, copy.queue_id, copy.offset) == position
