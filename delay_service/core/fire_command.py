"""Makes the fire of one message: the record to append, and the delivery that waits after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from backend import internal_topics as dead
from backend.progress.ack_map import AckMap
from backend.records import NewRecord
from ddmq_common.delays.command import ONCE, SCHEDULE, DelayCommand, decode_command, encode_command
from ddmq_common.delivery import key_of, varint
from ddmq_common.errors import DamagedError
from ddmq_common.names import DELAY_DLQ_TOPIC
from ddmq_common.queue_choice import BY_HASH, choose_queue
from delay_service.core.held_messages import released_message, with_hold_of
from delay_service.core.occurrences import CATCH_UP_MAX, next_after, occurrence_id, to_fire
from delay_service.store.port import IdKind, IdState, Pending

_KEYED, _KEYLESS = 0x18, 0x28  # how delivery bytes begin, with a key and without
_HASH_END = 1 << 63
_ID_END = (1 << 64) - 1
_ID_STEP = 1 << 44  # between the ids of a message's occurrences
UNFIT = (DamagedError, ValueError, ArithmeticError)  # a message that cannot be made fails by itself


class FireCommand(NamedTuple):
    """The fire of `message` as `record`.

    `following`: its next delivery, or None. `is_deferred`: it was due earlier and was set aside, because its
    topic could not be appended to then; it does not mean rescheduled. `reason`: the record is a dead letter,
    and nothing follows. `named_ms`: the due time in its command and its id.
    """

    message: Pending
    record: NewRecord
    following: Pending | None
    is_deferred: bool
    reason: str = ""
    named_ms: int = 0


class SkippedMessage(NamedTuple):
    """A due message that does not fire, and the later delivery that replaces it; None: the message is
    finished.
    """

    message: Pending
    following: Pending | None


def fire_command(
    message: Pending,
    queues: int,
    round_robin: Callable[[str], int],
    now_ms: int,
    is_deferred: bool,
    catch_up_max: int = CATCH_UP_MAX,
    by_key: bool = False,
) -> FireCommand | SkippedMessage:
    """Return the fire of `message` into a topic with `queues` queues, or a SkippedMessage.

    `round_robin` counts up per topic. `by_key`: the key chooses the queue of a message that names
    none. Raises DamagedError if the command cannot be parsed or its schedule cannot be computed here.
    """
    command = decode_command(message.command)
    if command.schedule is not None:
        upcoming = to_fire(command, message.occurrence, now_ms, message.due_ms)
        if upcoming is None or upcoming.occurrence != message.occurrence:
            return SkippedMessage(message, None if upcoming is None else with_occurrence(message, *upcoming))
    record = record_of(message, command)
    key = record.key if by_key else b""
    record.queue_id = choose_queue(
        command.partition, command.hash_id, queues, round_robin(message.topic), key
    )
    next_message = following(message, command, now_ms, catch_up_max)
    return FireCommand(message, record, next_message, is_deferred, named_ms=command.due_ms)


def following(message: Pending, command: DelayCommand, now_ms: int, catch_up_max: int) -> Pending | None:
    """Return the next delivery of a message; None if this was the last."""
    if command.kind == ONCE:
        return None
    upcoming = next_after(command, message.occurrence, now_ms, catch_up_max, message.due_ms)
    return None if upcoming is None else with_occurrence(message, upcoming.occurrence, upcoming.due_ms)


def with_occurrence(message: Pending, occurrence: int, due_ms: int) -> Pending:
    return message._replace(occurrence=occurrence, due_ms=due_ms)


def catch_up_delivery(message: Pending, fired: int, now_ms: int, catch_up_max: int) -> Pending | None:
    """Return the delivery that waits if the log says that all occurrences below `fired` have fired; None if
    none follows.

    `message.due_ms` is the time to which the delivery was rescheduled, if it was. With `fire_once` the result
    is the very next occurrence, even if it was missed meanwhile. Raises the errors of `fire_command`.
    """
    command = decode_command(message.command)
    if command.schedule is not None and command.schedule.catch_up == "fire_once":
        now_ms = 0
    upcoming = next_after(command, fired - 1, now_ms, catch_up_max, put_off_ms=message.due_ms)
    return None if upcoming is None else with_occurrence(message, upcoming.occurrence, upcoming.due_ms)


def waiting_delivery(
    message: Pending, put_off: Pending, acks: AckMap, now_ms: int, catch_up_max: int
) -> Pending | None:
    """Return the next delivery of a repeating message after the fires in `acks`; None if it is finished.

    The log may know of fires that the store does not. `put_off`: the message with the due time to which it
    was moved.
    """
    fired = acks.attempts.get(message.offset, 0)
    if fired <= message.occurrence:
        return message
    with suppress(*UNFIT):
        return catch_up_delivery(put_off, fired, now_ms, catch_up_max)
    return message  # the due scan makes it a dead letter


def still_waiting(message: Pending, acks: AckMap, now_ms: int, catch_up_max: int) -> Pending | None:
    """Return the delivery of a message that waits according to `acks`; None if the message is finished."""
    if acks.is_finished(message.offset):
        return None
    plain = released_message(message)
    delivery = waiting_delivery(plain, plain, acks, now_ms, catch_up_max)
    return None if delivery is None else with_hold_of(delivery, message)


def offsets_of(message: Pending) -> list[int]:
    """Return the offsets that end with `message`: its own and, if it was moved, that of the command which
    moved it.
    """
    return [message.offset, *moved_at(message)]


def moved_at(message: Pending) -> list[int]:
    """Return the offset of the last command that moved a delivery of a repeating message, if any."""
    if '"moved_at"' in message.command:
        with suppress(DamagedError):
            return [decode_command(message.command).moved_at]
    return []


def moved_by(message: Pending, due_ms: int, offset: int) -> Pending:
    """Return the message with the new due time.

    A repeating message remembers the command's `offset` until it fires.
    """
    with suppress(DamagedError):
        command = decode_command(message.command)
        if command.kind != ONCE:
            text = encode_command(msgspec.structs.replace(command, moved_at=offset))
            return message._replace(due_ms=due_ms, command=text)
    return message._replace(due_ms=due_ms)


def record_of(message: Pending, command: DelayCommand) -> NewRecord:
    """Build the record of this occurrence, without a queue."""
    delivery = message.delivery
    if command.kind == SCHEDULE:
        key = key_of(delivery)
    else:
        key = _id_of(command, message.occurrence)
        delivery = with_key(delivery, key)
    return NewRecord(
        message.topic,
        -1,
        message_id_of(message),
        message.born_ms,
        delivery,
        key,
        message.tags,
        message.flags,
    )


def _id_of(command: DelayCommand, occurrence: int) -> bytes:
    """Return the occurrence id as bytes, with a fast path for messages of a single delivery."""
    if command.kind != ONCE or occurrence:
        return occurrence_id(command, occurrence).encode()
    return b"%010d-%d-%010d-%d-0-%d-%d-%b" % (
        command.timestamp_s,
        ONCE,
        command.expire_s,
        command.times,
        command.interval_s,
        command.shard,
        command.uuid.encode(),
    )


def with_key(delivery: bytes, key: bytes) -> bytes:
    """Return the delivery bytes with `key` (not empty) added, unless they have a key."""
    if delivery[0] != _KEYLESS:
        return delivery
    return b"\x18%b%b\x18%b" % (varint(len(key)), key, delivery[1:])


def message_id_of(message: Pending) -> bytes:
    """Return the message id of this occurrence: the message's own for the first, a derived one for later
    occurrences.
    """
    if not message.occurrence:
        return message.message_id
    own = int.from_bytes(message.message_id[8:], "big")
    return message.message_id[:8] + (own + message.occurrence * _ID_STEP & _ID_END).to_bytes(8, "big")


def progress_of(fires: Iterable[FireCommand]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the progress of these fires: finished offsets, and (offset, fire count) of repeating
    messages."""
    finished: list[int] = []
    attempts: list[tuple[int, int]] = []
    for fire in fires:
        finished += moved_at(fire.message)
        if fire.following is None:
            finished.append(fire.message.offset)
        else:
            attempts.append((fire.message.offset, fire.message.occurrence + 1))
    return finished, attempts


# --- dead letters


def dead_fire(message: Pending, reason: str, now_ms: int, is_deferred: bool) -> FireCommand:
    """Return the fire of `message` as a dead letter, because it can never be appended to its topic.

    The property `dead-letter-place` is the queue it would have gone to, modulo the number of queues; absent:
    any queue.
    """
    delivery, queue_hint = message.delivery, {}
    try:
        command = decode_command(message.command)
        key = key_of(delivery)
        if command.partition >= BY_HASH or key:
            queue_hint = {
                dead.QUEUE_CHOICE: str(choose_queue(command.partition, command.hash_id, _HASH_END, 0, key))
            }
        if command.kind != SCHEDULE:
            delivery = with_key(delivery, occurrence_id(command, message.occurrence).encode())
    except DamagedError:
        pass
    facts = queue_hint | {
        dead.REASON: reason,
        dead.TOPIC: message.topic,
        dead.DUE: str(message.due_ms),
        dead.ATTEMPTS: "0",
        dead.TIME: str(now_ms),
    }
    record = dead.dead_record(DELAY_DLQ_TOPIC, message._replace(delivery=delivery), facts, {})
    return FireCommand(message, record, None, is_deferred, reason)


# --- what is known of the id


def state_after(fire: FireCommand, fired_ms: int, id_retention_ms: int) -> IdState:
    """Return the id's state after the fire.

    It is retained until `id_retention_ms` after the due time or the fire, whichever is later.
    """
    message = fire.message
    if fire.following is not None:
        return IdState(IdKind.PENDING, fire.following.due_ms, message.offset)
    kind = IdKind.DEAD if fire.reason else IdKind.FIRED
    return IdState(kind, fired_ms, message.offset, max(fired_ms, fire.named_ms) + id_retention_ms)
