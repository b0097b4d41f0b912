"""A command as it lies in the inner topic, taken apart."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import msgspec

from backend.progress.ack_map import OFFSET_END
from backend.records import Carried
from ddmq_common.delays.command import (
    ADD,
    CANCEL,
    FIRE,
    ONCE,
    RESCHEDULE,
    DelayCommand,
    decode_command,
    encode_command,
)
from ddmq_common.delays.ids import uuid_bytes
from ddmq_common.delivery_parts import tag_of
from ddmq_common.errors import DamagedError
from delay_service.store.port import DueKey, Pending

OPS = frozenset((ADD, CANCEL, RESCHEDULE, FIRE))


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


def command_of(record: Carried) -> CommandRecord:
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
