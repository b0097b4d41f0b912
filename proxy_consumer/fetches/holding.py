"""One topic of a group that is fetched from: the queues this proxy holds of it, and the group's place there.

It is a member of the group on that topic, like a subscription that is pulled from. Acks are durable before
they are answered, so queues that are to be given up can go at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.completion import Completion
from backend.port import Assignment, Join, Membership, Sharing
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.errors import DdmqError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.fetches.core.position import Position
from proxy_consumer.runtime import Runtime, log

RETRY_S = 0.5  # pause after the backend refused or failed a call
LOST_S = 3.0  # a queue that was lost is mostly ours again by then


class HeldTopic:
    """The listener of its membership. `changed()` runs when there is something else to fetch from."""

    def __init__(self, runtime: Runtime, group: str, topic: str, changed: Callable[[], None]) -> None:
        self._runtime = runtime
        self.group = group
        self.topic = topic
        self._changed = changed
        self.positions: dict[str, Position] = {}  # by qid
        self.lost_until: dict[str, float] = {}  # qid → monotonic seconds
        self._loading: dict[QueueRef, int] = {}  # queue → epoch it was assigned under
        self._membership: Membership | None = None
        self._term = 0  # counts joins and leaves; answers of an earlier term are not for us
        self.retry_at: float | None = None

    # --- membership

    def use(self, config: SubscriptionDefaults, now: float) -> None:
        """Someone fetches: join, and load what could not be loaded."""
        if self.retry_at is not None and now < self.retry_at:
            return
        self.retry_at = None
        if self._membership is not None:
            self._load()
            return
        self._term += 1
        try:
            self._membership = self._runtime.backend.join(
                Join(self.group, self.topic, Sharing(config.assignment), None, self._runtime.address), self
            )
        except DdmqError as error:
            log.warning("cannot join", extra={"group": self.group, "error": str(error)})
            self.retry_at = now + RETRY_S

    def leave(self) -> None:
        """Give up every queue."""
        self._term += 1
        self.positions.clear()
        self._loading.clear()
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.leave()

    def assigned(self, assignment: Assignment) -> None:
        """Queues are ours under this epoch."""
        held = {position.queue: position for position in self.positions.values()}
        for queue in assignment.queues:
            if queue in held:
                held[queue].epoch = assignment.epoch
            else:
                self._loading[queue] = assignment.epoch
        self._load()

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        """Everything acknowledged is durable: let them go."""
        self._drop(queues)
        if self._membership is not None:
            self._membership.release(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """They are not ours; acks for them can be neither stored nor ignored for a moment."""
        until = self._runtime.now() + LOST_S
        self.lost_until = {qid: then for qid, then in self.lost_until.items() if then > until - LOST_S}
        for queue in queues:
            self.lost_until[self._runtime.qid(queue)] = until
        self._drop(queues)

    def _drop(self, queues: Sequence[QueueRef]) -> None:
        for queue in queues:
            self._loading.pop(queue, None)
            qid = self._runtime.qid(queue)
            position = self.positions.get(qid)
            if position is not None and position.queue == queue:
                del self.positions[qid]
        self._changed()

    # --- progress

    def committed(self) -> dict[QueueRef, int]:
        """Of each queue held, below which offset all is finished, or was there before the group."""
        return {
            one.queue: one.newest if one.committed is None else one.committed
            for one in self.positions.values()
        }

    def _load(self) -> None:
        queues = sorted(self._loading)
        if queues:
            self._read(queues, self._loaded)

    def reread(self) -> None:
        """Offsets may have been reset, or a commit was fenced: see what is stored now."""
        queues = [position.queue for position in self.positions.values()]
        if queues:
            self._read(queues, self._read_again)

    def _read(
        self, queues: list[QueueRef], use: Callable[[QueueRef, ProgressView, Bounds | None], None]
    ) -> None:
        backend, term = self._runtime.backend, self._term
        progress = backend.progress(self.group, queues)
        bounds = backend.bounds(queues)

        def both(_: object) -> None:
            if progress.done and bounds.done and term == self._term:
                self._have_read(queues, progress, bounds, use)

        progress.then(both)
        if not (progress.done and bounds.done):
            bounds.then(both)

    def _have_read(
        self,
        queues: list[QueueRef],
        progress: Completion[list[ProgressView]],
        bounds: Completion[list[Bounds | None]],
        use: Callable[[QueueRef, ProgressView, Bounds | None], None],
    ) -> None:
        error = progress.error or bounds.error
        if error is not None:
            log.warning("progress not read", extra={"group": self.group, "error": str(error)})
            self.retry_at = self._runtime.now() + RETRY_S
            return
        for queue, view, limits in zip(queues, progress.value, bounds.value, strict=True):
            use(queue, view, limits)
        self._changed()

    def _loaded(self, queue: QueueRef, view: ProgressView, bounds: Bounds | None) -> None:
        epoch = self._loading.pop(queue, None)
        if epoch is None or bounds is None:
            return
        qid = self._runtime.qid(queue)
        self.lost_until.pop(qid, None)
        self.positions[qid] = Position(
            queue, qid, max(epoch, view.epoch), view.generation, view.committed, bounds.next
        )

    def _read_again(self, queue: QueueRef, view: ProgressView, bounds: Bounds | None) -> None:
        position = self.positions.get(self._runtime.qid(queue))
        if position is None or position.queue != queue:
            return
        if bounds is None or view.epoch > position.epoch:
            del self.positions[position.qid]
        else:
            position.reread(view.committed, view.generation, bounds.next)
