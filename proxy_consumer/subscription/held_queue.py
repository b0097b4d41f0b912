"""One queue of ours as clients name it, and what may be asked of the subscription that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from proxy_consumer.answers import Place
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.steps import QueueState, ReadRequest
from proxy_consumer.retries.publisher import RetryPublisher


class QueueHolder(Protocol):
    """A subscription, as those see it who bring results for its queues or store their progress."""

    config: SubscriptionDefaults

    @property
    def group_name(self) -> str: ...

    @property
    def buffer(self) -> PullBuffer: ...

    @property
    def retries(self) -> RetryPublisher: ...

    def holds(self, state: QueueState) -> bool:
        """Whether the queue is still its own."""

    def read(self, request: ReadRequest) -> None:
        """Carry out what a PullBuffer asks for: of several that share a scope, not always its own."""

    def next_offset(self, state: QueueState, now: float) -> int:
        """The queue's next offset as known lately."""

    def after_results(self, states: Iterable[QueueState]) -> None:
        """Messages of these queues were finished, have failed, or are to be moved."""

    def store_later(self) -> None:
        """Something could not be stored: it is to be tried again soon."""

    def refence(self, state: QueueState, then: Callable[[], None]) -> None:
        """A commit was fenced: see whether the queue was reset or lost; `then` runs in any case."""

    def serve(self) -> None:
        """There may be something for those who wait."""


class HeldQueue:
    """`key` is (topic, qid) in bytes.

    `lost`: it was taken from us without a word; what clients still hold of it may yet be acknowledged.
    """

    __slots__ = ("key", "lost", "place", "state", "subscription")

    def __init__(self, place: Place, subscription: QueueHolder, state: QueueState) -> None:
        self.place = place
        self.subscription = subscription
        self.state = state
        self.lost = False
        self.key = (place.context.topic.encode(), place.context.qid.encode())


def held_of(state: QueueState) -> HeldQueue:
    """The queue of a PullBuffer as clients name it."""
    held = state.label
    assert isinstance(held, HeldQueue)
    return held
