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

from backend.file_log.sessions import codec
from backend.file_log.sessions.outstanding import Outstanding
from backend.file_log.sessions.pipe import (
    IDENT_MAX,
    MAGIC,
    VERSION,
    FrameKind,
    Pipe,
    ProtocolError,
    SessionLimits,
)
from backend.file_log.sessions.requests import AppendFrame, SessionCommit, SessionRequest
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, CallerError, DrainingError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

log = logging.getLogger(__name__)


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
    """A member's end of its session. `attach` starts a session on a connected socket."""

    def __init__(self, owner: Owner, clock: Clock, metrics: Registry, limits: SessionLimits) -> None:
        self._owner = owner
        self._clock = clock
        self._metrics = metrics
        self.limits = limits
        self.loop: Any = get_hub().loop
        self._pipe: Pipe | None = None
        self.outstanding = Outstanding(self.loop, clock, metrics, limits, self._caught_up)
        self._ident = 0
        self._heard = self._pinged = clock.monotonic()
        self.ready = False
        self.going = self._has_caught_up = False
        self.refusal: Exception | None = None  # why the writer would not have us
        self.taken: Callable[[int], bool] = lambda ident: False  # ids in use elsewhere
        self._ping_timer = HubTimer(loop=self.loop)
        self._ping_timer.every(limits.ping_s, self.ping)

    @property
    def attached(self) -> bool:
        """A session stands or is being set up."""
        return self._pipe is not None

    # --- requests

    def submit(self, request: SessionRequest) -> None:
        """Send it, hold it, or refuse it (a bound, or closed)."""
        if not self.outstanding.enter(request):
            return
        if self.ready and not self.going and not self.outstanding.held:
            self._send(request)
        else:
            self.outstanding.held[request] = None

    def push(self, kind: FrameKind, ident: int, body: bytes) -> None:
        """Send a frame that gets no answer; nothing happens without a session."""
        if self._pipe is not None and self.ready:
            self._pipe.send(kind, ident, body)

    def next_ident(self) -> int:
        """An id that nothing outstanding uses."""
        while True:
            self._ident = self._ident % IDENT_MAX + 1
            if self._ident not in self.outstanding.sent and not self.taken(self._ident):
                return self._ident

    # --- the session

    def attach(self, sock: socket.socket) -> None:
        """Start a session on `sock` (connected, non-blocking); `ready` or `on_session_lost` follows."""
        limits = self.limits
        self.going = self._has_caught_up = False
        self.refusal = None
        self._heard = self._clock.monotonic()
        self._pipe = Pipe(
            self.loop, sock, limits.frame_bytes_max, limits.out_bytes_max, self._on_frame, self._lost
        )
        name = f"pid {os.getpid()}"
        self._pipe.send(FrameKind.HELLO, 0, codec.encode((MAGIC, VERSION, name)))

    def drop(self, reason: str, text: str) -> None:
        """Give the session up."""
        if self._pipe is not None:
            self._pipe.close()
            self._lost(reason, text)

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
                self._pipe.send(FrameKind.PING, 0, b"")
                for wait in self.outstanding.given_up():
                    self._pipe.send(FrameKind.UNWAIT, wait.ident, b"")
        self._owner.on_ping()

    def close(self) -> None:
        """End the session; what is pending fails with DrainingError. May be called twice."""
        if self.outstanding.closed:
            return
        self._ping_timer.stop()
        pipe, self._pipe, self.ready = self._pipe, None, False
        if pipe is not None:
            pipe.flush()
            pipe.close()
        self.outstanding.close()

    # --- inside

    def _send(self, request: SessionRequest) -> None:
        assert self._pipe is not None
        try:
            body = request.body(self._clock.monotonic())
            if len(body) > self.limits.frame_bytes_max:
                self._metrics.cell(catalogue.SESSION_REFUSED, "frame").value += 1
                raise BoundReachedError(
                    f"a request of {len(body)} bytes; allowed: {self.limits.frame_bytes_max}"
                )
        except (ValueError, TypeError, OverflowError, BoundReachedError) as error:
            self.outstanding.forget(request)
            self._refused(request, error)
            return
        request.ident = self.next_ident()
        request.sent = True
        self.outstanding.sent[request.ident] = request
        self._pipe.send(request.kind, request.ident, body)

    def _on_frame(self, kind: int, ident: int, body: bytes) -> None:
        self._heard = self._clock.monotonic()
        try:
            if kind == FrameKind.ANSWER:
                self._on_answer(ident, body)
            elif kind == FrameKind.FAULT:
                self._on_fault(ident, codec.error_from(codec.decode_fault(body)))
            elif kind == FrameKind.GOING:
                self.going = True
            else:
                self._owner.on_push(kind, ident, body)
                if kind == FrameKind.READY:
                    self._on_ready()
        except (msgspec.MsgspecError, ProtocolError) as error:
            self.drop("malformed", f"a frame of kind {kind}: {error}")
        except Exception:
            log.exception("taking a frame of kind %d failed", kind)

    def _on_answer(self, ident: int, body: bytes) -> None:
        request = self.outstanding.sent.get(ident)
        if request is None:
            return
        again = False
        try:
            again = not request.done and not request.answered(body, self._owner.on_clock)
        except msgspec.MsgspecError:
            request.unknown()
            raise
        finally:
            if not again:
                self.outstanding.forget(request)
        if again:
            self.outstanding.hold_again(request)

    def _on_fault(self, ident: int, error: Exception) -> None:
        request = self.outstanding.sent.get(ident)
        if request is not None and isinstance(error, DrainingError) and not request.done:
            self.outstanding.hold_again(request)
        elif request is not None:
            self.outstanding.forget(request)
            self._refused(request, error)
        elif ident == 0:
            self.refusal = error
            self.drop("refused", str(error))
        elif self.taken(ident):
            self._owner.on_push(FrameKind.FAULT, ident, codec.encode(codec.error_row(error)))

    def _refused(self, request: SessionRequest, error: Exception) -> None:
        """Settle with `error`; calls that shared a frame are tried apart when one of them may be at fault."""
        may_split = isinstance(error, (CallerError, BoundReachedError, ValueError, TypeError, OverflowError))
        if may_split and isinstance(request, AppendFrame) and len(request.calls) > 1:
            for part in request.split():
                self.submit(part)
        elif not request.done:
            request.faulted(error)

    def _on_ready(self) -> None:
        self.ready = True
        outstanding = self.outstanding
        outstanding.sort_held()
        again = [request for request in outstanding.held if request.sent and not request.done]
        outstanding.resent.update(request for request in again if isinstance(request, SessionCommit))
        for request in again:
            self._unhold(request)
        self._owner.on_ready()
        self._caught_up()
        while outstanding.held and self._pipe is not None:
            for request in list(outstanding.held):  # one pass: each new one starts at the front
                if self._pipe is not None and request in outstanding.held:
                    self._unhold(request)

    def _caught_up(self) -> None:
        if self.ready and not self._has_caught_up and not self.outstanding.resent:
            self._has_caught_up = True
            self._owner.on_caught_up()

    def _unhold(self, request: SessionRequest) -> None:
        if request.done:
            self.outstanding.forget(request)
        else:
            del self.outstanding.held[request]
            self._send(request)

    def _lost(self, reason: str, text: str) -> None:
        """The pipe is closed."""
        self._pipe = None
        was_ready, self.ready, self.going = self.ready, False, False
        if was_ready:
            self._metrics.cell(catalogue.SESSION_LOST, reason).value += 1
            log.warning("lost the writer: %s", text)
        self.outstanding.session_lost()
        self._owner.on_session_lost(reason)
