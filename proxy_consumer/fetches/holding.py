"""One topic of a group that is fetched from: the queues this proxy holds of it, and the group's place there.

It is a member of the group on that topic, like a subscription that is pulled from. Acks are durable before
they are answered, so queues that are to be given up can go at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.claims import ClaimOwner, QueueClaims, Release
from backend.port import Join, Sharing
from backend.records import Bounds, ProgressView, QueueRef
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.fetches.core.position import Position
from proxy_consumer.runtime import Runtime, log


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
        """When `use` is to be called again, for what the backend refused; monotonic seconds."""
        return self._claims.retry_at

    def use(self, config: SubscriptionDefaults) -> None:
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

    def committed(self) -> dict[QueueRef, int]:
        """Of each queue held, below which offset all is finished, or was there before the group."""
        return {
            one.queue: one.newest if one.committed is None else one.committed
            for one in self.positions.values()
        }

    def reread(self) -> None:
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
        """Everything acknowledged is durable: let them go."""
        self._drop(queues)
        release(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._drop(queues)

    def _drop(self, queues: Sequence[QueueRef]) -> None:
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
            position.reread(view.committed, view.generation, bounds.next)

    def trouble(self, doing: str, error: Exception) -> None:
        text = "cannot join" if doing == "join" else "progress not read"
        log.warning(text, extra={"group": self.group, "error": str(error)})
