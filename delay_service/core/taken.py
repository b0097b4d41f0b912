"""What a run of commands came to: what the store is to change, and what those who asked are told."""

from __future__ import annotations

from typing import NamedTuple

from ddmq_common.delays.command import CommandOutcome
from ddmq_common.names import DELAY_DLQ_TOPIC
from delay_service.core.command_record import CommandRecord
from delay_service.store.port import StoreChanges

DEAD_TEXT = f"it could not be delivered and is a dead letter in {DELAY_DLQ_TOPIC}"


class OutcomeReply(NamedTuple):
    """An outcome for the queue that asked for it."""

    queue_id: int
    outcome: CommandOutcome


class FireNow(NamedTuple):
    """A fire-now command whose outcome is the commit of its message."""

    offset: int
    queue_id: int
    reply_id: int


class Taken(NamedTuple):
    """What so many `commands`, from the first on, came to. `done`: offsets that nobody waits for any more.
    `ended`: those among them that no command and no state of an id names (see unrecorded.py)."""

    commands: int
    changes: StoreChanges
    replies: list[OutcomeReply]
    done: list[int]
    ended: list[int]
    dead: list[CommandRecord]
    awaited: list[FireNow]
    tally: dict[str, int]  # outcome → how many
