"""A subscription as a member of its group: joined for one topic, given queues, their progress loaded.

A subscription has one membership for its own topic, and one for its queue of the group's retry topic when
there is one. The membership knows who may have what; what is done with a queue is the subscription's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from backend.completion import Completion
from backend.port import Assignment, Join, Membership, Sharing
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.errors import DdmqError
from proxy_consumer.core.steps import QueueState
from proxy_consumer.results.commits import ProgressCommit, collect, store_settings
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.handover import Handover
from proxy_consumer.subscription.held_queue import QueueHolder

RETRY_S = 0.5  # pause after the backend refused or failed a call
HAND_OVER_S = 0.5  # of the time to hand queues over, what storing progress may take
NOTES_S = 1.0  # how long after the writer's loss what is new here waits for word of what clients have


class QueueOwner(QueueHolder, Protocol):
    """Who has the queues that a membership gets."""

    @property
    def queues(self) -> Mapping[QueueRef, QueueState]: ...

    def wake(self, moment: float) -> None:
        """`load` is to be called at `moment` (monotonic seconds)."""

    def update_order(self) -> None:
        """Queues were given: what waits for them may go on."""

    def install(
        self, queue: QueueRef, view: ProgressView, bounds: Bounds, epoch: int, *, retry: bool
    ) -> None:
        """A queue may be read from now on."""

    def installed(self) -> None:
        """All that could be loaded is."""

    def end_pushes(self, queues: Sequence[QueueRef], until: float, then: Callable[[], None]) -> None:
        """`then` runs when nothing of the queues is being pushed, at `until` at the latest."""

    def let_go(self, queue: QueueRef) -> None:
        """The queue is not its own any more."""


class SubscriptionMembership:
    """The listener of one membership at the backend. `retry`: for the group's retry topic."""

    def __init__(
        self, runtime: Runtime, owner: QueueOwner, topic: str, handover: Handover, *, retry: bool
    ) -> None:
        self.topic = topic
        self.retry = retry
        self._runtime = runtime
        self._owner = owner
        self._handover = handover
        self._membership: Membership | None = None
        self._term = 0  # counts joins and leaves; answers of an earlier term are not for us
        self._unloaded: dict[QueueRef, int] = {}  # queue → epoch
        self._told = False
        self._join_after = 0.0
        self._notes_until = 0.0  # the writer was lost: proxies tell what clients have of what they had

    @property
    def joined(self) -> bool:
        return self._membership is not None

    @property
    def complete(self) -> bool:
        """Whether queues were given and everything known of them is loaded."""
        return self._told and not self._unloaded

    def join(self, sharing: Sharing, queues: frozenset[int] | None = None) -> None:
        """Become a member, unless it is one; after a refusal, a little later."""
        runtime = self._runtime
        now = runtime.now()
        if self._membership is not None or now < self._join_after:
            return
        self._term += 1
        group = self._owner.group_name
        try:
            self._membership = runtime.backend.join(
                Join(group, self.topic, sharing, queues, runtime.address), self
            )
        except DdmqError as error:
            log.warning("cannot join", extra={"group": group, "topic": self.topic, "error": str(error)})
            self._join_after = now + RETRY_S
            self._owner.wake(self._join_after)

    def leave(self) -> None:
        """Give everything up; the subscription has dropped its queues."""
        self._term += 1
        self._told = False
        self._unloaded.clear()
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.leave()

    # --- what the membership tells

    def assigned(self, assignment: Assignment) -> None:
        """Queues are ours under this epoch."""
        self._told = True
        self._tell("queues gained", assignment.queues, epoch=assignment.epoch)
        held = self._owner.queues
        for queue in assignment.queues:
            state = held.get(queue)
            if state is None:
                self._unloaded[queue] = assignment.epoch
            else:
                state.jobs.epoch = assignment.epoch
        self._owner.update_order()
        self.load()

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        """Make what is finished durable, and what clients have known, then let the queues go.

        What is pushed ends first, for a while: nobody could say later how it went.
        """
        self._tell("queues handed over", queues)
        membership = self._membership

        def ended() -> None:
            if self._membership is membership:
                self._hand_over(queues)

        self._owner.end_pushes(queues, deadline - HAND_OVER_S, ended)

    def _hand_over(self, queues: Sequence[QueueRef]) -> None:
        owner, membership = self._owner, self._membership
        states = [state for queue in queues if (state := owner.queues.get(queue)) is not None]

        def release(_: Exception | None) -> None:
            if membership is not None:
                membership.release(queues)

        parts, notes = collect(owner, states), self._handover.notes(states)
        for queue in queues:
            self._forget(queue)

        def told() -> None:
            if parts:
                ProgressCommit(self._runtime, parts, release).start()
            else:
                release(None)

        store_settings(self._runtime, notes, told)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """They are not ours: the writer died, or our session, or someone else has them already.

        In the first two cases they mostly come back. Clients know nothing of this, so what they hold can
        still be acknowledged then; results that come in between are refused, and sent again. Those that
        go to another proxy instead go with what clients have: that is stored before we join again.
        """
        owner = self._owner
        if not queues or any(self._handover.lives(queue) for queue in queues):
            self._notes_until = self._runtime.now() + NOTES_S
        if queues:
            self._tell("queues lost", queues)
        states = [state for queue in queues if (state := owner.queues.get(queue)) is not None]
        store_settings(self._runtime, self._handover.notes(states))
        for state in states:
            self._handover.remember(state)
        for queue in queues:
            self._forget(queue)
        self._told = bool(self._unloaded) or any(queue.topic == self.topic for queue in owner.queues)

    def _tell(self, event: str, queues: Sequence[QueueRef], **more: int) -> None:
        """One line for operators, whenever queues come or go."""
        numbers = sorted(queue.queue_id for queue in queues)
        told = {"group": self._owner.group_name, "topic": self.topic, "queues": numbers, **more}
        log.info(event, extra=told)

    def _forget(self, queue: QueueRef) -> None:
        self._unloaded.pop(queue, None)
        self._owner.let_go(queue)

    # --- loading progress

    def reload(self, state: QueueState) -> None:
        """The queue was reset: start it anew, under the epoch it has."""
        self._owner.let_go(state.queue)
        self._unloaded[state.queue] = state.jobs.epoch
        self.load()

    def load(self) -> None:
        """Ask for what is not loaded yet."""
        queues = sorted(self._unloaded)
        if not queues:
            return
        backend, term = self._runtime.backend, self._term
        progress = backend.progress(self._owner.group_name, queues)
        bounds = backend.bounds(queues)

        def both(_: object) -> None:
            if progress.done and bounds.done and term == self._term:
                self._loaded(queues, progress, bounds)

        progress.then(both)
        if not bounds.done or not progress.done:
            bounds.then(both)

    def _loaded(
        self,
        queues: list[QueueRef],
        progress: Completion[list[ProgressView]],
        bounds: Completion[list[Bounds | None]],
    ) -> None:
        error = progress.error or bounds.error
        if error is not None:
            group = self._owner.group_name
            log.warning("progress not read", extra={"group": group, "error": str(error)})
            self._owner.wake(self._runtime.now() + RETRY_S)
            return
        for queue, view, limits in zip(queues, progress.value, bounds.value, strict=True):
            if self._waits_for_word(queue):
                continue
            epoch = self._unloaded.pop(queue, None)
            if epoch is not None and limits is not None:
                self._owner.install(queue, view, limits, epoch, retry=self.retry)
        self._owner.installed()

    def _waits_for_word(self, queue: QueueRef) -> bool:
        """Whether a proxy that lives may be about to say what clients have of the queue."""
        if self._unloaded.get(queue, 1) == 1 or self._runtime.now() >= self._notes_until:
            return False
        if self._handover.knows(queue):
            return False
        self._owner.wake(self._notes_until)
        return True

    def refence(self, state: QueueState, then: Callable[[], None]) -> None:
        """A commit was fenced: see whether the queue was reset or lost; `then` runs in any case."""
        term = self._term
        view = self._runtime.backend.progress(self._owner.group_name, (state.queue,))

        def checked(_: object) -> None:
            if term == self._term and self._owner.holds(state) and view.error is None:
                now = view.value[0]
                if now.epoch > state.jobs.epoch:
                    self._tell("queues lost", (state.queue,))
                    self._handover.remember(state)
                    self._owner.let_go(state.queue)
                elif now.generation != state.jobs.generation:
                    self.reload(state)
            then()

        view.then(checked)
