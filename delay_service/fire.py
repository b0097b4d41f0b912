"""Fires what is due in one shard, and sleeps until the next is.

It sleeps until the next due time, or until an earlier message is added. While any message waits the clock is
checked every `CLOCK_CHECK_S`, so that steps of it are noticed. Several commits may be in flight; one step on
the hub is one slice. The answer of the backend decides what follows:
* Success: the messages are removed from the store, and next occurrences are added, in one batch.
* An uncertain outcome, or a lost claim: the shard is acquired again, and the log says what counted.
* A topic that is not available now: its messages are deferred, and the others are committed at once.
* Another temporary error: everything is retried after a pause.
* A rejection (or a value that cannot be written): the slice is divided by topics until the cause is known.
  The messages of a closed topic are deferred; those of a deleted topic, or rejected twice, become dead
  letters.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

from backend.records import NewRecord
from ddmq_common.delays.command import ALREADY_FIRED, CANCELLED, CommandOutcome
from ddmq_common.errors import BoundReachedError, CallerError, TopicUnavailableError, UnknownTopicError
from ddmq_common.event_loop import current_loop
from ddmq_common.names import DELAY_DLQ_TOPIC
from delay_service.context import ShardContext
from delay_service.core.commands import DEAD_TEXT, FireNow, OutcomeReply
from delay_service.core.fire_command import FireCommand, progress_of
from delay_service.due.backend import REJECTED, TOPIC_DELETED, CommitFailure, classify_failure, commit_due
from delay_service.due.holds import is_held
from delay_service.due.service import Alarm
from delay_service.store.port import StoreChanges
from delay_service.waiting.rows import FORGOTTEN, values_after, values_in

log = logging.getLogger("ddmq.delay")
CLOCK_CHECK_S = 0.25  # the longest sleep while anything waits
IDLE_S = 10.0  # the longest sleep at all: ids are forgotten then
FORGET_MAX = 500  # ids in one look …
FORGET_S = 0.02  # … and the next look, when there are more: faster than any service takes commands in
CLOSED_S = 1.0  # how long a topic that would not take a message is left alone
REMEMBERED_MAX = 10_000  # awaited outcomes, and messages refused once
PASSED_MAX = 1_000  # offsets that are done without firing and wait for another commit to end
NEVER = 1 << 62
REJECTIONS = (CallerError, BoundReachedError, ValueError, TypeError, OverflowError)


def _target_of(fire: FireCommand) -> str:
    """Return the topic of a message; "" for a dead letter, because it goes to another topic."""
    return "" if fire.reason else fire.message.topic


class CommitInFlight(NamedTuple):
    """One commit of due messages that is under way.

    `passed_offsets`: offsets that end without a fire. `awaited`: fire-now commands by offset. `finished`,
    `attempts`: the progress of the fired messages. `changed_ids`: ids whose changed rows are in the commit.
    """

    fires: list[FireCommand]
    passed_offsets: list[int]
    awaited: dict[int, FireNow]
    epoch: int
    finished: list[int]
    attempts: list[tuple[int, int]]
    changed_ids: set[bytes]  # other ids that changed in the store: their rows go with it


class FireLoop:
    """Fires the due messages of one shard after `open`."""

    def __init__(self, context: ShardContext, alarm: Alarm) -> None:
        self._context = context
        self._service = context.service
        self._due_scans = context.due_scans
        self._alarm = alarm
        self._loop: Any = current_loop()
        self._commits_in_flight = 0
        self._opened = self._pumping = self._stopped = self._queued = False
        self._pause_s = self._pause_min = self._service.config.pause_ms_min / 1e3
        self._paused_until = float("-inf")
        self._awaited: dict[int, FireNow] = {}
        self._rejected_once: set[int] = set()
        self._blocked_fires: list[FireCommand] = []  # until the rows of their commands are committed
        self._changed_ids: set[bytes] = set()  # changed in the store alone: the next commit has their rows
        self._passed_offsets = context.unrecorded.offsets  # also what an owner before us did not commit
        self._wake_ms = NEVER
        self._next_expiry_at = float("-inf")

    @property
    def is_idle(self) -> bool:
        """Return whether no commit is in flight."""
        return self._commits_in_flight == 0

    def open(self) -> None:
        """Start firing due messages."""
        self._opened = True
        self.fire_due()

    def stop(self) -> None:
        """Start no more commits; those in flight still finish. May be called twice."""
        self._stopped = True
        self._alarm.stop()

    def await_outcome(self, fire_now: FireNow) -> None:
        """Register a fire-now command whose requester gets the outcome when its message has fired."""
        if len(self._awaited) < REMEMBERED_MAX:
            self._awaited[fire_now.offset] = fire_now
        else:
            self._service.counts.replies_dropped["bound"].value += 1

    def answer_overtaken(self, offsets: list[int]) -> list[OutcomeReply]:
        """Return the outcomes of fire-now commands whose messages were cancelled before the command was
        carried out."""
        if not self._awaited:
            return []
        overtaken = [self._awaited.pop(offset) for offset in offsets if offset in self._awaited]
        return [
            OutcomeReply(request.queue_id, CommandOutcome(reply_id=request.reply_id, code=CANCELLED))
            for request in overtaken
        ]

    # --- when

    def wake_at(self, due_ms: int) -> None:
        """Wake up earlier if `due_ms`, the due time of a new message, is before the next wake-up."""
        if due_ms < self._wake_ms and self._opened:
            self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pumping and not self._stopped:
            self._pumping = True
            self._loop.run_callback(self._pump_now)

    def _pump_now(self) -> None:
        self._pumping = False
        self.fire_due()

    def fire_due(self) -> None:
        """Fire one slice of due messages and continue soon, or sleep until the next due time."""
        if not self._stopped and self._opened and self._context.running:
            self._context.run_safely("pump", self._fire_or_sleep)

    def _fire_or_sleep(self) -> None:
        if self._context.awaits_capacity(False, self._alarm, self.fire_due):
            self._service.wake_next_shard()
            return
        now = self._service.clock.monotonic()
        if now >= self._next_expiry_at:
            self._next_expiry_at = now + IDLE_S / 2
            self._forget_ids()
        if now < self._paused_until:
            self._alarm.once(self._paused_until - now, self.fire_due)
        elif self._service.commits_in_flight >= self._service.config.fires_in_flight:
            self._wait_for_slot()
        elif self._fire_slice():
            self._pump_soon()
        else:
            self._sleep()
            self._service.wake_next_shard()

    def _wait_for_slot(self) -> None:
        if not self._queued:
            self._queued = True
            self._service.waiting_shards.append(self._on_slot_free)
        self._alarm.once(CLOCK_CHECK_S, self.fire_due)

    def _on_slot_free(self) -> None:
        self._queued = False
        if self._stopped or not self._context.running:
            self._service.wake_next_shard()
        else:
            self._pump_soon()

    def _sleep(self) -> None:
        now_ms = self._service.clock.wall_ms()
        due = self._due_scans.wake_ms()
        self._wake_ms = NEVER if due is None else due
        longest_s = FORGET_S if self._next_expiry_at <= self._service.clock.monotonic() else CLOCK_CHECK_S
        if due is None:
            is_idle = longest_s == CLOCK_CHECK_S and not (
                self._due_scans.busy or self._due_scans.deferred_topics
            )
            self._alarm.once(IDLE_S if is_idle else longest_s, self.fire_due)
        elif due <= now_ms:
            self._pump_soon()
        else:
            self._alarm.once(min((due - now_ms) / 1e3, longest_s), self.fire_due)

    def topic_changed(self, topic: str) -> None:
        """Retry the deferred messages of a changed topic. It may be writable again, released or deleted."""
        self._context.reopen_topic(topic)
        if topic in self._due_scans.deferred_topics:
            self._pump_soon()

    def hold_changed(self, topic: str) -> None:
        """Hold the messages of a topic from now on, or fire the overdue ones in due order if it was
        released."""
        if not is_held(self._service.backend, topic):
            self._due_scans.on_released(topic, self._service.clock.wall_ms())
            self.topic_changed(topic)

    def _forget_ids(self) -> None:
        """Delete ids from the store whose retention has expired."""
        context = self._context
        forgotten = context.store.forgettable(self._service.clock.wall_ms(), FORGET_MAX)
        if forgotten:
            context.write(StoreChanges(ids=dict.fromkeys(forgotten)))
            if context.has_rows:
                self._changed_ids.update(forgotten)
            if len(forgotten) == FORGET_MAX:
                self._next_expiry_at = self._service.clock.monotonic()

    # --- one slice

    def _fire_slice(self) -> bool:
        plan = self._due_scans.plan_fires(self._service.clock.wall_ms())
        self._service.counts.stale.value += plan.stale
        self._passed_offsets += plan.passed_offsets
        if plan.changes is not None:
            self._service.counts.deferred.add(Counter(message.topic for message in plan.changes.deferred))
            if not self._context.write(plan.changes, plan.passed_offsets):
                return False
            if self._context.has_rows:
                self._changed_ids.update(plan.changes.ids)
        fires = self._select_available(self._select_committable(plan.fires))
        reports_progress = bool(self._passed_offsets or self._changed_ids) and not self._commits_in_flight
        if fires or reports_progress or len(self._passed_offsets) >= PASSED_MAX:
            passed_offsets, self._passed_offsets = self._passed_offsets, []
            self._launch_commit(fires, passed_offsets)
        return bool(plan.fires) or plan.changes is not None

    def _select_available(self, fires: list[FireCommand]) -> list[FireCommand]:
        """Return the fires whose topics are available. Fires to other topics are tried separately."""
        set_aside = self._context.set_aside
        if not set_aside.reasons or not any(_target_of(fire) in set_aside for fire in fires):
            return fires
        trials: dict[str, list[FireCommand]] = {}
        for fire in fires:
            if _target_of(fire) in set_aside:
                trials.setdefault(_target_of(fire), []).append(fire)
        for topic, trial in trials.items():
            if set_aside.trial:
                self._defer_messages(trial)
            else:
                set_aside.trial = topic
                self._launch_commit(trial)
        return [fire for fire in fires if _target_of(fire) not in set_aside]

    def _select_committable(self, fires: list[FireCommand]) -> list[FireCommand]:
        """Return the fires to commit now, and block those whose earlier row is not committed yet."""
        if not self._context.has_rows:
            return fires
        uncommitted = self._context.uncommitted_rows
        waiting = [fire for fire in fires if fire.message.uuid in uncommitted]
        if not waiting:
            return fires
        self._blocked_fires += waiting
        return [fire for fire in fires if fire.message.uuid not in uncommitted]

    def on_rows_committed(self) -> None:
        """Commit the blocked fires whose earlier rows are committed now."""
        if self._blocked_fires and not self._stopped:
            waiting, self._blocked_fires = self._blocked_fires, []
            fires = self._select_available(self._select_committable(waiting))
            if fires:
                self._launch_commit(fires)

    def _launch_commit(self, fires: list[FireCommand], passed_offsets: list[int] | None = None) -> None:
        self._commits_in_flight += 1
        self._service.commits_in_flight += 1
        awaited = self._take_awaited(fires)
        replies = self._reply_records(fires, awaited) if awaited else []
        finished, attempts = progress_of(fires)
        changed_ids, self._changed_ids = self._changed_ids, set()
        commit = CommitInFlight(
            fires, passed_offsets or [], awaited, self._context.epoch, finished, attempts, changed_ids
        )
        service, progress = (
            self._service,
            self._context.fired_progress(finished + commit.passed_offsets, attempts),
        )
        records = [fire.record for fire in fires] + replies
        if self._context.has_rows:
            records += self._changed_rows(commit)
        dead_topic = DELAY_DLQ_TOPIC if any(fire.reason for fire in fires) else ""
        on_done = partial(self._on_commit_done, commit)
        try:
            commit_due(service.backend, dead_topic, records, (progress,), service.deadline(), on_done)
        except Exception as error:  # it could not even be begun
            on_done(error)

    def _changed_rows(self, commit: CommitInFlight) -> list[NewRecord]:
        """Return the row records of the fired messages and of ids that changed only in the store."""
        context, wall_ms = self._context, self._service.clock.wall_ms()
        later = {uuid for uuid in commit.changed_ids if uuid in context.uncommitted_rows}
        self._changed_ids |= later
        commit.changed_ids.difference_update(
            later, {message.uuid for message in self._due_scans.busy.values()}
        )
        rows = dict.fromkeys(commit.changed_ids, FORGOTTEN) | values_in(
            context.store, list(commit.changed_ids)
        )
        rows |= values_after(self._due_scans.changes_of(commit.fires, wall_ms))
        return context.row_records(rows, wall_ms)

    def _take_awaited(self, fires: list[FireCommand]) -> dict[int, FireNow]:
        """Remove and return the fire-now commands that wait for these messages, by offset."""
        if not self._awaited:
            return {}
        offsets = [fire.message.offset for fire in fires if fire.message.offset in self._awaited]
        return {offset: self._awaited.pop(offset) for offset in offsets}

    def _reply_records(self, fires: list[FireCommand], awaited: dict[int, FireNow]) -> list[NewRecord]:
        wall_ms = self._service.clock.wall_ms()
        replies = []
        for fire in fires:
            request = awaited.get(fire.message.offset)
            if request is not None:
                outcome = CommandOutcome(
                    reply_id=request.reply_id,
                    code=ALREADY_FIRED,
                    fired_at_ms=wall_ms,
                    text=DEAD_TEXT if fire.reason else "",
                )
                replies.append(OutcomeReply(request.queue_id, outcome))
        return self._service.outcome_records(replies, wall_ms)

    # --- what became of it

    def _on_commit_done(self, commit: CommitInFlight, error: Exception | None) -> None:
        self._commits_in_flight -= 1
        self._service.on_commit_done()
        if commit.fires and _target_of(commit.fires[0]) == self._context.set_aside.trial:
            self._context.set_aside.trial = ""
        self._context.run_safely("fire", self._apply_result, commit, error)
        self._context.on_commit_end()
        if self._context.running:
            self._pump_soon()

    def _apply_result(self, commit: CommitInFlight, error: Exception | None) -> None:
        if error is None:
            self._on_fired(commit)
        elif self._context.running:
            self._on_not_fired(commit, error)
        else:
            self._due_scans.on_commit_done(commit.fires, False)
            self._context.give_up("fire", error)

    def _on_fired(self, commit: CommitInFlight) -> None:
        context, fires = self._context, commit.fires
        wall_ms = self._service.clock.wall_ms()
        self._service.counts.count_fired(fires, wall_ms)
        self._pause_s = self._pause_min
        context.finish_offsets(commit.finished + commit.passed_offsets)
        for offset, attempts in commit.attempts:
            context.acks.record_attempts(offset, attempts)
        if context.set_aside.reasons:
            for topic in {_target_of(fire) for fire in fires}:
                context.set_aside.remove(topic)
        if self._rejected_once:
            self._rejected_once.difference_update(fire.message.offset for fire in fires)
        self._due_scans.on_commit_done(fires, True)
        if context.running:
            context.write(self._due_scans.changes_of(fires, wall_ms))

    def _on_not_fired(self, commit: CommitInFlight, error: Exception) -> None:
        self._awaited.update(commit.awaited)
        self._changed_ids |= commit.changed_ids
        how = classify_failure(error, commit.epoch < self._context.epoch, REJECTIONS)
        if isinstance(error, TopicUnavailableError) and self._set_aside(commit, error):
            return
        if how is CommitFailure.RETRY:
            self._retry_later(commit, error)
        elif how is CommitFailure.CLAIM_UNCERTAIN:
            self._due_scans.on_commit_done(commit.fires, False)
            log.warning("a delay shard's claim is renewed: %s", error)
            self._context.give_up("fire", error)
        else:
            self._service.counts.count_failure("fire", error)
            self._passed_offsets += commit.passed_offsets
            self._isolate_rejected(commit, error)

    def _set_aside(self, commit: CommitInFlight, error: TopicUnavailableError) -> bool:
        """Defer the messages of topics that are not available, and commit the others at once.

        Returns False, and does nothing, if no message of the commit belongs to such a topic.
        """
        deferred: dict[str, list[FireCommand]] = {}
        for fire in commit.fires:
            topic = _target_of(fire)
            if topic in error.topics:
                deferred.setdefault(topic, []).append(fire)
        if not deferred:
            return False
        self._service.counts.count_failure("fire", error)
        self._passed_offsets += commit.passed_offsets
        for topic, fires in deferred.items():
            self._context.set_aside.add(topic, error.topics[topic])
            self._defer_messages(fires)
        others = [fire for fire in commit.fires if _target_of(fire) not in deferred]
        if others and self._context.running:
            self._launch_commit(others)
        return True

    def _retry_later(self, commit: CommitInFlight, error: Exception) -> None:
        self._service.counts.count_failure("fire", error)
        self._passed_offsets += commit.passed_offsets
        self._due_scans.on_commit_done(commit.fires, False)
        self._begin_pause()
        log.warning("delay messages are not taken now, tried again: %s", error)

    def _begin_pause(self) -> None:
        self._paused_until = self._service.clock.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._service.config.pause_ms_max / 1e3)

    # --- whose fault it is

    def _isolate_rejected(self, commit: CommitInFlight, error: Exception) -> None:
        fires = commit.fires
        topics = sorted({fire.record.topic for fire in fires})
        if not topics:
            self._begin_pause()  # nothing but `over`, which goes with the next
        elif len(topics) > 1:
            half = frozenset(topics[: len(topics) // 2])
            self._launch_commit([fire for fire in fires if fire.record.topic in half])
            self._launch_commit([fire for fire in fires if fire.record.topic not in half])
        elif isinstance(error, UnknownTopicError) and self._context.find_target_topic(topics[0]) is None:
            log.warning("topic %s is gone: %d delay messages are dead letters", topics[0], len(fires))
            self._launch_commit(self._due_scans.make_dead_letters(fires, TOPIC_DELETED))
        elif isinstance(error, BoundReachedError):
            self._begin_pause()
            self._defer_messages(fires)
        elif isinstance(error, UnknownTopicError) or self._is_closed(topics[0]):
            self._defer_messages(fires)
        elif len(fires) > 1:
            half_of = len(fires) // 2
            self._launch_commit(fires[:half_of])
            self._launch_commit(fires[half_of:])
        else:
            self._reject_message(fires[0], error)

    def _is_closed(self, topic: str) -> bool:
        target = self._context.find_target_topic(topic)
        return target is not None and not target.writable

    def _defer_messages(self, fires: list[FireCommand]) -> None:
        topic = fires[0].message.topic
        self._context.close_topic_for(topic, CLOSED_S)
        self._service.counts.deferred.add(
            Counter(fire.message.topic for fire in fires if not fire.is_deferred)
        )
        changes = self._due_scans.defer_messages(fires)
        self._due_scans.on_commit_done(fires, False)
        self._context.write(changes)

    def _reject_message(self, fire: FireCommand, error: Exception) -> None:
        """Defer a message that the engine rejected; make it a dead letter the second time."""
        if fire.reason:
            self._due_scans.on_commit_done([fire], False)
            self._begin_pause()
        elif fire.message.offset in self._rejected_once:
            log.warning("topic %s never takes a delay message: %s", fire.message.topic, error)
            self._launch_commit(self._due_scans.make_dead_letters([fire], REJECTED))
        else:
            if len(self._rejected_once) >= REMEMBERED_MAX:
                self._rejected_once.clear()
            self._rejected_once.add(fire.message.offset)
            self._defer_messages([fire])
