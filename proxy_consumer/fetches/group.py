"""One group that is fetched from at this proxy: its consumer ids, its queues, and the queues each id may
read.

This proxy joins the topics whose model is clustering, and divides the queues it gets among the consumer ids:
sorted ids get consecutive queues, and the first ids one more if the numbers do not come out even. A consumer
id is released a while after its last fetch, or when it has left; it is kept while one of its fetches is open.
Topics whose model is broadcasting are read by every id in full, without membership.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from backend.records import QueueRef
from ddmq_rpc.api import Call
from proxy_consumer.fetches.answers import Target
from proxy_consumer.fetches.fetch import Fetch
from proxy_consumer.fetches.owned_topic import OwnedTopic, Position
from proxy_consumer.filters.message_filters import filter_for
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import BROADCASTING, Group, Subscription

RELEASE_S = 30.0

T = TypeVar("T")
Offsets = dict[bytes, dict[bytes, int]]


class _Member:
    __slots__ = ("active_at", "left", "open")

    def __init__(self) -> None:
        self.open = 0  # fetches not answered yet
        self.active_at = 0.0
        self.left = False  # its client has announced that it fetches no more


class Roster:
    """The consumer ids of one group that fetch at this proxy, at most `ids_max`."""

    def __init__(self, ids_max: int, release_s: float = RELEASE_S) -> None:
        self._ids_max = ids_max
        self._release_s = release_s
        self._members: dict[bytes, _Member] = {}
        self._order: list[bytes] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, consumer: bytes) -> bool:
        return consumer in self._members

    @property
    def consumer_ids(self) -> Sequence[bytes]:
        """The ids in the order in which they share the queues."""
        return self._order

    def begin(self, consumer: bytes, now: float) -> bool | None:
        """Record a new fetch: return True if its consumer id is new, None if the roster is full."""
        member = self._members.get(consumer)
        fresh = member is None
        if member is None:
            if len(self._members) >= self._ids_max:
                return None
            member = self._members[consumer] = _Member()
            self._order = sorted(self._members)
        member.open += 1
        member.left = False
        member.active_at = now
        return fresh

    def end(self, consumer: bytes, now: float) -> None:
        """Record that a fetch was answered, or that its client disconnected."""
        member = self._members.get(consumer)
        if member is not None:
            member.open -= 1
            member.active_at = now

    def leave(self, consumer: bytes) -> None:
        """Mark an id whose client fetches no more: `expire_ids` releases it after its last open fetch."""
        member = self._members.get(consumer)
        if member is not None:
            member.left = True

    def expire_ids(self, now: float) -> list[bytes]:
        """Release the ids whose last fetch is too long ago or that have left; return them."""
        expired = [
            consumer
            for consumer, member in self._members.items()
            if not member.open and (member.left or member.active_at + self._release_s <= now)
        ]
        for consumer in expired:
            del self._members[consumer]
        if expired:
            self._order = sorted(self._members)
        return expired

    def share_of(self, consumer: bytes, queues: Sequence[T]) -> Sequence[T]:
        """Return the share of this id in `queues`. Their order must be the same in all calls."""
        if consumer not in self._members:
            return ()
        at, ids = self._order.index(consumer), len(self._order)
        size, more = divmod(len(queues), ids)
        first = at * size + min(at, more)
        return queues[first : first + size + (at < more)]


class FetchedGroup:
    """One group with its consumer ids, topics and open fetches; it exists while it has consumer ids."""

    def __init__(self, runtime: Runtime, group: Group, ids_max: int) -> None:
        self._runtime = runtime
        self.group = group
        self.roster = Roster(ids_max)
        self.topics: dict[str, OwnedTopic] = {}
        self.fetches: set[Fetch] = set()

    # --- use

    def on_use(self) -> None:
        """Join all clustering topics of the group before a fetch, and leave those no longer subscribed."""
        usable = {
            each.topic: each for each in self._usable_subscriptions() if each.config.model != BROADCASTING
        }
        for topic in self.topics.keys() - usable.keys():
            self.topics.pop(topic).leave()
        for topic, subscription in usable.items():
            if topic not in self.topics:
                self.topics[topic] = OwnedTopic(self._runtime, self.group.name, topic, self.on_change)
            self.topics[topic].on_use(subscription.config)

    def leave(self) -> None:
        """Release every queue and answer the open fetches."""
        for topic in self.topics.values():
            topic.leave()
        self.topics.clear()
        for fetch in list(self.fetches):
            fetch.give_up()

    def on_change(self) -> None:
        """Wake the fetches, because the consumer ids or the queues have changed."""
        for fetch in list(self.fetches):
            fetch.on_woken()

    def on_released(self, consumers: list[bytes]) -> None:
        """Divide the queues of released consumer ids among the others."""
        for topic in self.topics.values():
            for position in topic.positions.values():
                position.forget_consumers(consumers)
        self.on_change()

    def _usable_subscriptions(self) -> Iterable[Subscription]:
        return [each for each in self.group.subscriptions.values() if each.readable and not each.creating]

    # --- what a fetch may read

    def plan_targets(self, fetch: Fetch, newest: dict[QueueRef, int]) -> tuple[list[Target], list[QueueRef]]:
        """Return the targets by topic and queue, and the queues whose end is needed first
        (fetch.FetchPlan)."""
        offsets: Offsets = fetch.call.args.request.fetchOffset or {}
        targets: list[Target] = []
        for position in self.positions_of(fetch.consumer):
            if not may_read(fetch.call, position.queue.topic):
                continue
            offset = offsets.get(position.queue.topic.encode(), {}).get(position.qid.encode())
            start = position.start(fetch.consumer, offset)
            targets.append(self._build_target(fetch, position.queue, start.offset, start.stated))
        wanting: list[QueueRef] = []
        only = fetch.call.args.request.topics
        for queue in broadcast_queues(self._runtime, self.group, only):
            if not may_read(fetch.call, queue.topic):
                continue
            topic_offsets = offsets.get(queue.topic.encode())
            first_offset = -1
            if topic_offsets:  # a queue added to a topic that the client reads starts at its first message
                first_offset = topic_offsets.get(self._runtime.qid(queue).encode(), 0)
            if first_offset < 0 and queue not in newest:
                wanting.append(queue)
            elif first_offset >= 0 or newest[queue] >= 0:
                offset = first_offset if first_offset >= 0 else newest[queue]
                targets.append(self._build_target(fetch, queue, offset, first_offset >= 0))
        targets.sort(key=_by_queue)
        return targets, wanting

    def positions_of(self, consumer: bytes) -> list[Position]:
        """Return the positions of this proxy's queues that are assigned to `consumer`."""
        positions = [position for topic in self.topics.values() for position in topic.positions.values()]
        return list(self.roster.share_of(consumer, sorted(positions, key=lambda position: position.queue)))

    def on_answered(self, fetch: Fetch, targets: Iterable[Target]) -> None:
        """Record in each position that `fetch` was answered."""
        for target in targets:
            topic = self.topics.get(target.queue.topic)
            position = None if topic is None else topic.positions.get(target.qid)
            if position is not None and position.queue == target.queue:
                position.on_answered(fetch.consumer)

    def _build_target(self, fetch: Fetch, queue: QueueRef, offset: int, stated: bool) -> Target:
        batch_size = fetch.call.args.request.maxBatchSize
        return read_target(self._runtime, self.group, queue, offset, stated, batch_size)


def may_read(call: Call, topic: str) -> bool:
    """Return whether the caller may consume a topic, which the group may have got since the call came."""
    caller = call.caller
    return caller is None or caller.has_right("consume", topic.encode())


def broadcast_queues(runtime: Runtime, group: Group, only: Sequence[bytes] | None) -> list[QueueRef]:
    """Return every queue of the group's broadcasting topics; with `only`, of those among these topics."""
    refs: list[QueueRef] = []
    for each in group.subscriptions.values():
        info = runtime.backend.topic(each.topic)
        if each.config.model != BROADCASTING or info is None or each.creating or not each.readable:
            continue
        if only is None or each.topic.encode() in only:
            refs += info.refs()
    return refs


def read_target(
    runtime: Runtime, group: Group, queue: QueueRef, offset: int, stated: bool, batch_size: int | None
) -> Target:
    """Build the target of a fetch of up to `batch_size` messages from `offset` of one queue."""
    subscription = group.subscriptions[queue.topic.encode()]
    config, paused = subscription.config, bool(subscription.paused_ms)
    count = max(1, min(batch_size or 0, config.batch_max))
    tagged = filter_for(config.tags, config.sql) if config.model == BROADCASTING else None
    qid, pressure = runtime.qid(queue), config.pressure_traffic
    return Target(queue, qid, offset, stated, count, pressure, tagged, group.name, paused)


def _by_queue(target: Target) -> QueueRef:
    return target.queue
