"""One topic of a group that is fetched from: the queues held of it here, and the group's place in each.

The topic is joined like a subscription that is pulled from. Acks are durable before they are answered, so
queues that are to be given up can go at once.

A client's own offset goes first, then the stored one, then the newest: that is the end of the queue when
it was taken over, remembered, so that nothing which comes afterwards is passed by. An ack names the next
offset to consume; everything from the stored one up to it is finished. It never moves backwards and never
past what the queue holds: a message that is still to come cannot be done.

After a reset of offsets (a new generation) what clients held before says nothing any more: until an id has
fetched anew its own offset is passed over and its acks are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from backend.ownership.claims import ClaimOwner, QueueClaims, Release
from backend.port import Join, Sharing
from backend.records import Bounds, ProgressDelta, ProgressView, QueueRef
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.runtime import Runtime, log


class Start(NamedTuple):
    """The offset to read from. `asked`: the client stated it, and hears where it could go when it is out of
    range."""

    offset: int
    asked: bool


class Position:
    """A group's place in one queue that this proxy holds."""

    __slots__ = ("_fetched", "committed", "epoch", "generation", "newest", "qid", "queue", "resets")

    def __init__(
        self, queue: QueueRef, qid: str, epoch: int, generation: int, committed: int | None, newest: int
    ) -> None:
        self.queue = queue
        self.qid = qid
        self.epoch = epoch
        self.generation = generation
        self.committed = committed
        self.newest = newest
        self.resets = 0  # seen since it was taken over
        self._fetched: dict[bytes, int] = {}  # consumer id → resets it knows of

    def start(self, consumer: bytes, asked: int | None) -> Start:
        """Return the offset where a fetch of `consumer` begins."""
        if asked is not None and asked >= 0 and self._fetched.get(consumer, 0) == self.resets:
            return Start(asked, True)
        return Start(self.newest if self.committed is None else self.committed, False)

    def on_answered(self, consumer: bytes) -> None:
        """A fetch of `consumer` was answered from here: what it says from now on counts."""
        if self.resets:
            self._fetched[consumer] = self.resets

    def forget_consumers(self, consumers: Sequence[bytes]) -> None:
        """Forget clients whose ids were released."""
        for consumer in consumers:
            self._fetched.pop(consumer, None)

    def ack(self, consumer: bytes, offset: int, next_offset: int) -> tuple[int, int] | None:
        """The range that an ack of `offset` finishes; None when it changes nothing."""
        if self._fetched.get(consumer, 0) != self.resets:
            return None
        first, end = self.committed or 0, min(offset, next_offset)
        return (first, end) if end > first else None

    def build_delta(self, group: str, finished: tuple[int, int]) -> ProgressDelta:
        """The range as the backend takes it."""
        return ProgressDelta(group, self.queue, self.epoch, self.generation, finished=(finished,))

    def on_stored(self, finished: tuple[int, int], generation: int) -> None:
        """Note that an acknowledged range is durable."""
        if generation == self.generation:
            self.committed = max(self.committed or 0, finished[1])

    def on_reread(self, committed: int | None, generation: int, newest: int) -> bool:
        """The stored progress was read again; True when it had been reset."""
        reset = generation != self.generation
        if reset:
            self.generation = generation
            self.resets += 1
            self.newest = newest
        self.committed = committed
        return reset


class HeldTopic(ClaimOwner):
    """The owner of its queues. `changed()` runs when there is something else to fetch from."""

    def __init__(self, runtime: Runtime, group: str, topic: str, changed: Callable[[], None]) -> None:
        self._runtime = runtime
        self.group = group
        self.topic = topic
        self._changed = changed
        self.positions: dict[str, Position] = {}  # by qid
        self._claims = QueueClaims(runtime.backend, self, runtime.now)

    @property
    def retry_at(self) -> float | None:
        """Return when `on_use` must be called again, after a refusal of the backend; monotonic seconds."""
        return self._claims.retry_at

    def on_use(self, config: SubscriptionDefaults) -> None:
        """Someone fetches: join, and load what could not be loaded."""
        sharing, address = Sharing(config.assignment), self._runtime.address
        self._claims.join(Join(self.group, self.topic, sharing, address=address))

    def leave(self) -> None:
        """Give up every queue."""
        self.positions.clear()
        self._claims.leave()

    def lost_lately(self, qid: str) -> bool:
        """Whether the queue was lost and is not back: acks for it can be neither stored nor ignored."""
        return any(self._runtime.qid(queue) == qid for queue in self._claims.lost_lately())

    def committed_offsets(self) -> dict[QueueRef, int]:
        """Return for each queue held the offset below which all is finished, or was there before the
        group."""
        return {
            one.queue: one.newest if one.committed is None else one.committed
            for one in self.positions.values()
        }

    def reread_progress(self) -> None:
        """Offsets may have been reset, or a commit was fenced: see what is stored now."""
        self._claims.reread(self._claims.held)

    # --- ClaimOwner

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        qid = self._runtime.qid(queue)
        self.positions[qid] = Position(queue, qid, epoch, view.generation, view.committed, bounds.next)

    def settled(self) -> None:
        self._changed()

    def raised(self, queue: QueueRef, epoch: int) -> None:
        self.positions[self._runtime.qid(queue)].epoch = epoch

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Release the queues: everything acknowledged is durable."""
        self._drop_queues(queues)
        release(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._drop_queues(queues)

    def _drop_queues(self, queues: Sequence[QueueRef]) -> None:
        for queue in queues:
            qid = self._runtime.qid(queue)
            position = self.positions.get(qid)
            if position is not None and position.queue == queue:
                del self.positions[qid]
        self._changed()

    def recorded(self, queue: QueueRef, view: ProgressView, bounds: Bounds | None) -> None:
        if bounds is None or queue not in self._claims.held:
            self.positions.pop(self._runtime.qid(queue), None)
        else:
            position = self.positions[self._runtime.qid(queue)]
            position.on_reread(view.committed, view.generation, bounds.next)

    def trouble(self, doing: str, error: Exception) -> None:
        text = "cannot join" if doing == "join" else "progress not read"
        log.warning(text, extra={"group": self.group, "error": str(error)})
