"""What the replicated table decides for members of this process, carried out; each member in its order.

* Assigned: everything is followed up to now, so what the holder before had answered is known. Then the
  progress of each queue is written under the new epoch, so what that holder writes late changes nothing. Then
  the member is told. Where that cannot be done it is tried again, for as long as the queue is the member's.
* Revoked: the member is told, and by when.
* Lost: the member is told. What this process may have written under an epoch that it has lost, or let go,
  it may not any more: `floor` is above it, until it is given the queue again. (This process hears late that
  an epoch is over. Progress under it changes nothing then, but the records of its transaction would stand.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import gevent

from backend.completion import Completion
from backend.kafka.commits.commit_queue import CommitLine
from backend.kafka.state.followed import KafkaState
from backend.port import Assignment, Join, MembershipListener
from backend.progress.group_progress import Key
from backend.records import AppendResult, CommitBatch, ProgressDelta, QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import DrainingError, UnknownTopicError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
RAISE_S = 10.0  # how long writing the epochs of a grant may take, before it is tried again
RETRY_S = 0.3
LEFT_S = 60.0  # by then what was called is answered, and the next holder was heard of


class MembershipOwner(Protocol):
    """Who makes events of what a member asks."""

    def release(self, membership: KafkaMembership, queues: Iterable[QueueRef]) -> None:
        """A member lets queues go."""

    def leave(self, membership: KafkaMembership) -> None:
        """A member is gone."""


class KafkaMembership:
    """One member's place; lives across names until `leave`. See backend.port.Membership."""

    def __init__(self, owner: MembershipOwner, number: int, join: Join, listener: MembershipListener) -> None:
        self._owner = owner
        self.number = number
        self.join = join
        self.listener = listener
        self.member: GroupMember | None = None  # in the table, once the event was followed
        self.active = True
        self.joined_as = ""  # the name of the process when it did
        self.held: dict[QueueRef, int] = {}
        self.todo: deque[Assign | Revoke] = deque()
        self.assigning: Assign | None = None
        self.failing = ""  # why it is not assigned, as it was logged

    def release(self, queues: Iterable[QueueRef]) -> None:
        """Give up queues that were revoked."""
        if self.active:
            self._owner.release(self, queues)

    def leave(self) -> None:
        """Give up everything; the queues move at once. May be called twice."""
        if self.active:
            self.active = False
            self._owner.leave(self)


class QueueHolding:
    """`gone` is told of a topic that has other queues than the table knows."""

    def __init__(
        self, state: KafkaState, line: CommitLine, clock: Clock, gone: Callable[[str], None]
    ) -> None:
        self._state = state
        self._line = line
        self._clock = clock
        self._gone = gone
        self._floors: dict[QueueRef, dict[str, int]] = {}  # by queue and group
        self._later: Any = gevent.get_hub().loop.run_callback
        self._untold: deque[tuple[KafkaMembership, Callable[[], object]]] = deque()
        self._telling = self._closed = False

    def floor(self, key: Key, epoch: int, held: Callable[[Key], bool]) -> int:
        """No lower epoch is taken from this process. `epoch`: of the delta that is asked about.

        A group without members counts with the group whose epoch it goes by: what the delay service has fired
        stands under the epoch of its commands.
        """
        group, queue = key
        floors = self._floors.get(queue)
        if not floors:
            return 0
        if group not in floors and epoch + 1 in floors.values() and not held(key):
            return epoch + 1
        return floors.get(group, 0)

    def take(self, membership: KafkaMembership, decision: Decision) -> None:
        """Something was decided for a member."""
        if isinstance(decision, Assign | Revoke):
            membership.todo.append(decision)
            self._go_on(membership)
        else:
            self.lose(membership, decision.queues)

    def lose(self, membership: KafkaMembership, queues: Iterable[QueueRef]) -> None:
        """A member has lost queues, or was about to be told of them."""
        taken = list(queues)
        lost = [queue for queue in taken if queue in membership.held]
        for queue in lost:
            self.over(membership, queue, membership.held.pop(queue))
        if lost:
            self.tell(membership, partial(membership.listener.lost, lost))
        coming = membership.assigning
        if coming is not None and any(queue in taken for queue in coming.queues):
            left = tuple(queue for queue in coming.queues if queue not in taken)
            membership.assigning = None
            if left:
                membership.todo.appendleft(coming._replace(queues=left))
            self._go_on(membership)

    def lose_everything(self, membership: KafkaMembership) -> None:
        """The process has lost its name."""
        coming, membership.assigning = membership.assigning, None
        epochs = {} if coming is None else dict.fromkeys(coming.queues, coming.epoch)
        for queue, epoch in {**epochs, **membership.held}.items():
            self.over(membership, queue, epoch)
        lost = sorted(membership.held)
        membership.held.clear()
        membership.todo.clear()
        membership.member, membership.joined_as = None, ""
        self.tell(membership, partial(membership.listener.lost, lost))

    def over(self, membership: KafkaMembership, queue: QueueRef, epoch: int) -> None:
        """This process holds it no more under this epoch, nor under a lower one."""
        floors, group = self._floors.setdefault(queue, {}), membership.join.group
        floors[group] = max(floors.get(group, 0), epoch + 1)

    def left(self, membership: KafkaMembership, epochs: Mapping[QueueRef, int]) -> None:
        """The member is gone, and these epochs are over; that is forgotten in time, as groups come and go."""
        for queue, epoch in epochs.items():
            self.over(membership, queue, epoch)
        HubTimer(ref=False).once(LEFT_S, lambda: self._forget(membership, epochs))

    def _forget(self, membership: KafkaMembership, epochs: Mapping[QueueRef, int]) -> None:
        for queue, epoch in epochs.items():
            if self._floors.get(queue, {}).get(membership.join.group) == epoch + 1:
                self._regained(membership, queue)

    def _regained(self, membership: KafkaMembership, queue: QueueRef) -> None:
        floors = self._floors.get(queue, {})
        floors.pop(membership.join.group, None)
        if not floors:
            self._floors.pop(queue, None)

    def tell(self, membership: KafkaMembership, tell: Callable[[], object]) -> None:
        """From the hub, in order, and not once it has left."""
        self._untold.append((membership, tell))
        if len(self._untold) == 1:
            self._later(self.tell_now)

    def tell_now(self) -> None:
        """Tell everything at once: who has lost everything must not hand out a message before it knows."""
        while self._untold and not self._telling:
            membership, tell = self._untold.popleft()
            self._telling = True
            try:
                if membership.active:
                    tell()
            except Exception as error:  # a bug of one listener costs nobody else the word
                hub: Any = gevent.get_hub()
                hub.handle_error(tell, type(error), error, error.__traceback__)
            finally:
                self._telling = False

    def close(self) -> None:
        """Nothing more is carried out."""
        self._closed = True

    # --- inside

    def _go_on(self, membership: KafkaMembership) -> None:
        while membership.todo and membership.assigning is None:
            decision = membership.todo.popleft()
            if isinstance(decision, Assign):
                membership.assigning = decision
                self._assign(membership, decision)
            else:
                self._revoke(membership, decision)

    def _is_over(self, membership: KafkaMembership, assign: Assign) -> bool:
        return membership.assigning is not assign or not membership.active or self._closed

    def _assign(self, membership: KafkaMembership, assign: Assign) -> None:
        if not self._is_over(membership, assign):
            self._state.caught_up().then(lambda barrier: self._raise(membership, assign, barrier))

    def _raise(self, membership: KafkaMembership, assign: Assign, barrier: Completion[None]) -> None:
        """Write the new epoch into the progress of each queue."""
        if self._is_over(membership, assign):
            return
        if barrier.error is not None:
            self._try_again(membership, assign, barrier.error)
            return
        group, fence = membership.join.group, self._state.progress.fence
        deltas = [
            ProgressDelta(group, queue, assign.epoch, fence((group, queue)).generation)
            for queue in assign.queues
        ]
        raised = self._line.commit(CommitBatch(progress=deltas), self._clock.monotonic() + RAISE_S)
        raised.then(lambda answer: self._raised(membership, assign, answer))

    def _raised(
        self, membership: KafkaMembership, assign: Assign, answer: Completion[list[AppendResult]]
    ) -> None:
        if self._is_over(membership, assign):
            return
        if answer.error is not None:
            if isinstance(answer.error, UnknownTopicError):
                self._gone(membership.join.topic)
            self._try_again(membership, assign, answer.error)
            return
        membership.assigning, membership.failing = None, ""
        for queue in assign.queues:
            membership.held[queue] = assign.epoch
            self._regained(membership, queue)
        assignment = Assignment(assign.queues, assign.epoch)
        self.tell(membership, partial(membership.listener.assigned, assignment))
        self._go_on(membership)

    def _try_again(self, membership: KafkaMembership, assign: Assign, error: Exception) -> None:
        if not isinstance(error, DrainingError):
            if str(error) != membership.failing:
                membership.failing = str(error)
                member = assign.member
                log.warning("granting %s to group %s: %s; tried again", member.topic, member.group, error)
            HubTimer(ref=False).once(RETRY_S, lambda: self._assign(membership, assign))

    def _revoke(self, membership: KafkaMembership, revoke: Revoke) -> None:
        asked = [queue for queue in revoke.queues if queue in membership.held]
        if asked:
            deadline = self._clock.monotonic() + REVOKE_S
            self.tell(membership, partial(membership.listener.revoked, asked, deadline))
