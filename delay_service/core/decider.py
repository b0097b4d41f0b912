"""Decides the commands of the inner topic in their order: the changes to the store, and the outcome of each.

One place decides whether a cancel came in time: here, against a store that no fire under way can change.
Rules:
* A message whose commit is under way is `busy`; a command about it, and all behind it, wait for the outcome.
* An add is known when its uuid is pending, was fired within the last `RESEND_MS`, or was cancelled (also
  before it came: a tombstone). It then stores nothing. The same command read once more (its offset is the
  state's) is no second add: what waits goes on waiting. What the group of fired messages has finished at its
  own offset was fired or cancelled already, by an owner whose store did not live to tell: a cancel that is
  read behind it, and came before it could fire, was the one.
* A cancel of an unknown uuid leaves a tombstone until its due time and an hour, but at least an hour.
* A command with `own_topic` applies only to a message of the topic that it states: any other message is
  unknown to it. The tombstone that it leaves is for uuid and topic, and ends only an add with `own_topic`.
* `CommandDecisions.done`: offsets at which no message waits any more; a commit finishes them in the group of
  fired messages.
* A cancel of what became a dead letter is answered as of what fired, with words that say so: it is over.
  (Only when the store did not live to tell is it "already fired" without them.)
* What was written to the store and not yet committed is read again after a crash: `replay_commands` then
  changes nothing and says what had been decided.
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
    HOLD,
    ID_OUTCOMES,
    PENDING,
    RELEASE,
    TOO_OLD,
    UNKNOWN,
    DelayCommand,
    uuid_bytes,
)
from ddmq_common.errors import DamagedError
from delay_service.core.commands import (
    FIRED_KINDS,
    HELD_TEXT,
    AssumedMessage,
    CommandDecisions,
    CommandRecord,
    DecisionContext,
    DeferredTopics,
    FireNow,
    answer_add,
    answer_cancel,
    assume_from_add,
    assume_from_waiting,
    code_of,
    is_pending,
    latest_ms,
    pending_of,
    reply_to,
    topic_id,
)
from delay_service.core.fire_command import moved_at, moved_by, waiting_delivery
from delay_service.core.held_messages import (
    held_message,
    is_held_ms,
    plain_due_ms,
    released_message,
    with_hold_of,
)
from delay_service.core.id_outcomes import decode_id_outcomes, select_new_ids
from delay_service.core.occurrences import last_due_ms
from delay_service.store.port import DueKey, IdKind, IdState, Pending

INGESTED = "ingested"  # meta: the inner offset up to which the store has taken commands in
ASSUMED_MAX = 100_000  # ids of which nobody knows yet whether they fired or were cancelled
RESEND_MS = 3_600_000  # an add of a fired uuid within this time is the same add, sent again


class CommandRun:
    """Decides a run of commands in order. Each command sees the changes of the earlier ones."""

    def __init__(self, context: DecisionContext, commands: Sequence[CommandRecord], now_ms: int) -> None:
        self._context = context
        self._now = now_ms
        self._ids = self._read_states(commands)
        self._fresh: dict[tuple[int, int], Pending] = {}  # by due time and offset
        self._added = 0
        self._deferred = DeferredTopics(context.store)
        self._count = 0
        self._decisions = CommandDecisions()
        self._changes = self._decisions.changes
        self._finished, self._unrecorded = self._decisions.done, self._decisions.unrecorded

    def _read_states(self, commands: Sequence[CommandRecord]) -> dict[bytes, IdState | None]:
        requests = [(command.uuid, command.request) for command in commands if command.request is not None]
        others = [key for _, one in requests if one.unless_cancelled for key in _cancel_keys(one)]
        by_topic = (topic_id(uuid, one.topic) for uuid, one in requests if one.own_topic)
        uuids = list(dict.fromkeys([*(uuid for uuid, _ in requests), *others, *by_topic]))
        return dict(zip(uuids, self._context.store.ids(uuids), strict=True))

    def end(self) -> CommandDecisions:
        """Return the decisions on all commands so far. Call it once, after the last command."""
        self._changes.added = list(self._fresh.values())
        if self._added:
            self._count_outcome("added", self._added)
        self._finished += self._unrecorded
        self._decisions.commands = self._count
        return self._decisions

    # --- one command

    def decide_command(self, command: CommandRecord) -> bool:
        """Decide one command; return False if it must wait until a commit in flight has finished."""
        request = command.request
        if request is None:
            self._reject_unreadable(command)
            return True
        state = self._ids[command.uuid]
        self._count += 1
        if (
            state is None
            and request.op == ADD
            and not (
                request.unless_cancelled
                or (request.own_topic and self._ids[topic_id(command.uuid, request.topic)] is not None)
                or self._context.acks.is_finished(command.offset)
            )
        ):
            self._keep_message(command, request)  # nearly always
            return True
        if request.op != ADD and state is not None and self._is_busy(state):
            self._count -= 1
            return False
        if request.op == ADD:
            self._add(command, request)
        elif request.own_topic and self._is_foreign(state, request):
            self._finished.append(command.offset)
            self._answer_command(request, UNKNOWN, "unknown", None)
        elif request.op == CANCEL:
            self._cancel(command, request)
        elif request.op == ID_OUTCOMES:
            self._learn_ids(command)
        elif request.op in (HOLD, RELEASE):
            self._hold_or_release(command, request)
        else:
            self._move_message(command, request)
        return True

    def _is_foreign(self, state: IdState | None, request: DelayCommand) -> bool:
        """Return whether the waiting message of an id belongs to another topic than the request states."""
        message = None if state is None or not is_pending(state) else self._find_waiting(state)
        return message is not None and message.topic != request.topic

    def _is_busy(self, state: IdState) -> bool:
        return state.kind is IdKind.PENDING and state.offset in self._context.busy

    def _reject_unreadable(self, command: CommandRecord) -> None:
        self._count += 1
        self._add_dead_letter(command)
        self._count_outcome("unreadable", 1)

    def _add_dead_letter(self, command: CommandRecord) -> None:
        if not self._context.acks.is_finished(command.offset):
            self._decisions.dead.append(command)
        self._finished.append(command.offset)

    def _count_outcome(self, what: str, count: int = 1) -> None:
        tally = self._decisions.tally
        tally[what] = tally.get(what, 0) + count

    def _reply(self, request: DelayCommand, code: int, state: IdState | None, text: str = "") -> None:
        if request.reply_queue >= 0:
            self._decisions.replies.append(reply_to(request, code, state, text))

    # --- add

    def _add(self, command: CommandRecord, request: DelayCommand) -> None:
        state = self._ids[command.uuid]
        if state is not None and state.offset == command.offset and state.kind is not IdKind.TOMBSTONE:
            self._repeat_add(command, request)
        elif state is not None and not self._is_resend_over(state):
            self._finished.append(command.offset)
            self._answer_command(request, *answer_add(state), state)
        elif self._is_cancelled_elsewhere(request) or self._is_cancelled_before(command, request):
            self._finished.append(command.offset)
            self._answer_command(request, CANCELLED, "cancelled", None)
        elif self._context.acks.is_finished(command.offset):
            self._assume_add_fired(command, request)
        else:
            self._keep_message(command, request)

    def _repeat_add(self, command: CommandRecord, request: DelayCommand) -> None:
        """Answer an add that was ingested before and was read again."""
        state = self._true_state(command.uuid)
        if state is None:
            return
        if not is_pending(state):
            self._finished.append(command.offset)
        context = self._context
        if state.kind is IdKind.FIRED and context.lost_position and command.offset < context.reread_to:
            # perhaps it was fired by an owner that was killed meanwhile
            context.assumed[command.uuid] = assume_from_add(request)
        self._answer_command(request, *answer_add(state), state)

    def _is_resend_over(self, state: IdState) -> bool:
        """Return whether an add with a known id counts as new, because the id's resend time has passed."""
        return state.kind in FIRED_KINDS and state.at_ms + RESEND_MS < self._now

    def _is_cancelled_before(self, command: CommandRecord, request: DelayCommand) -> bool:
        """Return whether a cancel that stated this add's topic came before it."""
        state = self._ids[topic_id(command.uuid, request.topic)] if request.own_topic else None
        return state is not None and state.kind is IdKind.TOMBSTONE

    def _is_cancelled_elsewhere(self, request: DelayCommand) -> bool:
        if not request.unless_cancelled:
            return False
        others = [self._ids[key] for key in _cancel_keys(request)]
        return any(one is not None and one.kind in (IdKind.CANCELLED, IdKind.TOMBSTONE) for one in others)

    def _assume_add_fired(self, command: CommandRecord, request: DelayCommand) -> None:
        last_ms = max(last_due_ms(request), command.born_ms)
        state = self._assume_fired(command.uuid, command.offset, last_ms, assume_from_add(request))
        self._answer_command(request, ALREADY_FIRED, "fired", state)

    def _assume_fired(self, uuid: bytes, offset: int, last_ms: int, assumed: AssumedMessage) -> IdState:
        """Record an id as fired at the time that the assumed message suggests, at most `last_ms`."""
        fired_ms = min(last_ms, self._now)
        state = IdState(IdKind.FIRED, fired_ms, offset, self._now + self._context.id_retention_ms)
        self._put_id(uuid, state)
        if len(self._context.assumed) < ASSUMED_MAX:
            self._context.assumed[uuid] = assumed
        return state

    def _keep_message(self, command: CommandRecord, request: DelayCommand) -> None:
        try:
            message = pending_of(command)
        except DamagedError:
            self._count -= 1
            self._reject_unreadable(command)
            return
        self._fresh[message[:2]] = message
        state = IdState(IdKind.PENDING, message.due_ms, message.offset)
        self._ids[command.uuid] = self._changes.ids[command.uuid] = state
        self._added += 1
        self._reply(request, ADDED, state)

    def _put_id(self, uuid: bytes, state: IdState) -> None:
        self._ids[uuid] = self._changes.ids[uuid] = state

    def _learn_ids(self, command: CommandRecord) -> None:
        try:
            learned = select_new_ids(
                decode_id_outcomes(command.delivery), self._ids, self._context.store, self._now
            )
        except DamagedError:
            self._count -= 1
            self._reject_unreadable(command)
            return
        self._finished.append(command.offset)
        self._ids.update(learned)
        self._changes.ids.update(learned)
        self._count_outcome("learned", len(learned))

    # --- cancel, reschedule, fire now

    def _cancel(self, command: CommandRecord, request: DelayCommand) -> None:
        self._finished.append(command.offset)
        state = self._true_state(command.uuid)
        if state is None:
            self._cancel_unknown(command, request)
        elif state.kind is IdKind.PENDING:
            message = self._remove_waiting(DueKey(state.at_ms, state.offset))
            self._finished.append(state.offset)
            self._unrecorded += [] if message is None else moved_at(message)
            self._mark_cancelled(command, request, state, self._now)
        elif self._has_cancelled_before(command):
            self._mark_cancelled(command, request, state, command.born_ms)
        else:
            self._answer_command(request, *answer_cancel(state), state)

    def _has_cancelled_before(self, command: CommandRecord) -> bool:
        """Return whether this cancel ended a message of a lost store at an earlier ingest."""
        assumed = self._context.assumed.pop(command.uuid, None)
        if assumed is None or not self._context.acks.is_finished(command.offset):
            return False
        return assumed.waits_at(command.born_ms)

    def _mark_cancelled(
        self, command: CommandRecord, request: DelayCommand, state: IdState, at_ms: int
    ) -> None:
        forget = max(
            self._now + self._context.id_retention_ms, state.at_ms + RESEND_MS, latest_ms(request) + RESEND_MS
        )
        self._put_id(command.uuid, IdState(IdKind.CANCELLED, at_ms, state.offset, forget))
        self._answer_command(request, CANCELLED, "cancelled", None)

    def _cancel_unknown(self, command: CommandRecord, request: DelayCommand) -> None:
        until = max(latest_ms(request), self._now) + RESEND_MS
        key = topic_id(command.uuid, request.topic) if request.own_topic else command.uuid
        self._put_id(key, IdState(IdKind.TOMBSTONE, self._now, 0, until))
        self._answer_unknown(request, request.due_ms or request.timestamp_s * 1_000)

    def _answer_unknown(self, request: DelayCommand, due_ms: int) -> None:
        """Answer a command whose id is unknown or, if it was due long ago, already forgotten."""
        if 0 < due_ms < self._now - self._context.id_retention_ms:
            self._answer_command(request, TOO_OLD, "too old", None)
        else:
            self._answer_command(request, UNKNOWN, "unknown", None)

    def _move_message(self, command: CommandRecord, request: DelayCommand) -> None:
        """Move a waiting message to the due time that the command states, or to now for a fire-now."""
        state = self._true_state(command.uuid)
        if state is None:
            self._finished.append(command.offset)
            self._answer_unknown(
                request, request.due_ms if request.op == FIRE else request.timestamp_s * 1_000
            )
            return
        if command.uuid in self._context.assumed:
            self._context.assumed[command.uuid].apply_move(request, command.born_ms)
        has_fired = self._has_move_fired(command, state)
        if has_fired and not self._is_store_behind(state):
            self._finished.append(command.offset)
            self._answer_command(request, ADDED, "known", state)
            return
        message = self._remove_waiting(DueKey(state.at_ms, state.offset)) if is_pending(state) else None
        if message is None:
            self._finished.append(command.offset)
            self._answer_command(request, *answer_cancel(state), state)
            return
        moved = self._apply_move(
            command, request, message if has_fired else self._find_delivery(command, message)
        )
        state = IdState(IdKind.PENDING, moved.due_ms, moved.offset)
        self._put_id(command.uuid, state)
        self._count_outcome("fired now" if request.op == FIRE else "rescheduled")
        if request.op == FIRE and is_held_ms(moved.due_ms):
            self._reply(request, PENDING, state, HELD_TEXT)
        elif request.op == FIRE and request.reply_queue >= 0:
            self._decisions.awaited_fires.append(FireNow(moved.offset, request.reply_queue, request.reply_id))
        else:
            self._reply(request, ADDED, state)

    def _apply_move(self, command: CommandRecord, request: DelayCommand, message: Pending) -> Pending:
        """Return the removed `message` with the due time of `command`."""
        then = command.born_ms if self._context.acks.is_finished(command.offset) else self._now
        plain_ms = plain_due_ms(message.due_ms)
        due_ms = min(then, plain_ms) if request.op == FIRE else max(request.due_ms, 0)
        moved = with_hold_of(moved_by(message, due_ms, command.offset), message)
        self._unrecorded += [offset for offset in moved_at(message) if offset != command.offset]
        if not moved_at(moved):
            self._finished.append(command.offset)
        self._fresh[moved.key] = moved
        return moved

    def _hold_or_release(self, command: CommandRecord, request: DelayCommand) -> None:
        """Hold a waiting message, or release it. The hold does not depend on the due time: a move changes
        only that. So a command that is read again changes nothing that the commands after it do not change
        back."""
        self._finished.append(command.offset)
        state = self._true_state(command.uuid)
        if state is None:
            self._answer_unknown(request, request.timestamp_s * 1_000)
            return
        if command.uuid in self._context.assumed:
            self._context.assumed[command.uuid].set_held(request.op == HOLD, command.born_ms)
        message = self._remove_waiting(DueKey(state.at_ms, state.offset)) if is_pending(state) else None
        if message is None:
            self._answer_command(request, *answer_cancel(state), state)
            return
        delivery = self._find_delivery(command, message)
        changed = held_message(delivery) if request.op == HOLD else released_message(delivery)
        self._fresh[changed.key] = changed
        state = IdState(IdKind.PENDING, changed.due_ms, changed.offset)
        self._put_id(command.uuid, state)
        self._answer_command(request, ADDED, "held" if request.op == HOLD else "released", state)

    def _has_move_fired(self, command: CommandRecord, state: IdState) -> bool:
        """Return whether this move was applied before and the moved delivery has fired.

        A move ends when its delivery fires or the next move comes. Before the fire, repeated moves can be
        applied again.
        """
        acks = self._context.acks
        fired = acks.attempts.get(state.offset, 0) > 0
        return is_pending(state) and acks.is_finished(command.offset) and fired

    def _is_store_behind(self, state: IdState) -> bool:
        """Return whether the store has a waiting delivery that the log knows as fired."""
        message = self._find_waiting(state)
        return message is not None and message.occurrence < self._context.acks.attempts[message.offset]

    def _find_waiting(self, state: IdState) -> Pending | None:
        key = DueKey(state.at_ms, state.offset)
        return self._fresh.get(key) or self._context.store.get(key)

    def _find_delivery(self, command: CommandRecord, message: Pending) -> Pending:
        """Return the delivery to move, corrected by fires that only the log knows."""
        context, plain = self._context, released_message(message)
        before = command.offset < context.reread_to and command.born_ms < plain.due_ms
        put_off = plain._replace(due_ms=0) if before else plain  # never put off so far: this came before
        delivery = waiting_delivery(plain, put_off, context.acks, self._now, context.catch_up_max)
        return with_hold_of(delivery or plain, message)

    def _is_moved_by(self, command: CommandRecord, state: IdState | None) -> bool:
        """Return whether this command set the message's current due time."""
        if state is None or not is_pending(state) or command.request is None or command.request.op == ADD:
            return False
        message = self._find_waiting(state)
        return message is not None and command.offset in moved_at(message)

    def _answer_command(self, request: DelayCommand, code: int, what: str, state: IdState | None) -> None:
        self._count_outcome(what)
        self._reply(request, code, state)

    def _true_state(self, uuid: bytes) -> IdState | None:
        """Return the state of an id, corrected by fires that only the log knows."""
        state = self._ids[uuid]
        if state is None or not is_pending(state) or not self._context.acks.is_finished(state.offset):
            return state
        message = self._remove_waiting(DueKey(state.at_ms, state.offset))
        # the store may not know the last move
        self._unrecorded += [] if message is None else moved_at(message)
        assumed = assume_from_waiting(message, state.at_ms)
        return self._assume_fired(uuid, state.offset, plain_due_ms(state.at_ms), assumed)

    def _remove_waiting(self, key: DueKey) -> Pending | None:
        """Remove a waiting message and return it; None if the store has lost it."""
        message = self._fresh.pop(key, None)
        if message is not None:
            return message
        message = self._context.store.get(key)
        if message is None:
            self._count_outcome("lost")
        elif self._deferred.has_message(message):
            self._changes.removed_deferred.append(message)
        else:
            self._changes.removed.append(message)
        return message

    # --- commands read again

    def replay_command(self, command: CommandRecord) -> None:
        self._count += 1
        request = command.request
        if request is None:
            self._add_dead_letter(command)
            return
        state = self._ids[command.uuid]
        if request.own_topic and self._is_foreign(state, request):
            self._finished.append(command.offset)
            self._reply(request, UNKNOWN, None)
            return
        waits = state is not None and is_pending(state) and state.offset == command.offset
        if not (waits or self._is_moved_by(command, state)):
            self._finished.append(command.offset)
        if request.op == ADD:
            self._reply(request, code_of(state, ADDED), state)
            return
        if state is not None and state.kind is IdKind.CANCELLED:
            self._finished.append(state.offset)
        self._reply(request, code_of(state, PENDING if request.op == CANCEL else ADDED), state)


def _cancel_keys(request: DelayCommand) -> tuple[bytes, bytes]:
    """Return the ids under which a cancel of the other message of an add may be recorded."""
    uuid = uuid_bytes(request.unless_cancelled)
    return uuid, topic_id(uuid, request.topic)


def decide_commands(
    context: DecisionContext, commands: Sequence[CommandRecord], now_ms: int
) -> CommandDecisions:
    """Decide commands in order until one must wait; return the decisions."""
    if context.assumed and commands and commands[0].offset >= context.reread_to:
        context.assumed.clear()
    run = CommandRun(context, commands, now_ms)
    for command in commands:
        if not run.decide_command(command):
            break
    return run.end()


def replay_commands(
    context: DecisionContext, commands: Sequence[CommandRecord], now_ms: int
) -> CommandDecisions:
    """Decide commands again that the store has ingested before; return their outcomes."""
    run = CommandRun(context, commands, now_ms)
    for command in commands:
        run.replay_command(command)
    return run.end()
