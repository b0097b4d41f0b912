"""Delay commands: as one lies in the inner topic, taken apart; what a run of them came to; what decisions
about them rest on: the shard's store, what the log says, what is assumed.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from backend.progress.ack_map import AckMap
from backend.records import ShortRecord
from ddmq_common.delays.command import (
    ADD,
    ADDED,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    FIRE,
    KNOWN,
    RESCHEDULE,
    UNKNOWN,
    CommandOutcome,
    DelayCommand,
    decode_command,
    uuid_bytes,
)
from ddmq_common.delivery import tag_of
from ddmq_common.errors import DamagedError
from ddmq_common.names import DELAY_DLQ_TOPIC
from delay_service.core.fire_command import UNFIT
from delay_service.core.occurrences import CATCH_UP_MAX, next_after
from delay_service.store.port import DelayStore, IdKind, IdState, Pending, StoreChanges

OPS = frozenset((ADD, CANCEL, RESCHEDULE, FIRE, KNOWN))
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


def code_of(state: IdState | None, pending: int) -> int:
    """What a command of an id in this state had come to; `pending`: where its message waits."""
    if state is None or state.kind is IdKind.TOMBSTONE:
        return UNKNOWN
    if state.kind is IdKind.PENDING:
        return pending
    return ALREADY_FIRED if state.kind in OVER else CANCELLED


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


# --- what decisions rest on


@dataclass(slots=True)
class DecisionContext:
    """Of one shard. `busy`: offsets of messages whose commit is under way. `kept_ms`: how long the outcome
    of an id is kept. `reread_to`: commands below were taken in before, by us or another owner; `lost_place`:
    the store cannot say which of them it has."""

    store: DelayStore
    acks: AckMap
    busy: Container[int]
    kept_ms: int
    reread_to: int = 0
    lost_place: bool = False
    catch_up_max: int = CATCH_UP_MAX
    assumed: dict[bytes, Assumed] = field(default_factory=dict)  # over by the log alone
    place_from: int = field(init=False)

    def __post_init__(self) -> None:
        self.place_from = self.reread_to if self.lost_place else 0  # before, its next owner is as lost


class Assumed:
    """One message of a store that was lost, as far as the log tells: that nothing of it waits, and not why.

    Its commands are gone through once more in thought, by the times at which they were sent: what was due by
    then had fired. (A command that came in time because the service was late is taken for one that came too
    late.) `due_ms`: when it would fire next; None: it is over.
    """

    __slots__ = ("_command", "_occurrence", "due_ms")

    def __init__(self, command: DelayCommand | None, occurrence: int, due_ms: int) -> None:
        self._command = command
        self._occurrence = occurrence
        self.due_ms: int | None = due_ms

    def moved(self, said: DelayCommand, born_ms: int) -> None:
        """It was to be moved, or fired now."""
        if self.waits_at(born_ms):
            if said.op == FIRE:
                self._fire(born_ms)
            else:
                self.due_ms = said.due_ms

    def waits_at(self, at_ms: int) -> bool:
        """Whether something of it was still to fire at this moment, which is no earlier than those before."""
        if self.due_ms is not None and self.due_ms <= at_ms:
            self._fire(at_ms)
        return self.due_ms is not None

    def _fire(self, at_ms: int) -> None:
        found = None
        if self._command is not None:
            try:
                found = next_after(self._command, self._occurrence, 0, CATCH_UP_MAX, put_off_ms=at_ms)
            except UNFIT:
                self._command = None
        self.due_ms = None if found is None else found.due_ms
        self._occurrence = 0 if found is None else found.occurrence


def of_add(said: DelayCommand) -> Assumed:
    """As its add says."""
    return Assumed(said, said.occurrence, said.at_ms or said.due_ms)


def of_waiting(message: Pending | None, due_ms: int) -> Assumed:
    """As the store had it; None: it had lost the message."""
    command = None
    if message is not None:
        try:
            command = decode_command(message.command)
        except UNFIT:
            message = None
    return Assumed(command, 0 if message is None else message.occurrence, due_ms)


def is_pending(state: IdState) -> bool:
    """Whether a delivery of it waits."""
    return state.kind is IdKind.PENDING


class PutAside:
    """Which waiting messages are put aside, as a store has them; topics are asked for once."""

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self._topics: frozenset[str] | None = None

    def has(self, message: Pending) -> bool:
        """Whether this one is."""
        if self._topics is None:
            self._topics = frozenset(self._store.topics_put_aside())
        if message.topic not in self._topics:
            return False
        found = self._store.due(message.due_ms, 1, 1, message.key.before())
        return not found or found[0].offset != message.offset
