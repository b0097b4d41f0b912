"""MemberBackend: the backend port in a process that is not the writer.

Rules:
* Appends, commits, progress and memberships go through a session with the writer; many small appends of
  one hub turn leave as one request. Topics and settings are answered from a mirror.
* When the session ends: appends without an answer are settled UNKNOWN (proxies answer 12); commits that
  only finish offsets, reads and waits are sent to the next writer; memberships hear `lost` and are
  assigned anew, under higher epochs.
* Without a session requests are held until there is one, or until their deadline.
* Whoever owns this keeps it attached (election.py): it makes no connection by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.completion import Completion
from backend.engine import StoreClock, TopicAnswer, check_topic
from backend.file_log.sessions import codec
from backend.file_log.sessions.joining import MembershipTable
from backend.file_log.sessions.link import Link
from backend.file_log.sessions.mirror import Mirror
from backend.file_log.sessions.pipe import FrameKind, SessionLimits, deadline_of, timeout_ms
from backend.file_log.sessions.reads import MakeReads, Reads
from backend.file_log.sessions.requests import (
    AppendCall,
    AppendFrame,
    PlainRequest,
    SessionCommit,
    SessionRequest,
    append_bytes,
)
from backend.port import Backend, FindCall, Health, Join, Membership, MembershipListener, ReadCall, Wait
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


class MemberBackend(Backend):
    """A member's engine. `on_lost` is called when a session is over (and the member still open)."""

    def __init__(
        self,
        clock: Clock,
        metrics: Registry,
        limits: SessionLimits | None = None,
        reads: MakeReads | None = None,
    ) -> None:
        self.clock = clock
        self.limits = limits or SessionLimits()
        self.link = Link(self, clock, metrics, self.limits)
        self.mirror = Mirror()
        self._memberships = MembershipTable(self.link.push, self.link.next_ident)
        self.link.taken = self._memberships.__contains__
        self._reads = (reads or Reads)(self.link, clock, self.mirror)
        self._batch: list[AppendCall] = []
        self._batch_bytes = self._batch_room = 0
        self._batch_class: int | None = None
        self._health = Health(False, "no session with the writer yet")
        self._store_clock = StoreClock(clock, 0)
        self._draining = False
        self.on_ready_hook: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None

    # --- topics and settings

    def topic(self, name: str) -> TopicInfo | None:
        return self.mirror.topics.get(name)

    def topics(self) -> Mapping[str, TopicInfo]:
        return dict(self.mirror.topics)

    def put_topic(
        self, info: TopicInfo, deadline: float, into: TopicAnswer | None = None, topics_max: int | None = None
    ) -> TopicAnswer:
        check_topic(info, self.capabilities)
        return self._ask(
            FrameKind.PUT_TOPIC,
            (timeout_ms(deadline, self.clock.monotonic()), codec.topic_row(info), topics_max),
            lambda body: TopicInfo(*codec.decode_topic(body)),
            into,
            lambda backend: backend.put_topic(info, deadline, None, topics_max),
            deadline,
        )

    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        return self._ask(
            FrameKind.DELETE_TOPIC,
            (timeout_ms(deadline, self.clock.monotonic()), name),
            lambda body: None,
            None,
            lambda backend: backend.delete_topic(name, deadline),
            deadline,
            resend=False,
        )

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
        waits_for = self._durability(records)
        batch = self._batch
        if batch and (waits_for != self._batch_class or self._batch_bytes + size > self._batch_room):
            self._flush_batch()
        if not self._batch:
            self._batch_class = waits_for
            self._batch_room = min(self.limits.batch_bytes, self.link.outstanding.room)
            self.link.loop.run_callback(self._flush_batch)
        self._batch.append(AppendCall(records, deadline, completion))
        self._batch_bytes += size
        return completion

    def _durability(self, records: Sequence[NewRecord]) -> int:
        """Calls that wait for an fsync do not share a frame with calls that do not."""
        info = self.mirror.topics.get(records[0].topic) if records else None
        return -1 if info is None else info.durability

    def _flush_batch(self) -> None:
        if self._batch:
            calls, size = self._batch, self._batch_bytes
            self._batch, self._batch_bytes = [], 0
            self._submit(AppendFrame(calls, size))

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        for delta in batch.progress:
            check_delta(delta)
        completion: Completion[list[AppendResult]] = Completion() if into is None else into
        self._flush_batch()
        self._submit(SessionCommit(batch, deadline, completion))
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
        return self._ask(
            FrameKind.BOUNDS, list(queues), codec.decode_bounds, None, lambda backend: backend.bounds(queues)
        )

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        return self._ask(
            FrameKind.OFFSET_FOR_TIME,
            (queue, wall_ms),
            codec.decode_number,
            None,
            lambda backend: backend.offset_for_time(queue, wall_ms),
        )

    def start_find(self, call: FindCall) -> Completion[list[StoredRecord]]:
        return self._ask(
            FrameKind.FIND, call, codec.decode_stored, None, lambda backend: backend.start_find(call)
        )

    # --- group progress and membership

    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        return self._ask(
            FrameKind.PROGRESS,
            (group, list(queues)),
            codec.decode_views,
            None,
            lambda backend: backend.progress(group, queues),
        )

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        if self._draining:
            raise DrainingError("this process is draining; it joins no group any more")
        return self._memberships.join(join, listener)

    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        return self._ask(
            FrameKind.HOLDERS,
            (group, topic),
            codec.decode_holders,
            None,
            lambda backend: backend.holders(group, topic, deadline),
            deadline,
        )

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
        done: Completion[None] = Completion()
        self.link.outstanding.when_idle(deadline, done)
        return done

    def close(self) -> None:
        self._flush_batch()
        self._draining = True
        self.on_lost = lambda: None
        self._reads.close()
        self.link.close()

    def surrender(self) -> list[SessionRequest]:
        """Everything that was not sent, taken out in order, for the Backend that is asked from now on."""
        self._flush_batch()
        return self.link.outstanding.surrender()

    # --- what the link tells (link.Owner)

    def on_push(self, kind: int, ident: int, body: bytes) -> None:
        if kind in (FrameKind.READY, FrameKind.PONG):
            self._on_pong(kind, body)
        elif kind == FrameKind.WELCOME:
            self._on_welcome(body)
        elif kind == FrameKind.TOPICS:
            rows, gone = codec.decode_topics(body)
            self.mirror.take_topics([TopicInfo(*row) for row in rows], gone)
        elif kind == FrameKind.SETTINGS:
            self.mirror.take_settings(codec.decode_settings(body))
        elif kind == FrameKind.ASSIGNED:
            self._memberships.assigned(ident, body)
        elif kind == FrameKind.REVOKED:
            queues, left_ms = codec.decode_revoked(body)
            self._memberships.revoked(ident, queues, deadline_of(left_ms, self.clock.monotonic()))
        elif kind == FrameKind.LOST:
            self._memberships.lost(ident, body)
        elif kind == FrameKind.FAULT:
            self._memberships.refused(ident, codec.error_from(codec.decode_fault(body)))

    def on_ready(self) -> None:
        self._reads.on_ready()
        self.on_ready_hook()

    def on_caught_up(self) -> None:
        self._memberships.session_ready()

    def on_clock(self, clock_ms: int) -> None:
        self._store_clock.told(clock_ms)

    def on_session_lost(self, reason: str) -> None:
        self._health = Health(False, f"no session with the writer ({reason})")
        self._memberships.session_lost()
        self.on_lost()

    def on_ping(self) -> None:
        self._reads.on_ping()
        if self.link.ready:
            self._memberships.retry()

    # --- inside

    def _on_welcome(self, body: bytes) -> None:
        _version, _silence_ms, _frame_max, capabilities, self.cluster, self.broker = codec.decode_welcome(
            body
        )
        self.capabilities: Capabilities = Capabilities(*capabilities)
        self.mirror.begin()

    def _on_pong(self, kind: int, body: bytes) -> None:
        clock_ms, ready, reason = codec.decode_pong(body)
        self._store_clock.told(clock_ms)
        self._health = Health(ready, reason)
        if kind == FrameKind.READY:
            self.mirror.finish()

    def _ask(
        self,
        kind: FrameKind,
        body: Any,
        decode: Callable[[bytes], Any],
        into: Completion[Any] | None,
        again: Callable[[Backend], Completion[Any]],
        deadline: float | None = None,
        resend: bool = True,
    ) -> Completion[Any]:
        completion: Completion[Any] = Completion() if into is None else into
        if deadline is None:
            deadline = self.clock.monotonic() + self.limits.request_timeout_s
        request = PlainRequest(kind, body, decode, completion, again, deadline, resend)
        if kind in (FrameKind.PUT_TOPIC, FrameKind.DELETE_TOPIC):
            self._submit(request)
        else:
            self.link.submit(request)
        return completion

    def _submit(self, request: SessionRequest) -> None:
        """For what changes something: refused while draining."""
        if self._draining:
            error = DrainingError("this process is draining; it takes nothing new")
            self.link.loop.run_callback(request.faulted, error)
        else:
            self.link.submit(request)
