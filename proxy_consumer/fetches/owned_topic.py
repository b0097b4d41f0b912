"""One topic of a group that is fetched from: the queues that this proxy holds, and the group's position in
each.

The topic is joined like a subscription that is pulled from. Acks are durable before they are answered, so
revoked queues can be released at once.

A fetch starts at the offset that the client states, otherwise at the stored one, otherwise at the end that
the queue had when this proxy acquired it, so that no later message is missed. An ack names the next offset to
consume; everything from the stored offset up to it is finished. An ack never moves backwards and never past
the end of the queue.

After a reset of offsets (a new generation) the offsets that clients have from before are obsolete: until an
id has fetched again, its own offset and its acks are ignored.
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
    """The offset where a fetch begins. `stated`: the client sent it, and gets the valid range if it is
    outside."""

    offset: int
    stated: bool


class Position:
    """The group's position in one queue that this proxy holds."""

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
        self.resets = 0  # how many resets there were since the queue was acquired
        self._fetched: dict[bytes, int] = {}  # consumer id → number of resets when it last fetched

    def start(self, consumer: bytes, stated: int | None) -> Start:
        """Return the offset where a fetch of `consumer` begins."""
        if stated is not None and stated >= 0 and self._fetched.get(consumer, 0) == self.resets:
            return Start(stated, True)
        return Start(self.newest if self.committed is None else self.committed, False)

    def on_answered(self, consumer: bytes) -> None:
        """Record that a fetch of `consumer` was answered, so that the offsets it states are valid again."""
        if self.resets:
            self._fetched[consumer] = self.resets

    def forget_consumers(self, consumers: Sequence[bytes]) -> None:
        """Forget these released consumer ids."""
        for consumer in consumers:
            self._fetched.pop(consumer, None)

    def ack(self, consumer: bytes, offset: int, next_offset: int) -> tuple[int, int] | None:
        """Return the range that an ack of `offset` finishes; None if it changes nothing."""
        if self._fetched.get(consumer, 0) != self.resets:
            return None
        first, end = self.committed or 0, min(offset, next_offset)
        return (first, end) if end > first else None

    def build_delta(self, group: str, finished: tuple[int, int]) -> ProgressDelta:
        """Return the progress that finishes a range, for the backend."""
        return ProgressDelta(group, self.queue, self.epoch, self.generation, finished=(finished,))

    def on_stored(self, finished: tuple[int, int], generation: int) -> None:
        """Record that an acknowledged range is durable."""
        if generation == self.generation:
            self.committed = max(self.committed or 0, finished[1])

    def on_reread(self, committed: int | None, generation: int, newest: int) -> bool:
        """Apply stored progress that was read again; return whether it had been reset."""
        reset = generation != self.generation
        if reset:
            self.generation = generation
            self.resets += 1
            self.newest = newest
        self.committed = committed
        return reset


class OwnedTopic(ClaimOwner):
    """The queues of one topic that this proxy holds. `changed()` is called when they change."""

    def __init__(self, runtime: Runtime, group: str, topic: str, changed: Callable[[], None]) -> None:
        self._runtime = runtime
        self.group = group
        self.topic = topic
        self._changed = changed
        self.positions: dict[str, Position] = {}  # by qid
        self._claims = QueueClaims(runtime.backend, self, runtime.now)

    @property
    def retry_at(self) -> float | None:
        """The time (monotonic seconds) to retry a rejected join with `on_use`, or None if no retry is due."""
        return self._claims.retry_at

    def on_use(self, config: SubscriptionDefaults) -> None:
        """Join the topic before a fetch, and retry what failed to load."""
        sharing, address = Sharing(config.assignment), self._runtime.address
        self._claims.join(Join(self.group, self.topic, sharing, address=address))

    def leave(self) -> None:
        """Release every queue of the topic."""
        self.positions.clear()
        self._claims.leave()

    def lost_lately(self, qid: str) -> bool:
        """Whether the queue was lost recently: its acks can be neither stored nor ignored."""
        return any(self._runtime.qid(queue) == qid for queue in self._claims.lost_lately())

    def committed_offsets(self) -> dict[QueueRef, int]:
        """Return the committed offset of each queue held; without one, the end of the queue at its
        acquisition."""
        return {
            one.queue: one.newest if one.committed is None else one.committed
            for one in self.positions.values()
        }

    def reread_progress(self) -> None:
        """Read the stored progress again, after a reset of offsets or a fenced commit."""
        self._claims.reread(self._claims.owned_queues)

    # --- ClaimOwner

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        qid = self._runtime.qid(queue)
        self.positions[qid] = Position(queue, qid, epoch, view.generation, view.committed, bounds.next)

    def settled(self) -> None:
        self._changed()

    def raised(self, queue: QueueRef, epoch: int) -> None:
        self.positions[self._runtime.qid(queue)].epoch = epoch

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Release the queues at once: all acknowledged offsets are durable."""
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
        if bounds is None or queue not in self._claims.owned_queues:
            self.positions.pop(self._runtime.qid(queue), None)
        else:
            position = self.positions[self._runtime.qid(queue)]
            position.on_reread(view.committed, view.generation, bounds.next)

    def on_failed(self, doing: str, error: Exception) -> None:
        text = "cannot join" if doing == "join" else "progress not read"
        log.warning(text, extra={"group": self.group, "error": str(error)})
