"""Order keys of one group: the scopes of its chains, which keys are blocked, and what operators do to them.

Subscriptions whose chains reach over the whole group share one scope, so all of them are joined as soon
as one is pulled from, and nothing of it is delivered before the queues of all are loaded. When one of them
starts anew, all do: what the others hold back and let go depends on its messages too. Each key set aside
is a setting of its own, the same at every proxy: what two operators park at once does not undo itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from backend.completion import Completion
from backend.port import Sharing
from backend.records import AppendResult, CommitBatch, QueueRef
from ddmq_common.errors import BoundReachedError, CallerError
from proxy_consumer.completions import all_of
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs.upstream_job import JobState, UpstreamJob
from proxy_consumer.core.order.chains import Chain, ChainTable
from proxy_consumer.core.order.queue_stream import KeyReader, QueueStream
from proxy_consumer.core.order.scope import OrderScope
from proxy_consumer.core.steps import QueueState
from proxy_consumer.groups.blocked_keys import BlockedKey
from proxy_consumer.order_keys.reader import QID, key_reader
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.reads import held_of

if TYPE_CHECKING:
    from proxy_consumer.groups.group import Group
    from proxy_consumer.subscription.subscription import Subscription

PARKED_PREFIX = "parked/"
PARKED_MAX = 1_000
REASON_SKIPPED = "skipped"
PUSHES_S = 1.5  # how long pushes under way hold up settings that start queues anew, at most
READY = "ready"  # for whoever pulls the topic next
_STATES = {
    JobState.RECORDED: "retrying",
    JobState.RELEASED: "retrying",
    JobState.LEASED: "in flight",
    JobState.WAITING: "retrying",
    JobState.READY: "retrying",
    JobState.HELD: "parked",
    JobState.BURYING: "to the dead letters",
}


def parked_key(group: str, key: str) -> str:
    """The setting that says that a key is set aside; its value is the key."""
    return f"{PARKED_PREFIX}{group}/{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def sharing_of(config: SubscriptionDefaults) -> Sharing:
    """How the queues of a subscription are shared among proxies."""
    if config.scope == "group":
        return Sharing.WHOLE_GROUP
    return Sharing.WHOLE_TOPIC if config.scope == "topic" else Sharing(config.assignment)


def same_order(one: SubscriptionDefaults, other: SubscriptionDefaults) -> bool:
    """Whether a change of settings leaves chains and sharing as they are."""
    chains = one.order_key == other.order_key and one.scope == other.scope
    return chains and sharing_of(one) == sharing_of(other)


def _silence(job: UpstreamJob) -> str:
    """What is known of a job that nobody said anything about."""
    many = "" if job.timeouts == 1 else "s"
    return f"no answer within ack_timeout_ms, {job.timeouts} time{many}" if job.timeouts else ""


class SubscriptionOrder:
    """The scopes of one subscription; PullBuffer asks `of` for each queue it gets."""

    def __init__(self, runtime: Runtime, group: Group, subscription: Subscription) -> None:
        self._runtime = runtime
        self._group = group
        self._subscription = subscription
        self._own: OrderScope | None = None
        self.open_at = 0.0  # monotonic seconds; a dead proxy's leases are waited out until then
        self.torn_until = 0.0  # monotonic seconds; a queue that left is expected back until then

    def of(self, queue: QueueRef) -> tuple[OrderScope, KeyReader] | None:
        """The scope of a queue and the reader of its keys; None without an order key."""
        config = self._subscription.config
        if not config.scope:
            return None
        if config.order_key == QID:
            key = msgspec.json.encode(f"{queue.topic}/{self._runtime.qid(queue)}").decode()
            return self._scope(single=True), lambda _: key
        reader = key_reader(config.order_key)
        if config.scope == "queue":
            return self._scope(), reader
        if config.scope == "group":
            if self._group.ordering.shared is None:
                self._group.ordering.shared = self._scope()
            return self._group.ordering.shared, reader
        if self._own is None:
            self._own = self._scope()
        return self._own, reader

    def _scope(self, *, single: bool = False) -> OrderScope:
        merged = self._runtime.backend.capabilities.topic_order
        scope = OrderScope(
            ChainTable(self._subscription.config.chain_batch),
            merged=merged,
            single=single,
        )
        scope.open = False
        scope.ledger.parked_keys = self._group.ordering.parked
        return scope

    def forget(self) -> None:
        """The subscription gave up its queues."""
        self._own = None

    @property
    def ready(self) -> bool:
        """Whether every queue that takes part is here and may deliver."""
        subscription = self._subscription
        if not subscription.topic_exists:
            return True
        return subscription.complete and self._runtime.now() >= self.open_at

    def update(self) -> None:
        """Open scopes that are complete; at `open_at` the agenda calls again."""
        if self._subscription.config.scope == "group":
            self._group.ordering.update()
            return
        if self._subscription.halted:
            return
        for scope in self._subscription.buffer.scopes():
            if self.starts_anew(scope):
                start_anew([self._subscription])
                return
            _set_open(scope, self.ready)

    def starts_anew(self, scope: OrderScope) -> bool:
        """Whether nobody needs to be waited for any more, of those that an invalid scope has lost."""
        return scope.invalid and (scope.returned or self._runtime.now() >= self.torn_until)


def start_anew(subscriptions: Iterable[Subscription]) -> None:
    """Load all their queues again; they keep what clients have of them.

    What is pushed ends first, for PUSHES_S: nobody could say later how it went. Until then nothing is taken.
    """
    joined = [each for each in subscriptions if each.joined]
    for each in joined:
        each.halted += 1

    def ended() -> None:
        for each in joined:
            each.halted -= 1
        still = [each for each in joined if each.joined]
        for each in still:
            each.give_up()
        for each in still:
            each.join()

    if joined:
        pushed = {each.topic: list(each.buffer.queues) for each in joined}
        joined[0].group.hand_over(pushed, joined[0].runtime.now() + PUSHES_S, ended)


def _set_open(scope: OrderScope, is_open: bool) -> None:
    is_open = is_open and not scope.invalid
    if scope.open != is_open:
        scope.set_open(is_open)


class GroupOrdering:
    """What the subscriptions of one group share."""

    def __init__(self, runtime: Runtime, group: Group) -> None:
        self._runtime = runtime
        self._group = group
        self.shared: OrderScope | None = None
        self.used_at = 0.0  # monotonic seconds of the last pull from any of its topics
        self.parked: frozenset[str] = frozenset()
        self._aside: dict[str, str] = {}  # setting → key

    def members(self) -> list[Subscription]:
        """Subscriptions whose chains reach over the group."""
        return [each for each in self._group.subscriptions.values() if each.config.scope == "group"]

    def update(self) -> None:
        """Open the shared scope when all of it is here, close it when something is missing."""
        shared, members = self.shared, self.members()
        if any(each.halted for each in members):
            return
        if shared is None or not shared.queues:
            self.shared = None
        elif all(each.order.starts_anew(shared) for each in members):
            start_anew(members)
        else:
            _set_open(shared, all(each.order.ready for each in members))

    # --- keys set aside

    def parked_changed(self, setting: str) -> None:
        """A key was set aside, or goes on."""
        value = self._runtime.backend.setting(setting)
        if value is None:
            self._aside.pop(setting, None)
        else:
            self._aside[setting] = value.decode()
        before, self.parked = self.parked, frozenset(self._aside.values())
        for scope in self._scopes():
            scope.ledger.parked_keys = self.parked
        for state, stream in self._streams():
            for offset, chain in list(stream.busy.items()):
                if chain.key in self.parked and chain.key not in before:
                    state.hold(offset)
                elif chain.key in before and chain.key not in self.parked:
                    state.jobs.replay(offset)
                    state.wake()
        self._group.serve()

    def park(self, key: str) -> Completion[list[AppendResult]]:
        """Deliver nothing of the key until it is replayed; durable when it succeeds."""
        if key not in self.parked and len(self.parked) >= PARKED_MAX:
            raise BoundReachedError(
                f"{PARKED_MAX} keys of group {self._group.name} are parked; replay some first"
            )
        if not self._group_orders():
            raise CallerError(f"no subscription of group {self._group.name} has an order key")
        return self._store(key, key.encode())

    def replay(self, key: str) -> Completion[list[AppendResult]] | None:
        """Deliver the head again at once. None: nothing had to be stored."""
        heads = self._heads(key)
        if key not in self.parked and not heads:
            raise self._not_here(key)
        for state, offset in heads:
            state.jobs.replay(offset)
            state.wake()
        self._group.serve()
        return self._store(key, None) if key in self.parked else None

    def skip(self, key: str) -> Completion[None]:
        """Move the head to the dead letters; succeeds when it is there."""
        heads = self._heads(key)
        if not heads:
            raise self._not_here(key)
        moved: list[Completion[None]] = []
        for state, offset in heads:
            state.dead_letter(offset, REASON_SKIPPED)
            moved.append(held_of(state).subscription.undertaker.watch(state.jobs.jobs[offset]))
        for state in dict.fromkeys(state for state, _ in heads):
            held_of(state).subscription.settle_up((state,))
        return all_of(moved)

    def _store(self, key: str, value: bytes | None) -> Completion[list[AppendResult]]:
        batch = CommitBatch(settings={parked_key(self._group.name, key): value})
        return self._runtime.backend.commit(batch, self._runtime.commit_deadline())

    def _not_here(self, key: str) -> CallerError:
        return CallerError(
            f"key {key[:200]} of group {self._group.name} is not blocked or parked at this proxy; "
            "`ddmq group keys` lists those that are"
        )

    def _group_orders(self) -> bool:
        return any(each.config.scope for each in self._group.subscriptions.values())

    # --- looking

    def _streams(self) -> Iterator[tuple[QueueState, QueueStream]]:
        for subscription in self._group.subscriptions.values():
            yield from subscription.streams()

    def _scopes(self) -> Iterable[OrderScope]:
        buffers = (subscription.buffer for subscription in self._group.subscriptions.values())
        return dict.fromkeys(scope for buffer in buffers for scope in buffer.scopes())

    def _heads(self, key: str) -> list[tuple[QueueState, int]]:
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
        self, state: QueueState, offset: int, chain: Chain[QueueStream]
    ) -> tuple[float, Callable[[float, int], BlockedKey]] | None:
        if chain.heads[:1] != [(state.stream, offset)]:
            return None
        jobs = state.jobs
        job, lease = jobs.jobs.get(offset), jobs.leases.lease_of(offset)
        tried = job is not None and (job.tried or job.state in (JobState.HELD, JobState.BURYING))
        if not tried and not chain.waits:
            return None
        config = held_of(state).subscription.config
        since = job.since if job is not None and job.since else self._runtime.now()
        if lease is not None:
            since = min(since, lease.deadline - config.ack_timeout_ms / 1000)
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
                attempts=jobs.attempt(offset) - (0 if lease is not None else 1),
                state=shown,
                error="" if job is None else job.error or job.reason or _silence(job),
                waiting=len(chain.parked),
                more=bool(chain.unindexed),
            )

        return since, make


def _age(row: tuple[float, object]) -> float:
    return row[0]
