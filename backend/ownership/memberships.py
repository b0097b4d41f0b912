"""The memberships of one engine: requests of members go into the table, its decisions are carried out.

The engine provides what the table must not know: its clock, a way to run a call later on its hub, and how an
epoch becomes durable. All calls to members are made from the hub, in order, never inside a call of a member,
and none after the member has left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from backend.ownership.group import Assign, Decision, Grant, GroupMember, Revoke
from backend.ownership.table import AssignmentTable
from backend.port import Assignment, Join, MembershipListener
from backend.progress.group_progress import ProgressTable
from backend.records import ProgressDelta, QueueRef
from ddmq_common.errors import DrainingError

log = logging.getLogger(__name__)
OWN = "own"  # the name of this process among those that have memberships
Later = Callable[..., object]  # runs a function with its arguments from the hub
Answered = Callable[[Exception | None], None]
RaiseEpochs = Callable[[Grant, Answered], None]


class TableMembership:
    """One member of a group; see backend.port.Membership."""

    def __init__(
        self, owner: Memberships, member: GroupMember, listener: MembershipListener, address: str
    ) -> None:
        self._owner = owner
        self.member = member
        self.listener = listener
        self.address = address
        self.active = True

    def release(self, queues: Iterable[QueueRef]) -> None:
        """Release queues that were revoked."""
        if self.active:
            self._owner.release(self.member, queues)

    def leave(self) -> None:
        """Leave the group; its queues go to other members at once. May be called twice."""
        if self.active:
            self.active = False
            self._owner.leave(self.member)


class Memberships:
    """Carries out the table's decisions for all members, in at most `rows_max` pairs of group and topic.

    Belongs to one hub. `now`: monotonic seconds. `raise_epochs` records a grant's epochs and calls back, at
    once or later, with the error, if any; `retry_later` is then called with a function that retries. `watch`
    is called when a deadline begins to run; the engine must then call `sweep` every few milliseconds.
    """

    def __init__(
        self,
        living: Callable[[str], Sequence[QueueRef]],
        recorded: Callable[[str, QueueRef], int],
        raise_epochs: RaiseEpochs,
        later: Later,
        retry_later: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        watch: Callable[[], object],
        rows_max: int,
    ) -> None:
        self._table = AssignmentTable(living, recorded, rows_max)
        self._raise_epochs = raise_epochs
        self._later = later
        self._retry_later = retry_later
        self._now = now
        self._watch = watch
        self._memberships: dict[GroupMember, TableMembership] = {}
        self._decisions: deque[Decision] = deque()
        self._failing: dict[tuple[str, str], str] = {}  # group, topic → why, as it was logged
        self._carrying = self._closed = False

    def join(self, join: Join, listener: MembershipListener) -> TableMembership:
        """Join a group for a topic. Raises BoundReachedError when there are too many groups."""
        member = GroupMember(
            join.group, join.topic, join.member or OWN, join.sharing, join.queues, join.address
        )
        decisions = self._table.join(member, self._now())
        membership = self._memberships[member] = TableMembership(self, member, listener, join.address)
        self._carry_out(decisions)
        return membership

    def release(self, member: GroupMember, queues: Iterable[QueueRef]) -> None:
        """Release queues of a member."""
        self._carry_out(self._table.release(member, queues, self._now()))

    def leave(self, member: GroupMember) -> None:
        """Remove a member that left or died."""
        self._memberships.pop(member, None)
        self._failing.pop((member.group, member.topic), None)
        self._carry_out(self._table.leave(member, self._now()))

    def holders(self, group: str, topic: str) -> dict[QueueRef, str]:
        """Return the address of the member that holds each queue now."""
        members = self._table.holders(group, topic)
        return {queue: self._memberships[member].address for queue, member in members.items()}

    def topic_changed(self, name: str) -> None:
        """Reassign queues after a topic was created or deleted or has grown."""
        self._carry_out(self._table.topic_changed(name, self._now()))

    def sweep(self, now: float) -> bool:
        """Take queues whose release is overdue from their members.

        Return whether a deadline is still running.
        """
        if self._table.waiting:
            self._carry_out(self._table.tick(now))
        return self._table.waiting

    def revoke(self, group: str, topic: str, deadline: float) -> None:
        """Request all of a topic's queues back from their owners, who become the last candidates for them."""
        self._carry_out(self._table.recall(group, topic, deadline))

    def depose(self, group: str, topic: str) -> None:
        """Take a topic's queues from their owners at once; they become the last candidates for them."""
        self._carry_out(self._table.depose(group, topic, self._now()))

    def close(self) -> None:
        """Stop notifying the members."""
        self._closed = True
        for membership in self._memberships.values():
            membership.active = False
        self._memberships.clear()
        self._decisions.clear()

    # --- inside

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        """Carry out decisions in order; decisions that result from one are appended after the others."""
        self._decisions += decisions
        if self._carrying:
            return
        self._carrying = True
        try:
            while self._decisions:
                self._carry_out_one(self._decisions.popleft())
        finally:
            self._carrying = False

    def _carry_out_one(self, decision: Decision) -> None:
        if isinstance(decision, Grant):
            self._raise_epochs(decision, lambda error: self._on_epochs_raised(decision, error))
        elif isinstance(decision, Assign):
            self._notify_later(decision.member, "assigned", Assignment(decision.queues, decision.epoch))
        elif isinstance(decision, Revoke):
            self._notify_later(decision.member, "revoked", list(decision.queues), decision.deadline)
            self._watch()
        else:
            self._notify_later(decision.member, "lost", list(decision.queues))

    def _on_epochs_raised(self, grant: Grant, error: Exception | None) -> None:
        """Continue a grant after its epochs were recorded, or retry it after an error."""
        if self._closed:
            return
        group, topic = grant.member.group, grant.member.topic
        if error is None:
            self._failing.pop((group, topic), None)
            self._carry_out(self._table.granted(grant, self._now()))
            return
        self._table.grant_failed(grant)
        if not isinstance(error, DrainingError):
            if grant.member in self._memberships and self._failing.get((group, topic)) != str(error):
                self._failing[group, topic] = str(error)
                log.warning("granting %s to group %s: %s; tried again until it works", topic, group, error)
            self._retry_later(lambda: self._retry(group, topic))

    def _retry(self, group: str, topic: str) -> None:
        if not self._closed:
            self._carry_out(self._table.retry(group, topic, self._now()))

    def _notify_later(self, member: GroupMember, what: str, *args: Any) -> None:
        membership = self._memberships.get(member)

        def notify() -> None:
            if membership is not None and membership.active:
                getattr(membership.listener, what)(*args)

        self._later(notify)


def raised_epochs(grant: Grant, progress: ProgressTable) -> list[ProgressDelta]:
    """Return progress deltas that only raise the epoch of each granted queue, to make the grant durable.

    The member hears of its queues when that is recorded. So a former holder's commits, also those of a
    process that was stopped and goes on, are refused.
    """
    group, fence = grant.member.group, progress.fence
    return [
        ProgressDelta(group, queue, grant.epoch, fence(group, queue).generation) for queue in grant.queues
    ]
