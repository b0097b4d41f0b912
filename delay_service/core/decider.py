"""Commands taken in, in the order of the inner topic: what changes in the store and what each came to.

One place decides whether a cancel came in time: here, against a store that no fire under way can change.
Rules:
* A message whose commit is under way is `busy`; a command about it, and all behind it, wait for the outcome.
* An add is known when its uuid is pending, was fired within the last `RESEND_MS`, or was cancelled (also
  before it came: a tombstone). It then stores nothing. The same command read once more (its offset is the
  state's) is no second add: what waits goes on waiting. What the group of fired messages has finished at its
  own offset was fired or cancelled already, by an owner whose store did not live to tell: a cancel that is
  read behind it, and came before it could fire, was the one.
* A cancel of an unknown uuid leaves a tombstone until its due time and an hour, but at least an hour.
* `taken.done`: offsets nobody waits for any more, to be finished in the group of fired messages.
* A cancel of what became a dead letter is answered as of what fired, with words that say so: it is over.
  (Only when the store did not live to tell is it "already fired" without them.)
* What was written to the store and not yet committed is read again after a crash: `again` then changes
  nothing and says what had been decided.
* A store that has lost how far it is reads all commands anew. Which delivery of a message that repeats a
  move was of, the log knows: the move's own offset is finished with that delivery, or the next move of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddmq_common.delays.command import (
    ADD,
    ADDED,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    FIRE,
    KNOWN,
    PENDING,
    TOO_OLD,
    UNKNOWN,
    DelayCommand,
    uuid_bytes,
)
from ddmq_common.errors import DamagedError
from delay_service.core.commands import (
    OVER,
    Assumed,
    CommandRecord,
    DecisionContext,
    FireNow,
    PutAside,
    Taken,
    code_of,
    is_pending,
    known,
    known_again,
    latest_ms,
    of_add,
    of_waiting,
    pending_of,
    reply_to,
)
from delay_service.core.fire_command import as_fired, moved_at, moved_by
from delay_service.core.known import known_in, learn
from delay_service.core.occurrences import last_due_ms
from delay_service.store.port import DueKey, IdKind, IdState, Pending

INGESTED = "ingested"  # meta: the inner offset up to which the store has taken commands in
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
        self._aside = PutAside(context.store)
        self._count = 0
        self._taken = Taken()
        self._changes, self._done, self._ended = self._taken.changes, self._taken.done, self._taken.ended

    def _look_up(self, commands: Sequence[CommandRecord]) -> dict[bytes, IdState | None]:
        said = [(command.uuid, command.said) for command in commands if command.said is not None]
        others = (uuid_bytes(one.unless_cancelled) for _, one in said if one.unless_cancelled)
        wanted = list(dict.fromkeys([*(uuid for uuid, _ in said), *others]))
        return dict(zip(wanted, self._context.store.ids(wanted), strict=True))

    def end(self) -> Taken:
        """What they came to; nothing is taken after that."""
        self._changes.added = list(self._fresh.values())
        if self._added:
            self._tell("added", self._added)
        self._done += self._ended
        self._taken.commands = self._count
        return self._taken

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
        elif said.op == KNOWN:
            self._learn(command)
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
            self._taken.dead.append(command)
        self._done.append(command.offset)

    def _tell(self, what: str, count: int = 1) -> None:
        tally = self._taken.tally
        tally[what] = tally.get(what, 0) + count

    def _reply(self, said: DelayCommand, code: int, state: IdState | None) -> None:
        if said.reply_queue >= 0:
            self._taken.replies.append(reply_to(said, code, state))

    # --- add

    def _add(self, command: CommandRecord, said: DelayCommand) -> None:
        state = self._ids[command.uuid]
        if state is not None and state.offset == command.offset and state.kind is not IdKind.TOMBSTONE:
            self._same(command, said)
        elif state is not None and not self._forgotten(state):
            self._done.append(command.offset)
            self._end(said, *known(state), state)
        elif self._cancelled_otherwise(said):
            self._done.append(command.offset)
            self._end(said, CANCELLED, "cancelled", None)
        elif self._context.acks.is_finished(command.offset):
            self._fired_before(command, said)
        else:
            self._keep(command, said)

    def _same(self, command: CommandRecord, said: DelayCommand) -> None:
        """This very command, read once more."""
        state = self._true_state(command.uuid)
        if state is None:
            return
        if not is_pending(state):
            self._done.append(command.offset)
        context = self._context
        if state.kind is IdKind.FIRED and context.lost_place and command.offset < context.reread_to:
            context.assumed[command.uuid] = of_add(said)  # perhaps by an owner that was killed meanwhile
        self._end(said, *known(state), state)

    def _forgotten(self, state: IdState) -> bool:
        """An add is a new one although the id is still known."""
        return state.kind in OVER and state.at_ms + RESEND_MS < self._now

    def _cancelled_otherwise(self, said: DelayCommand) -> bool:
        other = self._ids[uuid_bytes(said.unless_cancelled)] if said.unless_cancelled else None
        return other is not None and other.kind in (IdKind.CANCELLED, IdKind.TOMBSTONE)

    def _fired_before(self, command: CommandRecord, said: DelayCommand) -> None:
        last_ms = max(last_due_ms(said), command.born_ms)
        state = self._assume(command.uuid, command.offset, last_ms, of_add(said))
        self._end(said, ALREADY_FIRED, "fired", state)

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
        self._reply(said, ADDED, state)

    def _put_id(self, uuid: bytes, state: IdState) -> None:
        self._ids[uuid] = self._changes.ids[uuid] = state

    def _learn(self, command: CommandRecord) -> None:
        try:
            learned = learn(known_in(command.delivery), self._ids, self._context.store, self._now)
        except DamagedError:
            self._count -= 1
            self._make_dead(command)
            return
        self._done.append(command.offset)
        self._ids.update(learned)
        self._changes.ids.update(learned)
        self._tell("learned", len(learned))

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
        until = max(latest_ms(said), self._now) + RESEND_MS
        self._put_id(command.uuid, IdState(IdKind.TOMBSTONE, self._now, 0, until))
        self._unknown(said, said.due_ms or said.timestamp_s * 1_000)

    def _unknown(self, said: DelayCommand, due_ms: int) -> None:
        """No such id; perhaps forgotten, when its message was due so long ago."""
        if 0 < due_ms < self._now - self._context.kept_ms:
            self._end(said, TOO_OLD, "too old", None)
        else:
            self._end(said, UNKNOWN, "unknown", None)

    def _move(self, command: CommandRecord, said: DelayCommand) -> None:
        """Another due time: a given one, or now."""
        state = self._true_state(command.uuid)
        if state is None:
            self._done.append(command.offset)
            self._unknown(said, said.due_ms if said.op == FIRE else said.timestamp_s * 1_000)
            return
        if command.uuid in self._context.assumed:
            self._context.assumed[command.uuid].moved(said, command.born_ms)
        over = self._is_over(command, state)
        if over and not self._is_behind(state):
            self._done.append(command.offset)
            self._end(said, ADDED, "known", state)
            return
        message = self._take_out(DueKey(state.at_ms, state.offset)) if is_pending(state) else None
        if message is None:
            self._done.append(command.offset)
            self._end(said, *known_again(state), state)
            return
        moved = self._moved(command, said, message if over else self._as_fired(command, message))
        state = IdState(IdKind.PENDING, moved.due_ms, moved.offset)
        self._put_id(command.uuid, state)
        self._tell("fired now" if said.op == FIRE else "rescheduled")
        if said.op == FIRE and said.reply_queue >= 0:
            self._taken.awaited.append(FireNow(moved.offset, said.reply_queue, said.reply_id))
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
        fired = acks.attempts.get(state.offset, 0) > 0
        return is_pending(state) and acks.is_finished(command.offset) and fired

    def _is_behind(self, state: IdState) -> bool:
        """The store has a delivery that has fired: until when it was put off tells what was passed over."""
        message = self._waiting(state)
        return message is not None and message.occurrence < self._context.acks.attempts[message.offset]

    def _waiting(self, state: IdState) -> Pending | None:
        key = DueKey(state.at_ms, state.offset)
        return self._fresh.get(key) or self._context.store.get(key)

    def _as_fired(self, command: CommandRecord, message: Pending) -> Pending:
        """The delivery that is to be moved: the log may know of fires that the store does not."""
        context = self._context
        before = command.offset < context.reread_to and command.born_ms < message.due_ms
        seen = message._replace(due_ms=0) if before else message  # never put off so far: this came before
        return as_fired(message, seen, context.acks, self._now, context.catch_up_max) or message

    def _moved_by(self, command: CommandRecord, state: IdState | None) -> bool:
        """This command says when the message waits."""
        if state is None or not is_pending(state) or command.said is None or command.said.op == ADD:
            return False
        message = self._waiting(state)
        return message is not None and command.offset in moved_at(message)

    def _end(self, said: DelayCommand, code: int, what: str, state: IdState | None) -> None:
        self._tell(what)
        self._reply(said, code, state)

    def _true_state(self, uuid: bytes) -> IdState | None:
        """What the store knows, put right by what the log knows: a fire may be missing in the store."""
        state = self._ids[uuid]
        if state is None or not is_pending(state) or not self._context.acks.is_finished(state.offset):
            return state
        message = self._take_out(DueKey(state.at_ms, state.offset))
        self._ended += [] if message is None else moved_at(message)  # the store may not know the last move
        return self._assume(uuid, state.offset, state.at_ms, of_waiting(message, state.at_ms))

    def _take_out(self, key: DueKey) -> Pending | None:
        """Out of what waits; None when the store has lost it."""
        message = self._fresh.pop(key, None)
        if message is not None:
            return message
        message = self._context.store.get(key)
        if message is None:
            self._tell("lost")
        elif self._aside.has(message):
            self._changes.removed_deferred.append(message)
        else:
            self._changes.removed.append(message)
        return message

    # --- commands read again

    def take_again(self, command: CommandRecord) -> None:
        self._count += 1
        said = command.said
        if said is None:
            self._dead_once(command)
            return
        state = self._ids[command.uuid]
        waits = state is not None and is_pending(state) and state.offset == command.offset
        if not (waits or self._moved_by(command, state)):
            self._done.append(command.offset)
        if said.op == ADD:
            self._reply(said, code_of(state, ADDED), state)
            return
        if state is not None and state.kind is IdKind.CANCELLED:
            self._done.append(state.offset)
        self._reply(said, code_of(state, PENDING if said.op == CANCEL else ADDED), state)


def take(context: DecisionContext, commands: Sequence[CommandRecord], now_ms: int) -> Taken:
    """Decide the longest run from the first command that need not wait."""
    if context.assumed and commands and commands[0].offset >= context.reread_to:
        context.assumed.clear()
    run = CommandRun(context, commands, now_ms)
    for command in commands:
        if not run.take(command):
            break
    return run.end()


def again(context: DecisionContext, commands: Sequence[CommandRecord], now_ms: int) -> Taken:
    """What these commands, which the store holds already, had come to."""
    run = CommandRun(context, commands, now_ms)
    for command in commands:
        run.take_again(command)
    return run.end()
