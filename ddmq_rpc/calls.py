"""One open call.

A call is answered once. When its client goes first, `on_abandoned` runs if there is one, and the
call's bytes are free at once; without one the handler still works on it, so they are free when it
answers. An answer after that is counted and dropped; a second answer is a bug and raises.
"""

from __future__ import annotations

from typing import Any, Protocol

from ddmq_rpc.api import Call, Fault, Wire
from ddmq_rpc.wire.codec import encode_fault, encode_result
from ddmq_rpc.wire.envelope import EXCEPTION, REPLY, Envelope
from ddmq_rpc.wire.structs import ENCODERS, Method


class OpenMethod:
    """A method with its handler and envelopes."""

    __slots__ = ("answers", "faults", "handler", "method")

    def __init__(self, method: Method, handler: Any) -> None:
        self.method = method
        self.handler = handler
        self.answers = Envelope(method.name.encode(), REPLY)
        self.faults = Envelope(method.name.encode(), EXCEPTION)


class Caller(Protocol):
    """What a call asks of its connection."""

    @property
    def peer(self) -> str: ...

    def answer(self, call: OpenCall, envelope: Envelope, sequence: bytes, result: bytes) -> None:
        """Send it; the call's bytes are free."""

    def release(self, frame_bytes: int) -> None:
        """The call will not be answered; its bytes are free."""

    def count_fault(self, kind: Fault) -> None: ...

    def count_abandoned(self) -> None: ...

    def report(self, text: str, *args: object) -> None:
        """Log the exception under way."""


_OPEN, _ANSWERED, _GONE = 0, 1, 2


class OpenCall(Call):
    """A call on its connection. Made by the connection, answered by the handler or whoever it asks."""

    __slots__ = ("_bytes_held", "_connection", "_method", "_sequence", "_state")

    def __init__(
        self,
        connection: Caller,
        method: OpenMethod,
        wire: Wire,
        sequence: bytes,
        args: Any,
        frame_bytes: int,
        received_at: float,
    ) -> None:
        self._connection = connection
        self._method = method
        self._sequence = sequence
        self._state = _OPEN
        self._bytes_held = True
        self.wire = wire
        self.args = args
        self.frame_bytes = frame_bytes
        self.received_at = received_at
        self.peer = connection.peer
        self.on_abandoned = None

    @property
    def open(self) -> bool:
        return self._state == _OPEN

    @property
    def method_name(self) -> str:
        return self._method.method.name

    @property
    def oneway(self) -> bool:
        """True when nobody waits for the answer."""
        return self._method.method.oneway

    def reply(self, value: Any) -> None:
        method = self._method.method
        if method.oneway:
            self.reply_encoded(b"")
            return
        try:
            result = ENCODERS[self.wire](method.result[0](success=value), method.result)
        except Exception:
            self._unencodable()
        else:
            self.reply_encoded(result)

    def reply_encoded(self, result: bytes) -> None:
        if self._state:
            self._late()
            return
        self._state = _ANSWERED
        self._connection.answer(self, self._method.answers, self._sequence, result)

    def throw(self, exception: Any) -> None:
        method = self._method.method
        declared = next((entry for entry in method.result[1][1:] if entry), None)
        if declared is None:
            raise TypeError(f"{method.name} declares no exception; answer with reply or fault")
        try:
            result = encode_result(method, self.wire, **{declared[2]: exception})
        except Exception:
            self._unencodable()
        else:
            self.reply_encoded(result)

    def fault(self, kind: Fault, text: str) -> None:
        if self._state:
            self._late()
            return
        self._state = _ANSWERED
        connection = self._connection
        connection.count_fault(kind)
        connection.answer(self, self._method.faults, self._sequence, encode_fault(self.wire, kind, text))

    def abandon(self) -> None:
        """The client has gone; the connection says so once, while the call is open."""
        self._state = _GONE
        told, self.on_abandoned = self.on_abandoned, None
        if told is None:
            return
        self._release()
        try:
            told(self)
        except Exception:
            self._connection.report("on_abandoned of %s failed", self.method_name)

    def _late(self) -> None:
        """Answered after the client had gone, or twice."""
        if self._state == _ANSWERED:
            raise RuntimeError(f"{self.method_name} was answered twice")
        self._state = _ANSWERED
        self._release()
        self._connection.count_abandoned()

    def _release(self) -> None:
        if self._bytes_held:
            self._bytes_held = False
            self._connection.release(self.frame_bytes)

    def _unencodable(self) -> None:
        self._connection.report("the answer of %s does not encode", self.method_name)
        self.fault(Fault.INTERNAL_ERROR, f"{self.method_name}: the answer could not be encoded")
