"""MemberBackend: the backend port in a process that is not the writer, and its memberships.

Rules:
* Appends, commits, progress and memberships go through a session with the writer; many small appends of one
  iteration of the hub leave as one request. Topics and settings are answered from a mirror.
* When the session ends, appends without an answer are settled UNKNOWN (proxies answer 12); commits that only
  finish offsets, reads and waits are sent to the next writer; memberships are notified by `lost` (the writer
  has released their queues) and are assigned queues again, under higher epochs.
* At a new session, progress that was not answered is resent and answered before any membership joins: an
  assignment would fence it.
* Without a session requests are queued until there is one, or until their deadline.
* Its owner keeps it attached (election.py): it makes no connection by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from backend.completion import Completion
from backend.engine import StoreClock, TopicAnswer, check_topic
from backend.file_log.sessions import codec
from backend.file_log.sessions.link import Link
from backend.file_log.sessions.mirror import Mirror
from backend.file_log.sessions.pipe import FrameKind, SessionLimits, deadline_of
from backend.file_log.sessions.reads import MakeReads, Reads
from backend.file_log.sessions.requests import (
    AppendCall,
    AppendFrame,
    PlainRequest,
    SessionCommit,
    SessionRequest,
    append_bytes,
)
from backend.port import (
    Assignment,
    Backend,
    FindCall,
    Health,
    Join,
    Membership,
    MembershipListener,
    ReadCall,
    Wait,
)
from backend.progress.group_progress import check_delta
from backend.records import (
    AppendResult,
    Bounds,
    Capabilities,
    CommitBatch,
    NewRecord,
    ProgressView,
    QueueRef,
    ReadBatch,
    StoredRecord,
    TopicInfo,
)
from ddmq_common.clock import Clock
from ddmq_common.errors import DrainingError
from ddmq_common.metrics.registry import Registry

log = logging.getLogger(__name__)
Push = Callable[[FrameKind, int, bytes], None]
CHANGES = (FrameKind.PUT_TOPIC, FrameKind.DELETE_TOPIC)  # rejected while draining, as writes are


def _ignore() -> None:
    pass


class MemberBackend(Backend):
    """The backend of a process that is not the writer: it sends calls to the writer over a session.

    `on_ready` is called when a session is ready, `on_lost` when a session has ended and the member is still
    open.
    """

    def __init__(
        self,
        clock: Clock,
        metrics: Registry,
        limits: SessionLimits | None = None,
        reads: MakeReads | None = None,
        on_ready: Callable[[], object] = _ignore,
        on_lost: Callable[[], object] = _ignore,
    ) -> None:
        self.clock = clock
        self.limits = limits or SessionLimits()
        self._on_ready = on_ready
        self._on_lost = on_lost
        self.link = Link(self, clock, metrics, self.limits)
        self.mirror = Mirror()
        self._memberships = RemoteMemberships(self.link.push, self.link.next_ident)
        self._reads = (reads or Reads)(self.link, clock, self.mirror)
        self._batch: list[AppendCall] = []
        self._batch_bytes = self._batch_bytes_max = 0
        self._batch_durability: int | None = None
        self._health = Health(False, "no session with the writer yet")
        self._store_clock = StoreClock(clock, 0)
        self._draining = self._closed = False

    # --- topics and settings

    def topic(self, name: str) -> TopicInfo | None:
        return self.mirror.topics.get(name)

    def topics(self) -> Mapping[str, TopicInfo]:
        return dict(self.mirror.topics)

    def put_topic(
        self, info: TopicInfo, deadline: float, into: TopicAnswer | None = None, topics_max: int | None = None
    ) -> TopicAnswer:
        check_topic(info, self.capabilities)
        return self._make_request(FrameKind.PUT_TOPIC, (info, topics_max), deadline, into)

    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        return self._make_request(FrameKind.DELETE_TOPIC, name, deadline)

    def setting(self, key: str) -> bytes | None:
        return self.mirror.settings.get(key)

    def settings(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self.mirror.settings.items() if key.startswith(prefix)}

    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        return self.mirror.watchers.watch(listener, prefixes)

    # --- writing

    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        completion: Completion[list[AppendResult]] = Completion() if into is None else into
        size = append_bytes(records)
        durability = self._durability_of(records)
        batch = self._batch
        is_full = self._batch_bytes + size > self._batch_bytes_max
        if batch and (durability != self._batch_durability or is_full):
            self._flush_batch()
        if not self._batch:
            self._batch_durability = durability
            self._batch_bytes_max = min(self.limits.batch_bytes, self.link.outstanding.free_bytes)
            self.link.loop.run_callback(self._flush_batch)
        self._batch.append(AppendCall(records, deadline, completion))
        self._batch_bytes += size
        return completion

    def _durability_of(self, records: Sequence[NewRecord]) -> int:
        """Return the durability setting of the topic of the records; -1 if the topic is unknown.

        Calls that need an fsync share no frame with others.
        """
        info = self.mirror.topics.get(records[0].topic) if records else None
        return -1 if info is None else info.durability

    def _flush_batch(self) -> None:
        if self._batch:
            calls, size = self._batch, self._batch_bytes
            self._batch, self._batch_bytes = [], 0
            self._submit_change(AppendFrame(calls, size))

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        for delta in batch.progress:
            check_delta(delta)
        completion: Completion[list[AppendResult]] = Completion() if into is None else into
        self._flush_batch()
        self._submit_change(SessionCommit(batch, deadline, completion))
        return completion

    # --- reading

    def start_read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        self._reads.read(call, completion)

    def wait(self, queue: QueueRef, offset: int, deadline: float, into: Wait | None = None) -> Wait:
        wait = Wait() if into is None else into
        if self._draining:
            self.link.loop.run_callback(wait.fail, DrainingError("this process is draining"))
        else:
            self._reads.wait(queue, offset, deadline, wait)
        return wait

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        return self._make_request(FrameKind.BOUNDS, list(queues))

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        return self._make_request(FrameKind.OFFSET_FOR_TIME, (queue, wall_ms))

    def start_find(self, call: FindCall) -> Completion[list[StoredRecord]]:
        return self._make_request(FrameKind.FIND, call)

    # --- group progress and membership

    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        return self._make_request(FrameKind.PROGRESS, (group, list(queues)))

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        if self._draining:
            raise DrainingError("this process is draining; it joins no group any more")
        return self._memberships.join(join, listener)

    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        return self._make_request(FrameKind.HOLDERS, (group, topic), deadline)

    # --- the engine itself

    def health(self) -> Health:
        if self._draining:
            return Health(False, "draining")
        return self._health

    def clock_ms(self) -> int:
        return self._store_clock.now_ms()

    def drain(self, deadline: float) -> Completion[None]:
        self._flush_batch()
        self._draining = True
        completion: Completion[None] = Completion()
        self.link.outstanding.when_idle(deadline, completion)
        return completion

    def close(self) -> None:
        self._flush_batch()
        self._draining = self._closed = True
        self._reads.close()
        self.link.close()

    def take_unsent(self) -> list[SessionRequest]:
        """Remove and return all unsent requests, in order, for the backend that replaces this one."""
        self._flush_batch()
        return self.link.outstanding.take_queued()

    # --- calls of the link (link.Owner)

    def has_membership(self, ident: int) -> bool:
        return ident in self._memberships

    def on_push(self, kind: int, ident: int, body: bytes) -> None:
        if kind in (FrameKind.READY, FrameKind.PONG):
            self._on_pong(kind, body)
        elif kind == FrameKind.WELCOME:
            self._on_welcome(body)
        elif kind == FrameKind.TOPICS:
            rows, deleted = codec.decode_topics(body)
            self.mirror.take_topics([TopicInfo(*row) for row in rows], deleted)
        elif kind == FrameKind.SETTINGS:
            self.mirror.take_settings(codec.decode_settings(body))
        elif kind == FrameKind.ASSIGNED:
            self._memberships.on_assigned(ident, body)
        elif kind == FrameKind.REVOKED:
            queues, remaining_ms = codec.decode_revoked(body)
            self._memberships.on_revoked(ident, queues, deadline_of(remaining_ms, self.clock.monotonic()))
        elif kind == FrameKind.LOST:
            self._memberships.on_lost(ident, body)
        elif kind == FrameKind.ERROR:
            self._memberships.on_rejected(ident, codec.error_from(codec.decode_error(body)))

    def on_ready(self) -> None:
        self._reads.on_ready()
        self._on_ready()

    def on_caught_up(self) -> None:
        self._memberships.on_session_ready()

    def on_clock(self, clock_ms: int) -> None:
        self._store_clock.advance_to(clock_ms)

    def on_session_lost(self, reason: str) -> None:
        self._health = Health(False, f"no session with the writer ({reason})")
        self._memberships.on_session_lost()
        if not self._closed:
            self._on_lost()

    def on_ping(self) -> None:
        self._reads.on_ping()
        if self.link.is_ready:
            self._memberships.retry()

    # --- inside

    def _on_welcome(self, body: bytes) -> None:
        _version, _silence_ms, _frame_max, capabilities, self.cluster, self.broker = codec.decode_welcome(
            body
        )
        self.capabilities: Capabilities = Capabilities(*capabilities)
        self.mirror.begin_snapshot()

    def _on_pong(self, kind: int, body: bytes) -> None:
        clock_ms, ready, reason = codec.decode_pong(body)
        self._store_clock.advance_to(clock_ms)
        self._health = Health(ready, reason)
        if kind == FrameKind.READY:
            self.mirror.finish_snapshot()

    def _make_request(
        self,
        kind: FrameKind,
        arguments: Any,
        deadline: float | None = None,
        into: Completion[Any] | None = None,
    ) -> Completion[Any]:
        """Create and submit a request of a kind in REQUEST_KINDS; return its completion."""
        completion: Completion[Any] = Completion() if into is None else into
        now = self.clock.monotonic()
        if deadline is None:
            deadline = now + self.limits.request_timeout_s
        request = PlainRequest(kind, arguments, completion, deadline, now)
        if kind in CHANGES:
            self._submit_change(request)
        else:
            self.link.submit_request(request)
        return completion

    def _submit_change(self, request: SessionRequest) -> None:
        """Submit a request that changes data; it is rejected while draining."""
        if self._draining:
            error = DrainingError("this process is draining; it takes nothing new")
            self.link.loop.run_callback(request.on_error, error)
        else:
            self.link.submit_request(request)


class RemoteMembership:
    """One member of a group, through the session; it survives changes of the session until `leave`."""

    def __init__(self, memberships: RemoteMemberships, join: Join, listener: MembershipListener) -> None:
        self._memberships = memberships
        self.join = join
        self.listener = listener
        self.ident = 0
        self.is_joined = False
        self.owned: set[QueueRef] = set()

    def release(self, queues: Iterable[QueueRef]) -> None:
        """Release queues that were revoked."""
        released = [queue for queue in queues if queue in self.owned]
        self.owned.difference_update(released)
        if released and self.is_joined:
            self._memberships.push(FrameKind.RELEASE, self.ident, codec.encode(released))

    def leave(self) -> None:
        """Leave the group and release every queue."""
        self.owned.clear()
        self._memberships.leave(self)


class RemoteMemberships:
    """All memberships of this process. `push` sends a frame if there is a session."""

    def __init__(self, push: Push, next_ident: Callable[[], int]) -> None:
        self.push = push
        self._next_ident = next_ident
        self._by_ident: dict[int, RemoteMembership] = {}
        self._is_open = False  # there is a session, and it has caught up

    def __contains__(self, ident: int) -> bool:
        return ident in self._by_ident

    def join(self, join: Join, listener: MembershipListener) -> RemoteMembership:
        """Create a membership; it joins at the writer as soon as there is a session."""
        membership = RemoteMembership(self, join, listener)
        self._add(membership)
        return membership

    def leave(self, membership: RemoteMembership) -> None:
        """Remove a membership here and at the writer."""
        if self._by_ident.pop(membership.ident, None) is not None and membership.is_joined:
            self.push(FrameKind.LEAVE, membership.ident, b"")

    def on_session_ready(self) -> None:
        """Join again with every membership, under new ids."""
        self._is_open = True
        memberships = list(self._by_ident.values())
        self._by_ident.clear()
        for membership in memberships:
            self._add(membership)

    def on_session_lost(self) -> None:
        """Report all queues of all memberships as lost."""
        self._is_open = False
        for membership in list(self._by_ident.values()):
            membership.is_joined = False
            queues = sorted(membership.owned)
            membership.owned.clear()
            if queues:
                membership.listener.lost(queues)

    def on_rejected(self, ident: int, error: Exception) -> None:
        """Mark a membership as rejected by the writer; `retry` joins again."""
        membership = self._by_ident[ident]
        membership.is_joined = False
        log.warning("joining group %s on %s: %s", membership.join.group, membership.join.topic, error)

    def retry(self) -> None:
        """Join again with the memberships that the writer rejected."""
        for membership in self._by_ident.values():
            if not membership.is_joined and self._is_open:
                self._send_join(membership)

    def on_assigned(self, ident: int, body: bytes) -> None:
        """Pass an assignment on to its membership."""
        queues, epoch = codec.decode_assigned(body)
        membership = self._by_ident.get(ident)
        if membership is not None:
            membership.owned.update(queues)
            membership.listener.assigned(Assignment(tuple(queues), epoch))

    def on_revoked(self, ident: int, queues: Sequence[QueueRef], deadline: float) -> None:
        """Pass a revocation on to its membership."""
        membership = self._by_ident.get(ident)
        if membership is not None:
            membership.listener.revoked(queues, deadline)

    def on_lost(self, ident: int, body: bytes) -> None:
        """Pass a loss on to its membership."""
        queues = codec.decode_queues(body)
        membership = self._by_ident.get(ident)
        if membership is not None:
            membership.owned.difference_update(queues)
            membership.listener.lost(queues)

    def _add(self, membership: RemoteMembership) -> None:
        membership.ident = self._next_ident()
        self._by_ident[membership.ident] = membership
        if self._is_open:
            self._send_join(membership)

    def _send_join(self, membership: RemoteMembership) -> None:
        membership.is_joined = True
        body = codec.encode_join(membership.join)
        self.push(FrameKind.JOIN, membership.ident, body)
