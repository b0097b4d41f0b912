"""One run of commands on its way through: what changes in the store, and what each came to. The rules are in
delay_service/core/decider.py."""

from __future__ import annotations

from collections.abc import Sequence

from ddmq_common.delays.command import (
    ADD,
    ADDED,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    FIRE,
    PENDING,
    TOO_OLD,
    UNKNOWN,
    CommandOutcome,
    DelayCommand,
)
from ddmq_common.delays.ids import uuid_bytes
from ddmq_common.errors import DamagedError
from delay_service.core.answers import OVER, code_of, known, known_again, latest_ms
from delay_service.core.assumed import Assumed, of_add, of_waiting
from delay_service.core.command_record import CommandRecord, before, moved_at, moved_by, pending_of
from delay_service.core.decision_context import DecisionContext
from delay_service.core.fire_command import UNFIT, caught_up
from delay_service.core.kinds.occurrences import last_due_ms
from delay_service.core.taken import DEAD_TEXT, FireNow, OutcomeReply, Taken
from delay_service.store.port import DueKey, IdKind, IdState, Pending, StoreChanges

ASSUMED_MAX = 100_000  # ids of which nobody knows yet whether they fired or were cancelled
RESEND_MS = 3_600_000  # an add of a fired uuid within this time is the same add, sent again


class CommandRun:
    """A run of commands on their way through; later ones see what earlier ones changed."""

    def __init__(self, context: DecisionContext, commands: Sequence[CommandRecord], now_ms: int) -> None:
        self._context = context
        self._now = now_ms
        self._ids = self._look_up(commands)
        self._fresh: dict[tuple[int, int], Pending] = {}  # by due time and offset
        self._added = 0
        self._aside: frozenset[str] | None = None
        self._changes = StoreChanges()
        self._count = 0
        self._replies: list[OutcomeReply] = []
        self._done: list[int] = []
        self._ended: list[int] = []
        self._dead: list[CommandRecord] = []
        self._awaited: list[FireNow] = []
        self._tally: dict[str, int] = {}

    def _look_up(self, commands: Sequence[CommandRecord]) -> dict[bytes, IdState | None]:
        uuids = {command.uuid: None for command in commands if command.said is not None}
        for command in commands:
            if command.said is not None and command.said.unless_cancelled:
                uuids[uuid_bytes(command.said.unless_cancelled)] = None
        wanted = list(uuids)
        return dict(zip(wanted, self._context.store.ids(wanted), strict=True))

    def taken(self) -> Taken:
        self._changes.added = list(self._fresh.values())
        if self._added:
            self._tell("added", self._added)
        return Taken(
            self._count,
            self._changes,
            self._replies,
            self._done + self._ended,
            self._ended,
            self._dead,
            self._awaited,
            self._tally,
        )

    # --- one command

    def take(self, command: CommandRecord) -> bool:
        """False: it has to wait for the outcome of a commit."""
        said = command.said
        if said is None:
            self._make_dead(command)
            return True
        state = self._ids[command.uuid]
        self._count += 1
        if (
            state is None
            and said.op == ADD
            and not (said.unless_cancelled or self._context.acks.is_finished(command.offset))
        ):
            self._keep(command, said)  # nearly always
            return True
        if said.op != ADD and state is not None and self._is_busy(state):
            self._count -= 1
            return False
        if said.op == ADD:
            self._add(command, said)
        elif said.op == CANCEL:
            self._cancel(command, said)
        else:
            self._move(command, said)
        return True

    def _is_busy(self, state: IdState) -> bool:
        return state.kind is IdKind.PENDING and state.offset in self._context.busy

    def _make_dead(self, command: CommandRecord) -> None:
        self._count += 1
        self._dead_once(command)
        self._tell("unreadable", 1)

    def _dead_once(self, command: CommandRecord) -> None:
        if not self._context.acks.is_finished(command.offset):
            self._dead.append(command)
        self._done.append(command.offset)

    def _tell(self, what: str, count: int = 1) -> None:
        self._tally[what] = self._tally.get(what, 0) + count

    def _reply(self, said: DelayCommand, code: int, state: IdState | None) -> None:
        if said.reply_queue < 0:
            return
        kind, at_ms = (None, 0) if state is None else (state.kind, state.at_ms)
        outcome = CommandOutcome(
            reply_id=said.reply_id,
            code=code,
            fired_at_ms=at_ms if kind in OVER else 0,
            due_ms=at_ms if kind is IdKind.PENDING else 0,
            text=DEAD_TEXT if kind is IdKind.DEAD else "",
        )
        self._replies.append(OutcomeReply(said.reply_queue, outcome))

    # --- add

    def _add(self, command: CommandRecord, said: DelayCommand) -> None:
        state = self._ids[command.uuid]
        if state is not None and state.offset == command.offset and state.kind is not IdKind.TOMBSTONE:
            self._same(command, said)
        elif state is not None and not self._forgotten(state):
            code, what = known(state)
            self._nothing(command, what)
            self._reply(said, code, state)
        elif self._cancelled_otherwise(said):
            self._nothing(command, "cancelled")
            self._reply(said, CANCELLED, None)
        elif self._context.acks.is_finished(command.offset):
            self._fired_before(command, said)
        else:
            self._keep(command, said)

    def _same(self, command: CommandRecord, said: DelayCommand) -> None:
        """This very command, read once more."""
        state = self._true_state(command.uuid)
        if state is not None:
            code, what = known(state)
            if not _is_pending(state):
                self._done.append(command.offset)
            if (
                state.kind is IdKind.FIRED
                and self._context.lost_place
                and command.offset < self._context.reread_to
            ):
                self._context.assumed[command.uuid] = of_add(
                    said
                )  # perhaps by an owner that was killed meanwhile
            self._tell(what)
            self._reply(said, code, state)

    def _forgotten(self, state: IdState) -> bool:
        """An add is a new one although the id is still known."""
        return state.kind in OVER and state.at_ms + RESEND_MS < self._now

    def _cancelled_otherwise(self, said: DelayCommand) -> bool:
        if not said.unless_cancelled:
            return False
        other = self._ids[uuid_bytes(said.unless_cancelled)]
        return other is not None and other.kind in (IdKind.CANCELLED, IdKind.TOMBSTONE)

    def _nothing(self, command: CommandRecord, what: str) -> None:
        self._done.append(command.offset)
        self._tell(what)

    def _fired_before(self, command: CommandRecord, said: DelayCommand) -> None:
        last_ms = max(last_due_ms(said), command.born_ms)
        state = self._assume(command.uuid, command.offset, last_ms, of_add(said))
        self._tell("fired")
        self._reply(said, ALREADY_FIRED, state)

    def _assume(self, uuid: bytes, offset: int, last_ms: int, assumed: Assumed) -> IdState:
        """It fired, as far as is known, and not after `last_ms`."""
        fired_ms = min(last_ms, self._now)
        state = IdState(IdKind.FIRED, fired_ms, offset, self._now + self._context.kept_ms)
        self._put_id(uuid, state)
        if len(self._context.assumed) < ASSUMED_MAX:
            self._context.assumed[uuid] = assumed
        return state

    def _keep(self, command: CommandRecord, said: DelayCommand) -> None:
        try:
            message = pending_of(command)
        except DamagedError:
            self._count -= 1
            self._make_dead(command)
            return
        self._fresh[message[:2]] = message
        state = IdState(IdKind.PENDING, message.due_ms, message.offset)
        self._ids[command.uuid] = self._changes.ids[command.uuid] = state
        self._added += 1
        if said.reply_queue >= 0:
            self._reply(said, ADDED, state)

    def _put_id(self, uuid: bytes, state: IdState) -> None:
        self._ids[uuid] = self._changes.ids[uuid] = state

    # --- cancel, reschedule, fire now

    def _cancel(self, command: CommandRecord, said: DelayCommand) -> None:
        self._done.append(command.offset)
        state = self._true_state(command.uuid)
        if state is None:
            self._cancel_unknown(command, said)
        elif state.kind is IdKind.PENDING:
            message = self._take_out(DueKey(state.at_ms, state.offset))
            self._done.append(state.offset)
            self._ended += [] if message is None else moved_at(message)
            self._cancelled(command, said, state, self._now)
        elif self._was_the_one(command):
            self._cancelled(command, said, state, command.born_ms)
        else:
            self._end(said, *known_again(state), state)

    def _was_the_one(self, command: CommandRecord) -> bool:
        """This cancel was done before, to a message of which only the log knows that it is over."""
        assumed = self._context.assumed.pop(command.uuid, None)
        if assumed is None or not self._context.acks.is_finished(command.offset):
            return False
        return assumed.waits_at(command.born_ms)

    def _cancelled(self, command: CommandRecord, said: DelayCommand, state: IdState, at_ms: int) -> None:
        forget = max(self._now + self._context.kept_ms, state.at_ms + RESEND_MS, latest_ms(said) + RESEND_MS)
        self._put_id(command.uuid, IdState(IdKind.CANCELLED, at_ms, state.offset, forget))
        self._end(said, CANCELLED, "cancelled", None)

    def _cancel_unknown(self, command: CommandRecord, said: DelayCommand) -> None:
        due = said.due_ms or said.timestamp_s * 1_000
        too_old = 0 < due < self._now - self._context.kept_ms
        until = max(latest_ms(said), self._now) + RESEND_MS
        self._put_id(command.uuid, IdState(IdKind.TOMBSTONE, self._now, 0, until))
        self._end(said, TOO_OLD if too_old else UNKNOWN, "too old" if too_old else "unknown", None)

    def _move(self, command: CommandRecord, said: DelayCommand) -> None:
        """Another due time: a given one, or now."""
        state = self._true_state(command.uuid)
        if state is None:
            self._done.append(command.offset)
            due = said.due_ms if said.op == FIRE else said.timestamp_s * 1_000
            too_old = 0 < due < self._now - self._context.kept_ms
            self._end(said, TOO_OLD if too_old else UNKNOWN, "too old" if too_old else "unknown", None)
            return
        if command.uuid in self._context.assumed:
            self._context.assumed[command.uuid].ordered(said, command.born_ms)
        over = self._is_over(command, state)
        if over and not self._is_behind(state):
            self._done.append(command.offset)
            self._end(said, ADDED, "known", state)
            return
        message = self._take_out(DueKey(state.at_ms, state.offset)) if _is_pending(state) else None
        if message is None:
            self._done.append(command.offset)
            self._end(said, *known_again(state), state)
            return
        moved = self._moved(command, said, message if over else self._as_fired(command, message))
        state = IdState(IdKind.PENDING, moved.due_ms, moved.offset)
        self._put_id(command.uuid, state)
        self._tell("fired now" if said.op == FIRE else "rescheduled")
        if said.op == FIRE and said.reply_queue >= 0:
            self._awaited.append(FireNow(moved.offset, said.reply_queue, said.reply_id))
        else:
            self._reply(said, ADDED, state)

    def _moved(self, command: CommandRecord, said: DelayCommand, message: Pending) -> Pending:
        """`message`, which was taken out, waits again, where `command` wants it."""
        then = command.born_ms if self._context.acks.is_finished(command.offset) else self._now
        due_ms = min(then, message.due_ms) if said.op == FIRE else max(said.due_ms, 0)
        moved = moved_by(message, due_ms, command.offset)
        self._ended += [offset for offset in moved_at(message) if offset != command.offset]
        if not moved_at(moved):
            self._done.append(command.offset)
        self._fresh[moved.key] = moved
        return moved

    def _is_over(self, command: CommandRecord, state: IdState) -> bool:
        """Done before, and the delivery that it moved has fired: a move is finished with that, or by the next
        one. (Before anything has fired the last one counts, and all may be done again.)"""
        acks = self._context.acks
        return (
            _is_pending(state) and acks.is_finished(command.offset) and acks.attempts.get(state.offset, 0) > 0
        )

    def _is_behind(self, state: IdState) -> bool:
        """The store has a delivery that has fired: until when it was put off tells what was passed over."""
        message = self._waiting(state)
        return message is not None and message.occurrence < self._context.acks.attempts[message.offset]

    def _waiting(self, state: IdState) -> Pending | None:
        key = DueKey(state.at_ms, state.offset)
        return self._fresh.get(key) or self._context.store.get(key)

    def _as_fired(self, command: CommandRecord, message: Pending) -> Pending:
        """The delivery that is to be moved: the log may know of fires that the store does not."""
        fired = self._context.acks.attempts.get(message.offset, 0)
        if fired <= message.occurrence:
            return message
        before = command.offset < self._context.reread_to and command.born_ms < message.due_ms
        seen = message._replace(due_ms=0) if before else message  # never put off so far: this came before
        try:
            return caught_up(seen, fired, self._now, self._context.catch_up_max) or message
        except UNFIT:
            return message  # the due scan makes it a dead letter

    def _moved_by(self, command: CommandRecord, state: IdState | None) -> bool:
        """This command says when the message waits."""
        if state is None or not _is_pending(state) or command.said is None or command.said.op == ADD:
            return False
        message = self._waiting(state)
        return message is not None and command.offset in moved_at(message)

    def _end(self, said: DelayCommand, code: int, what: str, state: IdState | None) -> None:
        self._tell(what)
        self._reply(said, code, state)

    def _true_state(self, uuid: bytes) -> IdState | None:
        """What the store knows, put right by what the log knows: a fire may be missing in the store."""
        state = self._ids[uuid]
        if state is None or not _is_pending(state) or not self._context.acks.is_finished(state.offset):
            return state
        message = self._take_out(DueKey(state.at_ms, state.offset))
        return self._assume(uuid, state.offset, state.at_ms, of_waiting(message, state.at_ms))

    def _take_out(self, key: DueKey) -> Pending | None:
        """Out of what waits; None when the store has lost it."""
        message = self._fresh.pop(key, None)
        if message is not None:
            return message
        message = self._context.store.get(key)
        if message is None:
            self._tell("lost")
        elif self._is_aside(message):
            self._changes.removed_deferred.append(message)
        else:
            self._changes.removed.append(message)
        return message

    def _is_aside(self, message: Pending) -> bool:
        if self._aside is None:
            self._aside = frozenset(self._context.store.topics_put_aside())
        if message.topic not in self._aside:
            return False
        found = self._context.store.due(message.due_ms, 1, 1, before(message.key))
        return not found or found[0].offset != message.offset

    # --- commands read again

    def take_again(self, command: CommandRecord) -> None:
        self._count += 1
        said = command.said
        if said is None:
            self._dead_once(command)
            return
        state = self._ids[command.uuid]
        waits = state is not None and _is_pending(state) and state.offset == command.offset
        if not (waits or self._moved_by(command, state)):
            self._done.append(command.offset)
        if said.op == ADD:
            self._reply(said, *code_of(state, ADDED), state)
            return
        if state is not None and state.kind is IdKind.CANCELLED:
            self._done.append(state.offset)
        self._reply(said, *code_of(state, PENDING if said.op == CANCEL else ADDED), state)


def _is_pending(state: IdState) -> bool:
    return state.kind is IdKind.PENDING
