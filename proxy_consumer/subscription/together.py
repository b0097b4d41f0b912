"""Subscriptions of one group, as each sees the others: who waits for them, and whose chains they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from backend.records import QueueRef
from proxy_consumer.core.held_pulls import HeldPulls
from proxy_consumer.core.order.scope import OrderScope
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.subscription.held_queue import HeldQueue

PUSHES_S = 1.5  # how long pushes under way hold up settings that start queues anew, at most
HandOver = Callable[[Mapping[str, Collection[QueueRef]], float, Callable[[], None]], None]


class SharedOrder:
    """What the subscriptions of one group share. `scope`: that of chains which reach over the group."""

    __slots__ = ("parked", "scope", "used_at")

    def __init__(self) -> None:
        self.scope: OrderScope | None = None
        self.used_at = 0.0  # monotonic seconds of the last pull from any of the topics of `scope`
        self.parked: frozenset[str] = frozenset()  # keys that are set aside


class ChainMember(Protocol):
    """A subscription that acts together with others. `halted`: how many starts it waits for; meanwhile it
    takes nothing. `last_used`: monotonic seconds."""

    halted: int
    last_used: float
    creating: bool

    @property
    def topic(self) -> str: ...

    @property
    def joined(self) -> bool: ...

    @property
    def buffer(self) -> PullBuffer: ...

    def join(self) -> None:
        """Become a member, until nobody pulls any more."""

    def join_alone(self) -> None:
        """Become a member; the others do so themselves."""

    def give_up(self) -> None:
        """Leave, to join again at once."""

    def leave(self) -> None:
        """Give up every queue."""


class SubscriptionGroup(Protocol):
    """What a subscription has of its group."""

    @property
    def name(self) -> str: ...

    @property
    def waiting(self) -> HeldPulls: ...

    @property
    def shared(self) -> SharedOrder: ...

    def members(self) -> Sequence[ChainMember]:
        """Those whose chains reach over the group."""

    def open_shared(self) -> None:
        """Some of what the shared scope needs may be there now."""

    def serve(self) -> None:
        """Hand out what there is to those who wait."""

    def remember(self, held: HeldQueue) -> None:
        """A queue is ours: results may name it."""

    def forget(self, held: HeldQueue) -> None:
        """It is not ours any more."""

    def pusher_waits(self, topic: str) -> bool:
        """Whether a push of the topic would take a message."""

    def hand_over(
        self, queues: Mapping[str, Collection[QueueRef]], until: float, then: Callable[[], None]
    ) -> None:
        """`then` runs when nothing of these queues is being pushed, at `until` at the latest."""


def idle_at(members: Sequence[ChainMember], idle_s: float, now: float) -> float:
    """When they may leave (monotonic seconds): some time after the last pull, and never with messages out."""
    until = max(each.last_used for each in members) + idle_s
    leased = any(each.buffer.budget.leased for each in members)
    return max(until, now + 1.0) if leased else until


def start_anew(subscriptions: Sequence[ChainMember], now: float, hand_over: HandOver) -> None:
    """Load all their queues again; they keep what clients have of them.

    What is pushed ends first (`hand_over`), for PUSHES_S: nobody could say later how it went. Until then
    nothing is taken.
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
        hand_over({each.topic: list(each.buffer.queues) for each in joined}, now + PUSHES_S, ended)
