"""One open call, and the sending half of its connection.

A call is answered once. When its client goes first, `on_abandoned` runs if there is one, and the
call's bytes are free at once; without one the handler still works on it, so they are free when it
answers. An answer after that is counted and dropped; a second answer is a bug and raises.

An answer is sent at once; a write watcher takes what the socket does not. With TLS it is encrypted once, and
what is unsent is ciphertext.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from typing import Any

from ddmq_common.security.connection_caller import ConnectionCaller
from ddmq_rpc.api import Call, ErrorKind, Wire
from ddmq_rpc.codec import ENCODERS, encode_error, encode_result
from ddmq_rpc.envelope import Envelope
from ddmq_rpc.tls_session import TlsSession
from ddmq_rpc.traffic import OpenMethod, Traffic

UNSENT = 1  # the bit of `busy` while an answer is not out
_WRITE = 2


class AnswerSender(ABC):
    """Sends the answers of one connection in order. It writes no frame while `busy` contains UNSENT."""

    __slots__ = (
        "_send", "_socket", "_tls", "_unsent", "_writer", "busy", "identity", "peer", "traffic",
    )  # fmt: skip

    _tls: TlsSession | None
    _unsent: memoryview | None
    _writer: Any

    def __init__(self, traffic: Traffic, accepted: socket.socket, peer: str) -> None:
        self.traffic = traffic
        self._socket = accepted
        self._send = accepted.send
        self._tls = None
        self._unsent = None
        self._writer = None
        self.busy = 0
        self.identity = ConnectionCaller(traffic.callers, peer.rpartition(":")[0])
        self.peer = peer

    @abstractmethod
    def answer(self, call: OpenCall, envelope: Envelope, sequence: bytes, result: bytes) -> None:
        """Send the answer of an open call and release the call's bytes. Called once for each call."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection and abandon its open call."""

    @abstractmethod
    def sent_at_last(self) -> None:
        """Continue to serve the connection, because the unsent rest of an answer has been sent.

        `busy` still contains UNSENT.
        """

    @property
    def is_encrypted(self) -> bool:
        """Return whether the connection uses TLS."""
        return self._tls is not None

    def write(self, data: bytes) -> None:
        """Send a complete frame."""
        if self._tls is None:
            self._send_bytes(data)
        else:
            self._send_encrypted((data,))

    def _send_encrypted(self, parts: tuple[bytes, ...]) -> None:
        """Send a complete frame that is given in parts over TLS."""
        tls = self._tls
        assert tls is not None
        try:
            records = (
                tls.encrypt_bytes(parts[0]) if len(parts) == 1 else b"".join(map(tls.encrypt_bytes, parts))
            )
        except OSError:
            self.answer_lost()
            return
        self._send_bytes(records)

    def _send_bytes(self, data: bytes) -> None:
        try:
            sent = self._send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.answer_lost()
            return
        if sent != len(data):
            self._keep_unsent(memoryview(data)[sent:])

    def write_beside(self, head: bytes, result: bytes) -> None:
        """Send a frame given as header and body, so that a large body need not be copied."""
        if self._tls is not None:
            self._send_encrypted((head, result))
            return
        try:
            sent = self._socket.sendmsg((head, result))
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.answer_lost()
            return
        if sent < len(head):
            self._keep_unsent(memoryview(head[sent:] + result))
        elif sent != len(head) + len(result):
            self._keep_unsent(memoryview(result)[sent - len(head) :])

    def _keep_unsent(self, rest: memoryview) -> None:
        self._unsent = rest
        self.busy |= UNSENT
        if self._writer is None:
            self._writer = self.traffic.loop.io(self._socket.fileno(), _WRITE)
        self._writer.start(self._on_writable)
        self.traffic.keep_unsent(self, len(rest))

    def _on_writable(self) -> None:
        rest = self._unsent
        if rest is None:
            return
        try:
            sent = self._send(rest)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.answer_lost()
            return
        if sent != len(rest):
            self._unsent = rest[sent:]
            self.traffic.unsent.put(self, len(rest) - sent, 0.0)
            return
        self._unsent = None
        self._writer.stop()
        self.traffic.unsent.discard(self)
        self.sent_at_last()

    def answer_lost(self) -> None:
        """Count an answer that could not be sent because its client disconnected, and close the
        connection."""
        self.traffic.counts.abandoned.value += 1
        self.close()


_OPEN, _ANSWERED, _ABANDONED = 0, 1, 2


class OpenCall(Call):
    """An RPC call that a connection has received. Its handler answers it at once or later.

    The call is open until it is answered or abandoned.
    """

    __slots__ = ("_bytes_counted", "_connection", "_method", "_sequence", "_state")

    def __init__(
        self,
        connection: AnswerSender,
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
        self._bytes_counted = True
        self.wire = wire
        self.args = args
        self.frame_bytes = frame_bytes
        self.received_at = received_at
        self.peer = connection.peer
        self.caller = connection.identity.caller
        self.on_abandoned = None

    @property
    def open(self) -> bool:
        return self._state == _OPEN

    @property
    def client_connection(self) -> AnswerSender:
        """Return the connection on which the call came."""
        return self._connection

    def recheck_rights(self) -> None:
        """Answer a waiting call with a rejection if its caller has lost the rights that it needs."""
        rule = self._method.rule
        if rule is None or not rule.waits or self._state or self.on_abandoned is None:
            return
        self.caller = self._connection.identity.caller
        missing = rule.find_missing(self)
        on_abandoned = self.on_abandoned
        if missing is not None and on_abandoned is not None:
            self.on_abandoned = None
            on_abandoned(self)
            rule.reject(self, missing)

    @property
    def method_name(self) -> str:
        return self._method.method.name

    @property
    def oneway(self) -> bool:
        """Return whether the client expects no answer."""
        return self._method.method.oneway

    def reply(self, value: Any) -> None:
        method = self._method.method
        if method.oneway:
            self.reply_encoded(b"")
            return
        try:
            result = ENCODERS[self.wire](method.result[0](success=value), method.result)
        except Exception:
            self._report_unencodable()
        else:
            self.reply_encoded(result)

    def reply_encoded(self, result: bytes) -> None:
        if self._state:
            self._reject_late_answer()
            return
        self._state = _ANSWERED
        self._connection.answer(self, self._method.answers, self._sequence, result)

    def throw(self, exception: Any) -> None:
        method = self._method.method
        declared = next((entry for entry in method.result[1][1:] if entry), None)
        if declared is None:
            raise TypeError(f"{method.name} declares no exception; answer with reply or reply_error")
        try:
            result = encode_result(method, self.wire, **{declared[2]: exception})
        except Exception:
            self._report_unencodable()
        else:
            self.reply_encoded(result)

    def reply_error(self, kind: ErrorKind, text: str) -> None:
        if self._state:
            self._reject_late_answer()
            return
        self._state = _ANSWERED
        connection = self._connection
        connection.traffic.counts.errors[kind].value += 1
        connection.answer(self, self._method.exceptions, self._sequence, encode_error(self.wire, kind, text))

    def mark_abandoned(self) -> None:
        """Mark the open call as abandoned, because its client disconnected.

        Called once by the connection.
        """
        self._state = _ABANDONED
        on_abandoned, self.on_abandoned = self.on_abandoned, None
        if on_abandoned is None:
            return
        self._release()
        try:
            on_abandoned(self)
        except Exception:
            self._connection.traffic.error_log.log_exception("on_abandoned of %s failed", self.method_name)

    def _reject_late_answer(self) -> None:
        """Count an answer that comes after the client disconnected.

        Raises RuntimeError for a second answer.
        """
        if self._state == _ANSWERED:
            raise RuntimeError(f"{self.method_name} was answered twice")
        self._state = _ANSWERED
        self._release()
        self._connection.traffic.counts.abandoned.value += 1

    def _release(self) -> None:
        if self._bytes_counted:
            self._bytes_counted = False
            self._connection.traffic.release(self.frame_bytes)

    def _report_unencodable(self) -> None:
        self._connection.traffic.error_log.log_exception("the answer of %s does not encode", self.method_name)
        self.reply_error(ErrorKind.INTERNAL_ERROR, f"{self.method_name}: the answer could not be encoded")
