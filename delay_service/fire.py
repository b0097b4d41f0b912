"""Fires what is due in one shard, and sleeps until the next is.

Sleep ends with the next due time or an earlier one that comes in; while anything waits the clock is looked at
every `LOOK_S`, so that steps of it are noticed. Several commits may be under way; each piece of work on the
hub is one slice. What the backend says decides:
* done: forgotten in the store, with the next occurrence of those that come again, in one batch.
* nobody knows, or our claim is over: the shard is had anew; the log then says which.
* not now: everything waits a little, and is tried again.
* not this (or a value that cannot be written): the slice is divided by topics until it is known whose fault
  it is. A topic that takes nothing is put aside; one that is gone, or a message that is never taken, becomes
  dead letters.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import gevent

from backend.records import NewRecord
from ddmq_common.delays.command import ALREADY_FIRED, CANCELLED, CommandOutcome
from ddmq_common.errors import BoundReachedError, CallerError, UnknownTopicError
from ddmq_common.names import DELAY_DLQ_TOPIC
from delay_service.context import ShardContext
from delay_service.core.commands import DEAD_TEXT, FireNow, OutcomeReply
from delay_service.core.fire_command import FireCommand, progress_of
from delay_service.due.backend import GONE, REFUSED, Failed, commit_due, failed_how
from delay_service.due.service import Alarm
from delay_service.store.port import StoreChanges
from delay_service.waiting.rows import FORGOTTEN, values_after, values_in

log = logging.getLogger("ddmq.delay")
LOOK_S = 0.25  # the longest sleep while anything waits
IDLE_S = 10.0  # the longest sleep at all: ids are forgotten then
FORGET_MAX = 500  # ids in one look …
FORGET_S = 0.02  # … and the next look, when there are more: faster than any service takes commands in
CLOSED_S = 1.0  # how long a topic that would not take a message is left alone
REMEMBERED_MAX = 10_000  # awaited outcomes, and messages refused once
OVER_MAX = 1_000  # offsets that are done without firing and wait for another commit to end
NEVER = 1 << 62
NOT_THIS = (CallerError, BoundReachedError, ValueError, TypeError, OverflowError)


class Flight(NamedTuple):
    """A commit under way. `over`: offsets that are done without firing. `awaited`: whom outcomes are for, by
    offset. `finished`, `attempts`: what it tells the log of what fires."""

    fires: list[FireCommand]
    over: list[int]
    awaited: dict[int, FireNow]
    epoch: int
    finished: list[int]
    attempts: list[tuple[int, int]]
    untold: set[bytes]  # other ids that changed in the store: their rows go with it


class FireLoop:
    """Of one shard. Nothing fires before `open`."""

    def __init__(self, context: ShardContext, alarm: Alarm) -> None:
        self._context = context
        self._service = context.service
        self._due_scans = context.due_scans
        self._alarm = alarm
        self._loop: Any = gevent.get_hub().loop
        self._flights = 0
        self._opened = self._pumping = self._stopped = self._queued = False
        self._pause_s = self._pause_min = self._service.config.pause_ms_min / 1e3
        self._paused_until = float("-inf")
        self._awaited: dict[int, FireNow] = {}
        self._refused: set[int] = set()
        self._held: list[FireCommand] = []  # in flight, but the rows of their commands are not committed yet
        self._untold: set[bytes] = set()  # ids that changed in the store without a commit: rows are to say so
        self._over = context.unrecorded.offsets  # also what an owner before us did not commit
        self._wake_ms = NEVER
        self._look_at = float("-inf")

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return self._flights == 0

    def open(self) -> None:
        """From now on messages fire."""
        self._opened = True
        self.pump()

    def stop(self) -> None:
        """Begin nothing more; what is under way ends by itself. May be called twice."""
        self._stopped = True
        self._alarm.stop()

    def awaits(self, fire_now: FireNow) -> None:
        """Somebody wants to hear when this message has fired."""
        if len(self._awaited) < REMEMBERED_MAX:
            self._awaited[fire_now.offset] = fire_now
        else:
            self._service.counts.replies_dropped["bound"].value += 1

    def overtaken(self, offsets: list[int]) -> list[OutcomeReply]:
        """What those are told who asked to fire one of these, which are done without: it was cancelled."""
        if not self._awaited:
            return []
        found = [self._awaited.pop(offset) for offset in offsets if offset in self._awaited]
        return [
            OutcomeReply(one.queue_id, CommandOutcome(reply_id=one.reply_id, code=CANCELLED)) for one in found
        ]

    # --- when

    def wake(self, due_ms: int) -> None:
        """Fire at `due_ms`, when a message that was just stored is due, or earlier."""
        if due_ms < self._wake_ms and self._opened:
            self._soon()

    def _soon(self) -> None:
        if not self._pumping and not self._stopped:
            self._pumping = True
            self._loop.run_callback(self._ring)

    def _ring(self) -> None:
        self._pumping = False
        self.pump()

    def pump(self) -> None:
        """One slice, if there is one; then the next a moment later, or sleep."""
        if not self._stopped and self._opened and self._context.running:
            self._context.safely("pump", self._pump)

    def _pump(self) -> None:
        if self._context.awaits_room(False, self._alarm, self.pump):
            self._service.pass_on()
            return
        now = self._service.clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + IDLE_S / 2
            self._forget()
        if now < self._paused_until:
            self._alarm.once(self._paused_until - now, self.pump)
        elif self._service.flights >= self._service.config.fires_in_flight:
            self._wait_for_turn()
        elif self._slice():
            self._soon()
        else:
            self._sleep()
            self._service.pass_on()

    def _wait_for_turn(self) -> None:
        if not self._queued:
            self._queued = True
            self._service.waiting.append(self._turn)
        self._alarm.once(LOOK_S, self.pump)

    def _turn(self) -> None:
        self._queued = False
        if self._stopped or not self._context.running:
            self._service.pass_on()
        else:
            self._soon()

    def _sleep(self) -> None:
        now_ms = self._service.clock.wall_ms()
        due = self._due_scans.wake_ms()
        self._wake_ms = NEVER if due is None else due
        longest_s = FORGET_S if self._look_at <= self._service.clock.monotonic() else LOOK_S
        if due is None:
            idle = longest_s == LOOK_S and not (self._due_scans.busy or self._due_scans.aside)
            self._alarm.once(IDLE_S if idle else longest_s, self.pump)
        elif due <= now_ms:
            self._soon()
        else:
            self._alarm.once(min((due - now_ms) / 1e3, longest_s), self.pump)

    def topic_changed(self, topic: str) -> None:
        """It may take messages again, or be gone."""
        self._context.reopen(topic)
        if topic in self._due_scans.aside:
            self._soon()

    def _forget(self) -> None:
        """Ids whose time is over."""
        context = self._context
        gone = context.store.forgettable(self._service.clock.wall_ms(), FORGET_MAX)
        if gone:
            context.write(StoreChanges(ids=dict.fromkeys(gone)))
            if context.has_rows:
                self._untold.update(gone)
            if len(gone) == FORGET_MAX:
                self._look_at = self._service.clock.monotonic()

    # --- one slice

    def _slice(self) -> bool:
        plan = self._due_scans.plan(self._service.clock.wall_ms())
        self._service.counts.stale.value += plan.stale
        self._over += plan.over
        if plan.changes is not None:
            self._service.counts.aside.add(Counter(message.topic for message in plan.changes.deferred))
            if not self._context.write(plan.changes, plan.over):
                return False
            if self._context.has_rows:
                self._untold.update(plan.changes.ids)
        fires = self._to_launch(plan.fires)
        tell = bool(self._over or self._untold) and not self._flights
        if fires or tell or len(self._over) >= OVER_MAX:
            over, self._over = self._over, []
            self._launch(fires, over)
        return bool(plan.fires) or plan.changes is not None

    def _to_launch(self, fires: list[FireCommand]) -> list[FireCommand]:
        """Without those whose row would come after that of their fire: they are held until it is there."""
        if not self._context.has_rows:
            return fires
        uncommitted = self._context.uncommitted_rows
        held = [one for one in fires if one.message.uuid in uncommitted]
        if not held:
            return fires
        self._held += held
        return [one for one in fires if one.message.uuid not in uncommitted]

    def taken_in(self) -> None:
        """Rows were committed: what was held for them goes."""
        if self._held and not self._stopped:
            held, self._held = self._held, []
            fires = self._to_launch(held)
            if fires:
                self._launch(fires)

    def _launch(self, fires: list[FireCommand], over: list[int] | None = None) -> None:
        self._flights += 1
        self._service.flights += 1
        awaited = self._awaited_of(fires)
        replies = self._replies(fires, awaited) if awaited else []
        finished, attempts = progress_of(fires)
        untold, self._untold = self._untold, set()
        flight = Flight(fires, over or [], awaited, self._context.epoch, finished, attempts, untold)
        service, progress = self._service, self._context.done(finished + flight.over, attempts)
        records = [one.record for one in fires] + replies
        if self._context.has_rows:
            records += self._rows(flight)
        dead_topic = DELAY_DLQ_TOPIC if any(one.reason for one in fires) else ""
        ended = partial(self._ended, flight)
        try:
            commit_due(service.backend, dead_topic, records, (progress,), service.deadline(), ended)
        except Exception as error:  # it could not even be begun
            ended(error)

    def _rows(self, flight: Flight) -> list[NewRecord]:
        """What is known of these once they have fired, and of ids that changed in the store alone."""
        context, wall_ms = self._context, self._service.clock.wall_ms()
        later = {uuid for uuid in flight.untold if uuid in context.uncommitted_rows}
        self._untold |= later
        flight.untold.difference_update(later, {one.uuid for one in self._due_scans.busy.values()})
        rows = dict.fromkeys(flight.untold, FORGOTTEN) | values_in(context.store, list(flight.untold))
        rows |= values_after(self._due_scans.changes_of(flight.fires, wall_ms))
        return context.rows(rows, wall_ms)

    def _awaited_of(self, fires: list[FireCommand]) -> dict[int, FireNow]:
        """By offset, who waits to hear of these; not among those of another commit any more."""
        if not self._awaited:
            return {}
        offsets = [one.message.offset for one in fires if one.message.offset in self._awaited]
        return {offset: self._awaited.pop(offset) for offset in offsets}

    def _replies(self, fires: list[FireCommand], awaited: dict[int, FireNow]) -> list[NewRecord]:
        wall_ms = self._service.clock.wall_ms()
        replies = []
        for one in fires:
            wanted = awaited.get(one.message.offset)
            if wanted is not None:
                outcome = CommandOutcome(
                    reply_id=wanted.reply_id,
                    code=ALREADY_FIRED,
                    fired_at_ms=wall_ms,
                    text=DEAD_TEXT if one.reason else "",
                )
                replies.append(OutcomeReply(wanted.queue_id, outcome))
        return self._service.outcome_records(replies, wall_ms)

    # --- what became of it

    def _ended(self, flight: Flight, error: Exception | None) -> None:
        self._flights -= 1
        self._service.landed()
        self._context.safely("fire", self._settle, flight, error)
        self._context.on_commit_end()
        if self._context.running:
            self._soon()

    def _settle(self, flight: Flight, error: Exception | None) -> None:
        if error is None:
            self._fired(flight)
        elif self._context.running:
            self._not_fired(flight, error)
        else:
            self._due_scans.settled(flight.fires, False)
            self._context.doubt("fire", error)

    def _fired(self, flight: Flight) -> None:
        context, fires = self._context, flight.fires
        wall_ms = self._service.clock.wall_ms()
        self._service.counts.fired(fires, wall_ms)
        self._pause_s = self._pause_min
        context.finished(flight.finished + flight.over)
        for offset, attempts in flight.attempts:
            context.acks.attempt(offset, attempts)
        if self._refused:
            self._refused.difference_update(one.message.offset for one in fires)
        self._due_scans.settled(fires, True)
        if context.running:
            context.write(self._due_scans.changes_of(fires, wall_ms))

    def _not_fired(self, flight: Flight, error: Exception) -> None:
        self._awaited.update(flight.awaited)
        self._untold |= flight.untold
        how = failed_how(error, flight.epoch < self._context.epoch, NOT_THIS)
        if how is Failed.NOT_NOW:
            self._again_later(flight, error)
        elif how is Failed.IN_DOUBT:
            self._due_scans.settled(flight.fires, False)
            log.warning("a delay shard's claim is renewed: %s", error)
            self._context.doubt("fire", error)
        else:
            self._service.counts.failed("fire", error)
            self._over += flight.over
            self._blame(flight, error)

    def _again_later(self, flight: Flight, error: Exception) -> None:
        self._service.counts.failed("fire", error)
        self._over += flight.over
        self._due_scans.settled(flight.fires, False)
        self._pause()
        log.warning("delay messages are not taken now, tried again: %s", error)

    def _pause(self) -> None:
        self._paused_until = self._service.clock.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._service.config.pause_ms_max / 1e3)

    # --- whose fault it is

    def _blame(self, flight: Flight, error: Exception) -> None:
        fires = flight.fires
        topics = sorted({one.record.topic for one in fires})
        if not topics:
            self._pause()  # nothing but `over`, which goes with the next
        elif len(topics) > 1:
            half = frozenset(topics[: len(topics) // 2])
            self._launch([one for one in fires if one.record.topic in half])
            self._launch([one for one in fires if one.record.topic not in half])
        elif isinstance(error, UnknownTopicError) and self._context.look(topics[0]) is None:
            log.warning("topic %s is gone: %d delay messages are dead letters", topics[0], len(fires))
            self._launch(self._due_scans.dead(fires, GONE))
        elif isinstance(error, BoundReachedError):
            self._pause()
            self._put_aside(fires)
        elif isinstance(error, UnknownTopicError) or self._closed(topics[0]):
            self._put_aside(fires)
        elif len(fires) > 1:
            half_of = len(fires) // 2
            self._launch(fires[:half_of])
            self._launch(fires[half_of:])
        else:
            self._refuse(fires[0], error)

    def _closed(self, topic: str) -> bool:
        look = self._context.look(topic)
        return look is not None and not look.writable

    def _put_aside(self, fires: list[FireCommand]) -> None:
        topic = fires[0].message.topic
        self._context.close_for(topic, CLOSED_S)
        self._service.counts.aside.add(Counter(one.message.topic for one in fires if not one.aside))
        changes = self._due_scans.put_aside(fires)
        self._due_scans.settled(fires, False)
        self._context.write(changes)

    def _refuse(self, one: FireCommand, error: Exception) -> None:
        """The message itself, or its topic was closed before we knew: it is a dead letter the second time."""
        if one.reason:
            self._due_scans.settled([one], False)
            self._pause()
        elif one.message.offset in self._refused:
            log.warning("topic %s never takes a delay message: %s", one.message.topic, error)
            self._launch(self._due_scans.dead([one], REFUSED))
        else:
            if len(self._refused) >= REMEMBERED_MAX:
                self._refused.clear()
            self._refused.add(one.message.offset)
            self._put_aside([one])
