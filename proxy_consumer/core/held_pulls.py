"""Pulls that wait for messages: first come, first served, per group; and when they give up.

A pull waits for one topic or for any of its group. `HeldPulls` is one group's; `LingerWheel` holds
the deadlines of all pulls of a proxy in buckets of one tick, so that a thousand waiting clients cost
one look per tick. A pull that is answered or whose client goes is taken out of both at once.

The frame of what waits counts as in flight, and where that is much the server reads from nobody: so only
what is short waits, and the rest is answered at once, empty where there is nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from itertools import count

from mypy_extensions import mypyc_attr

from backend.records import QueueRef
from proxy_consumer.core.steps import Delivery

PULL_BYTES_MAX = 16 << 10  # of the frame of a pull that waits: ten thousand of them are no 256 MiB
FETCH_BYTES_MAX = 64 << 10  # the same of a fetch, which may name thousands of queues
_SEQUENCE = count()


@mypyc_attr(allow_interpreted_subclasses=True)
class Lingering(ABC):
    """A call that waits until its time is over. Subclassed by the shell's requests."""

    __slots__ = ("bucket", "sequence")

    def __init__(self) -> None:
        self.sequence = -1
        self.bucket: set[Lingering] | None = None

    @abstractmethod
    def give_up(self) -> None:
        """Answer the client empty."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HeldPull(Lingering):
    """One waiting pull. `topic` None: any; `count`: messages wanted."""

    __slots__ = ("count", "topic")

    def __init__(self, topic: str | None, count: int = 0) -> None:
        super().__init__()
        self.topic = topic
        self.count = count

    @abstractmethod
    def deliver(self, delivery: Delivery) -> None:
        """Messages came while it waited."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Pusher(HeldPull):
    """The push runner of a topic, as its group sees it."""

    def give_up(self) -> None:
        """Do nothing: there is no client to answer."""

    @abstractmethod
    def hand_over(self, queues: Collection[QueueRef], until: float, then: Callable[[], None]) -> None:
        """Queues move: `then` runs when it has nothing of them any more, at `until` at the latest."""


class HeldPulls:
    """The pulls of one group, oldest first."""

    __slots__ = ("_by_topic", "count")

    def __init__(self) -> None:
        self._by_topic: dict[str | None, OrderedDict[HeldPull, None]] = {}
        self.count = 0

    def __iter__(self) -> Iterator[HeldPull]:
        """All of them, no particular order; a copy."""
        return iter([pull for line in self._by_topic.values() for pull in line])

    def hold_pull(self, pull: HeldPull) -> None:
        """Wait behind those held already."""
        pull.sequence = next(_SEQUENCE)
        line = self._by_topic.get(pull.topic)
        if line is None:
            line = self._by_topic[pull.topic] = OrderedDict()
        line[pull] = None
        self.count += 1

    def leave(self, pull: HeldPull) -> None:
        """Stop waiting; harmless when it does not wait."""
        line = self._by_topic.get(pull.topic)
        if line is not None and pull in line:
            del line[pull]
            self.count -= 1
            if not line:
                del self._by_topic[pull.topic]

    def oldest_pull(self, topic: str) -> HeldPull | None:
        """The pull held longest for messages of `topic`."""
        own, anyone = self._first_in_line(topic), self._first_in_line(None)
        if own is None or anyone is None:
            return own or anyone
        return own if own.sequence < anyone.sequence else anyone

    def waiting_for(self, topic: str) -> int:
        """Return how many pulls would take messages of `topic`."""
        return len(self._by_topic.get(topic, ())) + len(self._by_topic.get(None, ()))

    def _first_in_line(self, topic: str | None) -> HeldPull | None:
        line = self._by_topic.get(topic)
        return next(iter(line)) if line else None


class LingerWheel:
    """Deadlines of calls, exact to one tick (never early). `woken()`: one waits where none did."""

    __slots__ = ("_buckets", "_done", "_tick_s", "_woken", "count")

    def __init__(self, tick_s: float, now: float, woken: Callable[[], None]) -> None:
        self._tick_s = tick_s
        self._woken = woken
        self._done = int(now / tick_s)
        self._buckets: dict[int, set[Lingering]] = {}
        self.count = 0

    def add(self, call: Lingering, deadline: float) -> None:
        """Give up at `deadline`."""
        slot = max(int(deadline / self._tick_s) + 1, self._done + 1)
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._buckets[slot] = set()
        bucket.add(call)
        call.bucket = bucket
        self.count += 1
        if self.count == 1:
            self._woken()

    def remove(self, call: Lingering) -> None:
        """No deadline any more; harmless when it has none."""
        bucket = call.bucket
        if bucket is not None:
            call.bucket = None
            bucket.discard(call)
            self.count -= 1

    def __iter__(self) -> Iterator[Lingering]:
        """All calls, no particular order; a copy."""
        return iter([call for bucket in self._buckets.values() for call in bucket])

    def take_expired(self, now: float) -> list[Lingering]:
        """Remove and return the calls whose deadline has come, in order of arrival."""
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
        self.count -= len(calls)
        return calls


def _by_arrival(call: Lingering) -> int:
    return call.sequence
