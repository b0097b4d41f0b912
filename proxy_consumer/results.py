"""Results from clients: applied to the pull buffers, element by element of the linked list.

Each element is applied by its own context; successes are applied before failures. Results for a queue that
another proxy owns are forwarded to it; results for a queue that does not exist are ignored and counted.
Afterwards the uncommitted progress of all queues concerned goes into one commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from ddmq_common.errors import TryLaterError
from proxy_consumer.answers import IDL, context_of
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.fetches.service import Fetches
from proxy_consumer.forwarding import Done, ForeignResult, Forwarding
from proxy_consumer.retries.headers import error_text
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.commits import ProgressCommit, QueueProgress, collect_progress
from proxy_consumer.subscription.subscription import Group, Subscription

NO_OFFSETS: Sequence[int] = ()
GIVE_UP = -2  # in failDelaysMs: no further attempt
Missed = tuple[int, int]  # offset, lease id


class Applied(NamedTuple):
    """The applied results of a call: the progress to commit, the results to forward, and the LateResults."""

    shares: list[QueueProgress]
    foreign: list[ForeignResult]
    late: list[Any]

    @property
    def open(self) -> bool:
        """Whether the response must wait for `Results.store_results`."""
        return bool(self.shares or self.foreign)


class Results:
    """Applies ConsumeResults of one proxy."""

    def __init__(self, runtime: Runtime, groups: Mapping[bytes, Group], fetches: Fetches) -> None:
        self._runtime = runtime
        self._groups = groups
        self._fetches = fetches
        self.forwarding = Forwarding(runtime, fetches)
        self._unknown_group = runtime.ignored_cell("", "unknown group")
        self._too_many = runtime.ignored_cell("", "over the bound of one call")

    def apply_results(self, result: Any) -> Applied:
        """Apply a whole linked list of results.

        Raises TryLaterError, and changes nothing, if a queue was lost a moment ago: until its new owner is
        known, its results can be neither stored nor ignored.
        """
        if self._runtime.lost:
            self._reject_lost(result)
        if result.forwardedBy is not None:
            self._reject_unowned(result)
        config = self._runtime.config
        offsets_left, elements_left = config.offsets_per_call_max, config.results_per_call_max
        now = self._runtime.now()
        touched: dict[SubscribedQueue, Subscription] = {}
        late: list[Any] = []
        foreign: list[ForeignResult] = []
        while result is not None:
            count = len(result.successOffsets or NO_OFFSETS) + len(result.failOffsets or NO_OFFSETS)
            count += len(result.extendLeases or NO_OFFSETS) + len(result.returnOffsets or NO_OFFSETS)
            offsets_left -= count
            elements_left -= 1
            if offsets_left < 0 or elements_left < 0:
                self._too_many.value += count
            else:
                target = self._find_owned(result, count, foreign)
                if target is not None:
                    subscription, queue = target
                    self._apply_one(subscription, queue, result, now, late)
                    touched[queue] = subscription
            result = result.nextResult
        return Applied(self._collect_progress(touched), foreign, late)

    def _reject_lost(self, result: Any) -> None:
        lost, now = self._runtime.lost, self._runtime.now()
        for key in [key for key, until in lost.items() if until <= now]:
            del lost[key]
        while result is not None:
            context = result.context
            if context is not None and (context.groupId, context.topic, context.qid) in lost:
                qid = context.qid.decode("utf-8", "replace")
                raise TryLaterError(f"queue {qid} is between two owners; send the results again")
            result = result.nextResult

    def _reject_unowned(self, result: Any) -> None:
        """Raise TryLaterError if this proxy does not own a queue of forwarded results: it has moved on."""
        while result is not None:
            context = result.context
            group = None if context is None else self._groups.get(context.groupId)
            if group is None or (context.topic, context.qid) not in group.queues:
                raise TryLaterError("this proxy does not hold the queue any more; send the results again")
            result = result.nextResult

    def store_results(self, applied: Applied, done: Done) -> None:
        """Commit the progress and forward the other results; `done` is called with the first error, or None.

        Results to be forwarded may turn out to belong to this proxy: then `applied.late` may have grown when
        `done` is called.
        """
        shares = applied.shares
        if not applied.foreign:
            ProgressCommit(self._runtime, shares, done).start()
            return
        unfinished = 1 + bool(shares)
        error: Exception | None = None

        def on_share_done(failure: Exception | None) -> None:
            nonlocal unfinished, error
            unfinished -= 1
            error = error or failure
            if unfinished == 0:
                done(error)

        self.forwarding.send(
            applied.foreign,
            lambda acquired, applied_all: self._apply_acquired(acquired, applied.late, applied_all),
            on_share_done,
        )
        if shares:
            ProgressCommit(self._runtime, shares, on_share_done).start()

    def _apply_acquired(self, acquired: list[ForeignResult], late: list[Any], done: Done) -> None:
        """Apply results of queues that this proxy has acquired meanwhile, and commit their progress.

        LateResults are appended to `late`; `done` is called with the error of the commit, or None.
        """
        touched: dict[SubscribedQueue, Subscription] = {}
        for group, result in acquired:
            queue = group.queues[result.context.topic, result.context.qid]
            touched[queue] = subscription = group.subscription_of(queue)
            self._apply_one(subscription, queue, result, self._runtime.now(), late)
        shares = self._collect_progress(touched)
        if shares:
            ProgressCommit(self._runtime, shares, done).start()
        else:
            done(None)

    def _find_owned(
        self, result: Any, count: int, foreign: list[ForeignResult]
    ) -> tuple[Subscription, SubscribedQueue] | None:
        """Return the owned queue that a result's context names; results for other proxies are appended to
        `foreign`."""
        context = result.context
        group = None if context is None else self._groups.get(context.groupId)
        if group is None:
            if context is None or not self._fetches.instances.take_result(result):
                self._unknown_group.value += count
            return None
        queue = group.queues.get((context.topic, context.qid))
        if queue is not None:
            return group.subscription_of(queue), queue
        if self.forwarding.may_be_elsewhere(group, context):
            foreign.append((group, result))
        else:
            group.unknown_queue.value += count
        return None

    def _apply_one(
        self, subscription: Subscription, queue: SubscribedQueue, result: Any, now: float, late: list[Any]
    ) -> None:
        """Apply one element; if some of its results had a stale lease, a LateResult is appended to `late`."""
        missed: list[Missed] = []
        if result.successOffsets:
            offsets, leases = result.successOffsets, result.successLeases
            finished = queue.finish_messages(offsets, leases, now)
            if finished < len(offsets) and leases:
                missed += _missed_acks(queue, offsets, leases, finished)
        if result.failOffsets:
            missed += self._fail(queue, result, now)
        if result.extendOffsets and result.extendLeases:
            offsets, leases = result.extendOffsets, result.extendLeases
            late_offsets = set(queue.extend_messages(offsets, leases, now))
            missed += [(at, lease) for at, lease in zip(offsets, leases, strict=False) if at in late_offsets]
        elif result.extendLeases:
            queue.extend(result.extendLeases, now)
        if result.returnOffsets:
            subscription.buffer.take_back(queue, result.returnOffsets, result.returnLeases or NO_OFFSETS)
        if missed:
            late.append(_build_late_result(queue, missed))

    def _fail(self, queue: SubscribedQueue, result: Any, now: float) -> list[Missed]:
        longest = self._runtime.config.fail_delay_max_ms
        columns = zip_longest(
            result.failOffsets,
            (result.failLeases or NO_OFFSETS)[: len(result.failOffsets)],
            (result.failDelaysMs or NO_OFFSETS)[: len(result.failOffsets)],
            (result.failReasons or NO_OFFSETS)[: len(result.failOffsets)],
        )
        missed: list[Missed] = []
        for offset, lease, delay, reason in columns:
            error = error_text(reason or "")
            if delay == GIVE_UP:
                accepted = queue.give_up(offset, lease or None, error)
            else:
                wait_ms = None if delay is None or delay < 0 else min(delay, longest)
                accepted = queue.fail(offset, lease or None, wait_ms, now, error)
            if lease and not accepted:
                missed.append((offset, lease))
        return missed

    def _collect_progress(self, touched: dict[SubscribedQueue, Subscription]) -> list[QueueProgress]:
        shares: list[QueueProgress] = []
        groups: dict[Group, None] = {}
        for queue, subscription in touched.items():
            shares += collect_progress(subscription, (queue,))
            subscription.buffer.on_news(queue)
            subscription.after_results((queue,))
            groups[subscription.group] = None
        for group in groups:
            group.serve()
        return shares


def _missed_acks(
    queue: SubscribedQueue, offsets: Sequence[int], leases: Sequence[int], done: int
) -> list[Missed]:
    """Return the acknowledgements that had a stale lease.

    If some were `done`, the finished offsets are those; otherwise they were finished earlier.
    """
    is_finished = queue.ack_map.is_finished
    pairs = zip(offsets, leases, strict=False)
    return [(at, lease) for at, lease in pairs if lease and not (done and is_finished(at))]


def _build_late_result(queue: SubscribedQueue, missed: Sequence[Missed]) -> Any:
    is_finished = queue.ack_map.is_finished
    offsets = [offset for offset, _ in missed]
    return IDL.LateResult(
        context=context_of(queue.name),
        offsets=offsets,
        leases=[lease for _, lease in missed],
        finished=[offset for offset in offsets if is_finished(offset)],
    )
