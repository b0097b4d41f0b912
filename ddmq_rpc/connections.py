"""One client's connection: loop callbacks, no greenlet.

Readable: read once, take the frame, call the handler. Answered: send at once; what the socket does not
take waits for a write watcher. While a call is open, an answer unsent, or the connection waits for its
slice, it is `busy`: it still reads a little ahead, and so notices that the client disconnects. A connection
handles a few frames per wake-up and spends the time slices of its address (time_slices.py). After a request
that took long it rests for a multiple of that time, so that the others get theirs. The module is one class,
because reading, answering and closing change the same state.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

from ddmq_common.hub_timer import HubTimer
from ddmq_rpc.addresses import is_loopback
from ddmq_rpc.api import ErrorKind, Wire
from ddmq_rpc.calls import UNSENT, AnswerSender, OpenCall
from ddmq_rpc.codec import CHUNK_BYTES, DecodeError, encode_error
from ddmq_rpc.envelope import (
    CALL,
    EXCEPTION,
    ONEWAY,
    Envelope,
    FrameLengthError,
    Frames,
    Header,
    HeaderError,
    read_header,
)
from ddmq_rpc.plain_rejection import PlainRejection
from ddmq_rpc.time_slices import NOT_MEASURED, SLICE_S
from ddmq_rpc.tls_session import HANDSHAKE, RECORD_BYTES_MAX, TlsSession
from ddmq_rpc.traffic import Traffic

RECV_BYTES = RECORD_BYTES_MAX  # when the size of what comes is not known
RECV_BYTES_MAX = 256 << 10
READ_AHEAD_BYTES = 16 << 10  # kept while busy; then reading stops
JOIN_BYTES_MAX = 16 << 10  # answers above are sent beside their header instead of copied behind it
COSTLY_S = 0.02  # a request that took more processor time makes its connection rest
REST_FACTOR = 4
FRAMES_PER_WAKEUP = 16  # of one connection, before others get their turn
LOGIN_FAILED_S = 0.005  # of its address's time that a failed login costs
LOGIN_FAILED_CLOSE_S = 0.1
ONEWAY_OPEN_MAX = 256  # unanswered oneway calls of one connection; then it is not read

_READ = 1
# Why a connection is busy, beside UNSENT; bits.
_CALL, _RESTING, _ONEWAY, _NO_CAPACITY, _SLICE, _WAITING, _ENDING = 2, 4, 8, 16, 32, 64, 128


class RpcConnection(AnswerSender):
    """One client connection of the server, on an accepted non-blocking socket. It closes itself."""

    __slots__ = (
        "_call",
        "_called_at",
        "_frames",
        "_in_partial",
        "_oneway_open",
        "_reader",
        "_recv",
        "_recv_bytes",
        "_rejection",
        "_secured",
        "_serving",
        "_share",
        "_silent",
        "_timer",
        "_waiting_frame",
        "closed",
        "idle_since",
    )  # fmt: skip

    def __init__(self, traffic: Traffic, accepted: socket.socket, peer: str, address: str) -> None:
        super().__init__(traffic, accepted, peer)
        self._recv = accepted.recv
        self.closed = False
        self.idle_since = traffic.now()
        self._frames = Frames(traffic.limits.frame_bytes_max)
        self._call: OpenCall | None = None
        self._called_at = NOT_MEASURED
        self._oneway_open = 0
        self._in_partial = False
        self._serving = False
        self._recv_bytes = RECV_BYTES
        self._waiting_frame: bytes | None = None
        self._timer: HubTimer | None = None
        self._share = traffic.slices.join(address, self)
        self._silent = True
        self._reader = traffic.loop.io(accepted.fileno(), _READ)
        self._reader.start(self._on_readable)
        traffic.connections.add(self)
        traffic.counts.connections.value += 1
        self._rejection: PlainRejection | None = None
        self._secured = traffic.tls is not None  # until the first byte says otherwise
        if traffic.tls is not None and traffic.tls.required:
            traffic.join_newcomers(self, address)
        self._use_default_caller()

    # --- reading

    def _on_readable(self) -> None:
        if self._share.exhausted and not self.busy:
            self._await_slice()
        else:
            self._run_on_share(self._read)

    def _run_on_share(self, act: Callable[[], None]) -> None:
        """Run `act` and charge its time to the time slice of the client's address."""
        share, traffic = self._share, self.traffic
        slices, clock = traffic.slices, traffic.stopwatch
        started = clock()
        slices.begin_event(share, started)
        cpu = NOT_MEASURED
        if share.suspect:
            share.suspect -= 1
            cpu = traffic.cpu()
        act()
        seconds = clock() - started
        share.used += seconds
        if share.used > SLICE_S:
            slices.end_slice(share, seconds, cpu if cpu == NOT_MEASURED else traffic.cpu() - cpu)

    def _await_slice(self) -> None:
        """Wait until the client's address gets its next time slice, because it has used up the current
        one."""
        self.busy |= _WAITING
        self._reader.stop()
        self.traffic.slices.wait(self._share, self)

    def resume_work(self) -> None:
        """Resume the waiting work, because the client's address has a time slice again."""
        if self.closed:
            return
        self.busy &= ~_WAITING
        if self._waiting_frame is not None:
            self._run_on_share(self._serve_waiting)
        elif self._in_partial:
            if self.traffic.may_read_more(self):
                self._read_with_slice()
        elif not self.busy and not self._frames.buffered_bytes:
            self._read_with_slice()
        else:
            self._resume_serving()

    def _read_with_slice(self) -> None:
        self._reader.start(self._on_readable)
        self._run_on_share(self._read)

    def _read(self) -> None:
        try:
            data = self._recv(self._recv_bytes)
            if not data:
                self.close()
            elif self._secured:
                self._read_secured(data)
            elif self.busy:
                self._read_ahead(data)
            else:
                self._serve_frames(self._frames.feed_bytes(data))
        except (BlockingIOError, InterruptedError):
            return
        except Exception as error:
            self._close_after_error(error)

    def _read_secured(self, data: bytes) -> None:
        """Handle bytes of a port with TLS. The first byte tells whether the client uses it."""
        traffic = self.traffic
        if self._silent:
            traffic.newcomers.record_bytes(self, traffic.now())
        if self._tls is not None:
            self._read_records(self._tls, data)
        elif self._rejection is not None:
            self._reject_plain(self._rejection, data)
        elif data[0] == HANDSHAKE:
            assert traffic.tls is not None
            if not traffic.tls.required:
                traffic.join_newcomers(self, self._share.address)
            self._tls = session = TlsSession(traffic.tls.certificates.server_context)
            self._read_records(session, data)
        elif traffic.tls is not None and traffic.tls.required:
            traffic.counts.count_rejected("plain_text")
            self._rejection = rejection = PlainRejection(traffic.limits.frame_bytes_max)
            self._reject_plain(rejection, data)
        else:
            self._secured = False
            self._serve_frames(self._frames.feed_bytes(data))

    def _read_records(self, session: TlsSession, data: bytes) -> None:
        established = session.established
        plain = session.receive_bytes(data)
        output = session.take_output()
        if output and not self._send_output(output):
            return
        if not established and session.established:
            self.identity.certificate_names = session.certificate_names
            self._use_default_caller()
        if plain:
            if self.busy:
                self._read_ahead(plain)
            else:
                self._serve_frames(self._frames.feed_bytes(plain))
        elif session.established and not self.busy:
            self._await_record(session)
        if session.ended:
            self._close_when_served()

    def _close_when_served(self) -> None:
        """Close the connection, whose client has ended it, once the frames of this wake-up are handled."""
        if self.busy & _SLICE:
            self.traffic.loop.run_callback(self._close_when_served)
        else:
            self.close()

    def _send_output(self, output: bytes) -> bool:
        """Send bytes of the handshake. Close a client that causes more of them and does not read; then return
        False."""
        if self._unsent is not None:
            self.traffic.counts.count_rejected("unread_answers")
            self.close()
        else:
            self._send_bytes(output)
        return not self.closed

    def _await_record(self, session: TlsSession) -> None:
        """Wait for the rest of an incomplete record, as for the rest of a frame."""
        if session.buffered_bytes:
            self._await_rest()
        elif self._in_partial and not self._frames.buffered_bytes:
            self._in_partial = False
            self.traffic.partial_done(self)

    def _reject_plain(self, rejection: PlainRejection, data: bytes) -> None:
        """Answer the first message that TLS is required, and read whatever follows until the client closes
        the connection or its time is over. Closed at once, the answer could be lost."""
        answer = rejection.feed_bytes(data)
        if answer:
            self._send_bytes(answer)
            if not self.closed:
                self._socket.shutdown(socket.SHUT_WR)
        elif rejection.expects_no_answer:
            self.close()

    def _read_ahead(self, data: bytes) -> None:
        self._frames.keep_bytes(data)
        if self._frames.buffered_bytes >= READ_AHEAD_BYTES:
            self._reader.stop()

    def _resume_serving(self) -> None:
        """Resume a connection that is no longer busy: handle its buffered frames, then read."""
        if self.closed or self.busy:
            return
        if not self._reader.active:
            self._reader.start(self._on_readable)
        if not self._frames.buffered_bytes:
            return
        if self._share.exhausted:
            self._await_slice()
        else:
            self._run_on_share(self._serve_buffered)

    def _serve_buffered(self) -> None:
        try:
            self._serve_frames(self._frames.next_frame())
        except Exception as error:
            self._close_after_error(error)

    def _close_after_error(self, error: Exception) -> None:
        """Close the connection after a read error or an invalid frame.

        Any other error is a bug and is logged.
        """
        if isinstance(error, FrameLengthError):
            self.traffic.counts.count_rejected("frame_length")
        elif isinstance(error, ssl.SSLError):
            self.traffic.counts.count_rejected("tls")
        elif not isinstance(error, OSError):
            self.traffic.error_log.log_exception("connection of %s closed after an internal error", self.peer)
        self.close()

    def _serve_frames(self, frame: bytes | None) -> None:
        """Handle frames until none is complete, the connection is busy, or its time slice is used up."""
        frames = self._frames
        remaining_frames = FRAMES_PER_WAKEUP
        self._serving = True
        try:
            while frame is not None:
                self._handle(frame)
                if self.busy or not frames.buffered_bytes or self.closed:
                    return
                remaining_frames -= 1
                if not remaining_frames:
                    self.busy |= _SLICE
                    self.traffic.loop.run_callback(self._clear, _SLICE)
                    return
                frame = frames.next_frame()
            self._await_rest()
        finally:
            self._serving = False

    def _await_rest(self) -> None:
        """Wait for the rest of a partial frame, and read it if the bound of all partial frames allows."""
        frames, traffic = self._frames, self.traffic
        self._recv_bytes = min(frames.missing_bytes() or RECV_BYTES, RECV_BYTES_MAX)
        self._in_partial = True
        pending_bytes = frames.buffered_bytes
        if self._tls is not None:
            self._recv_bytes = max(self._recv_bytes, RECORD_BYTES_MAX)
            pending_bytes += self._tls.buffered_bytes
        traffic.partial.put(self, pending_bytes, traffic.now())
        if not traffic.may_read_more(self):
            self._reader.stop()

    def resume_reading(self) -> None:
        """Continue to read the partial frame if the bound of all partial frames allows."""
        if not self.closed and self._in_partial and self.traffic.may_read_more(self):
            self._reader.start(self._on_readable)

    def _clear(self, reason: int) -> None:
        """Remove one reason why the connection is busy; resume serving it if that was the last reason."""
        self.busy &= ~reason
        self._resume_serving()

    # --- calls

    def _handle(self, frame: bytes) -> None:
        traffic = self.traffic
        if traffic.open_bytes >= traffic.open_bytes_max:
            self._wait_for_capacity(frame)
            return
        if self._in_partial and self._share.exhausted:  # complete now
            self._waiting_frame = frame
            traffic.partial.put(self, len(frame) + self._frames.buffered_bytes, traffic.now())
            self._await_slice()
            return
        if self._silent:
            self._silent = False
            self._share.silent.pop(self, None)
            traffic.newcomers.leave(self)
        if self._in_partial:
            self._in_partial = False
            self._recv_bytes = RECV_BYTES
            traffic.partial_done(self)
        if len(frame) <= CHUNK_BYTES:
            self._open(frame)
            return
        started = traffic.cpu()
        self._open(frame)
        cost = traffic.cpu() - started
        if cost > COSTLY_S and not self.closed and not self.busy & _ENDING:
            self._start_rest(cost * REST_FACTOR)

    def _open(self, frame: bytes) -> None:
        """Parse a request frame and call its handler."""
        traffic = self.traffic
        try:
            header = read_header(frame)
        except HeaderError as invalid_header:  # compiled, `error` below is of one class only
            self._answer_error(
                invalid_header.wire,
                invalid_header.sequence,
                b"",
                ErrorKind.PROTOCOL_ERROR,
                str(invalid_header),
            )
            return
        wire, kind, name, sequence, body_at = header
        method = traffic.methods.get(name)
        if method is None or kind not in (CALL, ONEWAY):
            self._reject_message(header)
            return
        try:
            args = traffic.codec.decode(wire, frame, body_at, method.method.args)
        except DecodeError as error:
            if method.method.oneway:
                self.traffic.counts.errors[ErrorKind.PROTOCOL_ERROR].value += 1
            else:
                text = f"{method.method.name}: arguments do not decode: {error}"
                self._answer_error(wire, sequence, name, ErrorKind.PROTOCOL_ERROR, text)
            return
        traffic.slices.bytes += len(frame)
        now = self.idle_since = traffic.now()
        call = OpenCall(self, method, wire, sequence, args, len(frame), now)
        traffic.open_calls += 1
        traffic.open_bytes += len(frame)
        if method.method.oneway:
            self._open_oneway()
        else:
            self._call = call
            self.busy |= _CALL
            self._called_at = traffic.slices.record_call(self._share, self)
        try:
            method.handler(call)
        except Exception:
            self.traffic.error_log.log_exception("handler of %s failed", method.method.name)
            if call.open:
                call.reply_error(ErrorKind.INTERNAL_ERROR, f"{method.method.name}: internal error")

    def _open_oneway(self) -> None:
        self._oneway_open += 1
        if self._oneway_open >= ONEWAY_OPEN_MAX:
            self.busy |= _ONEWAY

    def _reject_message(self, header: Header) -> None:
        """Answer a message that is not a call or whose method has no handler."""
        name = header.name.decode("utf-8", "replace")
        if header.kind == ONEWAY:
            self.traffic.counts.errors[ErrorKind.UNKNOWN_METHOD].value += 1
        elif header.kind != CALL:
            text = f"message type is {header.kind}; allowed: 1 (call) or 4 (oneway)"
            self._answer_error(header.wire, header.sequence, header.name, ErrorKind.PROTOCOL_ERROR, text)
        else:
            text = f"unknown method {name[:100]!r}"
            self._answer_error(header.wire, header.sequence, header.name, ErrorKind.UNKNOWN_METHOD, text)

    def _wait_for_capacity(self, frame: bytes) -> None:
        traffic = self.traffic
        self._waiting_frame = frame
        self.busy |= _NO_CAPACITY
        self._in_partial = True
        traffic.partial.put(self, len(frame) + self._frames.buffered_bytes, traffic.now())
        traffic.await_capacity(self)

    def resume_call(self) -> None:
        """Handle the waiting frame, because the bytes of open calls are under their bound again."""
        self.busy &= ~_NO_CAPACITY
        if not self.closed and self._waiting_frame is not None:
            self._run_on_share(self._serve_waiting)

    def _serve_waiting(self) -> None:
        frame, self._waiting_frame = self._waiting_frame, None
        try:
            self._serve_frames(frame)
        except Exception as error:
            self._close_after_error(error)
        if not self.closed and not self.busy and not self._reader.active:
            self._resume_serving()

    def _start_rest(self, seconds: float) -> None:
        self.traffic.counts.count_rejected("rested")
        self.busy |= _RESTING
        self._timer = HubTimer(loop=self.traffic.loop)
        self._timer.once(seconds, self._on_rest_over)

    def _on_rest_over(self) -> None:
        self._timer = None
        self._clear(_RESTING)

    # --- answering

    def answer(self, call: OpenCall, envelope: Envelope, sequence: bytes, result: bytes) -> None:
        self.traffic.release(call.frame_bytes)
        if call is not self._call:
            self._oneway_done()
            return
        self._call = None
        self.busy &= ~_CALL
        if self._called_at != NOT_MEASURED:
            self.traffic.slices.record_answer(self._share, self, self._called_at)
        if len(result) > JOIN_BYTES_MAX:
            self.write_beside(envelope.build_head(call.wire, sequence, len(result)), result)
        else:
            self.write(envelope.build_frame(call.wire, sequence, result))
        if not self._serving and self._frames.buffered_bytes:
            self.traffic.loop.run_callback(self._resume_serving)

    def sent_at_last(self) -> None:
        self._clear(UNSENT)

    def _answer_error(self, wire: Wire, sequence: bytes, name: bytes, kind: ErrorKind, text: str) -> None:
        """Answer a request that did not become a call with an application exception."""
        self.traffic.counts.errors[kind].value += 1
        self.write(Envelope(name, EXCEPTION).build_frame(wire, sequence, encode_error(wire, kind, text)))

    def _oneway_done(self) -> None:
        self._oneway_open -= 1
        if self.busy & _ONEWAY:
            self.busy &= ~_ONEWAY
            if not self._serving and not self.closed:
                self.traffic.loop.run_callback(self._resume_serving)

    # --- rights

    @property
    def has_private_channel(self) -> bool:
        """Return whether no other machine can read the connection: it uses TLS, or its client is on this
        machine."""
        return self.is_encrypted or is_loopback(self.identity.host)

    def _use_default_caller(self) -> None:
        if self.identity.use_default() is not None:
            self.traffic.counts.count_rejected("quota")
            self.traffic.loop.run_callback(self.close)

    def reject_login(self, answer: Callable[[], None]) -> None:
        """Answer a login that failed, charge it to the address, and close the connection a little later."""
        self._share.used += LOGIN_FAILED_S
        self.busy |= _ENDING
        answer()
        if self.closed:
            return
        if self._timer is not None:
            self._timer.stop()
        self._timer = HubTimer(loop=self.traffic.loop)
        self._timer.once(LOGIN_FAILED_CLOSE_S, self.close)

    def recheck_rights(self) -> None:
        """Apply changed rights to the connection and to its waiting call."""
        if self.traffic.callers is None or self.closed:
            return
        if self.identity.is_login_over:
            self.traffic.counts.count_rejected("token_over")
            self.close()
            return
        if not self.identity.is_logged_in:
            self._use_default_caller()
        call = self._call
        if call is not None:
            call.recheck_rights()

    # --- ending

    def close(self) -> None:
        """Close the socket and notify the open call's handler. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        traffic = self.traffic
        for watcher in (self._reader, self._writer):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        if self._timer is not None:
            self._timer.stop()
        if self._tls is not None and self._unsent is None:
            self._send_last(self._tls)
        self._writer = self._timer = self._unsent = self._waiting_frame = self._tls = None
        self._socket.close()
        traffic.connections.discard(self)
        traffic.newcomers.leave(self)
        traffic.slices.leave(self._share, self)
        traffic.counts.connections.value -= 1
        traffic.partial_done(self)
        traffic.unsent.discard(self)
        call, self._call = self._call, None
        if call is not None:
            call.mark_abandoned()
        self.identity.leave()
        if traffic.on_closed is not None:
            traffic.on_closed(self.peer)

    def _send_last(self, session: TlsSession) -> None:
        """Send an alert that explains the end of the connection, if the socket takes it."""
        output = session.close()
        if output:
            try:
                self._send(output)
            except OSError:
                pass
