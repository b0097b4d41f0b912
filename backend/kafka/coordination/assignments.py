"""MemberAssignments: carries out the decisions of the replicated table for members of this process, in order.

* Assign: the state catches up, so that everything the former holder was answered is known. Then the progress
  of each queue is written under the new epoch, so that late writes of that holder change nothing. Then the
  member is notified. If a step fails it is retried, for as long as the queue is the member's.
* Revoke: the member is notified, with the deadline.
* Lose: the member is notified. Under an epoch that it has lost, or released, this process may not write any
  more: `epoch_floor` is above that epoch until the queue is assigned again. (This process learns late that an
  epoch has ended. Progress under it changes nothing then, but the records of its transaction would remain.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import gevent

from backend.completion import Completion
from backend.kafka.commits.commit_queue import CommitQueue
from backend.kafka.state.followed import KafkaState
from backend.ownership.group import Assign, Decision, GroupMember, Revoke
from backend.ownership.table import REVOKE_S
from backend.port import Assignment, Join, MembershipListener
from backend.progress.group_progress import Key
from backend.records import AppendResult, CommitBatch, ProgressDelta, QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import DrainingError, UnknownTopicError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
WRITE_EPOCHS_S = 10.0  # how long writing the epochs of an assignment may take, before it is retried
RETRY_S = 0.3
FLOOR_TTL_S = 60.0  # after a member left: by then its calls are answered, and the next holder is recorded


class KafkaMembership:
    """One member of a group; it survives changes of the process's name, until `leave`.

    See backend.port.Membership.
    """

    def __init__(
        self,
        number: int,
        join: Join,
        listener: MembershipListener,
        on_release: Callable[[KafkaMembership, Iterable[QueueRef]], None],
        on_leave: Callable[[KafkaMembership], None],
    ) -> None:
        self.number = number
        self.join = join
        self.listener = listener
        self._on_release = on_release
        self._on_leave = on_leave
        self.member: GroupMember | None = None  # in the table, once its event was followed
        self.is_active = True
        self.joined_as = ""  # the name that the process had then
        self.owned: dict[QueueRef, int] = {}  # with their epochs
        self.decisions: deque[Assign | Revoke] = deque()  # not begun yet
        self.assigning: Assign | None = None
        self.logged_error = ""  # why an assignment is retried, as it was logged

    def release(self, queues: Iterable[QueueRef]) -> None:
        """Give up queues that were revoked."""
        if self.is_active:
            self._on_release(self, queues)

    def leave(self) -> None:
        """Leave the group; the queues go to other members at once. May be called twice."""
        if self.is_active:
            self.is_active = False
            self._on_leave(self)


class MemberAssignments:
    """Carries out the table's decisions for this process's members.

    `on_topic_missing` is called with a topic whose queues differ from those in the table.
    """

    def __init__(
        self, state: KafkaState, commits: CommitQueue, clock: Clock, on_topic_missing: Callable[[str], None]
    ) -> None:
        self._state = state
        self._commits = commits
        self._clock = clock
        self._on_topic_missing = on_topic_missing
        self._epoch_floors: dict[QueueRef, dict[str, int]] = {}  # by queue and group
        self._later: Any = gevent.get_hub().loop.run_callback
        self._notifications: deque[tuple[KafkaMembership, Callable[[], object]]] = deque()
        self._is_notifying = self._closed = False

    # --- epochs that have ended

    def epoch_floor(self, key: Key, epoch: int, holds_queue: Callable[[Key], bool]) -> int:
        """Return the lowest epoch under which this process may write progress.

        `epoch`: that of the change to check.

        A group without members counts with the group whose epoch it uses: the fired messages of the delay
        service are recorded under the epoch of its commands.
        """
        group, queue = key
        floors = self._epoch_floors.get(queue)
        if not floors:
            return 0
        if group not in floors and epoch + 1 in floors.values() and not holds_queue(key):
            return epoch + 1
        return floors.get(group, 0)

    def end_epoch(self, membership: KafkaMembership, queue: QueueRef, epoch: int) -> None:
        """Reject further commits of this process on the queue under `epoch` or a lower one."""
        floors, group = self._epoch_floors.setdefault(queue, {}), membership.join.group
        floors[group] = max(floors.get(group, 0), epoch + 1)

    def end_epochs_after_leave(self, membership: KafkaMembership, epochs: Mapping[QueueRef, int]) -> None:
        """Reject commits under the epochs of a member that left.

        The entries are removed after FLOOR_TTL_S, so that they do not accumulate.
        """
        for queue, epoch in epochs.items():
            self.end_epoch(membership, queue, epoch)
        HubTimer(ref=False).once(FLOOR_TTL_S, lambda: self._drop_floors(membership, epochs))

    def _drop_floors(self, membership: KafkaMembership, epochs: Mapping[QueueRef, int]) -> None:
        for queue, epoch in epochs.items():
            if self._epoch_floors.get(queue, {}).get(membership.join.group) == epoch + 1:
                self._drop_floor(membership, queue)

    def _drop_floor(self, membership: KafkaMembership, queue: QueueRef) -> None:
        floors = self._epoch_floors.get(queue, {})
        floors.pop(membership.join.group, None)
        if not floors:
            self._epoch_floors.pop(queue, None)

    # --- decisions

    def carry_out(self, membership: KafkaMembership, decision: Decision) -> None:
        """Carry out one decision of the table for a member, after its earlier ones."""
        if isinstance(decision, Assign | Revoke):
            membership.decisions.append(decision)
            self._carry_out_next(membership)
        else:
            self.lose(membership, decision.queues)

    def lose(self, membership: KafkaMembership, queues: Iterable[QueueRef]) -> None:
        """Take queues from a member, including those whose assignment is still in progress."""
        queues = list(queues)
        lost = [queue for queue in queues if queue in membership.owned]
        for queue in lost:
            self.end_epoch(membership, queue, membership.owned.pop(queue))
        if lost:
            self.notify(membership, partial(membership.listener.lost, lost))
        assigning = membership.assigning
        if assigning is not None and any(queue in queues for queue in assigning.queues):
            remaining = tuple(queue for queue in assigning.queues if queue not in queues)
            membership.assigning = None
            if remaining:
                membership.decisions.appendleft(assigning._replace(queues=remaining))
            self._carry_out_next(membership)

    def lose_all(self, membership: KafkaMembership) -> None:
        """Take all queues from a member, because the process has lost its name."""
        assigning, membership.assigning = membership.assigning, None
        epochs = {} if assigning is None else dict.fromkeys(assigning.queues, assigning.epoch)
        for queue, epoch in {**epochs, **membership.owned}.items():
            self.end_epoch(membership, queue, epoch)
        lost = sorted(membership.owned)
        membership.owned.clear()
        membership.decisions.clear()
        membership.member, membership.joined_as = None, ""
        self.notify(membership, partial(membership.listener.lost, lost))

    def notify(self, membership: KafkaMembership, call_listener: Callable[[], object]) -> None:
        """Call the member's listener on the hub, in order; drop calls after it left."""
        self._notifications.append((membership, call_listener))
        if len(self._notifications) == 1:
            self._later(self.notify_now)

    def notify_now(self) -> None:
        """Make the pending listener calls now, so that a member delivers no message of a lost queue."""
        while self._notifications and not self._is_notifying:
            membership, call_listener = self._notifications.popleft()
            self._is_notifying = True
            try:
                if membership.is_active:
                    call_listener()
            except Exception as error:  # a bug of one listener does not keep others from being notified
                hub: Any = gevent.get_hub()
                hub.handle_error(call_listener, type(error), error, error.__traceback__)
            finally:
                self._is_notifying = False

    def close(self) -> None:
        """Carry out no more decisions."""
        self._closed = True

    def _carry_out_next(self, membership: KafkaMembership) -> None:
        while membership.decisions and membership.assigning is None:
            decision = membership.decisions.popleft()
            if isinstance(decision, Assign):
                membership.assigning = decision
                self._assign_queues(membership, decision)
            else:
                self._revoke_queues(membership, decision)

    def _is_obsolete(self, membership: KafkaMembership, assign: Assign) -> bool:
        return membership.assigning is not assign or not membership.is_active or self._closed

    def _assign_queues(self, membership: KafkaMembership, assign: Assign) -> None:
        if not self._is_obsolete(membership, assign):
            self._state.catch_up().then(lambda barrier: self._write_epochs(membership, assign, barrier))

    def _write_epochs(self, membership: KafkaMembership, assign: Assign, barrier: Completion[None]) -> None:
        """Write the new epoch into the recorded progress of each assigned queue."""
        if self._is_obsolete(membership, assign):
            return
        if barrier.error is not None:
            self._retry_assign(membership, assign, barrier.error)
            return
        group, fence = membership.join.group, self._state.progress.find_fence
        deltas = [
            ProgressDelta(group, queue, assign.epoch, fence((group, queue)).generation)
            for queue in assign.queues
        ]
        deadline = self._clock.monotonic() + WRITE_EPOCHS_S
        commit = self._commits.commit(CommitBatch(progress=deltas), deadline)
        commit.then(lambda answer: self._on_epochs_written(membership, assign, answer))

    def _on_epochs_written(
        self, membership: KafkaMembership, assign: Assign, answer: Completion[list[AppendResult]]
    ) -> None:
        if self._is_obsolete(membership, assign):
            return
        if answer.error is not None:
            if isinstance(answer.error, UnknownTopicError):
                self._on_topic_missing(membership.join.topic)
            self._retry_assign(membership, assign, answer.error)
            return
        membership.assigning, membership.logged_error = None, ""
        for queue in assign.queues:
            membership.owned[queue] = assign.epoch
            self._drop_floor(membership, queue)
        assignment = Assignment(assign.queues, assign.epoch)
        self.notify(membership, partial(membership.listener.assigned, assignment))
        self._carry_out_next(membership)

    def _retry_assign(self, membership: KafkaMembership, assign: Assign, error: Exception) -> None:
        if not isinstance(error, DrainingError):
            if str(error) != membership.logged_error:
                membership.logged_error = str(error)
                member = assign.member
                log.warning("assigning %s to group %s, retrying: %s", member.topic, member.group, error)
            HubTimer(ref=False).once(RETRY_S, lambda: self._assign_queues(membership, assign))

    def _revoke_queues(self, membership: KafkaMembership, revoke: Revoke) -> None:
        revoked = [queue for queue in revoke.queues if queue in membership.owned]
        if revoked:
            deadline = self._clock.monotonic() + REVOKE_S
            self.notify(membership, partial(membership.listener.revoked, revoked, deadline))
