"""A held message keeps its due time and its hold, also in a backup that becomes a new log."""

from __future__ import annotations

from uuid import UUID

import pytest

from backend.progress.ack_map import AckMap
from ddmq.server.delays.restore import command_record
from ddmq_common.delays.command import ADD, COMMAND_PROPERTY, DelayCommand, decode_command, encode_command
from ddmq_common.delivery import encode
from delay_service.core.commands import CommandRecord, pending_of
from delay_service.core.fire_command import still_waiting
from delay_service.core.held_messages import (
    HELD_FROM_MS,
    held_message,
    is_held_ms,
    plain_due_ms,
    released_message,
)
from delay_service.store.port import Pending

DUE_MS = 1_800_000_000_000


def message() -> Pending:
    command = DelayCommand(ADD, str(UUID(int=7)), "orders", due_ms=DUE_MS)
    text = encode_command(command)
    return Pending(
        DUE_MS, 3, 0, "orders", UUID(int=7).bytes, text, bytes(16), 1, 0, b"", encode(b"", b"x", b"", None)
    )


def test_a_hold_and_a_release_leave_the_due_time() -> None:
    held = held_message(message())
    assert (held.due_ms, is_held_ms(held.due_ms), plain_due_ms(held.due_ms)) == (
        DUE_MS + HELD_FROM_MS,
        True,
        DUE_MS,
    )
    assert held_message(held) == held
    assert released_message(held) == message() == released_message(message())
    assert still_waiting(held, AckMap(), DUE_MS + 1, 1) == held


@pytest.mark.parametrize("is_held", [False, True])
def test_a_restored_message_is_held_as_it_was(is_held: bool) -> None:
    before = held_message(message()) if is_held else message()
    record = command_record(before, 1)
    assert record.system is not None
    text = record.system[COMMAND_PROPERTY]
    command = decode_command(text)
    assert (command.at_ms, command.is_held) == (DUE_MS, is_held)
    restored = pending_of(
        CommandRecord(9, command, before.uuid, text, before.message_id, 1, 0, bytes(record.delivery))
    )
    assert restored.due_ms == before.due_ms
