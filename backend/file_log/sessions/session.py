"""One session at the writer: a member's requests on their way into the engine, answers on their way out.

Rules:
* A request is answered exactly once, with ANSWER or ERROR, unless the session ends first. REQUEST_KINDS says
  what each of them calls; frames without an answer, and waits, have handlers here.
* Bytes in flight at their bound: nothing more is read until answers have left. Requests at their bound: the
  next is rejected with BoundReachedError (a parked wait must not stop everything else).
* The session's end releases its memberships at once, cancels its waits and drops later answers.
* Input from the other side is never trusted: a malformed body ends the session.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from backend.completion import Completion
from backend.file_log.sessions import codec
from backend.file_log.sessions.mirror import change_frame, snapshot_frames
from backend.file_log.sessions.pipe import (
    MAGIC,
    VERSION,
    FrameKind,
    Pipe,
    ProtocolError,
    SessionLimits,
    deadline_of,
    timeout_ms,
)
from backend.file_log.sessions.requests import REQUEST_KINDS, SessionRequestKind
from backend.port import Assignment, Backend, Membership, Wait
from backend.records import QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, DdmqError, RemoteError

log = logging.getLogger(__name__)
_decode_hello: Callable[[bytes], tuple[str, int, str]] = codec.make_decoder(tuple[str, int, str])
_decode_wait: Callable[[bytes], tuple[QueueRef, int, int]] = codec.make_decoder(tuple[QueueRef, int, int])


class Host(Protocol):
    """The callbacks of the server that a session belongs to."""

    backend: Backend
    clock: Clock
    limits: SessionLimits

    def readers_changed(self) -> None:
        """Check again whether any member reads the log's files directly."""

    def count_rejection(self, reason: str) -> None:
        """Count a rejected request in the metrics."""

    def on_session_closed(self, session: Session, reason: str, text: str) -> None:
        """Remove the session; called once."""


class Session:
    """The writer's side of one member's session. `last_frame_at`: monotonic seconds."""

    def __init__(self, host: Host, number: int, loop: Any, sock: socket.socket) -> None:
        self.host = host
        self.number = number
        self.name = ""
        self.is_welcomed = False
        self.reads_files = False
        self.last_frame_at = host.clock.monotonic()
        self.outstanding = 0
        self.in_flight_bytes = 0
        self.waits: dict[int, WaitAnswer] = {}
        self.memberships: dict[int, Membership] = {}
        self._handlers: dict[int, Callable[[int, bytes], None]] = {
            FrameKind.HELLO: self._on_hello,
            FrameKind.PING: self._on_ping,
            FrameKind.WAIT: self._on_wait,
            FrameKind.UNWAIT: self._on_unwait,
            FrameKind.JOIN: self._on_join,
            FrameKind.RELEASE: self._on_release,
            FrameKind.LEAVE: self._on_leave,
            FrameKind.READS_FILES: self._on_reads_files,
        }
        bytes_max = host.limits.frame_bytes_max, host.limits.out_bytes_max
        self.pipe = Pipe(loop, sock, *bytes_max, self.on_frame, self.on_closed, self.pause_or_resume)

    @property
    def is_closed(self) -> bool:
        """Whether the session's pipe is closed."""
        return self.pipe.closed

    # --- calls of the pipe

    def on_frame(self, kind: int, ident: int, body: bytes) -> None:
        """Handle a frame from the member process.

        A malformed frame ends the session, a rejected request is answered with an error.
        """
        self.last_frame_at = self.host.clock.monotonic()
        try:
            if not self.is_welcomed and kind != FrameKind.HELLO:
                raise ProtocolError("the first frame must be HELLO")
            self._serve_frame(kind, ident, body)
        except (msgspec.MsgspecError, ProtocolError) as error:
            self.end("malformed", f"a frame of kind {kind}: {error}")
        except (DdmqError, ValueError) as error:
            self.send_error(ident, error)
        except Exception as error:
            log.exception("session %d: a request of kind %d failed", self.number, kind)
            self.send_error(ident, error)
        else:
            self.pause_or_resume()

    def end(self, reason: str, text: str) -> None:
        """Close the pipe, release memberships, cancel waits and notify the server.

        Does nothing once closed.
        """
        if not self.pipe.closed:
            self.pipe.close()
            self.on_closed(reason, text)

    def on_closed(self, reason: str, text: str) -> None:
        """Release everything that the session holds, because its pipe is closed."""
        for wait in self.waits.values():
            wait.cancel()
        self.waits.clear()
        memberships, self.memberships = self.memberships, {}
        for membership in memberships.values():
            membership.leave()
        self.host.on_session_closed(self, reason, text)

    # --- bounds

    def admit_request(self, size: int) -> None:
        """Count a request of `size` bytes as in flight. Raises BoundReachedError if there are too many."""
        if self.outstanding >= self.host.limits.requests_max:
            self.host.count_rejection("requests")
            raise BoundReachedError(
                f"the session has {self.outstanding} requests outstanding;"
                f" allowed: {self.host.limits.requests_max}"
            )
        self.outstanding += 1
        self.in_flight_bytes += size

    def release(self, size: int) -> None:
        """Remove an answered request of `size` bytes from the in-flight counts."""
        self.outstanding -= 1
        self.in_flight_bytes -= size
        if self.pipe.paused:
            self.pause_or_resume()

    def pause_or_resume(self) -> None:
        """Stop reading from the socket at the bound of bytes in flight; resume below it."""
        limits = self.host.limits
        is_full = (
            self.in_flight_bytes >= limits.in_flight_bytes_max
            or self.pipe.out_bytes >= limits.out_bytes_max // 2
        )
        if is_full:
            self.pipe.pause_reading()
        elif self.pipe.paused:
            self.last_frame_at = self.host.clock.monotonic()  # frames could not be read meanwhile
            self.pipe.resume_reading()

    # --- outgoing frames

    def send_answer(self, ident: int, body: bytes) -> None:
        """Answer a request with a result."""
        self.pipe.send(FrameKind.ANSWER, ident, body)

    def send_error(self, ident: int, error: Exception) -> None:
        """Answer a request with an error."""
        self.pipe.send(FrameKind.ERROR, ident, codec.encode(codec.error_row(error)))

    def send_change(self, key: str) -> None:
        """Send the current value of the topic or setting that `key` names, as in watcher callbacks."""
        self.pipe.send_frame(change_frame(self.host.backend, key))

    def send_welcome(self, name: str, magic: str, version: int) -> None:
        """Answer HELLO with one consistent snapshot: identity, all topics, all settings, then READY."""
        if magic != MAGIC or version != VERSION:
            self.host.count_rejection("version")
            text = f"the writer speaks session protocol {VERSION}, not {magic} {version}"
            self.send_error(0, RemoteError(text))
            self.pipe.flush()
            self.end("refused", f"{name} speaks {magic} {version}")
            return
        self.is_welcomed, self.name = True, name
        host, backend = self.host, self.host.backend
        row = (
            VERSION,
            int(host.limits.silence_s * 1000),
            host.limits.frame_bytes_max,
            codec.capabilities_row(backend.capabilities),
            backend.cluster,
            backend.broker,
        )
        self.pipe.send(FrameKind.WELCOME, self.number, codec.encode_sorted(row))
        for frame in snapshot_frames(backend):
            self.pipe.send_frame(frame)
        self.send_pong(FrameKind.READY)

    def send_pong(self, kind: FrameKind = FrameKind.PONG) -> None:
        """Answer a ping with the engine's clock and health."""
        backend = self.host.backend
        health = backend.health()
        row = (backend.clock_ms(), health.ready, health.reason)
        self.pipe.send(kind, 0, codec.encode(row))

    # --- incoming frames

    def _serve_frame(self, kind: int, ident: int, body: bytes) -> None:
        """Pass a frame to the handler of its kind. Raises msgspec.MsgspecError or ProtocolError if it is
        malformed."""
        request = REQUEST_KINDS.get(kind)
        if request is not None:
            self._serve_request(kind, request, ident, body)
            return
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolError("no such request")
        handler(ident, body)

    def _serve_request(self, kind: int, request: SessionRequestKind, ident: int, body: bytes) -> None:
        remaining_ms, arguments = request.decode(body)
        limits, now = self.host.limits, self.host.clock.monotonic()
        if kind == FrameKind.READ:  # the answer must fit into a frame
            arguments = arguments._replace(bytes_max=min(arguments.bytes_max, limits.frame_bytes_max // 2))
        self.admit_request(len(body))
        answer = RequestAnswer(self, ident, len(body), request, arguments)
        deadline = now + limits.request_timeout_s if remaining_ms is None else deadline_of(remaining_ms, now)
        _call_engine(answer, lambda: request.call(self.host.backend, arguments, deadline, answer))

    def _on_hello(self, ident: int, body: bytes) -> None:
        if self.is_welcomed:
            raise ProtocolError("a second HELLO")
        magic, version, name = _decode_hello(body)
        self.send_welcome(name, magic, version)

    def _on_ping(self, ident: int, body: bytes) -> None:
        self.send_pong()

    def _on_reads_files(self, ident: int, body: bytes) -> None:
        self.reads_files = True
        self.host.readers_changed()

    def _on_wait(self, ident: int, body: bytes) -> None:
        queue, offset, remaining_ms = _decode_wait(body)
        if ident in self.waits:
            raise ProtocolError(f"wait {ident} is parked already")
        self.admit_request(0)
        wait = self.waits[ident] = WaitAnswer(self, ident)
        deadline = deadline_of(remaining_ms, self.host.clock.monotonic())
        _call_engine(wait, lambda: self.host.backend.wait(queue, offset, deadline, wait))

    def _on_unwait(self, ident: int, body: bytes) -> None:
        wait = self.waits.pop(ident, None)
        if wait is not None:
            wait.cancel()
            self.release(0)

    def _on_join(self, ident: int, body: bytes) -> None:
        join = codec.decode_join(body)
        if ident in self.memberships:
            raise ProtocolError(f"membership {ident} exists already")
        limit = self.host.limits.memberships_max
        if len(self.memberships) >= limit:
            self.host.count_rejection("memberships")
            raise BoundReachedError(f"the session has {limit} memberships; allowed: {limit}")
        listener = RemoteListener(self, ident)
        member = f"{self.number:08d}/{join.member}"  # a session is one process, and no other has this name
        self.memberships[ident] = self.host.backend.join(join._replace(member=member), listener)

    def _on_release(self, ident: int, body: bytes) -> None:
        queues: Sequence[QueueRef] = codec.decode_queues(body)
        if ident in self.memberships:
            self.memberships[ident].release(queues)

    def _on_leave(self, ident: int, body: bytes) -> None:
        membership = self.memberships.pop(ident, None)
        if membership is not None:
            membership.leave()


def _call_engine(answer: RequestAnswer | WaitAnswer, call: Callable[[], object]) -> None:
    """Run `call`, a call into the engine, for a request of a member process.

    If it raises, the request is answered with the error, so that the in-flight counts stay correct.
    """
    try:
        call()
    except Exception as error:
        if not isinstance(error, (DdmqError, ValueError)):
            log.exception("a call into the engine failed")
        if not answer.done:
            answer.fail(error)


class RequestAnswer(Completion[Any]):
    """Receives the engine's result of one request, and sends it to the member as ANSWER or ERROR."""

    __slots__ = ("_arguments", "_ident", "_request", "_session", "_size")

    def __init__(
        self, session: Session, ident: int, size: int, request: SessionRequestKind, arguments: object
    ) -> None:
        super().__init__()
        self._session, self._ident, self._size = session, ident, size
        self._request, self._arguments = request, arguments

    def settled(self) -> None:
        session, request = self._session, self._request
        session.release(self._size)
        if session.is_closed:
            return
        if self.error is not None:
            session.send_error(self._ident, self.error)
            return
        for key in request.changed_keys(self._arguments):
            session.send_change(key)
        session.send_answer(self._ident, request.encode_answer(session.host.backend, self.value))


class WaitAnswer(Wait):
    """Sends a member process the result of a blocking wait for messages that the writer runs for it."""

    __slots__ = ("_ident", "_session")

    def __init__(self, session: Session, ident: int) -> None:
        super().__init__()
        self._session, self._ident = session, ident

    def settled(self) -> None:
        session = self._session
        if session.waits.pop(self._ident, None) is None:
            return
        session.release(0)
        if self.error is not None:
            session.send_error(self._ident, self.error)
        else:
            session.send_answer(self._ident, codec.encode(self.value))


class RemoteListener:
    """The membership listener that the engine calls for a remote member, until the session ends."""

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
