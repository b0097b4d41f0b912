"""One message on its way out: the record to append, and what waits after it."""

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
from ddmq_common.queue_choice import BY_HASH, choose
from delay_service.core.occurrences import CATCH_UP_MAX, next_after, occurrence_id, to_fire
from delay_service.store.port import IdKind, IdState, Pending

_KEYED, _KEYLESS = 0x18, 0x28  # how delivery bytes begin, with a key and without
_PLACE_END = 1 << 63
_ID_END = (1 << 64) - 1
_ID_STEP = 1 << 44  # between the ids of a message's occurrences
UNFIT = (DamagedError, ValueError, ArithmeticError)  # a message that cannot be made fails by itself


class FireCommand(NamedTuple):
    """`message` fires as `record`; `following` waits after it, None: nothing does. `aside`: it comes from
    those that were put aside. With a `reason` the record is a dead letter, and nothing follows. `named_ms`:
    when it was to fire, as its command and its id say."""

    message: Pending
    record: NewRecord
    following: Pending | None
    aside: bool
    reason: str = ""
    named_ms: int = 0


class PassedOver(NamedTuple):
    """What a message that was passed over is replaced by; None: nothing, it is over."""

    message: Pending
    following: Pending | None


def fire_command(
    message: Pending,
    queues: int,
    turn: Callable[[str], int],
    now_ms: int,
    aside: bool,
    catch_up_max: int = CATCH_UP_MAX,
    by_key: bool = False,
) -> FireCommand | PassedOver:
    """How `message` fires now into a topic with so many queues. `turn` counts up, per topic; `by_key`: where
    it does not mind, its key says which queue.

    A PassedOver when its command would rather have missed it. Raises DamagedError when the command does not
    parse, or cannot go on here.
    """
    command = decode_command(message.command)
    if command.schedule is not None:
        wanted = to_fire(command, message.occurrence, now_ms, message.due_ms)
        if wanted is None or wanted.occurrence != message.occurrence:
            return PassedOver(message, None if wanted is None else later(message, *wanted))
    record = record_of(message, command)
    key = record.key if by_key else b""
    record.queue_id = choose(command.partition, command.hash_id, queues, turn(message.topic), key)
    then = following(message, command, now_ms, catch_up_max)
    return FireCommand(message, record, then, aside, named_ms=command.due_ms)


def following(message: Pending, command: DelayCommand, now_ms: int, catch_up_max: int) -> Pending | None:
    """The next occurrence."""
    if command.kind == ONCE:
        return None
    found = next_after(command, message.occurrence, now_ms, catch_up_max, message.due_ms)
    return None if found is None else later(message, found.occurrence, found.due_ms)


def later(message: Pending, occurrence: int, due_ms: int) -> Pending:
    return message._replace(occurrence=occurrence, due_ms=due_ms)


def caught_up(message: Pending, fired: int, now_ms: int, catch_up_max: int) -> Pending | None:
    """What waits when the log says that everything below occurrence `fired` has been fired. Raises as
    `one`.

    Of `fire_once` the very next one does, also where it was missed meanwhile: it is the one that fires.
    """
    command = decode_command(message.command)
    if command.schedule is not None and command.schedule.catch_up == "fire_once":
        now_ms = 0
    found = next_after(command, fired - 1, now_ms, catch_up_max, put_off_ms=message.due_ms)
    return None if found is None else later(message, found.occurrence, found.due_ms)


def as_fired(message: Pending, seen: Pending, acks: AckMap, now_ms: int, catch_up_max: int) -> Pending | None:
    """The delivery of a series that waits, where the log may know of fires that the store does not; `seen`
    says how far it was put off. None: the series is over."""
    fired = acks.attempts.get(message.offset, 0)
    if fired <= message.occurrence:
        return message
    with suppress(*UNFIT):
        return caught_up(seen, fired, now_ms, catch_up_max)
    return message  # the due scan makes it a dead letter


def still_waiting(message: Pending, acks: AckMap, now_ms: int, catch_up_max: int) -> Pending | None:
    """The delivery that waits, by what the log knows; None: it is over."""
    over = acks.is_finished(message.offset)
    return None if over else as_fired(message, message, acks, now_ms, catch_up_max)


def offsets_of(message: Pending) -> list[int]:
    """Offsets that are over with `message`: its own, and that of the command that moved it."""
    return [message.offset, *moved_at(message)]


def moved_at(message: Pending) -> list[int]:
    """The offset of the last command that moved a delivery of a message that repeats, if there is one."""
    if '"moved_at"' in message.command:
        with suppress(DamagedError):
            return [decode_command(message.command).moved_at]
    return []


def moved_by(message: Pending, due_ms: int, offset: int) -> Pending:
    """Due at another time, by the command at `offset`, which one that repeats keeps until it has fired."""
    with suppress(DamagedError):
        command = decode_command(message.command)
        if command.kind != ONCE:
            text = encode_command(msgspec.structs.replace(command, moved_at=offset))
            return message._replace(due_ms=due_ms, command=text)
    return message._replace(due_ms=due_ms)


def record_of(message: Pending, command: DelayCommand) -> NewRecord:
    """The record of this occurrence, its queue not chosen."""
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
    """As `occurrence_id`; that of a single delivery is written at once, a storm asks for nothing else."""
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
    """The same delivery bytes with a key put in front; what has one keeps it. `key` is not empty."""
    if delivery[0] != _KEYLESS:
        return delivery
    return b"\x18%b%b\x18%b" % (varint(len(key)), key, delivery[1:])


def message_id_of(message: Pending) -> bytes:
    """The message's own id for its first occurrence, another one for each that follows."""
    if not message.occurrence:
        return message.message_id
    own = int.from_bytes(message.message_id[8:], "big")
    return message.message_id[:8] + (own + message.occurrence * _ID_STEP & _ID_END).to_bytes(8, "big")


def progress_of(fires: Iterable[FireCommand]) -> tuple[list[int], list[tuple[int, int]]]:
    """What the log is told when these fire: offsets nobody waits for any more; how often others fired."""
    finished: list[int] = []
    attempts: list[tuple[int, int]] = []
    for one in fires:
        finished += moved_at(one.message)
        if one.following is None:
            finished.append(one.message.offset)
        else:
            attempts.append((one.message.offset, one.message.occurrence + 1))
    return finished, attempts


# --- dead letters


def dead_fire(message: Pending, reason: str, now_ms: int, aside: bool) -> FireCommand:
    """`message` can never be appended where it belongs.

    `dead-letter-place`, modulo the queues of its topic, is the queue it would have gone to, or may go to by
    its key; without one any.
    """
    delivery, place = message.delivery, {}
    try:
        command = decode_command(message.command)
        key = key_of(delivery)
        if command.partition >= BY_HASH or key:
            place = {dead.PLACE: str(choose(command.partition, command.hash_id, _PLACE_END, 0, key))}
        if command.kind != SCHEDULE:
            delivery = with_key(delivery, occurrence_id(command, message.occurrence).encode())
    except DamagedError:
        pass
    facts = place | {
        dead.REASON: reason,
        dead.TOPIC: message.topic,
        dead.DUE: str(message.due_ms),
        dead.ATTEMPTS: "0",
        dead.TIME: str(now_ms),
    }
    record = dead.dead_record(DELAY_DLQ_TOPIC, message._replace(delivery=delivery), facts, {})
    return FireCommand(message, record, None, aside, reason)


# --- what is known of the id


def state_after(one: FireCommand, fired_ms: int, kept_ms: int) -> IdState:
    """What is known of the message's id once it has fired; if that was early, until after its own time."""
    message = one.message
    if one.following is not None:
        return IdState(IdKind.PENDING, one.following.due_ms, message.offset)
    kind = IdKind.DEAD if one.reason else IdKind.FIRED
    return IdState(kind, fired_ms, message.offset, max(fired_ms, one.named_ms) + kept_ms)
