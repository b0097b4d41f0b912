"""ElectedBackend: one face for the proxies, whether this process is the writer now or a member.

It delegates to the Backend of the moment. When that changes (this process takes over from a writer that
died): what was not sent is asked of the new one, waits are parked again, memberships hear `lost` and
join again, watchers hear what differs. What had been sent and not answered is settled as unknown by the
member before that. The proxies notice none of it but those answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from backend.completion import Completion
from backend.file_log.sessions.member.mirror import Watchers, differences
from backend.file_log.sessions.member.requests import Request
from backend.port import Assignment, Backend, Health, Join, Membership, MembershipListener, Wait
from backend.records import (
    AppendResult,
    Bounds,
    CommitBatch,
    NewRecord,
    ProgressView,
    QueueRef,
    ReadBatch,
    StoredRecord,
    TopicInfo,
)
from ddmq_common.errors import DdmqError

log = logging.getLogger(__name__)


class ElectedMembership:
    """A membership that moves with the face; what was held is lost at the change."""

    def __init__(self, face: ElectedBackend, join: Join, listener: MembershipListener) -> None:
        self._face = face
        self._join = join
        self._listener = listener
        self._held: set[QueueRef] = set()
        self._inner: Membership | None = None
        self._turn = 0
        self.moving = True  # has no place at the present backend yet

    def enter(self, backend: Backend) -> None:
        """Join at `backend`; whatever an earlier one still says is not heard."""
        self._turn += 1
        self.moving = False
        self._inner = backend.join(self._join, _Relay(self, self._turn))

    def move(self) -> None:
        """Everything held is lost."""
        self._turn += 1
        self.moving = True
        self._inner = None
        queues = sorted(self._held)
        self._held.clear()
        self._listener.lost(queues)

    def release(self, queues: Iterable[QueueRef]) -> None:
        given = list(queues)
        self._held.difference_update(given)
        if self._inner is not None:
            self._inner.release(given)

    def leave(self) -> None:
        self._turn += 1
        self._held.clear()
        self._face.left(self)
        if self._inner is not None:
            self._inner.leave()

    def hear(self, turn: int, what: str, queues: Sequence[QueueRef], number: float) -> None:
        """One event of the backend that was entered at `turn`."""
        if turn != self._turn:
            return
        if what == "assigned":
            self._held.update(queues)
            self._listener.assigned(Assignment(tuple(queues), int(number)))
        elif what == "revoked":
            self._listener.revoked(queues, number)
        else:
            self._held.difference_update(queues)
            self._listener.lost(queues)


class _Relay:
    def __init__(self, membership: ElectedMembership, turn: int) -> None:
        self._membership, self._turn = membership, turn

    def assigned(self, assignment: Assignment) -> None:
        self._membership.hear(self._turn, "assigned", assignment.queues, assignment.epoch)

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        self._membership.hear(self._turn, "revoked", queues, deadline)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._membership.hear(self._turn, "lost", queues, 0)


class ElectedBackend(Backend):
    """See the module's text. `current` is the Backend of the moment; `on_close` stops what keeps it."""

    def __init__(self, current: Backend, on_close: Callable[[], None], on_drain: Callable[[], None]) -> None:
        self.current = current
        self._on_close = on_close
        self._on_drain = on_drain
        self._watchers = Watchers()
        self._memberships: dict[ElectedMembership, None] = {}
        self._adopt(current)

    def _adopt(self, backend: Backend) -> None:
        self.current = backend
        self.capabilities = backend.capabilities
        self.cluster, self.broker = backend.cluster, backend.broker
        self._unwatch = backend.watch_settings(self._watchers.tell)

    def switch(self, backend: Backend, leftovers: Sequence[Request]) -> None:
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
            self._watchers.tell(key)

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

    # --- topics and settings

    def topic(self, name: str) -> TopicInfo | None:
        return self.current.topic(name)

    def topics(self) -> Mapping[str, TopicInfo]:
        return self.current.topics()

    def put_topic(
        self, info: TopicInfo, deadline: float, into: Completion[TopicInfo] | None = None
    ) -> Completion[TopicInfo]:
        return self.current.put_topic(info, deadline, into)

    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        return self.current.delete_topic(name, deadline)

    def setting(self, key: str) -> bytes | None:
        return self.current.setting(key)

    def settings(self, prefix: str) -> Mapping[str, bytes]:
        return self.current.settings(prefix)

    def watch_settings(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._watchers.add(listener)

    # --- writing

    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        return self.current.append(records, deadline, into)

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        return self.current.commit(batch, deadline, into)

    # --- reading

    def read(
        self,
        queue: QueueRef,
        offset: int,
        count_max: int,
        bytes_max: int,
        into: Completion[ReadBatch] | None = None,
        tags: frozenset[int] | None = None,
    ) -> Completion[ReadBatch]:
        return self.current.read(queue, offset, count_max, bytes_max, into, tags)

    def wait(self, queue: QueueRef, offset: int, deadline: float, into: Wait | None = None) -> Wait:
        return self.current.wait(queue, offset, deadline, into)

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        return self.current.bounds(queues)

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        return self.current.offset_for_time(queue, wall_ms)

    def find(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        message_id: bytes | None = None,
        count_max: int = 64,
    ) -> Completion[list[StoredRecord]]:
        return self.current.find(topic, key=key, message_id=message_id, count_max=count_max)

    # --- group progress and membership

    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        return self.current.progress(group, queues)

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        membership = ElectedMembership(self, join, listener)
        self._memberships[membership] = None
        try:
            membership.enter(self.current)
        except Exception:
            self.left(membership)
            raise
        return membership

    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        return self.current.holders(group, topic, deadline)

    # --- the engine itself

    def health(self) -> Health:
        return self.current.health()

    def clock_ms(self) -> int:
        return self.current.clock_ms()

    def drain(self, deadline: float) -> Completion[None]:
        self._on_drain()
        return self.current.drain(deadline)

    def close(self) -> None:
        """Also ends the election; the lock is given back last."""
        self._on_close()
        self._memberships.clear()
