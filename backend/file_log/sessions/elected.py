"""ElectedBackend: one face for the proxies, whether this process is the writer now or a member.

Its methods are those of the Backend of the moment. When that changes (this process takes over from a writer
that died): what was not sent is asked of the new one, waits are asked for again, memberships hear `lost` and
join again, watchers hear what differs. What had been sent and not answered is settled as unknown by the
member before that. The proxies notice none of it but those answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from backend.completion import Completion
from backend.engine import Watchers, at_once
from backend.file_log.sessions.mirror import differences
from backend.file_log.sessions.requests import SessionRequest
from backend.port import Assignment, Backend, Join, Membership, MembershipListener
from backend.records import QueueRef
from ddmq_common.errors import DdmqError

log = logging.getLogger(__name__)


class ElectedMembership:
    """A membership that moves with the face; what was held is lost at the change."""

    def __init__(self, face: ElectedBackend, join: Join, listener: MembershipListener) -> None:
        self._face = face
        self._join = join
        self.listener = listener
        self.held: set[QueueRef] = set()
        self._inner: Membership | None = None
        self.moves = 0
        self.moving = True  # has no place at the present backend yet

    def enter(self, backend: Backend) -> None:
        """Join at `backend`; whatever an earlier one still says is not heard."""
        self.moves += 1
        self.moving = False
        self._inner = backend.join(self._join, _Relay(self))

    def move(self) -> None:
        """Everything held is lost."""
        self.moves += 1
        self.moving = True
        self._inner = None
        queues = sorted(self.held)
        self.held.clear()
        self.listener.lost(queues)

    def release(self, queues: Iterable[QueueRef]) -> None:
        given = list(queues)
        self.held.difference_update(given)
        if self._inner is not None:
            self._inner.release(given)

    def leave(self) -> None:
        self.moves += 1
        self.held.clear()
        self._face.left(self)
        if self._inner is not None:
            self._inner.leave()


class _Relay:
    """What one backend tells a membership; nothing more once that has moved on."""

    def __init__(self, membership: ElectedMembership) -> None:
        self._membership, self._move = membership, membership.moves

    def _is_over(self) -> bool:
        return self._move != self._membership.moves

    def assigned(self, assignment: Assignment) -> None:
        if not self._is_over():
            self._membership.held.update(assignment.queues)
            self._membership.listener.assigned(assignment)

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        if not self._is_over():
            self._membership.listener.revoked(queues, deadline)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        if not self._is_over():
            self._membership.held.difference_update(queues)
            self._membership.listener.lost(queues)


# What `_adopt` sets anew: a call to the face is a call to the Backend of the moment, with nothing between
# (`read` and `find` are the port's own, and call `start_read` and `start_find`).
BOUND = (
    "topic", "topics", "put_topic", "delete_topic", "setting", "settings", "append", "commit", "start_read",
    "wait", "bounds", "offset_for_time", "start_find", "progress", "holders", "health", "clock_ms",
)  # fmt: skip
_bound: Any = None


class ElectedBackend(Backend):
    """The face. `current` is the Backend of the moment; `on_close` stops what keeps it.

    Whoever keeps one of its methods keeps that of the Backend it had then: keep the face.
    """

    topic = topics = put_topic = delete_topic = setting = settings = append = commit = start_read = _bound
    wait = bounds = offset_for_time = start_find = progress = holders = health = clock_ms = _bound

    def __init__(self, current: Backend, on_close: Callable[[], None], on_drain: Callable[[], None]) -> None:
        self.current = current
        self._on_close = on_close
        self._on_drain = on_drain
        self._watchers = Watchers(at_once)
        self._memberships: dict[ElectedMembership, None] = {}
        self._adopt(current)

    def _adopt(self, backend: Backend) -> None:
        self.current = backend
        self.capabilities = backend.capabilities
        self.cluster, self.broker = backend.cluster, backend.broker
        for name in BOUND:
            setattr(self, name, getattr(backend, name))
        self._unwatch = backend.watch_settings(self._watchers.changed)

    def switch(self, backend: Backend, leftovers: Sequence[SessionRequest]) -> None:
        """From now on `backend` is asked; also for `leftovers`, which the old one did not send."""
        old = self.current
        changed = differences(old.topics(), backend.topics(), old.settings(""), backend.settings(""))
        for membership in self._memberships:
            membership.move()
        self._unwatch()
        self._adopt(backend)
        commits = [request.reissue(backend) for request in leftovers if not request.done]
        self._join_after([commit for commit in commits if commit is not None])
        for key in changed:
            self._watchers.changed(key)

    def _join_after(self, commits: Sequence[Completion[Any]]) -> None:
        """Join again once progress under the old epochs is in: a grant would fence it."""
        waiting = len(commits)

        def answered(_: object) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                self._join_all()

        for commit in commits:
            commit.then(answered)
        if not commits:
            self._join_all()

    def _join_all(self) -> None:
        for membership in list(self._memberships):
            if membership.moving:
                self._enter(membership)

    def _enter(self, membership: ElectedMembership) -> None:
        try:
            membership.enter(self.current)
        except DdmqError as error:
            log.error("a membership could not be carried over to the new writer: %s", error)

    def left(self, membership: ElectedMembership) -> None:
        """That membership is over."""
        self._memberships.pop(membership, None)

    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        return self._watchers.watch(listener, prefixes)

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        membership = ElectedMembership(self, join, listener)
        self._memberships[membership] = None
        try:
            membership.enter(self.current)
        except Exception:
            self.left(membership)
            raise
        return membership

    def drain(self, deadline: float) -> Completion[None]:
        self._on_drain()
        return self.current.drain(deadline)

    def close(self) -> None:
        """Also ends the election; the lock is given back last."""
        self._on_close()
        self._memberships.clear()
