"""The sending half of a connection: `send` at once, a write watcher for what the socket does not take."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from typing import Any

from ddmq_rpc.traffic import Traffic

UNSENT = 1  # the bit of `busy` while an answer is not out
_WRITE = 2


class AnswerSender(ABC):
    """Sends answers in order, one at a time: nothing is written while `busy` has UNSENT."""

    __slots__ = ("_send", "_socket", "_traffic", "_unsent", "_writer", "busy")

    _unsent: memoryview | None
    _writer: Any

    def __init__(self, traffic: Traffic, accepted: socket.socket) -> None:
        self._traffic = traffic
        self._socket = accepted
        self._send = accepted.send
        self._unsent = None
        self._writer = None
        self.busy = 0

    @abstractmethod
    def close(self) -> None:
        """End the connection."""

    @abstractmethod
    def sent_at_last(self) -> None:
        """What had to wait is out now; `busy` still has UNSENT."""

    @abstractmethod
    def answer_lost(self) -> None:
        """The client went before an answer was out."""

    def write(self, data: bytes) -> None:
        """Send a whole frame."""
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
        """Send a frame in two pieces, so that a large result is not copied behind its header."""
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
            self._writer = self._traffic.loop.io(self._socket.fileno(), _WRITE)
        self._writer.start(self._on_writable)
        self._traffic.keep_unsent(self, len(rest))

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
            self._traffic.unsent.put(self, len(rest) - sent, 0.0)
            return
        self._unsent = None
        self._writer.stop()
        self._traffic.unsent.discard(self)
        self.sent_at_last()
