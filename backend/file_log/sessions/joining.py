"""Memberships at a member: what it holds, and how it joins again at every new session.

When the session is lost, everything held is lost with it (the writer has released it); joining again
brings new assignments under higher epochs. At a new session progress that was not answered is sent
again and answered before anything is joined: a grant would fence it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from backend.file_log.sessions import codec
from backend.file_log.sessions.pipe import FrameKind
from backend.port import Assignment, Join, MembershipListener
from backend.records import QueueRef

log = logging.getLogger(__name__)
Push = Callable[[FrameKind, int, bytes], None]


class RemoteMembership:
    """One place in a group; lives across sessions until `leave`."""

    def __init__(self, table: MembershipTable, join: Join, listener: MembershipListener) -> None:
        self._table = table
        self.join = join
        self.listener = listener
        self.ident = 0
        self.joined = False
        self.held: set[QueueRef] = set()

    def release(self, queues: Iterable[QueueRef]) -> None:
        """Give up queues that were revoked."""
        given = [queue for queue in queues if queue in self.held]
        self.held.difference_update(given)
        if given and self.joined:
            self._table.push(FrameKind.RELEASE, self.ident, codec.encode(given))

    def leave(self) -> None:
        """Give up everything."""
        self.held.clear()
        self._table.leave(self)


class MembershipTable:
    """All memberships of one member. `push` sends a frame if a session is there."""

    def __init__(self, push: Push, next_ident: Callable[[], int]) -> None:
        self.push = push
        self._next_ident = next_ident
        self._by_ident: dict[int, RemoteMembership] = {}
        self._open = False  # a session stands and has caught up

    def __contains__(self, ident: int) -> bool:
        return ident in self._by_ident

    def join(self, join: Join, listener: MembershipListener) -> RemoteMembership:
        """A new membership; joined at once when a session is there."""
        membership = RemoteMembership(self, join, listener)
        self._enter(membership)
        return membership

    def leave(self, membership: RemoteMembership) -> None:
        if self._by_ident.pop(membership.ident, None) is not None and membership.joined:
            self.push(FrameKind.LEAVE, membership.ident, b"")

    def session_ready(self) -> None:
        """Join again, everything, under new ids."""
        self._open = True
        memberships = list(self._by_ident.values())
        self._by_ident.clear()
        for membership in memberships:
            self._enter(membership)

    def session_lost(self) -> None:
        """Nothing is held any more."""
        self._open = False
        for membership in list(self._by_ident.values()):
            membership.joined = False
            queues = sorted(membership.held)
            membership.held.clear()
            if queues:
                membership.listener.lost(queues)

    def refused(self, ident: int, error: Exception) -> None:
        """The writer does not take this membership now; `retry` asks again."""
        membership = self._by_ident[ident]
        membership.joined = False
        log.warning("joining group %s on %s: %s", membership.join.group, membership.join.topic, error)

    def retry(self) -> None:
        """Ask again where joining was refused."""
        for membership in self._by_ident.values():
            if not membership.joined and self._open:
                self._ask(membership)

    def assigned(self, ident: int, body: bytes) -> None:
        queues, epoch = codec.decode_assigned(body)
        membership = self._by_ident.get(ident)
        if membership is not None:
            membership.held.update(queues)
            membership.listener.assigned(Assignment(tuple(queues), epoch))

    def revoked(self, ident: int, queues: Sequence[QueueRef], deadline: float) -> None:
        membership = self._by_ident.get(ident)
        if membership is not None:
            membership.listener.revoked(queues, deadline)

    def lost(self, ident: int, body: bytes) -> None:
        queues = codec.decode_queues(body)
        membership = self._by_ident.get(ident)
        if membership is not None:
            membership.held.difference_update(queues)
            membership.listener.lost(queues)

    def _enter(self, membership: RemoteMembership) -> None:
        membership.ident = self._next_ident()
        self._by_ident[membership.ident] = membership
        if self._open:
            self._ask(membership)

    def _ask(self, membership: RemoteMembership) -> None:
        membership.joined = True
        body = codec.encode_join(membership.join)
        self.push(FrameKind.JOIN, membership.ident, body)
