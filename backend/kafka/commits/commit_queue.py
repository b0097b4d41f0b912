"""CommitQueue: commits on the hub. Lanes decides which may be in flight together, and in which order.

Progress alone is written by the plain producer, one batch at a time; anything with records or settings as a
transaction, under one of the transactional ids of this process. Two commits that change the same progress, or
append to the same queue, are never in flight apart: a state must neither count before the records that it
belongs to nor overtake them. Commits with `absent` or `limits`, and resets, are exclusive: they go by
themselves under the namespace's transactional id. The process takes that id, catches up with everything that
is answered by now, checks and writes; if it was fenced meanwhile, it does all of it again.

A process writes under a name of its own and gives it up (`renew`) when one of its ids was fenced, when an
outcome is uncertain, and when its memberships require it. Then it waits for all outcomes, and takes over the
old ids once more, so that every transaction in flight under them has ended; catches up, so that uncertain
outcomes are known, where progress or settings were part of them; and continues under a new name. A commit
that was fenced, or turns out not to be stored, is checked and sent again after that, until its deadline.

Records for topics that are set aside (targets.py) are rejected before they are sent. The module is one class:
each outcome decides what may start next, what is sent again and whether the name is given up.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import gevent

from backend.completion import Completion
from backend.kafka.clients.producers import Producers
from backend.kafka.clients.writing import OutcomeKind, WriteOutcome
from backend.kafka.commits.lanes import Batch, Lanes, WorkKind
from backend.kafka.commits.pending import FOREVER, PendingCommit, PendingCommits, Queue, queues_of
from backend.kafka.commits.plan import CommitPlan, EpochFloor, OffsetEntry
from backend.kafka.state.followed import KafkaState
from backend.kafka.topic_info import TopicRegistry
from backend.progress.group_progress import Key, check_delta
from backend.records import AppendResult, AppendStatus, CommitBatch, NewRecord, QueueRef
from ddmq_common.errors import (
    BoundReachedError,
    DdmqError,
    DrainingError,
    RemoteError,
    TopicUnavailableError,
    TryLaterError,
)
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
BATCH_COMMITS_MAX = 2_000
BATCH_RECORDS_MAX = 10_000
PENDING_MAX = 100_000  # commits that wait; more are rejected
RETRY_S = 0.5
SUSPECT_S = 4.0  # of a transaction to a topic that was set aside before, and goes by itself
ANSWER_S = 1.0  # between the end of a transaction and the first deadline of its calls …
SHORT_S = 5.0  # … but calls with less time than this end no transaction of others
SETTINGS = ("settings",)  # the resource of all commits that change settings
RELEASE = (
    "release"  # (RELEASE, queue): the resource of a release, and of the commits that are called after it
)
WhenAppended = Callable[[Collection[Queue], Callable[[], None]], None]


class _PlannedBatch:
    """A batch as it was sent. `commits`: those of its members that are in the plan, and `record_counts`: how
    many records each of them has."""

    def __init__(self, batch: Batch[PendingCommit]) -> None:
        self.batch = batch
        self.commits: list[PendingCommit] = []
        self.record_counts: list[int] = []
        self.plan: CommitPlan


class CommitQueue:
    """Collects the commits of one process and sends them to Kafka, in the order that Lanes decides.

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
        self._lanes: Lanes[PendingCommit] = Lanes(
            BATCH_COMMITS_MAX, BATCH_RECORDS_MAX, self._has_no_earlier_appends, self._is_suspect
        )
        self._now = now
        self._pending = PendingCommits(now, lambda: state.reason, self._give_up)
        self._is_scheduled = self._closed = self._draining = self._is_taking_name = False
        self._renewing = True
        self._unsent = 0  # transactions that have begun here, and not at the producers
        self._uncertain: list[tuple[_PlannedBatch, WriteOutcome]] = []
        self._releasing: Counter[QueueRef] = Counter()  # queues with releases that wait
        self._retry = HubTimer(ref=False)
        self._idle_callbacks: list[Callable[[], None]] = []
        topics.unavailable.add_listener(self._on_topics_available)
        self.resume()

    # --- calls

    def commit(
        self,
        batch: CommitBatch,
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
        entry: OffsetEntry | None = None,
    ) -> Completion[list[AppendResult]]:
        """Commit a batch, as Backend.commit does; with `entry`, its records' offsets are stored, too."""
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

        is_exclusive = batch.absent or batch.limits or any(d.reset_to is not None for d in batch.progress)
        kind = WorkKind.TRANSACTION if batch.records or batch.settings or entry else WorkKind.PLAIN
        resources: list[Any] = [(delta.group, delta.queue) for delta in batch.progress]
        if batch.settings or batch.absent or batch.limits:
            resources.append(SETTINGS)
        if self._releasing:
            resources += [
                (RELEASE, delta.queue) for delta in batch.progress if delta.queue in self._releasing
            ]
        return self._enqueue_call(
            PendingCommit(
                WorkKind.EXCLUSIVE if is_exclusive else kind,
                deadline,
                lambda plan: plan.add(batch, entry),
                to_results,
                into,
                resources=resources,
                queues=queues_of(batch.records),
            )
        )

    def put_topic_info(self, name: str, value: bytes | None, deadline: float) -> Completion[None]:
        """Store `value` as the settings of the topic `name`; None deletes them."""
        return self._enqueue_call(
            PendingCommit(
                WorkKind.TRANSACTION,
                deadline,
                lambda plan: plan.put_topic_info(name, value),
                resources=(SETTINGS,),
            )
        )

    def drop_progress(self, topic: str, incarnation: int, deadline: float) -> Completion[None]:
        """Delete the progress of all groups on a deleted topic, while nothing else is in flight."""
        commit = PendingCommit(
            WorkKind.EXCLUSIVE, deadline, lambda plan: plan.drop_progress(topic, incarnation)
        )
        commit.needs_namespace_id = False
        return self._enqueue_call(commit)

    def touches_queues(self, records: Iterable[NewRecord]) -> bool:
        """Return whether an unanswered commit writes to a queue that one of these records goes to."""
        lanes = self._lanes
        return bool(lanes.with_records) and any(queue in lanes for queue in queues_of(records))

    def run_after(self, records: Iterable[NewRecord], action: Callable[[], None]) -> None:
        """Call `action`, which appends these records, once the earlier commits to their queues are
        answered."""
        self._add(PendingCommit(WorkKind.ACTION, FOREVER, queues=queues_of(records), action=action))

    def run_after_progress(self, queues: Collection[QueueRef], action: Callable[[], None]) -> None:
        """Call `action` once the earlier commits of any group's progress on these queues are answered, and
        the earlier ones of settings.

        Commits of any group's progress on these queues that are called later wait for the action.
        """
        keys = [
            resource
            for resource in self._lanes.list_resources()
            if isinstance(resource, tuple) and len(resource) == 2 and resource[1] in queues
        ]
        self._releasing.update(queues)

        def run_action() -> None:
            self._releasing.subtract(queues)
            for queue in queues:
                if not self._releasing[queue]:
                    del self._releasing[queue]
            action()

        releases = [(RELEASE, queue) for queue in queues]
        resources = (*keys, *releases, SETTINGS)
        self._add(PendingCommit(WorkKind.ACTION, FOREVER, resources=resources, action=run_action))

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` once every earlier call is answered; immediately if that is already so."""
        if self._lanes.is_empty and not self._is_taking_name:
            then()
        else:
            self._idle_callbacks.append(then)

    @property
    def is_busy(self) -> bool:
        """Whether a job with an unknown outcome is in flight; also meaningful after `close`."""
        return bool(self._lanes.in_flight) or self._is_taking_name

    def renew(self, reason: str) -> None:
        """Give up the transactional ids and take new ones after the jobs in flight.

        Does nothing if already renewing.
        """
        if not self._renewing and not self._closed:
            self._renewing = True
            log.warning("switching to new transactional ids: %s", reason)
            self._on_name_lost(reason)
            self.resume()

    def drain(self) -> None:
        """Start to reject new commits."""
        self._draining = True

    def close(self) -> None:
        """Stop all processing; unanswered calls fail."""
        if not self._closed:
            self._closed = self._draining = True
            self._retry.stop()
            self._pending.close(DrainingError("the Kafka engine was closed"))

    def resume(self) -> None:
        """Schedule the next step for the next turn of the hub."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.run_callback(self._start_work)

    def _enqueue_call(self, commit: PendingCommit) -> Completion[Any]:
        if self._draining:
            error: DdmqError = DrainingError("the Kafka engine is draining; it takes nothing new")
        elif self._lanes.waiting >= PENDING_MAX:
            error = BoundReachedError(f"{PENDING_MAX} commits are waiting; that is the bound")
        else:
            self._add(commit)
            return commit.completion
        self._loop.run_callback(commit.fail, error)
        return commit.completion

    def _add(self, commit: PendingCommit) -> None:
        self._pending.add(commit)
        self._lanes.add(commit)
        self.resume()

    # --- what may start

    def _has_no_earlier_appends(self, commit: PendingCommit, on_open: Callable[[], None]) -> bool:
        """Return whether the earlier appends to the commit's queues are answered.

        If not, `on_open` is called once they are.
        """
        if not commit.queues:
            return True
        is_open = is_registered = False

        def on_appended() -> None:
            nonlocal is_open
            is_open = True
            if is_registered:
                on_open()
                self.resume()

        self._when_appended(set(commit.queues), on_appended)
        is_registered = True
        return is_open

    def _is_suspect(self, commit: PendingCommit) -> bool:
        is_suspect = self._topics.unavailable.is_suspect
        return any(is_suspect(topic) for topic, _ in commit.queues)

    def _on_topics_available(self) -> None:
        self._lanes.recheck_suspects()
        self.resume()

    def _give_up(self, commit: PendingCommit) -> None:
        self._lanes.give_up(commit)
        self.resume()

    def _start_work(self) -> None:
        """Run the actions and start the batches that may start now, or take a new name."""
        self._is_scheduled = False
        while not self._closed and (commit := self._lanes.next_action()) is not None:
            if commit.action is not None:
                commit.action()
        if self._closed or self._is_taking_name or self._state.other_cluster:
            return
        if self._renewing:
            if len(self._lanes.in_flight) == len(self._uncertain):
                self._take_new_name()
            return
        self._pending.fail_expired()
        while self._state.ready:
            batch = self._lanes.next_batch(self._producers.free_ids > self._unsent)
            if batch is None:
                break
            self._begin(batch)
        if self._lanes.is_empty:
            callbacks, self._idle_callbacks = self._idle_callbacks, []
            for callback in callbacks:
                callback()

    # --- a batch

    def _begin(self, batch: Batch[PendingCommit]) -> None:
        queues = {queue for commit in batch.members for queue in commit.queues}
        for commit in batch.members:
            commit.is_in_flight, commit.is_sent = True, False
        if batch.kind is WorkKind.TRANSACTION:
            self._unsent += 1
        if batch.members[0].needs_namespace_id:
            self._take_namespace_name(batch, queues)
        elif queues:
            self._when_appended(queues, lambda: self._send(batch))
        else:
            self._send(batch)

    def _take_namespace_name(self, batch: Batch[PendingCommit], queues: Collection[Queue]) -> None:
        def on_namespace_id(outcome: WriteOutcome) -> None:
            if outcome.error is not None:
                self._end_batch(batch, outcome.error)
            else:
                self._state.catch_up().then(on_caught_up)

        def on_caught_up(barrier: Completion[None]) -> None:
            if barrier.error is not None:
                self._end_batch(batch, TryLaterError(str(barrier.error)))
            else:
                self._when_appended(queues, lambda: self._send(batch))

        self._producers.take_namespace_id(on_namespace_id)

    def _send(self, batch: Batch[PendingCommit]) -> None:
        if self._closed:
            return
        if batch.kind is WorkKind.TRANSACTION:
            self._unsent -= 1
        self._is_alive()
        planned = self._plan_batch(batch)
        plan, commits = planned.plan, planned.commits
        on_outcome = partial(self._on_outcome, planned)
        if not plan:
            on_outcome(WriteOutcome(OutcomeKind.STORED, [], None))
            return
        for commit in commits:
            commit.is_sent = True
        records = plan.to_producer_records()
        needs_id = batch.members[0].needs_namespace_id
        if needs_id or plan.needs_transaction:
            limit_s = self._limit_s(commits)
            if any(self._topics.unavailable.was_set_aside(topic) for topic, _ in commits[0].queues):
                limit_s = min(limit_s, SUSPECT_S)
            late = plan.to_entry_records if plan.has_entries else None
            self._producers.write_transaction(records, needs_id, limit_s, on_outcome, self._on_slow, late)
        else:
            self._producers.write_plain(records, on_outcome)

    def _plan_batch(self, batch: Batch[PendingCommit]) -> _PlannedBatch:
        planned = _PlannedBatch(batch)
        plan = planned.plan = CommitPlan(self._state, self._topics, self._epoch_floor)
        for commit in batch.members:
            if commit.completion.done:
                continue
            count_before = len(plan.records)
            try:
                commit.add_to(plan)
            except DdmqError as error:
                self._pending.remove(commit).fail(error)
            else:
                planned.commits.append(commit)
                planned.record_counts.append(len(plan.records) - count_before)
        return planned

    def _limit_s(self, commits: Iterable[PendingCommit]) -> float:
        """Return how long a transaction may take, so that its calls are answered with a certain outcome."""
        now = self._now()
        remaining = [
            commit.deadline - now for commit in commits if SHORT_S <= commit.deadline - now < FOREVER
        ]
        return min(remaining, default=FOREVER) - ANSWER_S

    def _on_slow(self, blocked: Iterable[str]) -> None:
        self._topics.unavailable.on_slow(
            name for each in blocked if (name := self._topics.name_of(each)) is not None
        )

    def _on_outcome(self, planned: _PlannedBatch, outcome: WriteOutcome) -> None:
        error, batch = outcome.error, planned.batch
        if self._closed:
            return
        if error is None:
            self._on_stored(planned, outcome.offsets)
        elif outcome.kind is OutcomeKind.UNCERTAIN:
            self._uncertain.append((planned, outcome))
            self.renew(f"{error}; it is looked up")
            self.resume()
        elif outcome.kind is OutcomeKind.FENCED:
            self._retry_batch(planned)
            if not batch.members[0].needs_namespace_id:
                self.renew(str(error))
        elif outcome.blocked:
            self._on_blocked(planned, outcome.blocked, error)
        elif len(planned.commits) > 1 and not isinstance(error, TryLaterError):
            self._retry_batch(planned, one_by_one=True)
        else:
            self._end_batch(batch, error)

    def _on_blocked(self, planned: _PlannedBatch, blocked: dict[str, str], error: DdmqError) -> None:
        """Fail the commits to topics that did not take their records, and send the others again."""
        names = {self._topics.name_of(each): reason for each, reason in blocked.items()}
        topics = {name: reason for name, reason in names.items() if name is not None}
        self._topics.unavailable.on_blocked(topics)
        others = []
        for commit in planned.commits:
            own = {topic: topics[topic] for topic, _ in commit.queues if topic in topics}
            if own or len(topics) < len(names):  # else a topic of the system is away
                self._pending.remove(commit).fail(TopicUnavailableError(own) if own else error)
            else:
                others.append(commit)
        planned.commits = others
        self._retry_batch(planned)

    def _on_stored(self, planned: _PlannedBatch, offsets: Sequence[int]) -> None:
        if self._state.other_cluster:  # the records may be in the log of the other cluster
            self._end_batch(planned.batch, RemoteError(self._state.other_cluster))
            return
        planned.plan.apply_stored(offsets)
        self._on_progress(planned.plan.progress)
        self._topics.unavailable.on_stored(record.topic for record in planned.plan.records)
        if self._is_alive() and not self._renewing:  # a name given up may be dead since before the write
            self._answer_success(planned, offsets)
        else:
            text = "this process was stopped meanwhile: it may count or not"
            self._end_batch(planned.batch, RemoteError(text))

    def _answer_success(self, planned: _PlannedBatch, offsets: Sequence[int]) -> None:
        self._lanes.end(planned.batch)
        start = 0
        for commit, count in zip(planned.commits, planned.record_counts, strict=True):
            self._pending.remove(commit).answer_stored(list(offsets[start : start + count]))
            start += count
        self.resume()

    def _retry_batch(self, planned: _PlannedBatch, one_by_one: bool = False) -> None:
        retried = [commit for commit in planned.commits if not commit.completion.done]
        for commit in retried:
            commit.is_alone = one_by_one
            commit.is_in_flight = commit.is_sent = False
        self._lanes.end(planned.batch, retried)
        self.resume()

    def _end_batch(self, batch: Batch[PendingCommit], error: Exception) -> None:
        """End a batch and fail its calls that are not answered."""
        self._lanes.end(batch)
        for commit in batch.members:
            self._pending.remove(commit).fail(error)
        self.resume()

    # --- the name

    def _take_new_name(self) -> None:
        if self._state.other_cluster:
            self._is_taking_name = False  # `resume` begins again
            return
        name = uuid.uuid4().hex
        self._is_taking_name = True
        self._producers.take_new_id(name, lambda outcome: self._on_renamed(name, outcome))

    def _on_renamed(self, name: str, outcome: WriteOutcome) -> None:
        if self._closed:
            return
        if self._state.other_cluster:
            self._take_new_name()
            return
        if outcome.error is not None:
            log.warning("no transactional name from Kafka, retrying: %s", outcome.error)
            self._retry.once(RETRY_S, self._take_new_name)
            return
        self.name = name
        if self._uncertain:
            self._state.catch_up().then(self._resolve_uncertain)
        else:
            self._start_under_name()

    def _resolve_uncertain(self, barrier: Completion[None]) -> None:
        """Answer or retry the batches with uncertain outcomes; the state now shows whether they are
        stored."""
        if self._closed:
            return
        if isinstance(barrier.error, RemoteError):
            self._retry.once(RETRY_S, lambda: self._state.catch_up().then(self._resolve_uncertain))
            return
        uncertain, self._uncertain = self._uncertain, []
        for planned, outcome in uncertain:
            is_stored = planned.plan.is_stored()
            if is_stored and len(outcome.offsets) >= len(planned.plan.records):
                self._answer_success(planned, outcome.offsets)
            elif is_stored is False:
                self._retry_batch(planned)
            else:
                error = outcome.error or RemoteError("the outcome is unknown")
                self._end_batch(planned.batch, error)
        self._start_under_name()

    def _start_under_name(self) -> None:
        self._renewing = self._is_taking_name = False
        self._on_named(self.name)
        self.resume()
