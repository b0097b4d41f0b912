"""What a receiver sends, read under bounds that hold while bytes keep coming.

gevent's sockets yield only when nothing is there to be read, and its time-outs fire only when somebody
yields: a receiver that never stops sending would have the whole process to itself. So bytes, time and the
pieces an answer is made of are counted here, and after some of either the others get their turn.
"""

from __future__ import annotations

import select
import time
from typing import Any

import gevent

RECV_BYTES = 16 << 10
BREATHE_BYTES = 64 << 10  # read, or
BREATHE_PIECES = 256  # lines and pieces taken: then the hub has its turn
BREATHE_S = 0.0005


class UnboundedError(Exception):
    """The receiver sends more than an answer may have, or does not come to an end; the text says of what."""


class Receiving:
    """One answer as it comes in. Raises UnboundedError at a bound, EOFError where it ends too early."""

    def __init__(self, sock: Any, bytes_max: int, pieces_max: int, until: float) -> None:
        """`until`: monotonic seconds at which it must have ended."""
        self._sock = sock
        self._bytes_max = self._bytes_left = bytes_max
        self._pieces_max = self._pieces_left = pieces_max
        self._until = until
        self._breathe_at = bytes_max - BREATHE_BYTES
        self._buffer = bytearray()

    @property
    def left_over(self) -> bool:
        """Bytes came that nobody has taken."""
        return bool(self._buffer)

    def line(self, length_max: int) -> bytes:
        """The next line, without its end."""
        self._piece()
        looked_at = 0
        while (end := self._buffer.find(b"\n", looked_at)) < 0:
            looked_at = len(self._buffer)
            if looked_at > length_max:
                break
            self._more()
        if not 0 <= end <= length_max:
            raise UnboundedError(f"a line of the answer is over {length_max} bytes")
        return self._take(end + 1).rstrip(b"\r\n")

    def exactly(self, count: int) -> bytes:
        """The next `count` bytes."""
        self._piece()
        while len(self._buffer) < count:
            self._more()
        return self._take(count)

    def to_the_end(self) -> bytes:
        """Everything until the receiver closes the connection."""
        try:
            while True:
                self._more()
        except EOFError:
            taken = bytes(self._buffer)
            self._buffer.clear()
            return taken

    def _take(self, count: int) -> bytes:
        taken = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return taken

    def _piece(self) -> None:
        self._pieces_left -= 1
        if self._pieces_left < 0:
            raise UnboundedError(f"the answer is in over {self._pieces_max} pieces")
        if self._pieces_left % BREATHE_PIECES == 0:
            self._breathe()

    def _more(self) -> None:
        if self._bytes_left <= 0:
            raise UnboundedError(f"the answer is over {self._bytes_max} bytes with its head")
        data = self._sock.recv(min(RECV_BYTES, self._bytes_left))
        if not data:
            raise EOFError("the answer ends too early")
        self._bytes_left -= len(data)
        self._buffer += data
        if self._bytes_left <= self._breathe_at:
            self._breathe_at = self._bytes_left - BREATHE_BYTES
            self._breathe()

    def _breathe(self) -> None:
        """Let the hub serve everybody else; a time-out of the caller's may fire here."""
        if time.monotonic() > self._until:
            raise UnboundedError("the answer has not ended in time")
        gevent.sleep(BREATHE_S)


def is_quiet(sock: Any) -> bool:
    """Whether nothing has arrived on a kept connection: neither its end nor bytes nobody asked for."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return not poll.poll(0)
