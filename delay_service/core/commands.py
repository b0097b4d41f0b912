"""Delay commands: as one lies in the inner topic, taken apart, and what a run of them came to."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from backend.progress.ack_map import OFFSET_END
from backend.records import ShortRecord
from ddmq_common.delays.command import (
    ADD,
    ADDED,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    FIRE,
    ONCE,
    RESCHEDULE,
    UNKNOWN,
    CommandOutcome,
    DelayCommand,
    decode_command,
    encode_command,
    uuid_bytes,
)
from ddmq_common.delivery import tag_of
from ddmq_common.errors import DamagedError
from ddmq_common.names import DELAY_DLQ_TOPIC
from delay_service.store.port import DueKey, IdKind, IdState, Pending, StoreChanges

OPS = frozenset((ADD, CANCEL, RESCHEDULE, FIRE))
OVER = (IdKind.FIRED, IdKind.DEAD)
DEAD_TEXT = f"it could not be delivered and is a dead letter in {DELAY_DLQ_TOPIC}"


class CommandRecord(NamedTuple):
    """One command. `said` is None when the record does not say what is wanted: it becomes a dead letter.

    `delivery`: the record's own bytes, which a reader may give back; `message_id`, `born_ms`, `flags` too.
    """

    offset: int
    said: DelayCommand | None
    uuid: bytes
    text: str
    message_id: bytes
    born_ms: int
    flags: int
    delivery: bytes


def command_of(record: ShortRecord) -> CommandRecord:
    """The command that an inner record holds; `record` carries its COMMAND_PROPERTY."""
    offset, message_id, born_ms, flags, value, delivery = record
    text = value.decode(errors="replace")
    try:
        said = decode_command(value)
    except DamagedError:
        return CommandRecord(offset, None, b"", text, message_id, born_ms, flags, delivery)
    if said.op not in OPS or (said.op == ADD and not said.topic):
        return CommandRecord(offset, None, b"", text, message_id, born_ms, flags, delivery)
    return CommandRecord(offset, said, uuid_bytes(said.uuid), text, message_id, born_ms, flags, delivery)


def pending_of(command: CommandRecord) -> Pending:
    """The message that an add asks to keep. Raises DamagedError when its delivery bytes do not parse."""
    offset, said, uuid, text, message_id, born_ms, flags, delivery = command
    if said is None:
        raise DamagedError(f"command at offset {offset} does not parse")
    due_ms = max(said.at_ms or said.due_ms, 0)
    tag = tag_of(delivery)
    return Pending(
        due_ms, offset, said.occurrence, said.topic, uuid, text, message_id, born_ms, flags, tag, delivery
    )


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


def before(key: DueKey) -> DueKey | None:
    """The greatest place in front of `key`; None: the beginning."""
    if key.offset > 0:
        return DueKey(key.due_ms, key.offset - 1)
    return DueKey(key.due_ms - 1, OFFSET_END) if key.due_ms > 0 else None


# --- what commands came to


class OutcomeReply(NamedTuple):
    """An outcome for the queue that asked for it."""

    queue_id: int
    outcome: CommandOutcome


class FireNow(NamedTuple):
    """A fire-now command whose outcome is the commit of its message."""

    offset: int
    queue_id: int
    reply_id: int


@dataclass(slots=True)
class Taken:
    """What so many `commands`, from the first on, came to. `done`: offsets that nobody waits for any more.
    `ended`: those among them that no command and no state of an id names (see Unrecorded in context.py)."""

    commands: int = 0
    changes: StoreChanges = field(default_factory=StoreChanges)
    replies: list[OutcomeReply] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    dead: list[CommandRecord] = field(default_factory=list)
    awaited: list[FireNow] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)  # outcome → how many


def latest_ms(said: DelayCommand) -> int:
    """The latest time that a command names."""
    return max(said.due_ms, said.timestamp_s * 1_000, said.expire_s * 1_000 if said.times else 0)


def known(state: IdState) -> tuple[int, str]:
    """What an add of a known id is answered, and counted as."""
    if state.kind is IdKind.PENDING:
        return ADDED, "known"
    if state.kind in OVER:
        return ALREADY_FIRED, "known"
    return CANCELLED, "cancelled before"


def known_again(state: IdState) -> tuple[int, str]:
    """What a cancel of an id is answered that does not wait any more."""
    if state.kind in OVER:
        return ALREADY_FIRED, "already fired"
    if state.kind is IdKind.CANCELLED:
        return CANCELLED, "cancelled again"
    return UNKNOWN, "unknown"


def code_of(state: IdState | None, pending: int) -> tuple[int]:
    if state is None or state.kind is IdKind.TOMBSTONE:
        return (UNKNOWN,)
    if state.kind is IdKind.PENDING:
        return (pending,)
    return (ALREADY_FIRED if state.kind in OVER else CANCELLED,)


def reply_to(said: DelayCommand, code: int, state: IdState | None) -> OutcomeReply:
    """What the queue that asked is told; `state`: of its id, None: nothing more is to be said."""
    kind, at_ms = (None, 0) if state is None else (state.kind, state.at_ms)
    outcome = CommandOutcome(
        reply_id=said.reply_id,
        code=code,
        fired_at_ms=at_ms if kind in OVER else 0,
        due_ms=at_ms if kind is IdKind.PENDING else 0,
        text=DEAD_TEXT if kind is IdKind.DEAD else "",
    )
    return OutcomeReply(said.reply_queue, outcome)
