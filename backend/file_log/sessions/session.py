"""One session at the writer: a member's requests on their way into the engine, answers on their way out.

Rules:
* A request is answered exactly once, with ANSWER or FAULT, unless the session ends first.
* Bytes in flight at their bound: nothing more is read until answers have left. Requests at their
  bound: the next is refused with BoundReachedError (a parked wait must not stop everything else).
* The session's end releases its memberships at once, cancels its waits and drops what is answered later.
* What the other side sends is never believed: a malformed body ends the session.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from backend.completion import Completion
from backend.file_log.sessions import codec
from backend.file_log.sessions.mirror import snapshot
from backend.file_log.sessions.pipe import (
    MAGIC,
    VERSION,
    FrameKind,
    Pipe,
    ProtocolError,
    SessionLimits,
    timeout_ms,
)
from backend.port import Assignment, Backend, Membership, Wait
from backend.records import QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, DdmqError, RemoteError

log = logging.getLogger(__name__)


Serve = Callable[["Session", int, int, bytes], None]


class Host(Protocol):
    """What a session needs of the server it belongs to."""

    backend: Backend
    clock: Clock
    limits: SessionLimits

    def readers_changed(self) -> None:
        """A session began to read the files itself."""

    def refused(self, reason: str) -> None:
        """Count a refusal."""

    def ended(self, session: Session, reason: str, text: str) -> None:
        """The session is over; called once."""


class Session:
    """One member's session. `heard` is when anything last came from the member (monotonic seconds)."""

    def __init__(self, host: Host, number: int, loop: Any, sock: socket.socket, serve: Serve) -> None:
        self.host = host
        self.number = number
        self.name = ""
        self.welcomed = False
        self.reads_files = False
        self.heard = host.clock.monotonic()
        self.outstanding = 0
        self.in_flight_bytes = 0
        self.waits: dict[int, WaitAnswer] = {}
        self.memberships: dict[int, Membership] = {}
        self._serve = serve
        bytes_max = host.limits.frame_bytes_max, host.limits.out_bytes_max
        self.pipe = Pipe(loop, sock, *bytes_max, self.on_frame, self.on_closed, self.hold)

    @property
    def closed(self) -> bool:
        return self.pipe.closed

    # --- what the pipe tells

    def on_frame(self, kind: int, ident: int, body: bytes) -> None:
        """One request; a malformed one ends the session, a refused one is answered with a fault."""
        self.heard = self.host.clock.monotonic()
        try:
            if not self.welcomed and kind != FrameKind.HELLO:
                raise ProtocolError("the first frame must be HELLO")
            self._serve(self, kind, ident, body)
        except (msgspec.MsgspecError, ProtocolError) as error:
            self.end("malformed", f"a frame of kind {kind}: {error}")
        except (DdmqError, ValueError) as error:
            self.fault(ident, error)
        except Exception as error:
            log.exception("session %d: a request of kind %d failed", self.number, kind)
            self.fault(ident, error)
        else:
            self.hold()

    def end(self, reason: str, text: str) -> None:
        """Close, release memberships, cancel waits, tell the server. Harmless when over."""
        if not self.pipe.closed:
            self.pipe.close()
            self.on_closed(reason, text)

    def on_closed(self, reason: str, text: str) -> None:
        """The pipe is closed."""
        for wait in self.waits.values():
            wait.cancel()
        self.waits.clear()
        memberships, self.memberships = self.memberships, {}
        for membership in memberships.values():
            membership.leave()
        self.host.ended(self, reason, text)

    # --- bounds

    def admit(self, size: int) -> None:
        """Account for a request of `size` bytes. Raises BoundReachedError when there are too many."""
        if self.outstanding >= self.host.limits.requests_max:
            self.host.refused("requests")
            raise BoundReachedError(
                f"the session has {self.outstanding} requests outstanding;"
                f" allowed: {self.host.limits.requests_max}"
            )
        self.outstanding += 1
        self.in_flight_bytes += size

    def settle(self, size: int) -> None:
        """The request's answer is there."""
        self.outstanding -= 1
        self.in_flight_bytes -= size
        if self.pipe.paused:
            self.hold()

    def hold(self) -> None:
        """Stop reading at the bound, go on below it."""
        limits = self.host.limits
        full = (
            self.in_flight_bytes >= limits.in_flight_bytes_max
            or self.pipe.out_bytes >= limits.out_bytes_max // 2
        )
        if full:
            self.pipe.pause()
        elif self.pipe.paused:
            self.heard = self.host.clock.monotonic()  # it could not be heard meanwhile
            self.pipe.resume()

    # --- what goes out

    def answer(self, ident: int, body: bytes) -> None:
        self.pipe.send(FrameKind.ANSWER, ident, body)

    def fault(self, ident: int, error: Exception) -> None:
        self.pipe.send(FrameKind.FAULT, ident, codec.encode(codec.error_row(error)))

    def welcome(self, name: str, magic: str, version: int) -> None:
        """Answer HELLO: who we are, all topics, all settings, READY; one consistent snapshot."""
        if magic != MAGIC or version != VERSION:
            self.host.refused("version")
            self.fault(0, RemoteError(f"the writer speaks session protocol {VERSION}, not {magic} {version}"))
            self.pipe.flush()
            self.end("refused", f"{name} speaks {magic} {version}")
            return
        self.welcomed, self.name = True, name
        host, backend = self.host, self.host.backend
        self.pipe.send(
            FrameKind.WELCOME,
            self.number,
            codec.encode_sorted(
                (
                    VERSION,
                    int(host.limits.silence_s * 1000),
                    host.limits.frame_bytes_max,
                    codec.capabilities_row(backend.capabilities),
                    backend.cluster,
                    backend.broker,
                )
            ),
        )
        for part in snapshot(backend):
            self.pipe.send_frame(part)
        self.pong(FrameKind.READY)

    def pong(self, kind: FrameKind = FrameKind.PONG) -> None:
        """How the engine is: clock and health."""
        backend = self.host.backend
        health = backend.health()
        row = (backend.clock_ms(), health.ready, health.reason)
        self.pipe.send(kind, 0, codec.encode(row))


class RequestAnswer(Completion[Any]):
    """A request inside the engine; settled, it becomes the ANSWER or FAULT."""

    __slots__ = ("_encode", "_ident", "_session", "_size")

    def __init__(self, session: Session, ident: int, size: int, encode: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._session, self._ident, self._size, self._encode = session, ident, size, encode

    def settled(self) -> None:
        session = self._session
        session.settle(self._size)
        if session.closed:
            return
        if self.error is not None:
            session.fault(self._ident, self.error)
        else:
            session.answer(self._ident, self._encode(self.value))


class WaitAnswer(Wait):
    """A parked wait of a member without a reader of its own."""

    __slots__ = ("_ident", "_session")

    def __init__(self, session: Session, ident: int) -> None:
        super().__init__()
        self._session, self._ident = session, ident

    def settled(self) -> None:
        session = self._session
        if session.waits.pop(self._ident, None) is None:
            return
        session.settle(0)
        if self.error is not None:
            session.fault(self._ident, self.error)
        else:
            session.answer(self._ident, codec.encode(self.value))


class RemoteListener:
    """A member's membership as the engine sees it; mute once the session is over."""

    def __init__(self, session: Session, ident: int) -> None:
        self._session, self._ident = session, ident

    def assigned(self, assignment: Assignment) -> None:
        row = (assignment.queues, assignment.epoch)
        self._session.pipe.send(FrameKind.ASSIGNED, self._ident, codec.encode(row))

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        row = (list(queues), timeout_ms(deadline, self._session.host.clock.monotonic()))
        self._session.pipe.send(FrameKind.REVOKED, self._ident, codec.encode(row))

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._session.pipe.send(FrameKind.LOST, self._ident, codec.encode(list(queues)))
