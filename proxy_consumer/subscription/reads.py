"""What a subscription has open at the backend for a queue, and the queue as clients name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.completion import Completion
from backend.port import Wait
from backend.records import ReadBatch
from proxy_consumer.answers import Place
from proxy_consumer.core.steps import Loaded, QueueState, ReadRequest

if TYPE_CHECKING:
    from proxy_consumer.subscription.reading import Reading
    from proxy_consumer.subscription.subscription import Subscription


class Held:
    """One queue of ours as clients name it; `key` is (topic, qid) in bytes.

    `lost`: it was taken from us without a word; what clients still hold of it may yet be acknowledged.
    """

    __slots__ = ("key", "lost", "place", "state", "subscription")

    def __init__(self, place: Place, subscription: Subscription, state: QueueState) -> None:
        self.place = place
        self.subscription = subscription
        self.state = state
        self.lost = False
        self.key = (place.context.topic.encode(), place.context.qid.encode())


def held_of(state: QueueState) -> Held:
    """The queue of a PullBuffer as clients name it."""
    held = state.label
    assert isinstance(held, Held)
    return held


class QueueRead(Completion[ReadBatch]):
    """One read; `inline` while the call that started it has not returned."""

    __slots__ = ("inline", "reading", "request")

    def __init__(self, reading: Reading, request: ReadRequest) -> None:
        super().__init__()
        self.reading = reading
        self.request = request
        self.inline = True

    def settled(self) -> None:
        if self.inline:
            return
        loaded, subscription = self.reading.read_done(self), self.reading.subscription
        if loaded is Loaded.DATA or subscription.buffer.may_have:
            subscription.group.serve()


class DataWait(Wait):
    """The wait at one queue's end."""

    __slots__ = ("reading", "state")

    def __init__(self, reading: Reading, state: QueueState) -> None:
        super().__init__()
        self.reading = reading
        self.state = state

    def settled(self) -> None:
        if not self.cancelled:
            self.reading.wait_done(self)
