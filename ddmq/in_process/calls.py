"""Serves clients in the same process: takes their frames and returns the frames of answers, without sockets.

A held call (a pull without messages, a poll for checks) waits as in a real server. Its client must end the
wait by its own clock with `end_wait`, because the server's clock stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddmq_common.clock import Clock
from ddmq_common.security.callers import Caller
from ddmq_rpc.api import Call, ErrorKind, Service
from ddmq_rpc.codec import Codec, DecodeError, Method, encode_error, encode_result, methods, structs
from ddmq_rpc.envelope import EXCEPTION, REPLY, Envelope, Header, HeaderError, read_header

Answered = Callable[[bytes], object]
HOLD_MS = 1 << 30  # on the server's clock, for what waits on the client's
FRAME_BYTES_MAX, ELEMENTS_MAX, DECODE_S = 16 << 20, 16_384, 60.0


class InProcessCall(Call):
    """One request that the in-process server handles. `on_answer` is called with the frame of its answer."""

    __slots__ = (
        "_header",
        "_linger_ms",
        "_method",
        "_on_answer",
        "is_abandoned",
        "is_answered",
        "is_rejected",
    )

    def __init__(
        self,
        method: Method,
        header: Header,
        args: Any,
        size: int,
        peer: str,
        at: float,
        on_answer: Answered,
        caller: Caller | None = None,
    ) -> None:
        self._method = method
        self._header = header
        self._on_answer = on_answer
        self._linger_ms = _stretch_wait(args)
        self.args = args
        self.wire = header.wire
        self.received_at = at
        self.frame_bytes = size
        self.peer = peer
        self.caller = caller
        self.on_abandoned = None
        self.is_answered = self.is_abandoned = self.is_rejected = False

    @property
    def open(self) -> bool:
        return not (self.is_answered or self.is_abandoned)

    @property
    def linger_ms(self) -> int:
        """The time in ms for which the client lets the server hold this call."""
        return self._linger_ms

    @property
    def method_name(self) -> str:
        """The called method's name in the IDL."""
        return self._method.name

    def reply(self, value: Any) -> None:
        self.reply_encoded(
            b"" if self._method.oneway else encode_result(self._method, self.wire, success=value)
        )

    def throw(self, exception: Any) -> None:
        self.is_rejected = True
        declared = next(entry for entry in self._method.result[1][1:] if entry)
        self.reply_encoded(encode_result(self._method, self.wire, **{declared[2]: exception}))

    def reply_encoded(self, result: bytes) -> None:
        self._send_answer(REPLY, result)

    def reply_error(self, kind: ErrorKind, text: str) -> None:
        self._send_answer(EXCEPTION, encode_error(self.wire, kind, text))

    def _send_answer(self, kind: int, body: bytes) -> None:
        if self.is_answered:
            raise RuntimeError(f"{self.method_name} was answered twice")
        self.is_answered = True
        if not (self._method.oneway or self.is_abandoned):
            envelope = Envelope(self._method.name.encode(), kind)
            self._on_answer(envelope.build_frame(self.wire, self._header.sequence, bytes(body)))

    def abandon_call(self) -> None:
        """Mark the call as abandoned and report that, because the client disconnected before the answer. Does
        nothing if the call is answered already."""
        if self.open:
            self.is_abandoned = True
            on_abandoned, self.on_abandoned = self.on_abandoned, None
            if on_abandoned is not None:
                on_abandoned(self)


class InProcessService:
    """One Thrift service of the in-process server, shared by all of its connections."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._methods = methods(service.idl, service.name)
        self._handlers = {"authenticate": self._accept_login, **service.handlers}
        self._answers = structs(service.idl)
        self._on_closed = service.on_closed
        self._clock = clock
        self._codec = Codec(FRAME_BYTES_MAX, ELEMENTS_MAX, DECODE_S)

    def open_call(
        self, frame: bytes, peer: str, on_answer: Answered, caller: Caller | None = None
    ) -> InProcessCall | None:
        """Start to serve one complete frame and return the open call. If the frame is invalid or its method
        unknown, answer with an error at once and return None. `caller`: for whose quotas the call counts;
        its rights have been checked."""
        try:
            header = read_header(frame)
        except HeaderError as error:
            body = encode_error(error.wire, ErrorKind.PROTOCOL_ERROR, str(error))
            on_answer(Envelope(b"", EXCEPTION).build_frame(error.wire, error.sequence, body))
            return None
        method = self._methods.get(header.name.decode("utf-8", "replace"))
        handler = None if method is None else self._handlers.get(method.name)
        if method is None or handler is None:
            text = f"unknown method {header.name.decode('utf-8', 'replace')[:100]}"
            _answer_error(header, ErrorKind.UNKNOWN_METHOD, text, on_answer)
            return None
        try:
            args = self._codec.decode(header.wire, frame, header.body_at, method.args)
        except DecodeError as error:
            text = f"{method.name}: arguments do not decode: {error}"
            _answer_error(header, ErrorKind.PROTOCOL_ERROR, text, on_answer)
            return None
        now = self._clock.monotonic()
        call = InProcessCall(method, header, args, len(frame), peer, now, on_answer, caller)
        handler(call)
        return call

    def _accept_login(self, call: Call) -> None:
        """Accept every login, as a server does that checks no rights."""
        call.reply(self._answers.AuthResponse(code=0, msg="rights are off: everybody may do everything"))

    def close_connection(self, peer: str) -> None:
        """Note that a client closed its connection."""
        if self._on_closed is not None:
            self._on_closed(peer)


def _stretch_wait(args: Any) -> int:
    """Raise the wait time in a request that may be held to HOLD_MS, because its client ends the wait itself;
    return the original wait time in ms."""
    request = getattr(args, "request", None)
    for name in ("maxLingerTime", "timeout"):
        own_ms: int | None = getattr(request, name, None)
        if own_ms is not None and (name == "maxLingerTime" or hasattr(request, "countMax")):
            if own_ms > 0:
                setattr(request, name, HOLD_MS)
            return own_ms
    return 0


def _answer_error(header: Header, kind: ErrorKind, text: str, on_answer: Answered) -> None:
    body = encode_error(header.wire, kind, text)
    on_answer(Envelope(header.name, EXCEPTION).build_frame(header.wire, header.sequence, body))
