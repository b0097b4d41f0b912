"""Who holds a group's queues of one topic: one member at a time, the others wait in line.

Every grant first raises the epoch above everything recorded, in the log, as progress of each queue that
only raises the epoch; the member hears of it when that is durable. So a former holder's commits, also
those of a process that was stopped and goes on, are refused. When the topic grows, the holder gets the
new queues under the epoch that it has. Members are told from the hub, never after they have left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from backend.completion import Completion
from backend.port import Assignment, MembershipListener, Sharing
from backend.progress.group_progress import Fence
from backend.records import CommitBatch, ProgressDelta, QueueRef
from ddmq_common.errors import BoundReachedError, DrainingError

log = logging.getLogger(__name__)
Later = Callable[..., object]  # runs a function with its arguments from the hub
Commit = Callable[[CommitBatch], Completion[Any]]
RETRY_S = 0.1


class FileLogMembership:
    """One member; see backend.port.Membership."""

    def __init__(self, line: _Line, listener: MembershipListener) -> None:
        self._line = line
        self.listener = listener
        self.active = True
        self.address = ""

    def release(self, queues: Iterable[QueueRef]) -> None:
        """Give up queues; when none is left the next member in line gets them."""
        self._line.release(self, set(queues))

    def leave(self) -> None:
        """Give up everything, and the place in line. May be called twice."""
        self._line.leave(self)


class _Line:
    """The members of one group on one topic, the holder first."""

    def __init__(self, group: str, topic: str, table: Ownership) -> None:
        self._group = group
        self._topic = topic
        self._table = table
        self._epoch = 0
        self.held: list[QueueRef] = []
        self._granting: list[QueueRef] = []  # on the way to the disk, for members[0]
        self.members: list[FileLogMembership] = []

    def join(self, listener: MembershipListener) -> FileLogMembership:
        member = FileLogMembership(self, listener)
        self.members.append(member)
        self.refresh()
        return member

    def leave(self, member: FileLogMembership) -> None:
        if not member.active:
            return
        member.active = False
        held = self.members[0] is member
        self.members.remove(member)
        if held:
            self._vacate()
        if not self.members and not self._granting:
            self._table.forget(self._group, self._topic)

    def release(self, member: FileLogMembership, queues: set[QueueRef]) -> None:
        if not self.members or self.members[0] is not member or not self.held:
            return
        self.held = [queue for queue in self.held if queue not in queues]
        if not self.held:
            self.members.append(self.members.pop(0))
            self._vacate()

    def refresh(self) -> None:
        """Tell the holder what it lost and what came in since, or grant when nobody holds."""
        if not self.members or self._granting:
            return
        living = self._table.living(self._topic)
        gone = [queue for queue in self.held if queue not in living]
        if gone:
            self.held = [queue for queue in self.held if queue in living]
            self._tell(self.members[0], "lost", gone)
        wanted = [queue for queue in living if queue not in self.held]
        if wanted:
            self._grant(wanted)

    def _vacate(self) -> None:
        self.held = []
        self.refresh()

    def _grant(self, queues: list[QueueRef]) -> None:
        fences = [self._table.fence(self._group, queue) for queue in queues]
        recorded = max(fence.epoch for fence in fences)
        if not self.held or recorded > self._epoch:
            self._epoch = max(self._epoch, recorded) + 1
        deltas = [
            ProgressDelta(self._group, queue, self._epoch, fence.generation)
            for queue, fence in zip(queues, fences, strict=True)
        ]
        self._granting = queues
        member = self.members[0]
        self._table.commit(CommitBatch((), deltas)).then(lambda done: self._granted(member, done))

    def _granted(self, member: FileLogMembership, done: Completion[Any]) -> None:
        queues, self._granting = self._granting, []
        if done.error is not None:
            if not isinstance(done.error, DrainingError):
                log.warning("granting %s to group %s: %s; tried again", self._topic, self._group, done.error)
                self._table.retry(self.refresh)
        elif self.members and self.members[0] is member and member.active:
            self.held += queues
            self._tell(member, "assigned", Assignment(tuple(queues), self._epoch))
            self.refresh()
        else:
            self.refresh()
        if not self.members:
            self._table.forget(self._group, self._topic)

    def _tell(self, member: FileLogMembership, what: str, argument: object) -> None:
        def tell() -> None:
            if member.active:
                getattr(member.listener, what)(argument)

        self._table.later(tell)


class Ownership:
    """Every line, at most `lines_max` of them. Belongs to the hub of the writer's process."""

    def __init__(
        self,
        commit: Commit,
        living: Callable[[str], list[QueueRef]],
        fence: Callable[[str, QueueRef], Fence],
        later: Later,
        retry_later: Callable[[float, Callable[[], None]], object],
        lines_max: int,
    ) -> None:
        self.commit = commit
        self.living = living
        self.fence = fence
        self.later = later
        self._retry_later = retry_later
        self._lines_max = lines_max
        self._lines: dict[tuple[str, str], _Line] = {}
        self._closed = False

    def join(
        self,
        group: str,
        topic: str,
        listener: MembershipListener,
        sharing: Sharing = Sharing.AVERAGELY,
        queues: frozenset[int] | None = None,
        address: str = "",
        member: str = "",
    ) -> FileLogMembership:
        """Raises BoundReachedError when there are too many groups."""
        line = self._lines.get((group, topic))
        if line is None:
            if len(self._lines) >= self._lines_max:
                raise BoundReachedError(f"{self._lines_max} groups have joined topics; that is the bound")
            line = self._lines[group, topic] = _Line(group, topic, self)
        membership = line.join(listener)
        membership.address = address
        return membership

    def holders(self, group: str, topic: str) -> dict[QueueRef, str]:
        """Who holds what, by address."""
        line = self._lines.get((group, topic))
        return {} if line is None or not line.members else dict.fromkeys(line.held, line.members[0].address)

    def topic_changed(self, name: str) -> None:
        """A topic was created, deleted or has grown."""
        for (_, topic), line in list(self._lines.items()):
            if topic == name:
                line.refresh()

    def retry(self, call: Callable[[], None]) -> None:
        """Run it a little later, unless closed."""
        if not self._closed:
            self._retry_later(RETRY_S, call)

    def forget(self, group: str, topic: str) -> None:
        """Nobody is in line."""
        self._lines.pop((group, topic), None)

    def close(self) -> None:
        """Nobody hears anything any more."""
        self._closed = True
        for line in self._lines.values():
            for member in line.members:
                member.active = False
            line.members.clear()
        self._lines.clear()
