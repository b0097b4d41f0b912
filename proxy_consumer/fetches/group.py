"""One group that is fetched from at this proxy: who fetches, which queues there are, what each may read.

Topics whose model is clustering are joined, and their queues here shared out among the consumer ids.
Topics whose model is broadcasting are read by every id in full, without membership.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backend.records import QueueRef
from proxy_consumer.fetches.core.position import Position
from proxy_consumer.fetches.core.roster import Roster
from proxy_consumer.fetches.fetch import Fetch
from proxy_consumer.fetches.gathering import Target
from proxy_consumer.fetches.holding import HeldTopic
from proxy_consumer.filters.message_filters import filter_for
from proxy_consumer.groups.group import BROADCASTING, Group
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Subscription

Offsets = dict[bytes, dict[bytes, int]]


class FetchedGroup:
    """Alive as long as someone fetches."""

    def __init__(self, runtime: Runtime, group: Group, ids_max: int) -> None:
        self._runtime = runtime
        self.group = group
        self.roster = Roster(ids_max)
        self.topics: dict[str, HeldTopic] = {}
        self.fetches: set[Fetch] = set()

    # --- use

    def use(self) -> None:
        """Someone fetches: be a member of every topic that is shared out."""
        wanted = {each.topic: each for each in self._usable() if each.config.model != BROADCASTING}
        for topic in self.topics.keys() - wanted.keys():
            self.topics.pop(topic).leave()
        for topic, subscription in wanted.items():
            if topic not in self.topics:
                self.topics[topic] = HeldTopic(self._runtime, self.group.name, topic, self.changed)
            self.topics[topic].use(subscription.config)

    def leave(self) -> None:
        """Give up every queue; open fetches are answered."""
        for topic in self.topics.values():
            topic.leave()
        self.topics.clear()
        for fetch in list(self.fetches):
            fetch.over()

    def changed(self) -> None:
        """Who fetches, or what there is to fetch, has changed."""
        for fetch in list(self.fetches):
            fetch.woken()

    def released(self, consumers: list[bytes]) -> None:
        """These ids are gone; what was theirs is shared out anew."""
        for topic in self.topics.values():
            for position in topic.positions.values():
                position.forget(consumers)
        self.changed()

    def _usable(self) -> Iterable[Subscription]:
        return [each for each in self.group.subscriptions.values() if each.readable and not each.creating]

    # --- what a fetch may read

    def plan(self, fetch: Fetch, newest: dict[QueueRef, int]) -> tuple[list[Target], list[QueueRef]]:
        """Targets in the order of topic and queue; see fetch.FetchPlan."""
        asked: Offsets = fetch.call.args.request.fetchOffset or {}
        targets: list[Target] = []
        for position in self.share(fetch.consumer):
            wish = asked.get(position.queue.topic.encode(), {}).get(position.qid.encode())
            start = position.start(fetch.consumer, wish)
            targets.append(self._target(fetch, position.queue, start.offset, start.asked))
        wanting: list[QueueRef] = []
        only = fetch.call.args.request.topics
        for queue in broadcast_queues(self._runtime, self.group, only):
            known = asked.get(queue.topic.encode())
            wish = -1
            if known:  # a queue that came to a topic the client knows is read from its first message
                wish = known.get(self._runtime.qid(queue).encode(), 0)
            if wish < 0 and queue not in newest:
                wanting.append(queue)
            elif wish >= 0 or newest[queue] >= 0:
                targets.append(self._target(fetch, queue, wish if wish >= 0 else newest[queue], wish >= 0))
        targets.sort(key=_by_queue)
        return targets, wanting

    def share(self, consumer: bytes) -> list[Position]:
        """The queues of this proxy that are assigned to `consumer`."""
        held = [position for topic in self.topics.values() for position in topic.positions.values()]
        return list(self.roster.share(consumer, sorted(held, key=lambda position: position.queue)))

    def answered(self, fetch: Fetch, targets: Iterable[Target]) -> None:
        """What `fetch` was told."""
        for target in targets:
            topic = self.topics.get(target.queue.topic)
            position = None if topic is None else topic.positions.get(target.qid)
            if position is not None and position.queue == target.queue:
                position.answered(fetch.consumer)

    def _target(self, fetch: Fetch, queue: QueueRef, offset: int, asked: bool) -> Target:
        wanted = fetch.call.args.request.maxBatchSize
        return read_target(self._runtime, self.group, queue, offset, asked, wanted)


def broadcast_queues(runtime: Runtime, group: Group, only: Sequence[bytes] | None) -> list[QueueRef]:
    """Every queue of the group's broadcast topics, or of those among `only`."""
    found: list[QueueRef] = []
    for each in group.subscriptions.values():
        info = runtime.backend.topic(each.topic)
        if each.config.model != BROADCASTING or info is None or each.creating or not each.readable:
            continue
        if only is None or each.topic.encode() in only:
            found += [QueueRef(info.name, info.incarnation, n) for n in range(info.queues)]
    return found


def read_target(
    runtime: Runtime, group: Group, queue: QueueRef, offset: int, asked: bool, wanted: int | None
) -> Target:
    """What a fetch of `wanted` messages from `offset` of one queue reads; see gathering.Target."""
    config = group.subscriptions[queue.topic.encode()].config
    count = max(1, min(wanted or 0, config.batch_max))
    tagged = filter_for(config.tags, config.sql) if config.model == BROADCASTING else None
    return Target(queue, runtime.qid(queue), offset, asked, count, config.pressure_traffic, tagged)


def _by_queue(target: Target) -> QueueRef:
    return target.queue
