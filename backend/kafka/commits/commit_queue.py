"""CommitQueue: commits on the hub, in the order in which they were called, one batch in flight at a time.

Commits that come while a batch is in flight wait and then go together: progress alone with the plain
producer, anything with records or settings as one transaction. There is one batch at a time, because a state
must neither count before the records that it belongs to nor overtake them. Commits with `absent` or `limits`,
and resets, are exclusive: they go by themselves under the namespace's transactional name. The process takes
that name, catches up with everything that is answered by now, checks and writes; if it was fenced meanwhile,
it does all of it again.

A process writes under a name of its own and gives it up (`renew`) when it was fenced, when an outcome is
uncertain, and when its memberships require it. Then it takes the old name over once more, so that every
transaction in flight under it has ended; catches up, so that an uncertain outcome is known, where progress or
settings were part of it; and continues under a new name. A commit that was fenced, or turns out not to be
stored, is checked and sent again after that, until its deadline.

The pending commits are here, too: their order and bounds are this queue's own.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import gevent

from backend.completion import Completion
from backend.kafka.clients.producers import OutcomeKind, Producers, WriteOutcome
from backend.kafka.commits.plan import CommitPlan, EpochFloor
from backend.kafka.state.followed import KafkaState
from backend.kafka.topic_info import TopicRegistry
from backend.progress.group_progress import Key, check_delta
from backend.records import AppendResult, AppendStatus, CommitBatch, NewRecord
from ddmq_common.errors import BoundReachedError, DdmqError, DrainingError, RemoteError, TryLaterError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
BATCH_COMMITS_MAX = 2_000
BATCH_RECORDS_MAX = 10_000
PENDING_MAX = 100_000  # commits that wait; more are rejected
RETRY_S = 0.5
FOREVER = float("inf")
Queue = tuple[str, int]  # topic, queue_id
WhenAppended = Callable[[Collection[Queue], Callable[[], None]], None]


def queues_of(records: Iterable[NewRecord]) -> list[Queue]:
    """Return the topic and queue of each record."""
    return [(record.topic, record.queue_id) for record in records]


class PendingCommit:
    """One commit call that is waiting or in flight.

    `add_to` adds the call to a plan, or raises; `to_result` converts the offsets of its records into its
    result. `action` runs in the call's place instead of being planned. `is_exclusive`: the call needs the
    namespace's transactional id. `is_alone`: the call must not share a batch with others.
    """

    __slots__ = (
        "action", "add_to", "completion", "deadline", "is_alone", "is_exclusive", "queues", "to_result",
    )  # fmt: skip

    def __init__(
        self,
        deadline: float,
        add_to: Callable[[CommitPlan], None],
        to_result: Callable[[list[int]], Any] = lambda offsets: None,
        into: Completion[Any] | None = None,
        queues: list[Queue] | None = None,
        action: Callable[[], None] | None = None,
        is_exclusive: bool = False,
    ) -> None:
        self.completion: Completion[Any] = Completion() if into is None else into
        self.deadline = deadline
        self.add_to = add_to
        self.to_result = to_result
        self.queues = queues or []
        self.action = action
        self.is_exclusive = is_exclusive
        self.is_alone = False

    def succeed(self, offsets: list[int]) -> None:
        """Answer the call with success unless it is answered; an error in its callback is contained."""
        if not self.completion.done:
            self._settle(self.completion.succeed, self.to_result(offsets))

    def fail(self, error: Exception) -> None:
        """Answer the call with an error unless it is answered."""
        if not self.completion.done:
            self._settle(self.completion.fail, error)

    def _settle(self, settle: Callable[[Any], None], value: Any) -> None:
        try:
            settle(value)
        except Exception as error:
            hub: Any = gevent.get_hub()
            hub.handle_error(settle, type(error), error, error.__traceback__)


class PendingCommits:
    """The commit calls that wait, in order, and those in flight. Each is answered by its deadline.

    `is_sent`: the calls in flight were passed to Kafka. `reason()`: why calls may be delayed, for error
    texts.
    """

    def __init__(self, now: Callable[[], float], reason: Callable[[], str]) -> None:
        self._now = now
        self._reason = reason
        self.waiting: deque[PendingCommit] = deque()
        self.in_flight: list[PendingCommit] = []
        self.is_sent = False
        self._commits_by_queue: Counter[Queue] = Counter()
        self._timer = HubTimer(ref=False)
        self._wake_at = FOREVER

    def __len__(self) -> int:
        return len(self.waiting)

    def append(self, commit: PendingCommit) -> None:
        """Add a call behind all others."""
        self.waiting.append(commit)
        self._commits_by_queue.update(commit.queues)
        if commit.deadline < self._wake_at:
            self._set_timer(commit.deadline)

    def touches_queues(self, records: Iterable[NewRecord]) -> bool:
        """Return whether an unanswered call writes to a queue that one of these records goes to."""
        counts = self._commits_by_queue
        return bool(counts) and any(queue in counts for queue in queues_of(records))

    def release_queues(self, commit: PendingCommit) -> PendingCommit:
        """Stop counting a call's queues as written to, so that appends to them continue; returns the call."""
        for queue in commit.queues:
            self._commits_by_queue[queue] -= 1
            if self._commits_by_queue[queue] <= 0:
                del self._commits_by_queue[queue]
        commit.queues = []
        return commit

    def expire(self) -> None:
        """Fail the calls past their deadline: as not stored, or with an unknown outcome if they were sent."""
        now = self._now()
        late = [commit for commit in self.waiting if commit.deadline <= now]
        if late:
            self.waiting = deque(commit for commit in self.waiting if commit.deadline > now)
        uncertain = [commit for commit in self.in_flight if commit.deadline <= now]
        if not self.is_sent:
            self.in_flight = [commit for commit in self.in_flight if commit.deadline > now]
            late, uncertain = late + uncertain, []
        for commit in late:
            reason = self._reason() or "what was called before is not answered yet"
            self.release_queues(commit).fail(TryLaterError(f"not written by the deadline: {reason}"))
        for commit in uncertain:
            commit.fail(RemoteError("no answer by the deadline; it may be stored or not"))

    def close(self, error: Exception) -> None:
        """Fail every pending call with an error."""
        self._timer.stop()
        commits = [*self.in_flight, *self.waiting]
        self.in_flight = []
        self.waiting.clear()
        for commit in commits:
            commit.fail(error)

    def _set_timer(self, deadline: float) -> None:
        self._wake_at = deadline
        self._timer.once(max(0.0, deadline - self._now()), self._on_timer)

    def _on_timer(self) -> None:
        self._wake_at = FOREVER
        self.expire()
        deadlines = [
            commit.deadline for commit in (*self.waiting, *self.in_flight) if not commit.completion.done
        ]
        first = min(deadlines, default=FOREVER)
        if first < FOREVER:
            self._set_timer(first)


class _PlannedBatch:
    """The commit calls that go to Kafka together. `record_counts`: the number of records of each call."""

    def __init__(
        self, plan: CommitPlan, commits: list[PendingCommit], record_counts: list[int], is_exclusive: bool
    ) -> None:
        self.plan, self.commits, self.record_counts = plan, commits, record_counts
        self.is_exclusive = is_exclusive


class CommitQueue:
    """Collects the commits of one process and sends them to Kafka in order, one batch at a time.

    * `when_appended(queues, then)` calls back once the earlier appends to these queues are answered.
    * `epoch_floor`: see CommitPlan.
    * `is_alive()`: whether everything that this process holds is certainly still its own; asked before a
      batch is sent, and when it is answered, before any caller is notified.
    * `on_name_lost(reason)`: the name is given up. `on_named(name)`: the process has a new one.
    * `on_progress(keys)`: these pairs of group and queue have new progress.
    """

    def __init__(
        self,
        state: KafkaState,
        producers: Producers,
        topics: TopicRegistry,
        now: Callable[[], float],
        *,
        when_appended: WhenAppended,
        epoch_floor: EpochFloor,
        is_alive: Callable[[], bool],
        on_name_lost: Callable[[str], object],
        on_named: Callable[[str], object],
        on_progress: Callable[[Iterable[Key]], object],
    ) -> None:
        self._state = state
        self._producers = producers
        self._topics = topics
        self._when_appended = when_appended
        self._epoch_floor = epoch_floor
        self._is_alive = is_alive
        self._on_name_lost = on_name_lost
        self._on_named = on_named
        self._on_progress = on_progress
        self._loop: Any = gevent.get_hub().loop
        self.name = ""
        self._pending = PendingCommits(now, lambda: state.reason)
        self._is_busy = self._is_scheduled = self._closed = self._draining = False
        self._renewing = True
        self._uncertain: tuple[_PlannedBatch, WriteOutcome] | None = None
        self._retry = HubTimer(ref=False)
        self._idle_callbacks: list[Callable[[], None]] = []
        self.resume()

    # --- calls

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        """Commit a batch, as Backend.commit does."""
        for delta in batch.progress:
            check_delta(delta)
        batch = CommitBatch(
            tuple(batch.records),
            tuple(batch.progress),
            dict(batch.settings),
            tuple(batch.absent),
            tuple(batch.limits),
        )

        def to_results(offsets: list[int]) -> list[AppendResult]:
            durability_of = self._topics.durability_of
            return [
                AppendResult(AppendStatus.STORED, offset, durability_of(record.topic), None)
                for record, offset in zip(batch.records, offsets, strict=True)
            ]

        has_reset = any(delta.reset_to is not None for delta in batch.progress)
        return self._enqueue_call(
            PendingCommit(
                deadline,
                lambda plan: plan.add(batch),
                to_results,
                into,
                queues_of(batch.records),
                is_exclusive=bool(batch.absent or batch.limits) or has_reset,
            )
        )

    def put_topic_info(self, name: str, value: bytes | None, deadline: float) -> Completion[None]:
        """Store `value` as the settings of the topic `name`; None deletes them."""
        return self._enqueue_call(PendingCommit(deadline, lambda plan: plan.put_topic_info(name, value)))

    def drop_progress(self, topic: str, incarnation: int, deadline: float) -> Completion[None]:
        """Delete the progress of all groups on a deleted topic."""
        return self._enqueue_call(
            PendingCommit(deadline, lambda plan: plan.drop_progress(topic, incarnation))
        )

    def touches_queues(self, records: Iterable[NewRecord]) -> bool:
        """Return whether an unanswered commit writes to a queue that one of these records goes to."""
        return self._pending.touches_queues(records)

    def run_after(self, records: Iterable[NewRecord], action: Callable[[], None]) -> None:
        """Call `action`, which appends these records, once the earlier commits are answered."""
        self._pending.append(
            PendingCommit(FOREVER, lambda plan: None, queues=queues_of(records), action=action)
        )
        self.resume()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` once every earlier call is answered; immediately if that is already so."""
        if not self._is_busy and not self._pending:
            then()
        else:
            self._idle_callbacks.append(then)

    @property
    def is_busy(self) -> bool:
        """Whether a job with an unknown outcome is in flight; also meaningful after `close`."""
        return self._is_busy

    def renew(self, reason: str) -> None:
        """Give up the transactional id and take a new one after the job in flight.

        Does nothing if already renewing.
        """
        if not self._renewing and not self._closed:
            self._renewing = True
            log.warning("switching to a new transactional.id: %s", reason)
            self._on_name_lost(reason)
            self.resume()

    def drain(self) -> None:
        """Reject new commits from now on."""
        self._draining = True

    def close(self) -> None:
        """Stop all processing; unanswered calls fail."""
        if not self._closed:
            self._closed = self._draining = True
            self._retry.stop()
            self._pending.close(DrainingError("the Kafka engine was closed"))

    def resume(self) -> None:
        """Schedule the next step for the next turn of the hub."""
        if not self._is_scheduled and not self._is_busy:
            self._is_scheduled = True
            self._loop.run_callback(self._begin)

    def _enqueue_call(self, commit: PendingCommit) -> Completion[Any]:
        if self._draining:
            error: DdmqError = DrainingError("the Kafka engine is draining; it takes nothing new")
        elif len(self._pending) >= PENDING_MAX:
            error = BoundReachedError(f"{PENDING_MAX} commits are waiting; that is the bound")
        else:
            self._pending.append(commit)
            self.resume()
            return commit.completion
        self._loop.run_callback(commit.fail, error)
        return commit.completion

    # --- a batch

    def _begin(self) -> None:
        self._is_scheduled = False
        waiting = self._pending.waiting
        while waiting and waiting[0].action is not None and not self._is_busy:
            action = self._pending.release_queues(waiting.popleft()).action
            assert action is not None
            action()
        if self._is_busy or self._closed:
            return
        if self._renewing:
            self._take_new_name()
            return
        self._pending.expire()
        if not self._pending:
            callbacks, self._idle_callbacks = self._idle_callbacks, []
            for callback in callbacks:
                callback()
        elif self._state.ready:
            self._take_batch()

    def _take_batch(self) -> None:
        waiting, batch, record_count = self._pending.waiting, list[PendingCommit](), 0
        first = waiting[0]
        while waiting and len(batch) < BATCH_COMMITS_MAX and record_count < BATCH_RECORDS_MAX:
            commit = waiting[0]
            if commit.action is not None or commit.is_exclusive != first.is_exclusive:
                break
            if batch and (commit.is_alone or first.is_alone):
                break
            batch.append(waiting.popleft())
            record_count += len(commit.queues)
        self._is_busy = True
        self._pending.in_flight, self._pending.is_sent = batch, False
        queues = {queue for commit in batch for queue in commit.queues}
        if first.is_exclusive:
            self._take_namespace_name(queues)
        elif queues:
            self._when_appended(queues, lambda: self._send(is_exclusive=False))
        else:
            self._send(is_exclusive=False)

    def _take_namespace_name(self, queues: Collection[Queue]) -> None:
        def on_taken(outcome: WriteOutcome) -> None:
            if outcome.error is not None:
                self._fail_in_flight(outcome.error)
            else:
                self._state.catch_up().then(on_caught_up)

        def on_caught_up(barrier: Completion[None]) -> None:
            if barrier.error is not None:
                self._fail_in_flight(TryLaterError(str(barrier.error)))
            else:
                self._when_appended(queues, lambda: self._send(is_exclusive=True))

        self._producers.take_namespace_id(on_taken)

    def _send(self, is_exclusive: bool) -> None:
        if self._closed:
            return
        self._is_alive()
        plan = CommitPlan(self._state, self._topics, self._epoch_floor)
        commits, record_counts = list[PendingCommit](), list[int]()
        for commit in self._pending.in_flight:
            count_before = len(plan.records)
            try:
                commit.add_to(plan)
            except DdmqError as error:
                self._pending.release_queues(commit).fail(error)
            else:
                commits.append(commit)
                record_counts.append(len(plan.records) - count_before)
        batch = _PlannedBatch(plan, commits, record_counts, is_exclusive)
        self._pending.in_flight, self._pending.is_sent = commits, True
        if not plan:
            self._on_outcome(batch, WriteOutcome(OutcomeKind.STORED, [], None))
            return
        records = plan.to_producer_records()
        if is_exclusive or plan.needs_transaction:
            self._producers.write_transaction(
                records, is_exclusive, lambda outcome: self._on_outcome(batch, outcome)
            )
        else:
            self._producers.write_plain(records, lambda outcome: self._on_outcome(batch, outcome))

    def _on_outcome(self, batch: _PlannedBatch, outcome: WriteOutcome) -> None:
        error = outcome.error
        if self._closed:
            return
        if error is None:
            self._on_stored(batch, outcome.offsets)
        elif outcome.kind is OutcomeKind.UNCERTAIN:
            self._uncertain = batch, outcome
            self._is_busy = False
            self.renew(f"{error}; it is looked up")
            self.resume()
        elif outcome.kind is OutcomeKind.FENCED:
            self._retry_batch(batch)
            if not batch.is_exclusive:
                self.renew(str(error))
        elif len(batch.commits) > 1 and not isinstance(error, TryLaterError):
            self._retry_batch(batch, one_by_one=True)
        else:
            self._fail_in_flight(error)

    def _on_stored(self, batch: _PlannedBatch, offsets: Sequence[int]) -> None:
        batch.plan.apply_stored(offsets)
        self._on_progress(batch.plan.progress)
        if self._is_alive() and not self._renewing:  # a name given up may be dead since before the write
            self._answer_success(batch, offsets)
        else:
            self._fail_in_flight(RemoteError("this process was stopped meanwhile: it may count or not"))

    def _answer_success(self, batch: _PlannedBatch, offsets: Sequence[int]) -> None:
        self._is_busy, self._pending.in_flight = False, []
        start = 0
        for commit, count in zip(batch.commits, batch.record_counts, strict=True):
            self._pending.release_queues(commit)
            commit.succeed(list(offsets[start : start + count]))
            start += count
        self.resume()

    def _retry_batch(self, batch: _PlannedBatch, one_by_one: bool = False) -> None:
        for commit in reversed(batch.commits):
            commit.is_alone = one_by_one
            if commit.completion.done:
                self._pending.release_queues(commit)
            else:
                self._pending.waiting.appendleft(commit)
        self._is_busy, self._pending.in_flight = False, []
        self.resume()

    def _fail_in_flight(self, error: Exception) -> None:
        commits, self._pending.in_flight = self._pending.in_flight, []
        self._is_busy = False
        for commit in commits:
            self._pending.release_queues(commit).fail(error)
        self.resume()

    # --- the name

    def _take_new_name(self) -> None:
        name = uuid.uuid4().hex
        self._is_busy = True
        self._producers.take_new_id(name, lambda outcome: self._on_renamed(name, outcome))

    def _on_renamed(self, name: str, outcome: WriteOutcome) -> None:
        if self._closed:
            return
        if outcome.error is not None:
            log.warning("no transactional name from Kafka, retrying: %s", outcome.error)
            self._retry.once(RETRY_S, self._take_new_name)
            return
        self.name = name
        if self._uncertain is not None:
            self._state.catch_up().then(self._resolve_uncertain)
        else:
            self._start_under_name()

    def _resolve_uncertain(self, barrier: Completion[None]) -> None:
        """Answer or retry the batch with the uncertain outcome; the state now shows whether it is stored."""
        assert self._uncertain is not None
        if self._closed:
            return
        if isinstance(barrier.error, RemoteError):
            self._retry.once(RETRY_S, lambda: self._state.catch_up().then(self._resolve_uncertain))
            return
        (batch, outcome), self._uncertain = self._uncertain, None
        is_stored = batch.plan.is_stored()
        if is_stored and len(outcome.offsets) >= len(batch.plan.records):
            self._answer_success(batch, outcome.offsets)
        elif is_stored is False:
            self._retry_batch(batch)
        else:
            self._fail_in_flight(outcome.error or RemoteError("the outcome is unknown"))
        self._start_under_name()

    def _start_under_name(self) -> None:
        self._renewing = self._is_busy = False
        self._on_named(self.name)
        self.resume()
