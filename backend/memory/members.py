"""Who holds a group's queues of one topic: one member at a time, the others wait in line.

Each grant raises the epoch above everything recorded, in the progress itself, so that a former holder's
commits are refused. A member hears about it later, from the hub, and never after it has left. When the
topic grows, the holder gets the new queues under the epoch that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backend.memory.store import MemoryStore
from backend.port import Assignment, MembershipListener, Sharing
from backend.records import QueueRef
from ddmq_common.errors import BoundReachedError

Later = Callable[..., object]  # runs a function with its arguments from the hub


class MemoryMembership:
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

    def __init__(self, group: str, topic: str, store: MemoryStore, later: Later) -> None:
        self._group = group
        self._topic = topic
        self._store = store
        self._later = later
        self._epoch = 0
        self.held: list[QueueRef] = []
        self.members: list[MemoryMembership] = []
        self.revoke_by: float | None = None  # monotonic seconds

    def join(self, listener: MembershipListener) -> MemoryMembership:
        member = MemoryMembership(self, listener)
        self.members.append(member)
        self.refresh()
        return member

    def leave(self, member: MemoryMembership) -> None:
        if not member.active:
            return
        member.active = False
        held = self.members[0] is member
        self.members.remove(member)
        if held:
            self._vacate()

    def release(self, member: MemoryMembership, queues: set[QueueRef]) -> None:
        if not self.members or self.members[0] is not member or not self.held:
            return
        self.held = [queue for queue in self.held if queue not in queues]
        if not self.held:
            self.members.append(self.members.pop(0))
            self._vacate()

    def revoke(self, deadline: float) -> None:
        """Ask the holder to release by `deadline`."""
        if self.members and self.held:
            self.revoke_by = deadline
            self._tell(self.members[0], "revoked", list(self.held), deadline)

    def depose(self) -> None:
        """Take everything from the holder now; it comes last in line."""
        if self.members and self.held:
            self._tell(self.members[0], "lost", list(self.held))
            self.members.append(self.members.pop(0))
            self._vacate()

    def refresh(self) -> None:
        """Tell the holder what it lost and what came in since, or grant when nobody holds."""
        if not self.members:
            return
        living = self._living()
        gone = [queue for queue in self.held if queue not in living]
        if gone:
            self.held = [queue for queue in self.held if queue in living]
            self._tell(self.members[0], "lost", gone)
        if not self.held:
            self._grant(living)
            return
        if self.revoke_by is None and len(living) > len(self.held):
            self._assign([queue for queue in living if queue not in self.held])

    def _vacate(self) -> None:
        self.held = []
        self.revoke_by = None
        self.refresh()

    def _grant(self, queues: list[QueueRef]) -> None:
        if queues:
            recorded = max(self._store.progress.fence(self._group, queue).epoch for queue in queues)
            self._epoch = max(self._epoch, recorded) + 1
            self._assign(queues)

    def _assign(self, queues: list[QueueRef]) -> None:
        self.held += queues
        for queue in queues:
            self._store.raise_epoch(self._group, queue, self._epoch)
        self._tell(self.members[0], "assigned", Assignment(tuple(queues), self._epoch))

    def _living(self) -> list[QueueRef]:
        topic = self._store.topics.get(self._topic)
        if topic is None:
            return []
        return [QueueRef(self._topic, topic.info.incarnation, index) for index in range(topic.info.queues)]

    def _tell(self, member: MemoryMembership, what: str, *args: object) -> None:
        def tell() -> None:
            if member.active:
                getattr(member.listener, what)(*args)

        self._later(tell)


class MemberTable:
    """Every line, at most `lines_max` of them."""

    def __init__(self, store: MemoryStore, later: Later, lines_max: int) -> None:
        self._store = store
        self._later = later
        self._lines_max = lines_max
        self._lines: dict[tuple[str, str], _Line] = {}

    def join(
        self,
        group: str,
        topic: str,
        listener: MembershipListener,
        sharing: Sharing = Sharing.AVERAGELY,
        queues: frozenset[int] | None = None,
        address: str = "",
        member: str = "",
    ) -> MemoryMembership:
        """Raises BoundReachedError when there are too many groups."""
        line = self._lines.get((group, topic))
        if line is None:
            if len(self._lines) >= self._lines_max:
                raise BoundReachedError(f"{self._lines_max} groups have joined topics; that is the bound")
            line = self._lines[group, topic] = _Line(group, topic, self._store, self._later)
        membership = line.join(listener)
        membership.address = address
        return membership

    def holders(self, group: str, topic: str) -> dict[QueueRef, str]:
        """Who holds what, by address."""
        line = self._lines.get((group, topic))
        return {} if line is None or not line.members else dict.fromkeys(line.held, line.members[0].address)

    def line(self, group: str, topic: str) -> _Line | None:
        """The line of one group on one topic."""
        return self._lines.get((group, topic))

    def topic_changed(self, name: str) -> None:
        """A topic was created, deleted or has grown."""
        for (_, topic), line in self._lines.items():
            if topic == name:
                line.refresh()

    def sweep(self, now: float) -> bool:
        """Depose holders past their deadline; True while someone is still being waited for."""
        waiting = False
        for line in self._lines.values():
            if line.revoke_by is not None and line.revoke_by <= now:
                line.depose()
            waiting = waiting or line.revoke_by is not None
        return waiting

    def close(self) -> None:
        """Nobody hears anything any more."""
        for line in self._lines.values():
            for member in line.members:
                member.active = False
        self._lines.clear()
