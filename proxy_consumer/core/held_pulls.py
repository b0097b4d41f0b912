"""Pulls that wait for messages, answered first come, first served within a group, and their deadlines.

A pull waits for one topic or for any topic of its group. `HeldPulls` holds the pulls of one group;
`LingerWheel` holds the deadlines of all pulls of a proxy in buckets of one tick, so that a thousand waiting
clients cost one check per tick. A pull that is answered, or whose client disconnects, is removed from both at
once.
The request frame of a waiting pull counts towards the bytes in flight, and at their limit the server stops
reading from its clients. So only pulls with a short frame wait; the others are answered at once, empty if
there is no message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from itertools import count

from mypy_extensions import mypyc_attr

from backend.records import QueueRef
from ddmq_common.security.quotas import Usage
from proxy_consumer.core.steps import Delivery

PULL_BYTES_MAX = 16 << 10  # the largest frame of a waiting pull: ten thousand stay below 256 MiB
FETCH_BYTES_MAX = 64 << 10  # the same for a fetch, which may name thousands of queues
_SEQUENCE = count()


@mypyc_attr(allow_interpreted_subclasses=True)
class Lingering(ABC):
    """A call that waits until its deadline. The proxy's requests are subclasses."""

    __slots__ = ("bucket", "sequence", "usage")

    def __init__(self) -> None:
        self.sequence = -1
        self.bucket: set[Lingering] | None = None
        self.usage: Usage | None = None  # of the caller's identity

    @abstractmethod
    def give_up(self) -> None:
        """Stop waiting: send the client an empty reply."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HeldPull(Lingering):
    """A client's pull that waits for messages.

    `topic` None: any topic of the group; `count`: how many messages it requests.
    """

    __slots__ = ("count", "topic")

    def __init__(self, topic: str | None, count: int = 0) -> None:
        super().__init__()
        self.topic = topic
        self.count = count

    @abstractmethod
    def deliver(self, delivery: Delivery) -> None:
        """Answer the waiting pull with these messages."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Pusher(HeldPull):
    """The push runner of a topic: its group treats it like a waiting pull."""

    def give_up(self) -> None:
        """Do nothing: a push runner has no client to answer."""

    @abstractmethod
    def return_waiting(self) -> None:
        """Return the messages that wait for another attempt, because the subscription was paused."""

    @abstractmethod
    def hand_over(self, queues: Collection[QueueRef], until: float, then: Callable[[], None]) -> None:
        """Stop pushing these queues, because they move to another proxy.

        `then` is called when no message of the queues is being pushed any more, at `until` (monotonic
        seconds) at the latest.
        """


class HeldPulls:
    """The waiting pulls of one group, oldest first.

    `observers` are called whenever messages may have become available.
    """

    __slots__ = ("_by_topic", "count", "observers")

    def __init__(self) -> None:
        self._by_topic: dict[str | None, OrderedDict[HeldPull, None]] = {}
        self.count = 0
        self.observers: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[HeldPull]:
        """Iterate over a copy of all waiting pulls, in no particular order."""
        return iter([pull for pulls in self._by_topic.values() for pull in pulls])

    def notify_observers(self) -> None:
        """Call the observers; one may remove itself meanwhile."""
        if self.observers:
            for notify in list(self.observers):
                notify()

    def hold_pull(self, pull: HeldPull) -> None:
        """Add a pull to the end of the queue of waiting pulls."""
        pull.sequence = next(_SEQUENCE)
        pulls = self._by_topic.get(pull.topic)
        if pulls is None:
            pulls = self._by_topic[pull.topic] = OrderedDict()
        pulls[pull] = None
        self.count += 1

    def leave(self, pull: HeldPull) -> None:
        """Remove a pull; does nothing if it is not waiting."""
        pulls = self._by_topic.get(pull.topic)
        if pulls is not None and pull in pulls:
            del pulls[pull]
            self.count -= 1
            if not pulls:
                del self._by_topic[pull.topic]

    def oldest_pull(self, topic: str) -> HeldPull | None:
        """Return the pull that has waited longest for messages of `topic`, or None."""
        own, anyone = self._first_pull(topic), self._first_pull(None)
        if own is None or anyone is None:
            return own or anyone
        return own if own.sequence < anyone.sequence else anyone

    def waiting_for(self, topic: str) -> int:
        """Return how many waiting pulls accept messages of `topic`."""
        return len(self._by_topic.get(topic, ())) + len(self._by_topic.get(None, ()))

    def _first_pull(self, topic: str | None) -> HeldPull | None:
        pulls = self._by_topic.get(topic)
        return next(iter(pulls)) if pulls else None


class LingerWheel:
    """Deadlines of calls, exact to one tick (never early). `woken` is called when the first call is added.
    A call with `usage` counts there while it waits."""

    __slots__ = ("_buckets", "_done", "_tick_s", "_woken", "count")

    def __init__(self, tick_s: float, now: float, woken: Callable[[], None]) -> None:
        self._tick_s = tick_s
        self._woken = woken
        self._done = int(now / tick_s)
        self._buckets: dict[int, set[Lingering]] = {}
        self.count = 0

    def add(self, call: Lingering, deadline: float) -> None:
        """Make the call expire at `deadline`, in monotonic seconds."""
        slot = max(int(deadline / self._tick_s) + 1, self._done + 1)
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._buckets[slot] = set()
        bucket.add(call)
        call.bucket = bucket
        if call.usage is not None:
            call.usage.waiting_calls += 1
        self.count += 1
        if self.count == 1:
            self._woken()

    def remove(self, call: Lingering) -> None:
        """Cancel the call's deadline; does nothing if it has none."""
        bucket = call.bucket
        if bucket is not None:
            call.bucket = None
            bucket.discard(call)
            self.count -= 1
            _end_waiting(call)

    def __iter__(self) -> Iterator[Lingering]:
        """All calls, no particular order; a copy."""
        return iter([call for bucket in self._buckets.values() for call in bucket])

    def take_expired(self, now: float) -> list[Lingering]:
        """Remove and return the calls whose deadline has passed, in order of arrival."""
        slot = int(now / self._tick_s)
        if slot - self._done > len(self._buckets):
            slots = sorted(passed_slot for passed_slot in self._buckets if passed_slot <= slot)
        else:
            slots = [
                passed_slot for passed_slot in range(self._done + 1, slot + 1) if passed_slot in self._buckets
            ]
        self._done = max(self._done, slot)
        calls: list[Lingering] = []
        for passed_slot in slots:
            calls += sorted(self._buckets.pop(passed_slot), key=_by_arrival)
        for call in calls:
            call.bucket = None
            _end_waiting(call)
        self.count -= len(calls)
        return calls


def _end_waiting(call: Lingering) -> None:
    if call.usage is not None:
        call.usage.waiting_calls -= 1


def _by_arrival(call: Lingering) -> int:
    return call.sequence
