"""Link: a member's end of its session. It sends requests, receives answers and keeps deadlines.

Rules:
* There is one session at a time. Between sessions, and once the writer says that it is leaving, requests are
  queued in their order and sent to the next writer; at their deadline they are settled as not stored.
* A request that was sent and not answered when a session ends is resent first, before the queued ones, where
  that is harmless; otherwise it is settled with an unknown outcome.
* Unanswered requests are bounded by number and bytes; at the bound a request is rejected at once. A request
  leaves by `remove`, exactly once, whatever its outcome.
* One sweep keeps all deadlines, with or without a session.

Link decides and Outstanding stores: the rules above concern both, so they are read together.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import socket
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from gevent import get_hub

from backend.completion import Completion
from backend.file_log.sessions import codec
from backend.file_log.sessions.pipe import (
    IDENT_MAX,
    MAGIC,
    VERSION,
    FrameKind,
    Pipe,
    ProtocolError,
    SessionLimits,
)
from backend.file_log.sessions.requests import AppendFrame, SessionCommit, SessionRequest, WaitRequest
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, CallerError, DrainingError, RemoteError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

log = logging.getLogger(__name__)


class Owner(Protocol):
    """The callbacks of a link's owner; the link makes them all on the hub."""

    def has_membership(self, ident: int) -> bool:
        """Return whether a membership already uses this id."""

    def on_push(self, kind: int, ident: int, body: bytes) -> None:
        """Handle a frame that answers no request. Raises msgspec.MsgspecError if it is malformed."""

    def on_ready(self) -> None:
        """Called when the session is ready: unanswered requests were resent, queued ones follow."""

    def on_caught_up(self) -> None:
        """Called once per session, after `on_ready`, when every resent request has been answered."""

    def on_clock(self, clock_ms: int) -> None:
        """Note the store's clock from an answer; called before that answer's request is settled."""

    def on_session_lost(self, reason: str) -> None:
        """Called after a session has ended; requests with an unknown outcome are already settled."""

    def on_ping(self) -> None:
        """Called every `ping_s`, for slow periodic checks."""


class Link:
    """A member's end of its session. `attach_socket` starts a session on a connected socket."""

    def __init__(self, owner: Owner, clock: Clock, metrics: Registry, limits: SessionLimits) -> None:
        self._owner = owner
        self._clock = clock
        self._metrics = metrics
        self.limits = limits
        self.loop: Any = get_hub().loop
        self._pipe: Pipe | None = None
        self.outstanding = Outstanding(self.loop, clock, metrics, limits, self._caught_up)
        self._ident = 0
        self._last_frame_at = self._pinged_at = clock.monotonic()
        self.is_ready = False
        self.is_writer_leaving = self._has_caught_up = False
        self.rejection: Exception | None = None  # why the writer would not have us
        self._ping_timer = HubTimer(loop=self.loop)
        self._ping_timer.every(limits.ping_s, self.send_ping)

    @property
    def is_attached(self) -> bool:
        """Whether there is a session or one is being opened."""
        return self._pipe is not None

    # --- requests

    def submit_request(self, request: SessionRequest) -> None:
        """Send a request, queue it until there is a session, or reject it (at a bound, or when closed)."""
        if not self.outstanding.admit_request(request):
            return
        if self.is_ready and not self.is_writer_leaving and not self.outstanding.queued:
            self._send(request)
        else:
            self.outstanding.queued[request] = None

    def push(self, kind: FrameKind, ident: int, body: bytes) -> None:
        """Send a frame that gets no answer; nothing happens without a session."""
        if self._pipe is not None and self.is_ready:
            self._pipe.send(kind, ident, body)

    def next_ident(self) -> int:
        """Return an id that no outstanding request or membership uses."""
        while True:
            self._ident = self._ident % IDENT_MAX + 1
            if self._ident not in self.outstanding.sent and not self._owner.has_membership(self._ident):
                return self._ident

    # --- the session

    def attach_socket(self, sock: socket.socket) -> None:
        """Start a session on a connected, non-blocking socket; `on_ready` or `on_session_lost` follows."""
        limits = self.limits
        self.is_writer_leaving = self._has_caught_up = False
        self.rejection = None
        self._last_frame_at = self._clock.monotonic()
        self._pipe = Pipe(
            self.loop, sock, limits.frame_bytes_max, limits.out_bytes_max, self._on_frame, self._on_lost
        )
        name = f"pid {os.getpid()}"
        self._pipe.send(FrameKind.HELLO, 0, codec.encode((MAGIC, VERSION, name)))

    def end_session(self, reason: str, text: str) -> None:
        """End the session; the owner gets `reason`, the log gets `text`."""
        if self._pipe is not None:
            self._pipe.close()
            self._on_lost(reason, text)

    def send_ping(self) -> None:
        """Send a ping, or end the session if the writer has been silent for too long.

        Called every `ping_s`.
        """
        now = self._clock.monotonic()
        stalled = now - self._pinged_at > 2 * self.limits.ping_s
        self._pinged_at = now
        if self._pipe is not None:
            if stalled:
                self._last_frame_at = now
            if now - self._last_frame_at > self.limits.silence_s:
                self.end_session("silent", f"nothing heard from the writer for {self.limits.silence_s} s")
            elif self.is_ready:
                self._pipe.send(FrameKind.PING, 0, b"")
                for wait in self.outstanding.take_cancelled_waits():
                    self._pipe.send(FrameKind.UNWAIT, wait.ident, b"")
        self._owner.on_ping()

    def close(self) -> None:
        """End the session; pending requests fail with DrainingError. May be called twice."""
        if self.outstanding.closed:
            return
        self._ping_timer.stop()
        pipe, self._pipe, self.is_ready = self._pipe, None, False
        if pipe is not None:
            pipe.flush()
            pipe.close()
        self.outstanding.close()

    # --- inside

    def _send(self, request: SessionRequest) -> None:
        assert self._pipe is not None
        try:
            body = request.encode_body(self._clock.monotonic())
            if len(body) > self.limits.frame_bytes_max:
                self._metrics.cell(catalogue.SESSION_REFUSED, "frame").value += 1
                raise BoundReachedError(
                    f"a request of {len(body)} bytes; allowed: {self.limits.frame_bytes_max}"
                )
        except (ValueError, TypeError, OverflowError, BoundReachedError) as error:
            self.outstanding.remove(request)
            self._on_rejected(request, error)
            return
        request.ident = self.next_ident()
        request.is_sent = True
        self.outstanding.sent[request.ident] = request
        self._pipe.send(request.kind, request.ident, body)

    def _on_frame(self, kind: int, ident: int, body: bytes) -> None:
        self._last_frame_at = self._clock.monotonic()
        try:
            if kind == FrameKind.ANSWER:
                self._on_answer(ident, body)
            elif kind == FrameKind.ERROR:
                self._on_error(ident, codec.error_from(codec.decode_error(body)))
            elif kind == FrameKind.GOING:
                self.is_writer_leaving = True
            else:
                self._owner.on_push(kind, ident, body)
                if kind == FrameKind.READY:
                    self._on_ready()
        except (msgspec.MsgspecError, ProtocolError) as error:
            self.end_session("malformed", f"a frame of kind {kind}: {error}")
        except Exception:
            log.exception("taking a frame of kind %d failed", kind)

    def _on_answer(self, ident: int, body: bytes) -> None:
        request = self.outstanding.sent.get(ident)
        if request is None:
            return
        is_open = False
        try:
            is_open = not request.is_done and not request.on_answer(body, self._owner.on_clock)
        except msgspec.MsgspecError:
            request.settle_unknown()
            raise
        finally:
            if not is_open:
                self.outstanding.remove(request)
        if is_open:
            self.outstanding.requeue_rejected(request)

    def _on_error(self, ident: int, error: Exception) -> None:
        request = self.outstanding.sent.get(ident)
        if request is not None and isinstance(error, DrainingError) and not request.is_done:
            self.outstanding.requeue_rejected(request)
        elif request is not None:
            self.outstanding.remove(request)
            self._on_rejected(request, error)
        elif ident == 0:
            self.rejection = error
            self.end_session("refused", str(error))
        elif self._owner.has_membership(ident):
            self._owner.on_push(FrameKind.ERROR, ident, codec.encode(codec.error_row(error)))

    def _on_rejected(self, request: SessionRequest, error: Exception) -> None:
        """Settle a rejected request with `error`.

        Split a frame of several calls if one of them may be invalid.
        """
        may_split = isinstance(error, (CallerError, BoundReachedError, ValueError, TypeError, OverflowError))
        if may_split and isinstance(request, AppendFrame) and len(request.calls) > 1:
            for call_request in request.split_calls():
                self.submit_request(call_request)
        elif not request.is_done:
            request.on_error(error)

    def _on_ready(self) -> None:
        self.is_ready = True
        outstanding = self.outstanding
        outstanding.sort_queued()
        repeated = [request for request in outstanding.queued if request.is_sent and not request.is_done]
        outstanding.resent.update(request for request in repeated if isinstance(request, SessionCommit))
        for request in repeated:
            self._send_queued(request)
        self._owner.on_ready()
        self._caught_up()
        while outstanding.queued and self._pipe is not None:
            for request in list(outstanding.queued):  # one pass: each new one starts at the front
                if self._pipe is not None and request in outstanding.queued:
                    self._send_queued(request)

    def _caught_up(self) -> None:
        if self.is_ready and not self._has_caught_up and not self.outstanding.resent:
            self._has_caught_up = True
            self._owner.on_caught_up()

    def _send_queued(self, request: SessionRequest) -> None:
        if request.is_done:
            self.outstanding.remove(request)
        else:
            del self.outstanding.queued[request]
            self._send(request)

    def _on_lost(self, reason: str, text: str) -> None:
        """Clean up after the pipe was closed: settle or queue requests and notify the owner."""
        self._pipe = None
        was_ready, self.is_ready, self.is_writer_leaving = self.is_ready, False, False
        if was_ready:
            self._metrics.cell(catalogue.SESSION_LOST, reason).value += 1
            log.warning("lost the writer: %s", text)
        self.outstanding.session_lost()
        self._owner.on_session_lost(reason)


SLOT_S = 0.02  # resolution of deadlines


class Outstanding:
    """A member's unsettled requests: `sent` by id, and `queued` in order until there is a session.

    `caught_up` is called when every resent request has been answered.
    """

    def __init__(
        self, loop: Any, clock: Clock, metrics: Registry, limits: SessionLimits, caught_up: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._limits = limits
        self._caught_up = caught_up
        self.queued: dict[SessionRequest, None] = {}
        self._in_order = True
        self.sent: dict[int, SessionRequest] = {}
        self.resent: set[SessionRequest] = set()  # commits sent again in this session, not answered
        self.bytes = 0
        self._request_count = 0
        self.closed = False
        self._wheel: Wheel[SessionRequest] = Wheel(SLOT_S)
        self._idle: list[tuple[float, Completion[None]]] = []
        self._timer = HubTimer(loop=loop)
        self._ticking = False

    def __len__(self) -> int:
        return len(self.sent) + len(self.queued)

    @property
    def free_bytes(self) -> int:
        """The number of request bytes that may still be admitted."""
        return self._limits.in_flight_bytes_max - self.bytes

    def admit_request(self, request: SessionRequest) -> bool:
        """Count a request as outstanding.

        At a bound or once closed, reject it from the hub and return False.
        """
        error = self._why_rejected(request)
        if error is not None:
            self._loop.run_callback(request.on_error, error)
            return False
        self._request_count += 1
        request.number = self._request_count
        self.bytes += request.size
        self._wheel.add(request, request.deadline)
        self._start_timer()
        return True

    def _why_rejected(self, request: SessionRequest) -> Exception | None:
        if self.closed:
            return DrainingError("this process has closed its session; nothing new is taken")
        limits = self._limits
        if request.size <= self.free_bytes and len(self) < limits.requests_max:
            return None
        self._metrics.cell(catalogue.SESSION_REFUSED, "in flight").value += 1
        return BoundReachedError(
            f"{len(self)} requests with {self.bytes} bytes wait for the writer; allowed:"
            f" {limits.requests_max} with {limits.in_flight_bytes_max}"
        )

    def remove(self, request: SessionRequest) -> None:
        """Stop tracking a request that is settled, or that goes to another backend."""
        self._wheel.remove(request)
        if request.is_sent:
            self.sent.pop(request.ident, None)
        self.queued.pop(request, None)
        if request in self.resent:
            self.resent.discard(request)
            if not self.resent:
                self._loop.run_callback(self._caught_up)
        self.bytes -= request.size
        request.size = 0

    def requeue_rejected(self, request: SessionRequest) -> None:
        """Queue a request that a draining writer rejected, to be sent to the next writer in its old order."""
        self.sent.pop(request.ident, None)
        request.ident, request.is_sent = 0, False
        self.queued[request] = None
        self._in_order = False

    def sort_queued(self) -> None:
        """Sort queued requests by the order of their calls, with those that will be resent first."""
        if not self._in_order:
            self._in_order = True
            self.queued = dict.fromkeys(sorted(self.queued, key=lambda one: (not one.is_sent, one.number)))

    def session_lost(self) -> None:
        """Queue the sent requests that may be resent, before all others.

        Settle the rest with an unknown outcome.
        """
        repeated: dict[SessionRequest, None] = {}
        unknown: list[SessionRequest] = []
        for request in self.sent.values():
            if request.can_resend and not request.is_done:
                request.ident = 0
                repeated[request] = None
            else:
                unknown.append(request)
        self.sent.clear()
        self.resent.clear()
        self.queued = {**repeated, **self.queued}
        for request in unknown:
            self._count_unanswered(request)
            self.remove(request)
            request.settle_unknown()

    def take_cancelled_waits(self) -> list[WaitRequest]:
        """Remove and return the waits that were sent to the writer and then cancelled by their callers."""
        requests = self.sent.values()
        waits = [request for request in requests if isinstance(request, WaitRequest) and request.is_done]
        for wait in waits:
            self.remove(wait)
        return waits

    def take_queued(self) -> list[SessionRequest]:
        """Remove and return every queued request, in order."""
        self.sort_queued()
        requests = [request for request in self.queued if not request.is_done]
        for request in list(self.queued):
            self.remove(request)
        return requests

    # --- deadlines and the end

    def when_idle(self, deadline: float, done: Completion[None]) -> None:
        """Settle `done` once no request is outstanding, or fail it at the deadline.

        Fails parked waits at once.
        """
        for request in [*self.sent.values(), *self.queued]:
            if isinstance(request, WaitRequest):
                self.remove(request)
                if not request.is_done:
                    self._loop.run_callback(request.fail, DrainingError("this process is draining"))
        self._idle.append((deadline, done))
        self._start_timer()
        self._loop.run_callback(self._settle_idle)

    def expire_due(self) -> None:
        """Settle the requests past their deadline; runs by itself while any is outstanding."""
        now = self._clock.monotonic()
        for request in self._wheel.take_due(now):
            next_deadline = None if request.is_done else request.settle_expired(now)
            if next_deadline is not None:
                self._wheel.add(request, next_deadline)
                continue
            if request.is_sent:
                self._count_unanswered(request)
            self.remove(request)
        self._settle_idle()
        if not self._wheel and not self._idle and self._ticking:
            self._ticking = False
            self._timer.stop()

    def _start_timer(self) -> None:
        if not self._ticking and not self.closed:
            self._ticking = True
            self._timer.every(SLOT_S, self.expire_due)

    def _settle_idle(self) -> None:
        now = self._clock.monotonic()
        waiting, self._idle = self._idle, []
        for deadline, completion in waiting:
            if not len(self) or self.closed:
                completion.succeed(None)
            elif deadline <= now:
                completion.fail(RemoteError(f"{len(self)} requests were not answered by the deadline"))
            else:
                self._idle.append((deadline, completion))

    def _count_unanswered(self, request: SessionRequest) -> None:
        if isinstance(request, (AppendFrame, SessionCommit)):
            self._metrics.cell(catalogue.SESSION_UNANSWERED, request.kind.name.lower()).value += 1

    def close(self) -> None:
        """Fail every request with DrainingError."""
        self.closed = True
        self._timer.stop()
        pending = [*self.sent.values(), *self.queued]
        self.sent.clear()
        self.queued.clear()
        self.resent.clear()
        self._wheel.clear()
        for request in pending:
            if not request.is_done:
                request.fail(DrainingError("this process closed its session before the answer came"))
        self._settle_idle()


H = TypeVar("H", bound=Hashable)


class Wheel(Generic[H]):
    """Deadlines of many entries, checked in sweeps: no timer and no greenlet per entry. Pure.

    Time is divided into slots of `slot_s` seconds. An entry is in the first slot that starts at or after its
    deadline, so it is returned at most one slot late and never early. Adding and removing cost O(1), except
    for the first entry of a slot.
    """

    def __init__(self, slot_s: float) -> None:
        self.slot_s = slot_s
        self._slots: dict[int, set[H]] = {}
        self._order: list[int] = []  # heap of the slots that exist
        self._where: dict[H, int] = {}

    def __len__(self) -> int:
        return len(self._where)

    def add(self, entry: H, deadline: float) -> None:
        """Add `entry`, due at `deadline` (monotonic seconds), in place of an earlier deadline of it."""
        self.remove(entry)
        slot = math.ceil(min(deadline, 1e15) / self.slot_s)
        members = self._slots.get(slot)
        if members is None:
            members = self._slots[slot] = set()
            heapq.heappush(self._order, slot)
        members.add(entry)
        self._where[entry] = slot

    def remove(self, entry: H) -> None:
        """Remove `entry`; does nothing if it was not added."""
        slot = self._where.pop(entry, None)
        if slot is not None:
            self._slots[slot].discard(entry)

    def take_due(self, now: float) -> list[H]:
        """Remove and return the entries whose slot has started."""
        due: list[H] = []
        last = math.floor(now / self.slot_s)
        while self._order and self._order[0] <= last:
            members = self._slots.pop(heapq.heappop(self._order))
            for entry in members:
                del self._where[entry]
            due.extend(members)
        return due

    def clear(self) -> None:
        """Remove everything that was added."""
        self._slots.clear()
        self._order.clear()
        self._where.clear()
