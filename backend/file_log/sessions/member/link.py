"""A member's end of its session: requests out, answers in, deadlines kept, whoever the writer is.

Rules:
* One session at a time. Between sessions, and once the writer says that it is going, requests are held
  in their order and sent to the next writer; at their deadline they are settled as not stored.
* What was sent and not answered when a session ends is sent again first, before what was held, where
  that is harmless; the rest is settled as unknown.
* Everything outstanding is bounded by number and bytes; at the bound a request is refused at once.
* Deadlines are kept by one sweep, sessions or not.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from gevent import get_hub

from backend.completion import Completion
from backend.file_log.sessions.member.requests import AppendFrame, CommitRequest, Request, WaitRequest
from backend.file_log.sessions.member.wheel import Wheel
from backend.file_log.sessions.wire import codec
from backend.file_log.sessions.wire.pipe import Pipe
from backend.file_log.sessions.wire.protocol import (
    IDENT_MAX,
    MAGIC,
    VERSION,
    Kind,
    ProtocolError,
    SessionLimits,
)
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, CallerError, DrainingError, RemoteError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

log = logging.getLogger(__name__)
SLOT_S = 0.02  # resolution of deadlines


class Owner(Protocol):
    """Who the link tells what comes in; all on the hub."""

    def on_push(self, kind: int, ident: int, body: bytes) -> None:
        """A frame that answers no request. Raises msgspec.MsgspecError when it is malformed."""

    def on_ready(self) -> None:
        """The session stands; unanswered requests have been sent again, held ones follow after this."""

    def on_caught_up(self) -> None:
        """What was sent again has been answered, if anything; once per session, after `on_ready`."""

    def on_clock(self, clock_ms: int) -> None:
        """An answer tells the store's clock; before it is settled."""

    def on_session_lost(self, reason: str) -> None:
        """The session is over; unknown requests are settled already."""

    def on_ping(self) -> None:
        """A good moment for slow checks; every `ping_s`."""


class Link:
    """See the module's text. `attach` starts a session on a connected socket."""

    def __init__(self, owner: Owner, clock: Clock, metrics: Registry, limits: SessionLimits) -> None:
        self._owner = owner
        self._clock = clock
        self._metrics = metrics
        self.limits = limits
        self.loop: Any = get_hub().loop
        self._pipe: Pipe | None = None
        self._held: dict[Request, None] = {}  # in order
        self._sent: dict[int, Request] = {}
        self._catching_up: set[Request] = set()  # commits sent again in this session, not answered
        self._wheel: Wheel[Request] = Wheel(SLOT_S)
        self._bytes = 0
        self._ident = 0
        self._heard = self._pinged = clock.monotonic()
        self.ready = False
        self.going = False
        self.closed = False
        self.refusal: Exception | None = None  # why the writer would not have us
        self._idle: list[tuple[float, Completion[None]]] = []
        self.taken: Callable[[int], bool] = lambda ident: False  # ids in use elsewhere
        self._tick_timer = self.loop.timer(SLOT_S, SLOT_S)
        self._ping_timer = self.loop.timer(limits.ping_s, limits.ping_s)
        self._ping_timer.start(self.ping)
        self._ticking = False

    @property
    def outstanding(self) -> int:
        """Requests sent or held."""
        return len(self._sent) + len(self._held)

    @property
    def room(self) -> int:
        """Bytes that may still be submitted."""
        return self.limits.in_flight_bytes_max - self._bytes

    @property
    def attached(self) -> bool:
        """A session stands or is being set up."""
        return self._pipe is not None

    # --- requests

    def submit(self, request: Request) -> None:
        """Send it, hold it, or refuse it at once (a bound, or closed)."""
        if self.closed:
            error = DrainingError("this process has closed its session; nothing new is taken")
            self.loop.run_callback(request.faulted, error)
            return
        if not self._has_room(request):
            return
        self._bytes += request.size
        self._wheel.add(request, request.deadline)
        self._start_ticking()
        if self.ready and not self.going and not self._held:
            self._send(request)
        else:
            self._held[request] = None

    def push(self, kind: Kind, ident: int, body: bytes) -> None:
        """Send a frame that gets no answer; nothing happens without a session."""
        if self._pipe is not None and self.ready:
            self._pipe.send(kind, ident, body)

    def next_ident(self) -> int:
        """An id that nothing outstanding uses."""
        while True:
            self._ident = self._ident % IDENT_MAX + 1
            if self._ident not in self._sent and not self.taken(self._ident):
                return self._ident

    def when_idle(self, deadline: float, done: Completion[None]) -> None:
        """Settle `done` once nothing but waits is outstanding, or fail it at the deadline."""
        for request in [*self._sent.values(), *self._held]:
            if isinstance(request, WaitRequest):
                self._forget(request)
                if not request.done:
                    self.loop.run_callback(request.fail, DrainingError("this process is draining"))
        self._idle.append((deadline, done))
        self._start_ticking()
        self.loop.run_callback(self._see_idle)

    def surrender(self) -> list[Request]:
        """Everything not sent, in order, taken out: another Backend will be asked instead."""
        held = [request for request in self._held if not request.done]
        for request in list(self._held):
            self._forget(request)
        return held

    def close(self) -> None:
        """End the session; what is pending fails with DrainingError. May be called twice."""
        if self.closed:
            return
        self.closed = True
        for timer in (self._tick_timer, self._ping_timer):
            timer.stop()
            timer.close()
        pipe, self._pipe, self.ready = self._pipe, None, False
        if pipe is not None:
            pipe.flush()
            pipe.close()
        pending = [*self._sent.values(), *self._held]
        self._sent.clear()
        self._held.clear()
        self._wheel.clear()
        for request in pending:
            if not request.done:
                request.fail(DrainingError("this process closed its session before the answer came"))
        self._see_idle()

    # --- the session

    def attach(self, sock: socket.socket) -> None:
        """Start a session on `sock` (connected, non-blocking); `ready` or `on_session_lost` follows."""
        limits = self.limits
        self.going, self.refusal = False, None
        self._heard = self._clock.monotonic()
        self._pipe = Pipe(
            self.loop, sock, limits.frame_bytes_max, limits.out_bytes_max, self._on_frame, self._lost
        )
        name = f"pid {os.getpid()}"
        self._pipe.send(Kind.HELLO, 0, codec.encode((MAGIC, VERSION, name)))

    def drop(self, reason: str, text: str) -> None:
        """Give the session up."""
        if self._pipe is not None:
            self._pipe.close()
            self._lost(reason, text)

    def tick(self) -> None:
        """Settle what is past its deadline; runs by itself while anything is outstanding."""
        now = self._clock.monotonic()
        for request in self._wheel.due(now):
            again = None if request.done else request.expire(now)
            if again is not None:
                self._wheel.add(request, again)
                continue
            if request.sent:
                self._count_unanswered(request)
            self._forget(request)
        self._see_idle()
        if not self._wheel and not self._idle and self._ticking:
            self._ticking = False
            self._tick_timer.stop()

    def ping(self) -> None:
        """Say that we live, and see whether the writer does; runs by itself every `ping_s`."""
        now = self._clock.monotonic()
        stalled = now - self._pinged > 2 * self.limits.ping_s
        self._pinged = now
        if self._pipe is not None:
            if stalled:
                self._heard = now
            if now - self._heard > self.limits.silence_s:
                self.drop("silent", f"nothing heard from the writer for {self.limits.silence_s} s")
            elif self.ready:
                self._pipe.send(Kind.PING, 0, b"")
                self._unwait()
        self._owner.on_ping()

    # --- inside

    def _start_ticking(self) -> None:
        if not self._ticking and not self.closed:
            self._ticking = True
            self._tick_timer.start(self.tick)

    def _see_idle(self) -> None:
        now = self._clock.monotonic()
        waiting, self._idle = self._idle, []
        for deadline, done in waiting:
            if not self.outstanding or self.closed:
                done.succeed(None)
            elif deadline <= now:
                done.fail(RemoteError(f"{self.outstanding} requests were not answered by the deadline"))
            else:
                self._idle.append((deadline, done))

    def _has_room(self, request: Request) -> bool:
        limits = self.limits
        if request.size <= self.room and self.outstanding < limits.requests_max:
            return True
        self._metrics.cell(catalogue.SESSION_REFUSED, "in flight").value += 1
        error = BoundReachedError(
            f"{self.outstanding} requests with {self._bytes} bytes wait for the writer; allowed:"
            f" {limits.requests_max} with {limits.in_flight_bytes_max}"
        )
        self.loop.run_callback(request.faulted, error)
        return False

    def _send(self, request: Request) -> None:
        assert self._pipe is not None
        try:
            body = request.body(self._clock.monotonic())
            if len(body) > self.limits.frame_bytes_max:
                self._metrics.cell(catalogue.SESSION_REFUSED, "frame").value += 1
                raise BoundReachedError(
                    f"a request of {len(body)} bytes; allowed: {self.limits.frame_bytes_max}"
                )
        except (ValueError, TypeError, OverflowError, BoundReachedError) as error:
            self._forget(request)
            self._refused(request, error)
            return
        request.ident = self.next_ident()
        request.sent = True
        self._sent[request.ident] = request
        self._pipe.send(request.kind, request.ident, body)

    def _forget(self, request: Request) -> None:
        """It is settled or goes elsewhere: out of every table, its bytes given back. Once per request."""
        self._wheel.drop(request)
        if request.sent:
            self._sent.pop(request.ident, None)
        self._held.pop(request, None)
        if request in self._catching_up:
            self._catching_up.discard(request)
            if not self._catching_up and self.ready:
                self.loop.run_callback(self._caught_up)
        self._bytes -= request.size
        request.size = 0

    def _on_frame(self, kind: int, ident: int, body: bytes) -> None:
        self._heard = self._clock.monotonic()
        try:
            if kind == Kind.ANSWER:
                self._on_answer(ident, body)
            elif kind == Kind.FAULT:
                self._on_fault(ident, codec.error_from(codec.decode_fault(body)))
            elif kind == Kind.GOING:
                self.going = True
            else:
                self._owner.on_push(kind, ident, body)
                if kind == Kind.READY:
                    self._on_ready()
        except (msgspec.MsgspecError, ProtocolError) as error:
            self.drop("malformed", f"a frame of kind {kind}: {error}")
        except Exception:
            log.exception("taking a frame of kind %d failed", kind)

    def _on_answer(self, ident: int, body: bytes) -> None:
        request = self._sent.get(ident)
        if request is None:
            return
        self._forget(request)
        if not request.done:
            request.answered(body, self._owner.on_clock)

    def _on_fault(self, ident: int, error: Exception) -> None:
        request = self._sent.get(ident)
        if request is None:
            if ident == 0:
                self.refusal = error
                self.drop("refused", str(error))
            elif self.taken(ident):
                self._owner.on_push(Kind.FAULT, ident, codec.encode(codec.error_row(error)))
            return
        self._forget(request)
        self._refused(request, error)

    def _refused(self, request: Request, error: Exception) -> None:
        """Settle with `error`; calls that shared a frame are tried apart when one of them may be at fault."""
        may_split = isinstance(error, (CallerError, BoundReachedError, ValueError, TypeError, OverflowError))
        if may_split and isinstance(request, AppendFrame) and len(request.calls) > 1:
            for part in request.split():
                self.submit(part)
        elif not request.done:
            request.faulted(error)

    def _on_ready(self) -> None:
        self.ready = True
        again = [request for request in self._held if request.sent and not request.done]
        self._catching_up.update(request for request in again if isinstance(request, CommitRequest))
        for request in again:
            self._unhold(request)
        self._owner.on_ready()
        if not self._catching_up:
            self._caught_up()
        while self._held and self._pipe is not None:
            self._unhold(next(iter(self._held)))

    def _caught_up(self) -> None:
        if self.ready:
            self._owner.on_caught_up()

    def _unhold(self, request: Request) -> None:
        if request.done:
            self._forget(request)
        else:
            del self._held[request]
            self._send(request)

    def _lost(self, reason: str, text: str) -> None:
        """The pipe is closed."""
        self._pipe = None
        was_ready, self.ready, self.going = self.ready, False, False
        if was_ready:
            self._metrics.cell(catalogue.SESSION_LOST, reason).value += 1
            log.warning("lost the writer: %s", text)
        again: dict[Request, None] = {}
        unknown: list[Request] = []
        for request in self._sent.values():
            if request.resend and not request.done:
                request.ident = 0
                again[request] = None
            else:
                unknown.append(request)
        self._sent.clear()
        self._catching_up.clear()
        self._held = {**again, **self._held}
        for request in unknown:
            self._count_unanswered(request)
            self._forget(request)
            request.unknown()
        self._owner.on_session_lost(reason)

    def _unwait(self) -> None:
        """Waits that their callers gave up need not be parked any longer."""
        given_up = [
            request for request in self._sent.values() if isinstance(request, WaitRequest) and request.done
        ]
        for request in given_up:
            self.push(Kind.UNWAIT, request.ident, b"")
            self._forget(request)

    def _count_unanswered(self, request: Request) -> None:
        if isinstance(request, (AppendFrame, CommitRequest)):
            self._metrics.cell(catalogue.SESSION_UNANSWERED, request.kind.name.lower()).value += 1


def unreachable(directory: object) -> RemoteError:
    """What a tool says when no server runs on the directory."""
    return RemoteError(
        f"no server is running on {directory}; start one with: ddmq serve --data-dir {directory}"
    )
