"""Removes messages from one level before they are due, as orders of operators request (decision 30).

    add → read → commit → read … → outcome

One order is carried out at a time, first in, first out. Its messages are read in portions. One commit per
portion appends the records that take the place of the messages, and marks their offsets as finished. It waits
for a fire in flight, and the level fires nothing until it has ended; so no message is fired and removed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from backend.completion import Completion
from backend.ownership.reader import QueueReader, ReadAnswer
from backend.records import NewRecord, ProgressDelta, StoredRecord
from ddmq_common.errors import CallerError, DdmqError, FencedError, TryLaterError
from ddmq_common.names import LEVELS_GROUP
from delay_service.core.level import Level
from delay_service.due.backend import CommitFailure, classify_failure, commit_due
from delay_service.levels.context import LevelsContext

ORDERS_MAX = 16  # of one level, until the first one has ended
LEFT = "it has left its level meanwhile"
MISSING = "it does not exist any more"
log = logging.getLogger("ddmq.delay")


class RemovalOrder(NamedTuple):
    """An order to remove messages from a level.

    `offsets`: in the level's queue. `build_record(record, bare)` returns the record that takes the place of a
    message, or the reason why the message must stay; with `bare`, a dead letter leaves the message's bytes
    unchanged. `dead_topic`: the dead-letter topic of these records, created if needed; "" for none.
    """

    offsets: Sequence[int]
    build_record: Callable[[StoredRecord, bool], NewRecord | str]
    dead_topic: str = ""


class _Removal:
    """An order in progress. `reasons`: why a message stays, by offset; "" if it was removed."""

    def __init__(self, order: RemovalOrder, deadline: float) -> None:
        self.order = order
        self.deadline = deadline
        self.unread = deque(sorted(set(order.offsets)))
        self.records: dict[int, StoredRecord] = {}  # read, and not yet committed
        self.bytes = 0  # of these records
        self.reasons: dict[int, str] = {}
        self.alone = False  # so that each record gets its own commit, because one of them is rejected
        self.bare = False
        self.done: Completion[dict[int, str]] = Completion()

    def take_read(self, read: ReadAnswer) -> None:
        """Keep the requested records of a read, and give the others that it covers a reason."""
        for record in read.records():
            if record.offset in self.unread:
                self.records[record.offset] = record
                self.bytes += len(record.delivery)
        covers_all = read.at_end or (read.bounds is not None and read.oldest is None)
        while self.unread and (covers_all or self.unread[0] < read.next_offset):
            offset = self.unread.popleft()
            if offset not in self.records:
                self.reasons[offset] = MISSING

    def build_records(self, has_left: Callable[[int], bool]) -> dict[int, NewRecord]:
        """Return what takes the place of the records that were read and can be removed, by offset."""
        built: dict[int, NewRecord] = {}
        for offset, record in list(self.records.items()):
            result = LEFT if has_left(offset) else self.order.build_record(record, self.bare)
            if isinstance(result, str):
                self.settle_record(offset, result)
            else:
                built[offset] = result
            if built and self.alone:
                break
        return built

    def settle_record(self, offset: int, reason: str) -> None:
        """Set the outcome of a record that was read."""
        self.bytes -= len(self.records.pop(offset).delivery)
        self.reasons[offset] = reason
        self.bare = False


class LevelRemovals:
    """The removals of one level. `on_end` is called when the level may continue after a commit."""

    def __init__(self, context: LevelsContext, level: Level, on_end: Callable[[], None]) -> None:
        self._context = context
        self._level = level
        self._on_end = on_end
        self._reader = QueueReader(context.backend, level.queue, self._on_read)
        self._orders: deque[_Removal] = deque()
        self._is_waiting = False  # for a read or a commit
        self._is_advancing = False
        self._stopped = False
        self.is_busy = False  # a commit is in flight

    def add(self, order: RemovalOrder) -> Completion[dict[int, str]]:
        """Carry out an order after the earlier ones. Return, for each offset, "" or why the message stays.

        Fails with TryLaterError if nothing more is removed, or with RemoteError if a commit has an uncertain
        outcome; a repetition of the order changes nothing twice.
        """
        context = self._context
        deadline = context.clock.monotonic() + context.config.commit_timeout_ms / 1e3
        removal = _Removal(order, deadline)
        if self._stopped or len(self._orders) >= ORDERS_MAX:
            number = self._level.queue.queue_id + 1
            why = "moves to another process" if self._stopped else f"has {ORDERS_MAX} orders to carry out"
            removal.done.fail(TryLaterError(f"delay level {number} {why}; try again"))
        else:
            self._orders.append(removal)
            self.advance_orders()
        return removal.done

    def stop(self) -> None:
        """Start nothing new. A commit in flight still ends."""
        self._stopped = True
        self._reader.stop()
        for removal in list(self._orders)[self.is_busy :]:
            self._fail(removal, TryLaterError("the delay level moves to another process; try again"))

    def advance_orders(self) -> None:
        """Start the next reads and commits, as far as the level allows them now."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._orders and not self._is_waiting and not self._stopped:
                if not self._advance_first(self._orders[0]):
                    return
        finally:
            self._is_advancing = False

    def _advance_first(self, removal: _Removal) -> bool:
        """Start a read or a commit of an order, or end the order; return False if it waits for the level."""
        config = self._context.config
        if self._context.clock.monotonic() >= removal.deadline:
            self._fail(removal, TryLaterError("the delay level is busy; try again"))
        elif removal.records and (not removal.unread or removal.bytes >= config.fire_bytes_max):
            if not self._level.can_remove:
                return False
            self._commit(removal)
        elif removal.unread:
            first, last = removal.unread[0], removal.unread[-1]
            self._is_waiting = True
            self._reader.read(first, min(last - first + 1, config.read_count), config.read_bytes)
        else:
            self._orders.remove(removal)
            removal.done.succeed(removal.reasons)
        return True

    def _on_read(self, read: ReadAnswer) -> None:
        self._is_waiting = False
        if read.is_unanswered and read.error is not None:
            self._fail(self._orders[0], as_try_later(read.error))
        else:
            self._orders[0].take_read(read)
        self.advance_orders()

    def _commit(self, removal: _Removal) -> None:
        try:
            records = removal.build_records(self._level.has_left)
        except Exception as error:
            log.exception("an order to remove messages of a delay level failed")
            self._fail(removal, error)
            return
        if not records:
            return
        level, context, offsets = self._level, self._context, sorted(records)
        epoch, deadline = level.epoch, context.clock.monotonic() + context.config.commit_timeout_ms / 1e3
        finished = [(offset, offset + 1) for offset in offsets]
        progress = ProgressDelta(LEVELS_GROUP, level.queue, epoch, level.generation, finished)
        level.begin_removal(offsets)
        self._is_waiting = self.is_busy = True
        on_done = partial(self._on_committed, removal, offsets, epoch)
        values = [records[offset] for offset in offsets]
        try:
            commit_due(context.backend, removal.order.dead_topic, values, (progress,), deadline, on_done)
        except Exception as error:
            log.error("delay level %d: a removal failed", level.queue.queue_id + 1, exc_info=error)
            self._lose_claim(error)

    def _on_committed(
        self, removal: _Removal, offsets: Sequence[int], epoch: int, error: Exception | None
    ) -> None:
        if not self.is_busy:
            return  # the claim was lost by an error since
        self._is_waiting = self.is_busy = False
        if error is None:
            self._level.on_removed()
            self._context.counts.removed[self._level.queue.queue_id + 1].value += len(offsets)
            for offset in offsets:
                removal.settle_record(offset, "")
            if self._stopped:
                self._end_stopped(removal)
        elif self._stopped:
            self._fail(removal, as_try_later(error))
        else:
            self._on_not_committed(removal, offsets, epoch, error)
        self._on_end()
        self.advance_orders()

    def _end_stopped(self, removal: _Removal) -> None:
        if removal.records or removal.unread:
            self._fail(removal, TryLaterError("the delay level moves to another process; try again"))
        else:
            self._orders.remove(removal)
            removal.done.succeed(removal.reasons)

    def _on_not_committed(
        self, removal: _Removal, offsets: Sequence[int], epoch: int, error: Exception
    ) -> None:
        failure = classify_failure(error, epoch < self._level.epoch, (CallerError,))
        if failure is CommitFailure.CLAIM_UNCERTAIN:
            self._lose_claim(error)
            return
        self._level.on_not_removed()
        if failure is CommitFailure.RETRY:
            self._fail(removal, as_try_later(error))
        elif len(offsets) > 1:
            removal.alone = True
        elif not removal.bare:
            removal.bare = True
        else:
            removal.settle_record(offsets[0], f"it is rejected: {error}")

    def _lose_claim(self, error: Exception) -> None:
        """Claim the level again, because it is uncertain what was committed. It fires nothing until then."""
        self._is_waiting = self.is_busy = False
        facts = {"level": self._level.queue.queue_id + 1, "error": str(error)}
        log.warning("a delay level's claim is renewed after a removal", extra=facts)
        self._context.counts.count_failure("removal", error)
        self._fail(self._orders[0], as_try_later(error))
        self._context.reacquire()

    def _fail(self, removal: _Removal, error: Exception) -> None:
        self._orders.remove(removal)
        removal.done.fail(error)


def as_try_later(error: Exception) -> Exception:
    """Return the error for the sender of an order that is not carried out: TryLaterError if nothing was
    stored."""
    if isinstance(error, DdmqError) and not isinstance(error, FencedError | CallerError):
        return error
    return TryLaterError(f"{error}; try again")
