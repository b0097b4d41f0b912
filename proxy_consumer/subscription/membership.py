"""A subscription as a member of its group for one topic: what it does when queues come, go and are lost.

A subscription has one membership for its own topic, and one for its queue of the group's retry topic when
there is one. Which queues are its own, and when they are loaded, is backend/claims.py; what clients have of a
queue goes with it (handover.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.claims import ClaimOwner, QueueClaims, Release
from backend.port import Assignment, Join, Sharing
from backend.records import Bounds, ProgressView, QueueRef
from proxy_consumer.core.steps import BufferedQueue
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.handover import Handover
from proxy_consumer.subscription.held_queue import ProgressCommit, QueueHolder, collect, store_settings

HAND_OVER_S = 0.5  # of the time to hand queues over, what storing progress may take
NOTES_S = 1.0  # how long after the writer's loss what is new here waits for word of what clients have


class SubscriptionMembership(ClaimOwner):
    """The claims of one topic. `retry`: it is the group's retry topic."""

    def __init__(
        self, runtime: Runtime, owner: QueueHolder, topic: str, handover: Handover, *, retry: bool
    ) -> None:
        self.topic = topic
        self.retry = retry
        self.claims = QueueClaims(runtime.backend, self, runtime.now)
        self._runtime = runtime
        self._owner = owner
        self._handover = handover
        self._join = Join(owner.group_name, topic)
        self._notes_until = 0.0  # the writer was lost: proxies tell what clients have of what they had

    def join(self, sharing: Sharing, queues: frozenset[int] | None = None) -> None:
        """Become a member, unless it is one; after a refusal, a little later."""
        if not self.claims.joined:
            self._join = Join(self._owner.group_name, self.topic, sharing, queues, self._runtime.address)
            self._go_on()

    def load(self) -> None:
        """Ask for what is not loaded yet."""
        if self.claims.joined:
            self._go_on()

    def _go_on(self) -> None:
        self.claims.join(self._join)
        if self.claims.retry_at is not None:
            self._owner.wake(self.claims.retry_at)

    def leave(self) -> None:
        """Give everything up; the subscription has dropped its queues."""
        self.claims.leave()

    def refence(self, state: BufferedQueue, then: Callable[[], None]) -> None:
        """A commit was fenced: see whether the queue was reset or lost; `then` runs in any case."""
        self.claims.reread((state.queue,), then)

    # --- ClaimOwner: queues come

    def assigned(self, assignment: Assignment) -> None:
        self._tell("queues gained", assignment.queues, epoch=assignment.epoch)
        for state in self._held(assignment.queues):
            state.jobs.epoch = assignment.epoch
        self._owner.update_order()

    def may_load(self, queue: QueueRef) -> bool:
        """Not while a proxy that lives may be about to say what clients have of the queue."""
        if self.claims.loading[queue] == 1 or self._runtime.now() >= self._notes_until:
            return True
        if self._handover.knows(queue):
            return True
        self._owner.wake(self._notes_until)
        return False

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        self._owner.install(queue, view, bounds, epoch, retry=self.retry)

    def settled(self) -> None:
        self._owner.installed()

    def recorded(self, queue: QueueRef, view: ProgressView, bounds: Bounds | None) -> None:
        state = self._owner.buffer.queues.get(queue)
        if state is None:
            return
        if view.epoch > state.jobs.epoch:
            self._tell("queues lost", (queue,))
            self._handover.remember(state)
            self._owner.let_go(queue)
        elif bounds is None:
            self._owner.let_go(queue)
        elif view.generation != state.jobs.generation:  # it was reset
            self._owner.let_go(queue)
            self.claims.reload(queue)

    def trouble(self, doing: str, error: Exception) -> None:
        text = "cannot join" if doing == "join" else "progress not read"
        told = {"group": self._owner.group_name, "topic": self.topic, "error": str(error)}
        log.warning(text, extra=told)
        if self.claims.retry_at is not None:
            self._owner.wake(self.claims.retry_at)

    # --- ClaimOwner: queues go

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Make what is finished durable, and what clients have known, then let the queues go.

        What is pushed ends first, for a while: nobody could say later how it went.
        """
        self._tell("queues handed over", queues)
        states = self._held(queues)

        def ended() -> None:
            self._hand_over([state for state in states if self._owner.holds(state)], lambda: release(queues))

        self._owner.end_pushes(queues, deadline - HAND_OVER_S, ended)

    def _hand_over(self, states: Sequence[BufferedQueue], release: Callable[[], None]) -> None:
        parts, notes = collect(self._owner, states), self._handover.notes(states)
        for state in states:
            self._owner.let_go(state.queue)

        def told() -> None:
            if parts:
                ProgressCommit(self._runtime, parts, lambda _: release()).start()
            else:
                release()

        store_settings(self._runtime, notes, told)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """They are not ours: the writer died, or our session, or someone else has them already.

        In the first two cases they mostly come back. Clients know nothing of this, so what they hold can
        still be acknowledged then; results that come in between are refused, and sent again. Those that
        go to another proxy instead go with what clients have: that is stored before we join again.
        """
        if not queues or any(self._handover.lives(queue) for queue in queues):
            self._notes_until = self._runtime.now() + NOTES_S
        if queues:
            self._tell("queues lost", queues)
        states = self._held(queues)
        store_settings(self._runtime, self._handover.notes(states))
        for state in states:
            self._handover.remember(state)
            self._owner.let_go(state.queue)

    def _held(self, queues: Sequence[QueueRef]) -> list[BufferedQueue]:
        """What is known of those that are loaded."""
        return [state for queue in queues if (state := self._owner.buffer.queues.get(queue)) is not None]

    def _tell(self, event: str, queues: Sequence[QueueRef], **more: int) -> None:
        """One line for operators, whenever queues come or go."""
        numbers = sorted(queue.queue_id for queue in queues)
        told = {"group": self._owner.group_name, "topic": self.topic, "queues": numbers, **more}
        log.info(event, extra=told)
