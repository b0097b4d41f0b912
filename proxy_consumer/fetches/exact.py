"""Fetches with `exact`: ranges of broadcast queues by offset, for readers that keep every position
themselves.

A data pipeline requests [start, end) of one queue, perhaps twice, from many machines at once. So nothing is
assigned, no id is remembered, no position is stored and any proxy can reply. Only the queues in `fetchOffset`
are read; without `fetchOffset` no message is read and the reply contains the bounds of every queue. Each
entry of a reply carries the bounds, looked up after the read: a reader whose offset is below `firstOffset`
and that got no message from there has lost it to retention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.completion import Completion
from backend.records import Bounds, QueueRef
from ddmq_client.idl.codes import Code
from ddmq_rpc.api import Call
from proxy_consumer.core.held_pulls import LingerWheel
from proxy_consumer.fetches import answers
from proxy_consumer.fetches.answers import Target
from proxy_consumer.fetches.fetch import Fetch, count_fetched
from proxy_consumer.fetches.group import broadcast_queues, may_read, read_target
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Group


class ExactFetch(Fetch):
    """A fetch whose reply contains the bounds of each queue."""

    __slots__ = ()

    def _finish_fetch(self, targets: Sequence[Target]) -> None:
        existing = [target for target in targets if not target.deleted]

        def on_next_offsets(read: Completion[list[Bounds | None]]) -> None:
            if self.closed:
                return
            if read.error is not None:
                self._close([])
                _answer_later(self.call, read.error)
                return
            for target, bounds in zip(existing, read.value, strict=True):
                target.bounds = bounds
            bounded = [target for target in existing if target.bounds is not None]
            self._give_answer(
                bounded, {target.queue: target.bounds.next for target in bounded if target.bounds}
            )

        self._runtime.backend.bounds([target.queue for target in existing]).then(on_next_offsets)


class ExactFetches:
    """The open exact fetches of one proxy. `count_delivered` is called with the messages of each."""

    def __init__(self, runtime: Runtime, wheel: LingerWheel, count_delivered: Callable[[int], None]) -> None:
        self._runtime = runtime
        self._wheel = wheel
        self._count_delivered = count_delivered
        self._open: set[Fetch] = set()

    def begin(self, call: Call, group: Group) -> None:
        """Reply at once with the bounds of the queues, or start to read."""
        request = call.args.request
        if any(
            group.subscriptions[topic].creating for topic in request.topics if topic in group.subscriptions
        ):
            answers.reject_fetch(call, Code.BUSY, f"group {group.name} is being made; fetch again")
            return
        if not request.fetchOffset:
            self._send_bounds(call, group)
            return
        fetch = ExactFetch(
            self._runtime,
            call,
            request.consumerId,
            lambda fetch, newest: (self._plan_targets(fetch.call, group), []),
            self._wheel,
            lambda fetch, targets: self._on_fetch_done(group, fetch, targets),
        )
        self._open.add(fetch)
        fetch.start()

    def wake_fetches(self, group: str) -> None:
        """Plan and read again, because a subscription of the group was changed."""
        for fetch in list(self._open):
            if fetch.call.args.request.groupId == group.encode():
                fetch.on_woken()

    def drain(self) -> None:
        """Reply to the waiting fetches now."""
        for fetch in list(self._open):
            fetch.give_up()

    def _plan_targets(self, call: Call, group: Group) -> list[Target]:
        request = call.args.request
        offsets = request.fetchOffset
        targets: list[Target] = []
        for queue in broadcast_queues(self._runtime, group, request.topics):
            topic_offsets = offsets.get(queue.topic.encode(), {})
            offset = topic_offsets.get(self._runtime.qid(queue).encode(), -1) if topic_offsets else -1
            if offset >= 0 and may_read(call, queue.topic):
                targets.append(read_target(self._runtime, group, queue, offset, True, request.maxBatchSize))
        return targets

    def _send_bounds(self, call: Call, group: Group) -> None:
        queues = broadcast_queues(self._runtime, group, call.args.request.topics)

        def on_bounds(read: Completion[list[Bounds | None]]) -> None:
            self._count_delivered(0)
            if read.error is not None:
                _answer_later(call, read.error)
                return
            targets = [
                _bounds_target(self._runtime, queue, bounds)
                for queue, bounds in zip(queues, read.value, strict=True)
                if bounds is not None
            ]
            answers.answer_fetch(call, targets, {})

        self._runtime.backend.bounds(queues).then(on_bounds)

    def _on_fetch_done(self, group: Group, fetch: Fetch, targets: Sequence[Target]) -> None:
        self._open.discard(fetch)
        self._count_delivered(count_fetched(self._runtime, group.name, targets))


def _answer_later(call: Call, error: Exception) -> None:
    answers.reject_fetch(call, Code.BUSY, f"the bounds of the queues cannot be read now: {error}")


def _bounds_target(runtime: Runtime, queue: QueueRef, bounds: Bounds) -> Target:
    target = Target(queue, runtime.qid(queue), bounds.next, True, 1, False)
    target.bounds = bounds
    return target
