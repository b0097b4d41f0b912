"""One run of orders on its way through: what changes in the store, and what each came to. The rules are in
delay_service/core/intake.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from delay_service.core.kinds import last_due_ms
from delay_service.core.orders import Order, before, moved_at, moved_by, pending_of
from delay_service.core.outlets import UNFIT, caught_up
from delay_service.core.taken import DEAD_TEXT, FireNow, Reply, Taken
from delay_service.store.port import Changes, DueKey, IdKind, IdState, Pending

if TYPE_CHECKING:
    from delay_service.core.intake import Intake

ASSUMED_MAX = 100_000  # ids of which nobody knows yet whether they fired or were cancelled
RESEND_MS = 3_600_000  # an add of a fired uuid within this time is the same add, sent again


class Batch:
    """A run of orders on their way through; later ones see what earlier ones changed."""

    def __init__(self, intake: Intake, orders: Sequence[Order], now_ms: int) -> None:
        self._in = intake
        self._now = now_ms
        self._ids = self._look_up(orders)
        self._fresh: dict[tuple[int, int], Pending] = {}  # by due time and offset
        self._added = 0
        self._aside: frozenset[str] | None = None
        self._changes = Changes()
        self._count = 0
        self._replies: list[Reply] = []
        self._done: list[int] = []
        self._ended: list[int] = []
        self._dead: list[Order] = []
        self._awaited: list[FireNow] = []
        self._tally: dict[str, int] = {}

    def _look_up(self, orders: Sequence[Order]) -> dict[bytes, IdState | None]:
        uuids = {order.uuid: None for order in orders if order.said is not None}
        for order in orders:
            if order.said is not None and order.said.unless_cancelled:
                uuids[uuid_bytes(order.said.unless_cancelled)] = None
        wanted = list(uuids)
        return dict(zip(wanted, self._in.store.ids(wanted), strict=True))

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

    # --- one order

    def take(self, order: Order) -> bool:
        """False: it has to wait for the outcome of a commit."""
        said = order.said
        if said is None:
            self._bury(order)
            return True
        state = self._ids[order.uuid]
        self._count += 1
        if (
            state is None
            and said.op == ADD
            and not (said.unless_cancelled or self._in.acks.is_finished(order.offset))
        ):
            self._keep(order, said)  # nearly always
            return True
        if said.op != ADD and state is not None and self._is_busy(state):
            self._count -= 1
            return False
        if said.op == ADD:
            self._add(order, said)
        elif said.op == CANCEL:
            self._cancel(order, said)
        else:
            self._move(order, said)
        return True

    def _is_busy(self, state: IdState) -> bool:
        return state.kind is IdKind.PENDING and state.offset in self._in.busy

    def _bury(self, order: Order) -> None:
        self._count += 1
        self._bury_once(order)
        self._tell("unreadable", 1)

    def _bury_once(self, order: Order) -> None:
        if not self._in.acks.is_finished(order.offset):
            self._dead.append(order)
        self._done.append(order.offset)

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
        self._replies.append(Reply(said.reply_queue, outcome))

    # --- add

    def _add(self, order: Order, said: DelayCommand) -> None:
        state = self._ids[order.uuid]
        if state is not None and state.offset == order.offset and state.kind is not IdKind.TOMBSTONE:
            self._same(order, said)
        elif state is not None and not self._forgotten(state):
            code, what = known(state)
            self._nothing(order, what)
            self._reply(said, code, state)
        elif self._cancelled_otherwise(said):
            self._nothing(order, "cancelled")
            self._reply(said, CANCELLED, None)
        elif self._in.acks.is_finished(order.offset):
            self._fired_before(order, said)
        else:
            self._keep(order, said)

    def _same(self, order: Order, said: DelayCommand) -> None:
        """This very order, read once more."""
        state = self._true_state(order.uuid)
        if state is not None:
            code, what = known(state)
            if not _is_pending(state):
                self._done.append(order.offset)
            if state.kind is IdKind.FIRED and self._in.lost_place and order.offset < self._in.reread_to:
                self._in.assumed[order.uuid] = of_add(said)  # perhaps by an owner that was killed meanwhile
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

    def _nothing(self, order: Order, what: str) -> None:
        self._done.append(order.offset)
        self._tell(what)

    def _fired_before(self, order: Order, said: DelayCommand) -> None:
        last_ms = max(last_due_ms(said), order.born_ms)
        state = self._assume(order.uuid, order.offset, last_ms, of_add(said))
        self._tell("fired")
        self._reply(said, ALREADY_FIRED, state)

    def _assume(self, uuid: bytes, offset: int, last_ms: int, assumed: Assumed) -> IdState:
        """It fired, as far as is known, and not after `last_ms`."""
        fired_ms = min(last_ms, self._now)
        state = IdState(IdKind.FIRED, fired_ms, offset, self._now + self._in.kept_ms)
        self._put_id(uuid, state)
        if len(self._in.assumed) < ASSUMED_MAX:
            self._in.assumed[uuid] = assumed
        return state

    def _keep(self, order: Order, said: DelayCommand) -> None:
        try:
            message = pending_of(order)
        except DamagedError:
            self._count -= 1
            self._bury(order)
            return
        self._fresh[message[:2]] = message
        state = IdState(IdKind.PENDING, message.due_ms, message.offset)
        self._ids[order.uuid] = self._changes.ids[order.uuid] = state
        self._added += 1
        if said.reply_queue >= 0:
            self._reply(said, ADDED, state)

    def _put_id(self, uuid: bytes, state: IdState) -> None:
        self._ids[uuid] = self._changes.ids[uuid] = state

    # --- cancel, reschedule, fire now

    def _cancel(self, order: Order, said: DelayCommand) -> None:
        self._done.append(order.offset)
        state = self._true_state(order.uuid)
        if state is None:
            self._cancel_unknown(order, said)
        elif state.kind is IdKind.PENDING:
            message = self._take_out(DueKey(state.at_ms, state.offset))
            self._done.append(state.offset)
            self._ended += [] if message is None else moved_at(message)
            self._cancelled(order, said, state, self._now)
        elif self._was_the_one(order):
            self._cancelled(order, said, state, order.born_ms)
        else:
            self._end(said, *known_again(state), state)

    def _was_the_one(self, order: Order) -> bool:
        """This cancel was done before, to a message of which only the log knows that it is over."""
        assumed = self._in.assumed.pop(order.uuid, None)
        if assumed is None or not self._in.acks.is_finished(order.offset):
            return False
        return assumed.waits_at(order.born_ms)

    def _cancelled(self, order: Order, said: DelayCommand, state: IdState, at_ms: int) -> None:
        forget = max(self._now + self._in.kept_ms, state.at_ms + RESEND_MS, latest_ms(said) + RESEND_MS)
        self._put_id(order.uuid, IdState(IdKind.CANCELLED, at_ms, state.offset, forget))
        self._end(said, CANCELLED, "cancelled", None)

    def _cancel_unknown(self, order: Order, said: DelayCommand) -> None:
        due = said.due_ms or said.timestamp_s * 1_000
        too_old = 0 < due < self._now - self._in.kept_ms
        until = max(latest_ms(said), self._now) + RESEND_MS
        self._put_id(order.uuid, IdState(IdKind.TOMBSTONE, self._now, 0, until))
        self._end(said, TOO_OLD if too_old else UNKNOWN, "too old" if too_old else "unknown", None)

    def _move(self, order: Order, said: DelayCommand) -> None:
        """Another due time: a given one, or now."""
        state = self._true_state(order.uuid)
        if state is None:
            self._done.append(order.offset)
            due = said.due_ms if said.op == FIRE else said.timestamp_s * 1_000
            too_old = 0 < due < self._now - self._in.kept_ms
            self._end(said, TOO_OLD if too_old else UNKNOWN, "too old" if too_old else "unknown", None)
            return
        if order.uuid in self._in.assumed:
            self._in.assumed[order.uuid].ordered(said, order.born_ms)
        over = self._is_over(order, state)
        if over and not self._is_behind(state):
            self._done.append(order.offset)
            self._end(said, ADDED, "known", state)
            return
        message = self._take_out(DueKey(state.at_ms, state.offset)) if _is_pending(state) else None
        if message is None:
            self._done.append(order.offset)
            self._end(said, *known_again(state), state)
            return
        moved = self._moved(order, said, message if over else self._as_fired(order, message))
        state = IdState(IdKind.PENDING, moved.due_ms, moved.offset)
        self._put_id(order.uuid, state)
        self._tell("fired now" if said.op == FIRE else "rescheduled")
        if said.op == FIRE and said.reply_queue >= 0:
            self._awaited.append(FireNow(moved.offset, said.reply_queue, said.reply_id))
        else:
            self._reply(said, ADDED, state)

    def _moved(self, order: Order, said: DelayCommand, message: Pending) -> Pending:
        """`message`, which was taken out, waits again, where `order` wants it."""
        then = order.born_ms if self._in.acks.is_finished(order.offset) else self._now
        due_ms = min(then, message.due_ms) if said.op == FIRE else max(said.due_ms, 0)
        moved = moved_by(message, due_ms, order.offset)
        self._ended += [offset for offset in moved_at(message) if offset != order.offset]
        if not moved_at(moved):
            self._done.append(order.offset)
        self._fresh[moved.key] = moved
        return moved

    def _is_over(self, order: Order, state: IdState) -> bool:
        """Done before, and the delivery that it moved has fired: a move is finished with that, or by the next
        one. (Before anything has fired the last one counts, and all may be done again.)"""
        acks = self._in.acks
        return (
            _is_pending(state) and acks.is_finished(order.offset) and acks.attempts.get(state.offset, 0) > 0
        )

    def _is_behind(self, state: IdState) -> bool:
        """The store has a delivery that has fired: until when it was put off tells what was passed over."""
        message = self._waiting(state)
        return message is not None and message.occurrence < self._in.acks.attempts[message.offset]

    def _waiting(self, state: IdState) -> Pending | None:
        key = DueKey(state.at_ms, state.offset)
        return self._fresh.get(key) or self._in.store.get(key)

    def _as_fired(self, order: Order, message: Pending) -> Pending:
        """The delivery that is to be moved: the log may know of fires that the store does not."""
        fired = self._in.acks.attempts.get(message.offset, 0)
        if fired <= message.occurrence:
            return message
        before = order.offset < self._in.reread_to and order.born_ms < message.due_ms
        seen = message._replace(due_ms=0) if before else message  # never put off so far: this came before
        try:
            return caught_up(seen, fired, self._now, self._in.catch_up_max) or message
        except UNFIT:
            return message  # the lanes make it a dead letter

    def _moved_by(self, order: Order, state: IdState | None) -> bool:
        """This order says when the message waits."""
        if state is None or not _is_pending(state) or order.said is None or order.said.op == ADD:
            return False
        message = self._waiting(state)
        return message is not None and order.offset in moved_at(message)

    def _end(self, said: DelayCommand, code: int, what: str, state: IdState | None) -> None:
        self._tell(what)
        self._reply(said, code, state)

    def _true_state(self, uuid: bytes) -> IdState | None:
        """What the store knows, put right by what the log knows: a fire may be missing in the store."""
        state = self._ids[uuid]
        if state is None or not _is_pending(state) or not self._in.acks.is_finished(state.offset):
            return state
        message = self._take_out(DueKey(state.at_ms, state.offset))
        return self._assume(uuid, state.offset, state.at_ms, of_waiting(message, state.at_ms))

    def _take_out(self, key: DueKey) -> Pending | None:
        """Out of what waits; None when the store has lost it."""
        message = self._fresh.pop(key, None)
        if message is not None:
            return message
        message = self._in.store.get(key)
        if message is None:
            self._tell("lost")
        elif self._is_aside(message):
            self._changes.removed_deferred.append(message)
        else:
            self._changes.removed.append(message)
        return message

    def _is_aside(self, message: Pending) -> bool:
        if self._aside is None:
            self._aside = frozenset(self._in.store.topics_put_aside())
        if message.topic not in self._aside:
            return False
        found = self._in.store.due(message.due_ms, 1, 1, before(message.key))
        return not found or found[0].offset != message.offset

    # --- orders read again

    def take_again(self, order: Order) -> None:
        self._count += 1
        said = order.said
        if said is None:
            self._bury_once(order)
            return
        state = self._ids[order.uuid]
        waits = state is not None and _is_pending(state) and state.offset == order.offset
        if not (waits or self._moved_by(order, state)):
            self._done.append(order.offset)
        if said.op == ADD:
            self._reply(said, *code_of(state, ADDED), state)
            return
        if state is not None and state.kind is IdKind.CANCELLED:
            self._done.append(state.offset)
        self._reply(said, *code_of(state, PENDING if said.op == CANCEL else ADDED), state)


def _is_pending(state: IdState) -> bool:
    return state.kind is IdKind.PENDING
