"""The order keys of one group: which are blocked, and what operators can do to them.

Each parked key is a setting of its own, the same at every proxy: so two operators can park keys at once
without undoing each other's change.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

from backend.completion import Completion, all_of, followed, succeeded
from backend.records import AppendResult, CommitBatch, QueueRef, SettingsLimit
from ddmq_common.errors import BoundReachedError, CallerError
from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.order import operators
from proxy_consumer.core.order.chains import QueueStream
from proxy_consumer.core.order.scope import OrderScope
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.groups.blocked_keys import (
    DYING,
    IN_FLIGHT,
    PARKED,
    READY,
    STORING,
    BlockedKey,
    KeyHead,
    Now,
)
from proxy_consumer.groups.head_walk import START, HeadPosition, walk_heads
from proxy_consumer.order_keys.reader import QID
from proxy_consumer.retries.publisher import MoveEnd
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.commits import ProgressCommit, collect_progress
from proxy_consumer.subscription.subscription import Group

PARKED_PREFIX = "parked/"
PARKED_MAX = 1_000
REASON_SKIPPED = "skipped"


class KeyOutcome(NamedTuple):
    """The result of an operator's action for one head of a key: the head before it, and one of the words
    below."""

    head: BlockedKey
    outcome: str


REPLAYED = "replayed"  # it is due: the next pull of its topic gets it
TAKEN_AWAY = "taken away"  # the same, and results of its former client are late
LEFT_IN_FLIGHT = IN_FLIGHT  # nothing was changed: the client keeps it
NOTHING_TO_DO = READY  # nothing was changed: it is due already
BEING_ACKNOWLEDGED = STORING  # nothing was changed: its acknowledgement is being stored
DEAD = "dead letter"
ENDS = {
    MoveEnd.STORED: DEAD,
    MoveEnd.EXPIRED: "expired",
    MoveEnd.FINISHED: "acknowledged",
    MoveEnd.LOST: "moved to another proxy",
}  # outcomes of a skipped head
Outcomes = Completion[list[KeyOutcome]]


def parked_key(group: str, key: str) -> str:
    """Return the name of the setting that parks a key; its value is the key."""
    return f"{PARKED_PREFIX}{group}/{hashlib.sha256(key.encode()).hexdigest()[:32]}"


class GroupOrdering:
    """The order keys of one group, over all its subscriptions."""

    def __init__(
        self,
        runtime: Runtime,
        group: Group,
    ) -> None:
        self._runtime = runtime
        self._group = group
        self._shared = group.shared
        self._aside: dict[str, str] = {}  # setting → key

    @property
    def parked_keys(self) -> frozenset[str]:
        """The parked keys of the group, the same at every proxy."""
        return self._shared.parked

    # --- parked keys

    def on_parked_changed(self, setting: str) -> None:
        """Apply a change of a parked-key setting: park the key's jobs, or make them due again."""
        value = self._runtime.backend.setting(setting)
        if value is None:
            self._aside.pop(setting, None)
        else:
            self._aside[setting] = value.decode()
        before, parked = self._shared.parked, frozenset(self._aside.values())
        self._shared.parked = parked
        for scope in self._ordered_scopes():
            scope.ledger.parked_keys = parked
        for queue, stream in self._ordered_streams():
            for offset, chain in list(stream.busy.items()):
                if offset in stream.unstored:
                    continue
                if chain.key in parked and chain.key not in before:
                    queue.park(offset)
                elif chain.key in before and chain.key not in parked and queue.replay(offset):
                    queue.wake_up()
                    self._group.subscription_of(queue).store_later()
        self._group.serve()

    def park(self, key: str) -> Outcomes:
        """Stop the delivery of the key at every proxy until it is replayed, also after restarts.

        A client keeps the messages that it holds. Raises CallerError if the group has no order key,
        BoundReachedError at 1,000 parked keys.
        """
        limit = self._parked_limit()
        if key not in self.parked_keys and len(self.parked_keys) >= limit.count_max:
            raise BoundReachedError(limit.rejection)
        if not self.order_keys:
            raise CallerError(f"no subscription of group {self._group.name} has an order key")
        heads = self._describe_heads(self._find_heads(key))
        outcomes = [
            KeyOutcome(head, head.state if head.state in (IN_FLIGHT, DYING) else PARKED) for head in heads
        ]
        return followed(self._store_parked(key, key.encode(), limit), lambda: succeeded(outcomes))

    def _parked_limit(self) -> SettingsLimit:
        """Return the limit on the group's parked keys over all proxies, for the commit."""
        rejection = f"{PARKED_MAX} keys of group {self._group.name} are parked; replay some first"
        return SettingsLimit(f"{PARKED_PREFIX}{self._group.name}/", PARKED_MAX, rejection)

    def replay(self, key: str, *, take_away: bool = False) -> Outcomes:
        """Make the head due at once, with its attempts reset; a parked key is no longer parked.

        A client that holds the head keeps it, unless `take_away` says to end its lease (order/operators.py).
        Raises CallerError if the key is neither blocked nor parked here.
        """
        heads = self._find_heads(key)
        if key not in self.parked_keys and not heads:
            raise self._not_here(key)
        outcomes = [
            KeyOutcome(row, self._replay(head, take_away=take_away))
            for row, head in zip(self._describe_heads(heads), heads, strict=True)
        ]
        stored = [commit for head in heads for commit in self._store_attempts(head.queue)]
        self._group.serve()
        if key in self.parked_keys:
            stored.append(self._store_parked(key, None))
        return followed(all_of(stored), lambda: succeeded(outcomes))

    def _replay(self, head: KeyHead, *, take_away: bool) -> str:
        queue, job = head.queue, head.job
        if head.is_finished or head.offset in queue.leases.reserved:
            return BEING_ACKNOWLEDGED
        if head.lease is not None:
            return self._take_away(head) if take_away else LEFT_IN_FLIGHT
        if queue.replay(head.offset):
            queue.wake_up()
            return REPLAYED
        return DYING if job is not None and job.state is JobState.SPENT else NOTHING_TO_DO

    def _take_away(self, head: KeyHead) -> str:
        queue, owner = head.queue, self._group.subscription_of(head.queue)
        operators.take_away(queue, head.offset, self._runtime.now())
        outcome = DYING if queue.table.is_spent(head.offset) else TAKEN_AWAY  # before it is moved
        owner.buffer.on_news(queue)
        owner.after_results((queue,))
        return outcome

    def _store_attempts(self, queue: SubscribedQueue) -> list[Completion[Any]]:
        """Commit the reset attempts, so that they are not used up again after a restart."""
        shares = collect_progress(self._group.subscription_of(queue), (queue,))
        if not shares:
            return []
        stored = Completion[None]()

        def on_stored(error: Exception | None) -> None:
            stored.succeed(None) if error is None else stored.fail(error)

        ProgressCommit(self._runtime, shares, on_stored).start()
        return [stored]

    def skip(self, key: str) -> Outcomes:
        """Move the head to the dead letters; completes when it is stored there, or need not be any more.

        Results of a client that holds it are late from then on. Raises CallerError if the key is not blocked
        here, or is parked and has no message here.
        """
        heads = self._find_heads(key)
        if not heads:
            raise self._nothing_to_skip(key) if key in self.parked_keys else self._not_here(key)
        rows = self._describe_heads(heads)
        moves = [self._skip_head(head) for head in heads]
        for queue in dict.fromkeys(head.queue for head in heads):
            self._group.subscription_of(queue).after_results((queue,))
        return followed(
            all_of(moves),
            lambda: succeeded(
                [KeyOutcome(one, ENDS[move.value]) for one, move in zip(rows, moves, strict=True)]
            ),
        )

    def _skip_head(self, head: KeyHead) -> Completion[MoveEnd]:
        if head.is_finished:
            return succeeded(MoveEnd.FINISHED)
        head.queue.dead_letter(head.offset, REASON_SKIPPED)
        job = head.queue.table.jobs[head.offset]
        return self._group.subscription_of(head.queue).retries.watch_move(job)

    def _store_parked(
        self, key: str, value: bytes | None, *limits: SettingsLimit
    ) -> Completion[list[AppendResult]]:
        batch = CommitBatch(settings={parked_key(self._group.name, key): value}, limits=limits)
        return self._runtime.backend.commit(batch, self._runtime.commit_deadline())

    def _not_here(self, key: str) -> CallerError:
        return CallerError(
            f"key {key[:200]} of group {self._group.name} is not blocked or parked at this proxy; "
            "`ddmq group keys` lists those that are"
        )

    def _nothing_to_skip(self, key: str) -> CallerError:
        group, key = self._group.name, key[:200]
        return CallerError(
            f"key {key} of group {group} is parked, but no message of it waits at this proxy, so there is "
            f"nothing to skip; `ddmq group replay {group} {shlex.quote(key)}` lets it go on"
        )

    # --- queries

    @property
    def order_keys(self) -> frozenset[str]:
        """Return the order keys of the group's subscriptions."""
        return frozenset(each.config.order_key for each in self._group.subscriptions.values()) - {""}

    def single_chain_queues(self) -> dict[QueueRef, str]:
        """Return the queues that are one chain each (order key QID), with their names on the wire."""
        names = [each.topic for each in self._group.subscriptions.values() if each.config.order_key == QID]
        topics = [info for info in map(self._runtime.backend.topic, names) if info is not None]
        return {queue: self._runtime.qid(queue) for info in topics for queue in info.refs()}

    def _ordered_streams(self) -> Iterator[tuple[SubscribedQueue, QueueStream]]:
        for subscription in self._group.subscriptions.values():
            yield from subscription.ordered_streams()

    def _ordered_scopes(self) -> Iterable[OrderScope]:
        buffers = (subscription.buffer for subscription in self._group.subscriptions.values())
        return dict.fromkeys(scope for buffer in buffers for scope in buffer.ordered_scopes())

    def _find_heads(self, key: str) -> list[KeyHead]:
        """Return the first message of a key in each scope that has one which is not durably finished."""
        chains = [(scope, scope.table.get(key)) for scope in self._ordered_scopes()]
        return [
            KeyHead(scope.queues[head[0]], head[1], chain)
            for scope, chain in chains
            if chain is not None and (head := chain.head) is not None
        ]

    def walk_heads(self, after: HeadPosition = START) -> Iterator[KeyHead | None]:
        """Yield the heads of all keys behind a position, in short steps (head_walk.py)."""
        return walk_heads(self._ordered_streams(), after)

    def has_head(self, key: str) -> bool:
        """Whether a message of the key at this proxy is not durably finished."""
        return bool(self._find_heads(key))

    def now(self) -> Now:
        """Return the present moment, for descriptions of heads."""
        return Now(self._runtime.now(), self._runtime.clock.wall_ms())

    def describe_head(self, head: KeyHead, now: Now) -> BlockedKey:
        """Describe a head that `walk_heads` has just yielded."""
        return head.as_blocked_key(now, self._group.subscription_of(head.queue).config)

    def describe_heads(self, key: str) -> list[BlockedKey]:
        """Return the first message of a key in each scope that has one which is not durably finished."""
        return self._describe_heads(self._find_heads(key))

    def _describe_heads(self, heads: Iterable[KeyHead]) -> list[BlockedKey]:
        now = self.now()
        return [self.describe_head(head, now) for head in heads]

    def blocked_keys(self, limit: int) -> list[BlockedKey]:
        """Return up to `limit` keys whose head failed, is parked or has waiting messages behind it, or whose
        waiting messages wait for the commit of an acknowledgement.

        Those blocked longest come first, ready ones last.
        """
        now = self._runtime.now()
        heads = [
            KeyHead(queue, offset, chain)
            for queue, stream in self._ordered_streams()
            for offset, chain in stream.busy.items()
            if chain.head == (stream, offset)
        ]
        rows = [(head.blocked_since(now), head) for head in heads if head.was_tried or head.chain.has_waiting]
        rows.sort(key=itemgetter(0))  # heads not delivered yet count as blocked since `now`
        return self._describe_heads(head for _, head in rows[:limit])
