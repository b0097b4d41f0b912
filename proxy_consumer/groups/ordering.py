"""Order keys of one group: which are blocked, and what operators do to them.

Each key set aside is a setting of its own, the same at every proxy: what two operators park at once does not
undo itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backend.completion import Completion, all_of
from backend.records import AppendResult, CommitBatch, QueueRef, SettingsLimit
from ddmq_common.errors import BoundReachedError, CallerError
from proxy_consumer.core.jobs import JobState, UpstreamJob
from proxy_consumer.core.order.chains import Chain, QueueStream
from proxy_consumer.core.order.scope import OrderScope
from proxy_consumer.core.steps import BufferedQueue
from proxy_consumer.order_keys.reader import QID
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.held_queue import ProgressCommit, collect, held_of
from proxy_consumer.subscription.order import SharedOrder
from proxy_consumer.subscription.subscription import Subscription

PARKED_PREFIX = "parked/"
PARKED_MAX = 1_000
REASON_SKIPPED = "skipped"
REASON_OPERATOR = "operator"
READY = "ready"  # for whoever pulls the topic next
_STATES = {
    JobState.RECORDED: "retrying",
    JobState.RELEASED: "retrying",
    JobState.LEASED: "in flight",
    JobState.WAITING: "retrying",
    JobState.READY: "retrying",
    JobState.PARKED: "parked",
    JobState.EXHAUSTED: "parked",
    JobState.SPENT: "to the dead letters",
}


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """One key whose head is not finished.

    `key`: its value as canonical JSON text. `topic`, `queue_id`, `offset`: the head. `since_ms`: epoch
    milliseconds of the head's first delivery, 0 before it. `state`: "ready" (nobody has pulled it yet), "in
    flight", "retrying", "parked" or "to the dead letters". `reason`: of a parked key why it is: "operator",
    or which of its limits the head has reached, "failed" or "timed-out". `error`: the last one that a client
    of this proxy gave. `waiting`: messages known to wait behind the head; `more`: there are more than those.
    """

    key: str
    topic: str
    queue_id: int
    offset: int
    since_ms: int
    attempts: int
    state: str
    error: str
    waiting: int
    more: bool
    reason: str = ""


def parked_key(group: str, key: str) -> str:
    """The setting that says that a key is set aside; its value is the key."""
    return f"{PARKED_PREFIX}{group}/{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _silence(job: UpstreamJob) -> str:
    """What is known of a job that nobody said anything about."""
    many = "" if job.timeouts == 1 else "s"
    return f"no answer within ack_timeout_ms, {job.timeouts} time{many}" if job.timeouts else ""


def _why_parked(job: UpstreamJob) -> str:
    """Whether a parked job is one by an operator, or which of its limits it has reached."""
    if job.state is JobState.EXHAUSTED:
        return job.reason
    return REASON_OPERATOR if job.state is JobState.PARKED else ""


class GroupOrdering:
    """The keys of one group, over all its subscriptions. `shared`: where they find what is set aside."""

    def __init__(
        self,
        runtime: Runtime,
        group: str,
        subscriptions: Mapping[bytes, Subscription],
        shared: SharedOrder,
        serve: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._group = group
        self._subscriptions = subscriptions
        self._shared = shared
        self._serve = serve
        self._aside: dict[str, str] = {}  # setting → key

    @property
    def parked(self) -> frozenset[str]:
        """Keys that are set aside, at every proxy."""
        return self._shared.parked

    # --- keys set aside

    def parked_changed(self, setting: str) -> None:
        """A key was set aside, or goes on."""
        value = self._runtime.backend.setting(setting)
        if value is None:
            self._aside.pop(setting, None)
        else:
            self._aside[setting] = value.decode()
        before, parked = self._shared.parked, frozenset(self._aside.values())
        self._shared.parked = parked
        for scope in self._scopes():
            scope.ledger.parked_keys = parked
        for state, stream in self._streams():
            for offset, chain in list(stream.busy.items()):
                if chain.key in parked and chain.key not in before:
                    state.park(offset)
                elif chain.key in before and chain.key not in parked:
                    self._replay(state, offset)
        self._serve()

    def park(self, key: str) -> Completion[list[AppendResult]]:
        """Deliver nothing of the key until it is replayed, at no proxy; survives restarts.

        Raises CallerError without an order key, BoundReachedError at 1,000 parked keys.
        """
        limit = self._parked_limit()
        if key not in self.parked and len(self.parked) >= limit.count_max:
            raise BoundReachedError(limit.rejection)
        if not self.order_keys:
            raise CallerError(f"no subscription of group {self._group} has an order key")
        return self._store(key, key.encode(), limit)

    def _parked_limit(self) -> SettingsLimit:
        """Return how many keys of the group may be parked, whichever proxies park them."""
        rejection = f"{PARKED_MAX} keys of group {self._group} are parked; replay some first"
        return SettingsLimit(f"{PARKED_PREFIX}{self._group}/", PARKED_MAX, rejection)

    def replay(self, key: str) -> Completion[Any] | None:
        """Deliver the head again at once, its attempts counted anew. None: nothing had to be stored.

        Raises CallerError when the key is not blocked or parked here.
        """
        heads = self._heads(key)
        if key not in self.parked and not heads:
            raise self._not_here(key)
        stored: list[Completion[Any]] = []
        for state, offset in heads:
            self._replay(state, offset)
            stored += self._store_attempts(state)
        self._serve()
        if key in self.parked:
            stored.append(self._store(key, None))
        return all_of(stored) if stored else None

    def _replay(self, state: BufferedQueue, offset: int) -> None:
        if state.jobs.replay(offset):
            state.wake()
            held_of(state).subscription.store_later()

    def _store_attempts(self, state: BufferedQueue) -> list[Completion[Any]]:
        """Store what was counted anew, so that a restart does not find the attempts used up again."""
        parts = collect(held_of(state).subscription, (state,))
        if not parts:
            return []
        stored = Completion[None]()

        def on_stored(error: Exception | None) -> None:
            stored.succeed(None) if error is None else stored.fail(error)

        ProgressCommit(self._runtime, parts, on_stored).start()
        return [stored]

    def skip(self, key: str) -> Completion[None]:
        """Move the head to the dead letters; succeeds when it is there.

        Raises CallerError when the key is not blocked here.
        """
        heads = self._heads(key)
        if not heads:
            raise self._not_here(key)
        moved: list[Completion[None]] = []
        for state, offset in heads:
            state.dead_letter(offset, REASON_SKIPPED)
            moved.append(held_of(state).subscription.retries.watch(state.jobs.table.jobs[offset]))
        for state in dict.fromkeys(state for state, _ in heads):
            held_of(state).subscription.after_results((state,))
        return all_of(moved)

    def _store(self, key: str, value: bytes | None, *limits: SettingsLimit) -> Completion[list[AppendResult]]:
        batch = CommitBatch(settings={parked_key(self._group, key): value}, limits=limits)
        return self._runtime.backend.commit(batch, self._runtime.commit_deadline())

    def _not_here(self, key: str) -> CallerError:
        return CallerError(
            f"key {key[:200]} of group {self._group} is not blocked or parked at this proxy; "
            "`ddmq group keys` lists those that are"
        )

    # --- looking

    @property
    def order_keys(self) -> frozenset[str]:
        """What the subscriptions of the group are ordered by."""
        return frozenset(each.config.order_key for each in self._subscriptions.values()) - {""}

    def whole_queues(self) -> dict[QueueRef, str]:
        """The queues that are one chain each (order key QID), and their names on the wire."""
        named = [each.topic for each in self._subscriptions.values() if each.config.order_key == QID]
        topics = [info for info in map(self._runtime.backend.topic, named) if info is not None]
        return {queue: self._runtime.qid(queue) for info in topics for queue in info.refs()}

    def _streams(self) -> Iterator[tuple[BufferedQueue, QueueStream]]:
        for subscription in self._subscriptions.values():
            yield from subscription.streams()

    def _scopes(self) -> Iterable[OrderScope]:
        buffers = (subscription.buffer for subscription in self._subscriptions.values())
        return dict.fromkeys(scope for buffer in buffers for scope in buffer.scopes())

    def _heads(self, key: str) -> list[tuple[BufferedQueue, int]]:
        found = []
        for scope in self._scopes():
            chain = scope.table.get(key)
            if chain is not None:
                found += [(scope.queues[stream], offset) for stream, offset in chain.heads[:1]]
        return found

    def blocked(self, limit: int) -> list[BlockedKey]:
        """Keys whose head failed, is parked or has others behind it; longest first, ready ones last."""
        now, wall_ms = self._runtime.now(), self._runtime.clock.wall_ms()
        rows = []
        for state, stream in self._streams():
            for offset, chain in stream.busy.items():
                row = self._row(state, offset, chain)
                if row is not None:
                    rows.append(row)
        rows.sort(key=_age)  # those that nobody got yet are as old as `now`
        return [make(now, wall_ms) for _, make in rows[:limit]]

    def _row(
        self, state: BufferedQueue, offset: int, chain: Chain
    ) -> tuple[float, Callable[[float, int], BlockedKey]] | None:
        if chain.heads[:1] != [(state.stream, offset)]:
            return None
        jobs = state.jobs
        job, lease = jobs.table.jobs.get(offset), jobs.leases.lease_of(offset)
        tried = job is not None and (job.tried or job.state in (JobState.PARKED, JobState.SPENT))
        reason = "" if job is None else _why_parked(job)
        if not tried and not chain.waits:
            return None
        since = job.since if job is not None and job.since else self._runtime.now()
        if lease is not None:
            since = min(since, lease.since)
        shown = (
            "in flight" if lease is not None else _STATES[job.state] if job is not None and tried else READY
        )

        def make(now: float, wall_ms: int) -> BlockedKey:
            queue = state.queue
            return BlockedKey(
                key=chain.key,
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=offset,
                since_ms=0 if shown is READY else wall_ms - int((now - since) * 1000),
                attempts=jobs.table.attempt(offset) - (0 if lease is not None else 1),
                state=shown,
                error="" if job is None else job.error or (job.reason if not reason else "") or _silence(job),
                waiting=len(chain.kept),
                more=bool(chain.unindexed),
                reason=reason,
            )

        return since, make


def _age(row: tuple[float, object]) -> float:
    return row[0]
