"""The runner of one push subscription: its only client, inside the proxy.

Its group treats it like a waiting pull for as many messages as its concurrency leaves free. Each message runs
through the chain and the sink in its own greenlet. Meanwhile the runner extends its lease, also while a sink
waits for its next attempt; the result changes the job in its queue like any client's result: finish, fail
(retry intervals, retry path, chains of order keys), or give up (dead letter at once). All results of one
iteration of the hub are stored in one commit.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import gevent

from backend.records import QueueRef
from ddmq_common.delivery import decode
from ddmq_common.errors import DamagedError
from ddmq_common.metrics import catalogue
from proxy_consumer.core.held_pulls import Pusher
from proxy_consumer.core.steps import Delivery
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.push.actions.job import ActionOutcome, Ending, MessagePosition, job_of
from proxy_consumer.push.verdict import DONE, Pushed, Sink, Verdict, VerdictKind
from proxy_consumer.retries.headers import attempts_before
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.commits import ProgressCommit, collect_progress
from proxy_consumer.subscription.subscription import Group, Subscription

if TYPE_CHECKING:
    from proxy_consumer.push.chain import ActionChain

EXTENSIONS_PER_LEASE = 4  # how often a lease is extended within one ack time-out
REMEMBERED_MAX = 10_000  # failed messages whose attempts are remembered; beyond this, the oldest start again


class HandingOver(NamedTuple):
    """Queues to hand over once none of their messages is at this runner, or at `until` (monotonic
    seconds)."""

    queues: frozenset[QueueRef]
    until: float
    then: Callable[[], None]


class RunnerLease(NamedTuple):
    """A lease: `left`: how many of its messages are still at the runner; `length_s`: the duration of each
    extension."""

    queue: SubscribedQueue
    left: int
    length_s: float


class PushRunner(Pusher):
    """Takes the messages of one push subscription, delivers them to its sink, and settles them by the
    outcome.

    It is the only client of its subscription, inside the proxy. The timer queue calls it to extend leases and
    to repeat attempts.
    """

    def __init__(
        self,
        runtime: Runtime,
        group: Group,
        subscription: Subscription,
        chain: ActionChain,
        sink: Sink,
        source: str,
    ) -> None:
        super().__init__(subscription.topic, 0)
        self.wake_at = NEVER
        self.group = group
        self.subscription = subscription
        self.chain = chain
        self.sink = sink
        self.stopped = False
        self._closed = False
        self._source = source
        self._runtime = runtime
        self._waiting = group.waiting
        self._is_waiting = False
        self._leases: dict[int, RunnerLease] = {}  # by lease id
        self.here = 0  # messages taken and not yet concluded
        self._parked: list[tuple[float, int, Pushed]] = []
        self._sequence = itertools.count()
        self._remembered: OrderedDict[tuple[str, int], tuple[int, int, int]] = OrderedDict()
        self._touched: dict[int, SubscribedQueue] = {}
        self._extend_at = NEVER
        self._moving: list[HandingOver] = []
        cell, names = self._runtime.metrics.cell, (group.name, subscription.topic)
        self._outcomes = {
            name: cell(catalogue.PUSHES, *names, name)
            for name in ("done", "filtered", "failed", "given up", "again", "late")
        }
        self._pushing = cell(catalogue.PUSHING, *names)
        self._script_errors = cell(catalogue.SCRIPT_ERRORS, *names)
        self._latency = self._runtime.metrics.histogram(catalogue.PUSH_LATENCY, chain.sink)

    # --- taking messages

    def start(self) -> None:
        """Start to take messages. From then on the subscription counts as used."""
        self.group.pushers.setdefault(self.subscription.topic, []).append(self)
        self._update_waiting()
        if not self.subscription.creating:
            self.subscription.on_use(self._runtime.now())
        self.group.serve()

    def stop(self) -> None:
        """Take no new messages and return those that wait for an attempt; pushes in progress end and are
        stored."""
        self.stopped = True
        self._update_waiting()
        self.return_waiting()
        self._close_when_empty()

    def return_waiting(self) -> None:
        """Return the messages that wait for an attempt."""
        parked, self._parked = [row[2] for row in self._parked], []
        for pushed in sorted(parked, key=lambda each: each.offset, reverse=True):  # a chain's last first
            self._return_message(pushed)

    def deliver(self, delivery: Delivery) -> None:
        """Push each of these messages in its own greenlet."""
        messages, queue = delivery.messages, delivery.queue
        lease, count = delivery.lease, len(messages.offsets)
        self._leases[lease.id] = RunnerLease(queue, count, lease.length_s)
        self.here += count
        rows = zip(
            messages.indexes, messages.deliveries, messages.offsets, delivery.attempt_numbers(), strict=True
        )
        for index, raw, offset, attempt in rows:
            if queue.retry_queue:
                attempt += attempts_before(messages.batch.record(index).system)
            gevent.spawn(self._begin, raw, queue, offset, lease.id, attempt)
        self._extend_later(lease.length_s)
        self._update_waiting()

    def _update_waiting(self) -> None:
        """Wait among the group's pulls for as many messages as there is capacity for, or stop waiting."""
        self._pushing.value = self.here
        capacity = max(0, self.subscription.config.concurrency - self.here)
        self.count = 0 if self.stopped or self._moving else capacity
        if self.count and not self._is_waiting:
            self._waiting.hold_pull(self)
        elif not self.count and self._is_waiting:
            self._waiting.leave(self)
        self._is_waiting = bool(self.count)

    def hand_over(self, queues: Collection[QueueRef], until: float, then: Callable[[], None]) -> None:
        """Hand over queues: pushes in progress end, messages that wait for an attempt are returned.

        No new message is taken until then.
        """
        self._moving.append(HandingOver(frozenset(queues), until, then))
        self._update_waiting()
        parked, self._parked = self._parked, []
        for row in sorted(parked, key=lambda row: row[2].offset, reverse=True):
            if row[2].queue.ref in queues:
                self._return_message(row[2])
            else:
                heappush(self._parked, row)
        self._runtime.timers.set(self, until)
        self._move_queues(self._runtime.now())

    def _move_queues(self, now: float) -> None:
        busy = {lease.queue.ref for lease in self._leases.values()}
        finished = [each for each in self._moving if each.until <= now or busy.isdisjoint(each.queues)]
        self._moving = [each for each in self._moving if each not in finished]
        for each in finished:
            each.then()
        self._update_waiting()

    # --- one message

    def _begin(self, raw: bytes, queue: SubscribedQueue, offset: int, lease_id: int, attempt: int) -> None:
        name = queue.name
        position = MessagePosition(name.topic, name.group, name.qid, offset, self._source)
        try:
            job = job_of(decode(raw), position)
        except DamagedError as error:
            self._give_up(queue, offset, lease_id, str(error))
            return
        pushed = Pushed(job, queue, offset, lease_id, attempt)
        self._recall_tries(pushed, name.qid)
        outcome = self._through_chain(pushed)
        if outcome.ending is Ending.ASYNCHRONIZED:
            self._try_sink(pushed)
        elif outcome.ending is Ending.FAIL:
            self._conclude_push(pushed, Verdict(VerdictKind.FAIL, outcome.reason))
        else:
            self._conclude_push(pushed, DONE, "filtered")

    def _through_chain(self, pushed: Pushed) -> ActionOutcome:
        try:
            outcome = self.chain.run(pushed.job)
        except Exception as error:  # a failing action must not stop the runner
            log.exception("action failed", extra={"group": self.group.name})
            outcome = ActionOutcome(Ending.FAIL, f"{type(error).__name__}: {error}")
        self._script_errors.value += pushed.job.script_failed
        return outcome

    def _try_sink(self, pushed: Pushed) -> None:
        if self.stopped or self.subscription.paused_ms:  # stopped: the sink may no longer be allowed
            self._return_message(pushed)
            return
        started_at = time.perf_counter()
        try:
            verdict = self.sink.push(pushed)
        except Exception as error:  # an error of this program, not of the receiver
            log.exception("sink failed", extra={"group": self.group.name})
            verdict = Verdict(VerdictKind.FAIL, f"{type(error).__name__}: {error}")
        self._latency.observe((time.perf_counter() - started_at) * 1e6)
        if verdict.kind is VerdictKind.RETRY:
            self._park_message(pushed, verdict)
        else:
            self._conclude_push(pushed, verdict, verdict.kind.value)

    def _park_message(self, pushed: Pushed, verdict: Verdict) -> None:
        if verdict.error:
            self._outcomes["again"].value += 1
        queue = pushed.queue
        moves = any(queue.ref in move.queues for move in self._moving)
        no_attempts = self.stopped or bool(self.subscription.paused_ms)
        if no_attempts or moves or not self.subscription.buffer.holds_queue(queue):
            self._return_message(pushed)
            return
        heappush(self._parked, (verdict.retry_at, next(self._sequence), pushed))
        self._runtime.timers.set(self, verdict.retry_at)

    # --- results

    def _conclude_push(self, pushed: Pushed, verdict: Verdict, outcome: str = "failed") -> None:
        queue = pushed.queue
        if not self.subscription.buffer.holds_queue(queue):
            self._outcomes["late"].value += 1
            self._leave(pushed.lease_id)
            return
        if verdict.kind is VerdictKind.GIVE_UP:
            self._forget_tries(pushed)
            self._give_up(queue, pushed.offset, pushed.lease_id, verdict.error)
            return
        now = self._runtime.now()
        if verdict.kind is VerdictKind.DONE:
            self._forget_tries(pushed)
            accepted = bool(queue.finish_messages([pushed.offset], [pushed.lease_id], now))
        else:
            self._remember_tries(pushed)
            accepted = queue.fail(pushed.offset, pushed.lease_id, None, now, verdict.error)
        self._outcomes[outcome if accepted else "late"].value += 1
        self._leave(pushed.lease_id)
        self._settle_later(queue)

    def _give_up(self, queue: SubscribedQueue, offset: int, lease_id: int, error: str) -> None:
        accepted = queue.give_up(offset, lease_id, error, parks=True)
        self._outcomes["given up" if accepted else "late"].value += 1
        self._leave(lease_id)
        self._settle_later(queue)

    def _return_message(self, pushed: Pushed) -> None:
        """Return a message without counting an attempt, unless its queue was lost: it is redelivered at
        once."""
        queue = pushed.queue
        self._remember_tries(pushed)
        if self.subscription.buffer.holds_queue(queue):
            self.subscription.buffer.take_back(queue, [pushed.offset], [pushed.lease_id])
            self._settle_later(queue)
        self._leave(pushed.lease_id)

    def _leave(self, lease_id: int) -> None:
        lease = self._leases[lease_id]
        self.here -= 1
        if lease.left > 1:
            self._leases[lease_id] = lease._replace(left=lease.left - 1)
        else:
            del self._leases[lease_id]
            if self._moving:
                self._runtime.timers.set(self, self._runtime.now())
        self._update_waiting()
        self._close_when_empty()

    def _close_when_empty(self) -> None:
        if self.stopped and not self.here and not self._closed:
            self._closed = True
            self.group.remove_pusher(self, self.subscription.topic)
            self.sink.close()

    def _settle_later(self, queue: SubscribedQueue) -> None:
        self.subscription.buffer.on_news(queue)
        if not self._touched:
            gevent.get_hub().loop.run_callback(self._store_touched)
        self._touched[id(queue)] = queue

    def _store_touched(self) -> None:
        """Store all results of this iteration of the hub, and take as many messages as there is capacity
        for."""
        subscription = self.subscription
        states = [queue for queue in self._touched.values() if subscription.buffer.holds_queue(queue)]
        self._touched.clear()
        shares = collect_progress(subscription, states)
        subscription.after_results(states)
        if shares:
            ProgressCommit(self._runtime, shares).start()
        if self._waiting.count:
            self.group.serve()

    # --- attempts over several deliveries

    def _recall_tries(self, pushed: Pushed, qid: str) -> None:
        tries = self._remembered.get((qid, pushed.offset))
        if tries is not None:
            pushed.requests, pushed.errors, pushed.first = max(tries[0], pushed.requests), tries[1], tries[2]

    def _remember_tries(self, pushed: Pushed) -> None:
        key = (pushed.job.position.qid, pushed.offset)
        self._remembered[key] = (pushed.requests, pushed.errors, pushed.first)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _forget_tries(self, pushed: Pushed) -> None:
        self._remembered.pop((pushed.job.position.qid, pushed.offset), None)

    # --- time

    def due(self, now: float) -> None:
        """Extend leases, make the sink attempts that are due, and hand over queues."""
        if now >= self._extend_at:
            self._extend(now)
        if self._moving:
            self._move_queues(now)
        while self._parked and self._parked[0][0] <= now:
            pushed = heappop(self._parked)[2]
            if self.subscription.buffer.holds_queue(pushed.queue):
                gevent.spawn(self._try_sink, pushed)
            else:
                self._return_message(pushed)
        if self._parked:
            self._runtime.timers.set(self, self._parked[0][0])
        self._runtime.timers.set(self, self._extend_at)
        for move in self._moving:
            self._runtime.timers.set(self, move.until)

    def _extend(self, now: float) -> None:
        by_state: dict[int, tuple[SubscribedQueue, list[int]]] = {}
        for lease_id, lease in self._leases.items():
            by_state.setdefault(id(lease.queue), (lease.queue, []))[1].append(lease_id)
        for queue, lease_ids in by_state.values():
            if self.subscription.buffer.holds_queue(queue):
                queue.extend(lease_ids, now)
        self._extend_at = NEVER
        self._extend_later(min((lease.length_s for lease in self._leases.values()), default=NEVER))

    def _extend_later(self, length_s: float) -> None:
        """Schedule the next extension early enough for a lease of this length; the ack timeout may have
        changed since."""
        self._extend_at = min(self._extend_at, self._runtime.now() + length_s / EXTENSIONS_PER_LEASE)
        self._runtime.timers.set(self, self._extend_at)
