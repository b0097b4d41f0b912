"""CommitLine: commits on the hub, in the order in which they were called, one batch under way at a time.

What comes while a batch is under way waits and then goes together: progress alone plainly, anything with
records or settings as one transaction. One at a time, because a state must neither count before the records
that it belongs to nor overtake them. Commits with `absent` or `limits`, and resets, go by themselves under
the namespace's transactional name: take it, follow everything up to now, check, write; who was fenced
meanwhile does it all again.

A process writes under a name of its own and gives it up (`renew`) when it was fenced, when an outcome is
unknown, and when its memberships say so. Then it takes the old name over once more, so that what was under
way is over; follows everything up to now, so that an unknown outcome is known, where progress or settings
were part of it; and goes on under a new one. What was fenced, or turns out not to be stored, is checked again
and done again after that, until its deadline.
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
from backend.kafka.commits.plan import CommitPlan, CommitTerms
from backend.kafka.state.followed import KafkaState
from backend.progress.group_progress import Key, check_delta
from backend.records import AppendResult, AppendStatus, CommitBatch, Durability, NewRecord
from ddmq_common.errors import BoundReachedError, DdmqError, DrainingError, RemoteError, TryLaterError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
TOGETHER_MAX = 2_000  # commits of one batch
RECORDS_MAX = 10_000  # records of one batch
WAITING_MAX = 100_000  # more are refused
RETRY_S = 0.5


class _Together:
    """What goes together. `counts`: of each, how many records are its own."""

    def __init__(self, plan: CommitPlan, taken: list[WaitingCommit], counts: list[int], once: bool) -> None:
        self.plan, self.taken, self.counts, self.once = plan, taken, counts, once


class CommitLine:
    """The commits of one process. `durability`: of a topic.

    To be set: `quiet` calls back once the appends to these queues that were called before are answered.
    `alive`: whether what this process holds is certainly its own still; asked when a batch is answered,
    before anybody hears of it. `ended`: the name is given up, and why; `named`: it has a new one.
    `progressed`: these have new progress.
    """

    def __init__(
        self,
        state: KafkaState,
        producers: Producers,
        terms: CommitTerms,
        durability: Callable[[str], Durability],
        now: Callable[[], float],
    ) -> None:
        self._state = state
        self._producers = producers
        self._terms = terms
        self._durability = durability
        self._loop: Any = gevent.get_hub().loop
        self.quiet: Callable[[Collection[Queue], Callable[[], None]], None] = lambda queues, then: then()
        self.alive: Callable[[], bool] = lambda: True
        self.ended: Callable[[str], None] = lambda reason: None
        self.named: Callable[[str], None] = lambda name: None
        self.progressed: Callable[[Iterable[Key]], None] = lambda keys: None
        self.name = ""
        self._line = WaitingLine(now, lambda: state.reason)
        self._busy = self._scheduled = self._closed = self._draining = False
        self._renewing = True
        self._unknown: tuple[_Together, WriteOutcome] | None = None
        self._retry = HubTimer(ref=False)
        self._idle: list[Callable[[], None]] = []
        self.kick()

    # --- calls

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        """As Backend.commit."""
        for delta in batch.progress:
            check_delta(delta)
        batch = CommitBatch(
            tuple(batch.records),
            tuple(batch.progress),
            dict(batch.settings),
            tuple(batch.absent),
            tuple(batch.limits),
        )

        def answer(offsets: list[int]) -> list[AppendResult]:
            return [
                AppendResult(AppendStatus.STORED, offset, self._durability(record.topic), None)
                for record, offset in zip(batch.records, offsets, strict=True)
            ]

        waiting = WaitingCommit(deadline, lambda plan: plan.add(batch), answer, into)
        resets = any(delta.reset_to is not None for delta in batch.progress)
        waiting.once = bool(batch.absent or batch.limits) or resets
        waiting.queues = queues_of(batch.records)
        return self._enter(waiting)

    def put_topic_info(self, name: str, value: bytes | None, deadline: float) -> Completion[None]:
        """Keep `value` under a topic's name; None takes it away."""
        return self._enter(WaitingCommit(deadline, lambda plan: plan.put_topic_info(name, value)))

    def forget(self, topic: str, incarnation: int, deadline: float) -> Completion[None]:
        """Take the progress of a topic away that is gone."""
        return self._enter(WaitingCommit(deadline, lambda plan: plan.forget(topic, incarnation)))

    def touches(self, records: Iterable[NewRecord]) -> bool:
        """Whether a commit that was called before writes to one of these queues, and is not answered."""
        return self._line.touches(records)

    def after(self, records: Iterable[NewRecord], act: Callable[[], None]) -> None:
        """Run `act`, an append of these records, once the commits before it are answered."""
        waiting = waiting_act(act)
        waiting.queues = queues_of(records)
        self._line.append(waiting)
        self.kick()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` once everything that was called is answered; at once if it is."""
        if not self._busy and not self._line:
            then()
        else:
            self._idle.append(then)

    @property
    def busy(self) -> bool:
        """Whether something is under way whose outcome is not known yet; also after `close`."""
        return self._busy

    def renew(self, reason: str) -> None:
        """Give the name up and take another one, when what is under way is over. Harmless meanwhile."""
        if not self._renewing and not self._closed:
            self._renewing = True
            log.warning("this process goes on under another name: %s", reason)
            self.ended(reason)
            self.kick()

    def drain(self) -> None:
        """Take nothing new."""
        self._draining = True

    def close(self) -> None:
        """Nothing more is done; what was called fails."""
        if not self._closed:
            self._closed = self._draining = True
            self._retry.stop()
            self._line.close(DrainingError("the Kafka engine was closed"))

    def kick(self) -> None:
        """Go on, in the next turn of the hub, with whatever can be done."""
        if not self._scheduled and not self._busy:
            self._scheduled = True
            self._loop.run_callback(self._begin)

    def _enter(self, waiting: WaitingCommit) -> Completion[Any]:
        if self._draining:
            error: DdmqError = DrainingError("the Kafka engine is draining; it takes nothing new")
        elif len(self._line) >= WAITING_MAX:
            error = BoundReachedError(f"{WAITING_MAX} commits are waiting; that is the bound")
        else:
            self._line.append(waiting)
            self.kick()
            return waiting.completion
        self._loop.run_callback(waiting.fail, error)
        return waiting.completion

    # --- a batch

    def _begin(self) -> None:
        self._scheduled = False
        calls = self._line.calls
        while calls and calls[0].act is not None and not self._busy:
            act = self._line.left(calls.popleft()).act
            assert act is not None
            act()
        if self._busy or self._closed:
            return
        if self._renewing:
            self._rename()
            return
        self._line.expire()
        if not self._line:
            idle, self._idle = self._idle, []
            for then in idle:
                then()
        elif self._state.ready:
            self._take_batch()

    def _take_batch(self) -> None:
        calls, taken, records = self._line.calls, list[WaitingCommit](), 0
        first = calls[0]
        while calls and len(taken) < TOGETHER_MAX and records < RECORDS_MAX:
            one = calls[0]
            if one.act is not None or one.once != first.once or (taken and (one.alone or first.alone)):
                break
            taken.append(calls.popleft())
            records += len(one.queues)
        self._busy = True
        self._line.under_way, self._line.sent = taken, False
        queues = {queue for one in taken for queue in one.queues}
        if first.once:
            self._take_once(queues)
        elif queues:
            self.quiet(queues, lambda: self._send(once=False))
        else:
            self._send(once=False)

    def _take_once(self, queues: Collection[Queue]) -> None:
        def have(outcome: WriteOutcome) -> None:
            if outcome.error is not None:
                self._over(outcome.error)
            else:
                self._state.caught_up().then(followed)

        def followed(barrier: Completion[None]) -> None:
            if barrier.error is not None:
                self._over(TryLaterError(str(barrier.error)))
            else:
                self.quiet(queues, lambda: self._send(once=True))

        self._producers.take_once(have)

    def _send(self, once: bool) -> None:
        if self._closed:
            return
        self.alive()
        plan, kept, counts = CommitPlan(self._state, self._terms), list[WaitingCommit](), list[int]()
        for one in self._line.under_way:
            before = len(plan.records)
            try:
                one.take(plan)
            except DdmqError as error:
                self._line.left(one).fail(error)
            else:
                kept.append(one)
                counts.append(len(plan.records) - before)
        batch = _Together(plan, kept, counts, once)
        self._line.under_way, self._line.sent = kept, True
        if not plan:
            self._answered(batch, WriteOutcome(OutcomeKind.STORED, [], None))
        elif once or plan.whole:
            self._producers.transact(plan.writes(), once, lambda outcome: self._answered(batch, outcome))
        else:
            self._producers.write(plan.writes(), lambda outcome: self._answered(batch, outcome))

    def _answered(self, batch: _Together, outcome: WriteOutcome) -> None:
        error = outcome.error
        if self._closed:
            return
        if error is None:
            self._stored(batch, outcome.offsets)
        elif outcome.kind is OutcomeKind.UNKNOWN:
            self._unknown = batch, outcome
            self._busy = False
            self.renew(f"{error}; it is looked up")
            self.kick()
        elif outcome.kind is OutcomeKind.FENCED:
            self._again(batch)
            if not batch.once:
                self.renew(str(error))
        elif len(batch.taken) > 1 and not isinstance(error, TryLaterError):
            self._again(batch, alone=True)
        else:
            self._over(error)

    def _stored(self, batch: _Together, offsets: Sequence[int]) -> None:
        batch.plan.stored(offsets)
        self.progressed(batch.plan.progress)
        if self.alive() and not self._renewing:  # a name that is given up may be dead since before the write
            self._succeed(batch, offsets)
        else:
            self._over(RemoteError("this process was stopped meanwhile: it may count or not"))

    def _succeed(self, batch: _Together, offsets: Sequence[int]) -> None:
        self._busy, self._line.under_way = False, []
        at = 0
        for one, count in zip(batch.taken, batch.counts, strict=True):
            self._line.left(one)
            one.succeed(list(offsets[at : at + count]))
            at += count
        self.kick()

    def _again(self, batch: _Together, alone: bool = False) -> None:
        for one in reversed(batch.taken):
            one.alone = alone
            if one.completion.done:
                self._line.left(one)
            else:
                self._line.calls.appendleft(one)
        self._busy, self._line.under_way = False, []
        self.kick()

    def _over(self, error: Exception) -> None:
        taken, self._line.under_way = self._line.under_way, []
        self._busy = False
        for one in taken:
            self._line.left(one).fail(error)
        self.kick()

    # --- the name

    def _rename(self) -> None:
        name = uuid.uuid4().hex
        self._busy = True
        self._producers.rename(name, lambda outcome: self._renamed(name, outcome))

    def _renamed(self, name: str, outcome: WriteOutcome) -> None:
        if self._closed:
            return
        if outcome.error is not None:
            log.warning("no transactional name from Kafka: %s; tried again", outcome.error)
            self._retry.once(RETRY_S, self._rename)
            return
        self.name = name
        if self._unknown is not None:
            self._state.caught_up().then(self._looked_up)
        else:
            self._have_name()

    def _looked_up(self, barrier: Completion[None]) -> None:
        """What was unknown is there or not."""
        assert self._unknown is not None
        if self._closed:
            return
        if isinstance(barrier.error, RemoteError):
            self._retry.once(RETRY_S, lambda: self._state.caught_up().then(self._looked_up))
            return
        (batch, outcome), self._unknown = self._unknown, None
        stored = batch.plan.is_stored()
        if stored and len(outcome.offsets) >= len(batch.plan.records):
            self._succeed(batch, outcome.offsets)
        elif stored is False:
            self._again(batch)
        else:
            self._over(outcome.error or RemoteError("the outcome is unknown"))
        self._have_name()

    def _have_name(self) -> None:
        self._renewing = self._busy = False
        self.named(self.name)
        self.kick()


FOREVER = float("inf")
Queue = tuple[str, int]  # topic, queue_id


def queues_of(records: Iterable[NewRecord]) -> list[Queue]:
    """Of each record its queue."""
    return [(record.topic, record.queue_id) for record in records]


class WaitingCommit:
    """One call. `take` puts it into a plan, or raises; `answer` makes what it succeeds with of the offsets of
    its records. `act`: what is done in its turn instead of planning it. `once`: it goes under the name of the
    namespace. `alone`: nothing else goes with it."""

    __slots__ = ("act", "alone", "answer", "completion", "deadline", "once", "queues", "take")

    def __init__(
        self,
        deadline: float,
        take: Callable[[CommitPlan], None],
        answer: Callable[[list[int]], Any] = lambda offsets: None,
        into: Completion[Any] | None = None,
    ) -> None:
        self.completion: Completion[Any] = Completion() if into is None else into
        self.deadline = deadline
        self.take = take
        self.answer = answer
        self.once = self.alone = False
        self.queues: list[Queue] = []
        self.act: Callable[[], None] | None = None

    def succeed(self, offsets: list[int]) -> None:
        """Unless it is settled; what a callback does wrong costs nobody else the answer."""
        if not self.completion.done:
            self._settle(self.completion.succeed, self.answer(offsets))

    def fail(self, error: Exception) -> None:
        """The same with an error."""
        if not self.completion.done:
            self._settle(self.completion.fail, error)

    def _settle(self, how: Callable[[Any], None], value: Any) -> None:
        try:
            how(value)
        except Exception as error:
            hub: Any = gevent.get_hub()
            hub.handle_error(how, type(error), error, error.__traceback__)


def waiting_act(act: Callable[[], None]) -> WaitingCommit:
    """Something to be done in its turn."""
    waiting = WaitingCommit(FOREVER, lambda plan: None)
    waiting.act = act
    return waiting


class WaitingLine:
    """Calls in their order, and those `under_way`. What is past its deadline is answered, come what may.

    `sent`: what is under way was handed to Kafka. `reason`: why something may wait.
    """

    def __init__(self, now: Callable[[], float], reason: Callable[[], str]) -> None:
        self._now = now
        self._reason = reason
        self.calls: deque[WaitingCommit] = deque()
        self.under_way: list[WaitingCommit] = []
        self.sent = False
        self._touched: Counter[Queue] = Counter()
        self._timer = HubTimer(ref=False)
        self._wake_at = FOREVER

    def __len__(self) -> int:
        return len(self.calls)

    def append(self, waiting: WaitingCommit) -> None:
        """At the end."""
        self.calls.append(waiting)
        self._touched.update(waiting.queues)
        if waiting.deadline < self._wake_at:
            self._arm(waiting.deadline)

    def touches(self, records: Iterable[NewRecord]) -> bool:
        """Whether something that is not answered yet writes to one of these queues."""
        return bool(self._touched) and any(queue in self._touched for queue in queues_of(records))

    def left(self, waiting: WaitingCommit) -> WaitingCommit:
        """It is answered, or about to be."""
        for queue in waiting.queues:
            self._touched[queue] -= 1
            if self._touched[queue] <= 0:
                del self._touched[queue]
        waiting.queues = []
        return waiting

    def expire(self) -> None:
        """Answer what is past its deadline; who waits, that it is not stored."""
        now = self._now()
        late = [one for one in self.calls if one.deadline <= now]
        if late:
            self.calls = deque(one for one in self.calls if one.deadline > now)
        unknown = [one for one in self.under_way if one.deadline <= now]
        if not self.sent:
            self.under_way = [one for one in self.under_way if one.deadline > now]
            late, unknown = late + unknown, []
        for one in late:
            reason = self._reason() or "what was called before is not answered yet"
            self.left(one).fail(TryLaterError(f"not written by the deadline: {reason}"))
        for one in unknown:
            one.fail(RemoteError("no answer by the deadline; it may be stored or not"))

    def close(self, error: Exception) -> None:
        """Fail everything."""
        self._timer.stop()
        waiting = [*self.under_way, *self.calls]
        self.under_way = []
        self.calls.clear()
        for one in waiting:
            one.fail(error)

    def _arm(self, deadline: float) -> None:
        self._wake_at = deadline
        self._timer.once(max(0.0, deadline - self._now()), self._rung)

    def _rung(self) -> None:
        self._wake_at = FOREVER
        self.expire()
        left = [one.deadline for one in (*self.calls, *self.under_way) if not one.completion.done]
        first = min(left, default=FOREVER)
        if first < FOREVER:
            self._arm(first)
