"""Delay commands: a parsed record of the inner topic, the decisions about a run of them, and what those rest
on.

Decisions rest on the shard's store, on the progress in the log, and on assumptions about messages of a store
that was lost.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from hashlib import blake2b
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
    HOLD,
    ID_OUTCOMES,
    RELEASE,
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
from delay_service.core.held_messages import HELD_FROM_MS, is_held_ms, plain_due_ms
from delay_service.core.occurrences import CATCH_UP_MAX, next_after
from delay_service.store.port import DelayStore, IdKind, IdState, Pending, StoreChanges

OPS = frozenset((ADD, CANCEL, RESCHEDULE, FIRE, HOLD, RELEASE, ID_OUTCOMES))
FIRED_KINDS = (IdKind.FIRED, IdKind.DEAD)
HELD_TEXT = "it is held; it fires when it is released"
DEAD_TEXT = f"it could not be delivered and is a dead letter in {DELAY_DLQ_TOPIC}"


class CommandRecord(NamedTuple):
    """One command of the inner topic. `request` None: the record cannot be parsed and becomes a dead letter.

    `message_id`, `born_ms`, `flags` and `delivery` are those of the record.
    """

    offset: int
    request: DelayCommand | None
    uuid: bytes
    text: str
    message_id: bytes
    born_ms: int
    flags: int
    delivery: bytes


def command_of(record: ShortRecord) -> CommandRecord:
    """Parse the command of an inner record that has a COMMAND_PROPERTY."""
    offset, message_id, born_ms, flags, value, delivery = record
    text = value.decode(errors="replace")
    try:
        request = decode_command(value)
    except DamagedError:
        return CommandRecord(offset, None, b"", text, message_id, born_ms, flags, delivery)
    if request.op not in OPS or (request.op == ADD and not request.topic):
        return CommandRecord(offset, None, b"", text, message_id, born_ms, flags, delivery)
    return CommandRecord(
        offset, request, uuid_bytes(request.uuid), text, message_id, born_ms, flags, delivery
    )


def pending_of(command: CommandRecord) -> Pending:
    """Build the waiting message of an add command.

    Raises DamagedError if its delivery bytes cannot be parsed.
    """
    offset, request, uuid, text, message_id, born_ms, flags, delivery = command
    if request is None:
        raise DamagedError(f"command at offset {offset} does not parse")
    due_ms = _stored_due_ms(request)
    tag = tag_of(delivery)
    return Pending(
        due_ms,
        offset,
        request.occurrence,
        request.topic,
        uuid,
        text,
        message_id,
        born_ms,
        flags,
        tag,
        delivery,
    )


def _stored_due_ms(request: DelayCommand) -> int:
    """Return the due time with which an add command is stored."""
    due_ms = max(request.at_ms or request.due_ms, 0)
    return due_ms + HELD_FROM_MS if request.is_held else due_ms


# --- what commands came to


class OutcomeReply(NamedTuple):
    """The outcome of a command, and the queue of the producer proxy that requested it."""

    queue_id: int
    outcome: CommandOutcome


class FireNow(NamedTuple):
    """A fire-now command, whose outcome is known when its message's commit has finished."""

    offset: int
    queue_id: int
    reply_id: int


@dataclass(slots=True)
class CommandDecisions:
    """The decisions about the first `commands` commands of a run.

    `done`: offsets whose messages no longer wait. `unrecorded`: those of them that neither a command nor
    an id's state names (see UnrecordedOffsets in context.py).
    """

    commands: int = 0
    changes: StoreChanges = field(default_factory=StoreChanges)
    replies: list[OutcomeReply] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    unrecorded: list[int] = field(default_factory=list)
    dead: list[CommandRecord] = field(default_factory=list)
    awaited_fires: list[FireNow] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)  # outcome → how many


def latest_ms(request: DelayCommand) -> int:
    """Return the latest time that a command mentions, in epoch milliseconds."""
    return max(request.due_ms, request.timestamp_s * 1_000, request.expire_s * 1_000 if request.times else 0)


def answer_add(state: IdState) -> tuple[int, str]:
    """Return the answer code and the outcome label of an add whose id is known already."""
    if state.kind is IdKind.PENDING:
        return ADDED, "known"
    if state.kind in FIRED_KINDS:
        return ALREADY_FIRED, "known"
    return CANCELLED, "cancelled before"


def answer_cancel(state: IdState) -> tuple[int, str]:
    """Return the answer code and the outcome label of a cancel whose id is finished."""
    if state.kind in FIRED_KINDS:
        return ALREADY_FIRED, "already fired"
    if state.kind is IdKind.CANCELLED:
        return CANCELLED, "cancelled again"
    return UNKNOWN, "unknown"


def code_of(state: IdState | None, pending: int) -> int:
    """Return the answer code of a repeated command from its id's state; `pending` if its message still
    waits."""
    if state is None or state.kind is IdKind.TOMBSTONE:
        return UNKNOWN
    if state.kind is IdKind.PENDING:
        return pending
    return ALREADY_FIRED if state.kind in FIRED_KINDS else CANCELLED


def reply_to(request: DelayCommand, code: int, state: IdState | None, text: str = "") -> OutcomeReply:
    """Build the reply to the requester; None as `state`: the code says everything."""
    kind, at_ms = (None, 0) if state is None else (state.kind, state.at_ms)
    outcome = CommandOutcome(
        reply_id=request.reply_id,
        code=code,
        fired_at_ms=at_ms if kind in FIRED_KINDS else 0,
        due_ms=plain_due_ms(at_ms) if kind is IdKind.PENDING else 0,
        text=DEAD_TEXT if kind is IdKind.DEAD else text,
    )
    return OutcomeReply(request.reply_queue, outcome)


# --- what decisions rest on


@dataclass(slots=True)
class DecisionContext:
    """The facts about one shard that decisions use.

    `busy`: offsets of messages whose commit is in flight. `id_retention_ms`: how long the outcome of an id is
    retained. `reread_to`: commands below this offset were ingested before, by this or an earlier owner.
    `lost_position`: the store does not know which of them it has.
    """

    store: DelayStore
    acks: AckMap
    busy: Container[int]
    id_retention_ms: int
    reread_to: int = 0
    lost_position: bool = False
    catch_up_max: int = CATCH_UP_MAX
    assumed: dict[bytes, AssumedMessage] = field(default_factory=dict)  # over by the log alone
    position_from: int = field(init=False)

    def __post_init__(self) -> None:
        self.position_from = self.reread_to if self.lost_position else 0  # before, its next owner is as lost


class AssumedMessage:
    """The reconstruction of a message of a lost store, of which the log says only that no delivery waits any
    more.

    Its commands are replayed at the times at which they were sent: a delivery due by then is assumed to have
    fired. (A command that arrived in time only because the service was late counts as too late.) `due_ms`:
    the next due time; None: the message is finished.
    """

    __slots__ = ("_command", "_held", "_occurrence", "due_ms")

    def __init__(self, command: DelayCommand | None, occurrence: int, due_ms: int) -> None:
        self._command = command
        self._occurrence = occurrence
        self._held = is_held_ms(due_ms)
        self.due_ms: int | None = plain_due_ms(due_ms)

    def apply_move(self, request: DelayCommand, born_ms: int) -> None:
        """Apply a command that rescheduled the message or fired it at once. `born_ms`: when it was sent."""
        if self.waits_at(born_ms):
            if request.op != FIRE:
                self.due_ms = request.due_ms
            elif self._held:
                self.due_ms = min(self.due_ms or 0, born_ms)
            else:
                self._fire(born_ms)

    def set_held(self, is_held: bool, born_ms: int) -> None:
        """Apply a command that held or released the message. `born_ms`: when it was sent."""
        if self.waits_at(born_ms):
            self._held = is_held

    def waits_at(self, at_ms: int) -> bool:
        """Return whether a delivery still waited at `at_ms`. Successive calls need ascending times."""
        if self.due_ms is not None and self.due_ms <= at_ms and not self._held:
            self._fire(at_ms)
        return self.due_ms is not None

    def _fire(self, at_ms: int) -> None:
        upcoming = None
        if self._command is not None:
            try:
                upcoming = next_after(self._command, self._occurrence, 0, CATCH_UP_MAX, put_off_ms=at_ms)
            except UNFIT:
                self._command = None
        self.due_ms = None if upcoming is None else upcoming.due_ms
        self._occurrence = 0 if upcoming is None else upcoming.occurrence


def assume_from_add(request: DelayCommand) -> AssumedMessage:
    """Build the assumed message of an add command."""
    return AssumedMessage(request, request.occurrence, _stored_due_ms(request))


def assume_from_waiting(message: Pending | None, due_ms: int) -> AssumedMessage:
    """Build the assumed message from the waiting message in the store; `message` None: the store has lost
    it."""
    command = None
    if message is not None:
        try:
            command = decode_command(message.command)
        except UNFIT:
            message = None
    return AssumedMessage(command, 0 if message is None else message.occurrence, due_ms)


def is_pending(state: IdState) -> bool:
    """Return whether a delivery of this id is waiting."""
    return state.kind is IdKind.PENDING


def topic_id(uuid: bytes, topic: str) -> bytes:
    """Return the id under which a tombstone for one topic alone is stored."""
    return blake2b(uuid + topic.encode(), digest_size=16).digest()


class DeferredTopics:
    """Tells whether waiting messages are deferred. It reads the store's deferred topics once."""

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self._topics: frozenset[str] | None = None

    def has_message(self, message: Pending) -> bool:
        """Return whether this waiting message is deferred."""
        if self._topics is None:
            self._topics = frozenset(self._store.deferred_topics())
        if message.topic not in self._topics:
            return False
        next_in_order = self._store.due(message.due_ms, 1, 1, message.key.before())
        return not next_in_order or next_in_order[0].offset != message.offset
