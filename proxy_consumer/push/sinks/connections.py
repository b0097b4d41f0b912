"""Reusable connections to receivers, on gevent's own sockets, whose replies are read under strict bounds.

gevent's sockets yield only if there is nothing to read, and its time-outs fire only when a greenlet yields: a
receiver that never stops sending would occupy the whole process. So the bytes, the time and the reads of a
reply are counted here, and after some of either the other greenlets run.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import gevent
from gevent import socket
from gevent.lock import BoundedSemaphore

RECV_BYTES = 16 << 10
BREATHE_BYTES = 64 << 10  # after reading this many bytes, or
BREATHE_READS = 256  # this many reads, other greenlets run
BREATHE_S = 0.0005


class UnboundedError(Exception):
    """The receiver sends more than a reply may have, or does not end it; the text says which bound was
    exceeded."""


class Receiving:
    """One reply that is being received. Raises UnboundedError at a bound, EOFError if it ends too early."""

    def __init__(self, sock: Any, bytes_max: int, reads_max: int, until: float) -> None:
        """Create a reader of one reply. `until`: the deadline for the whole reply, in monotonic seconds."""
        self._sock = sock
        self._bytes_max = self._bytes_left = bytes_max
        self._reads_max = self._reads_left = reads_max
        self._until = until
        self._breathe_at = bytes_max - BREATHE_BYTES
        self._buffer = bytearray()

    @property
    def left_over(self) -> bool:
        """Whether bytes were received that have not been read."""
        return bool(self._buffer)

    def read_line(self, length_max: int) -> bytes:
        """Read the next line, without its line break."""
        self._count_read()
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > length_max:
                break
            self._read_more()
        if not 0 <= end <= length_max:
            raise UnboundedError(f"a line of the answer is over {length_max} bytes")
        return self._take_buffered(end + 1).rstrip(b"\r\n")

    def read_exactly(self, count: int) -> bytes:
        """Read the next `count` bytes."""
        self._count_read()
        while len(self._buffer) < count:
            self._read_more()
        return self._take_buffered(count)

    def read_to_end(self) -> bytes:
        """Read everything until the receiver closes the connection."""
        try:
            while True:
                self._read_more()
        except EOFError:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data

    def _take_buffered(self, count: int) -> bytes:
        data = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return data

    def _count_read(self) -> None:
        self._reads_left -= 1
        if self._reads_left < 0:
            raise UnboundedError(f"the answer is in over {self._reads_max} pieces")
        if self._reads_left % BREATHE_READS == 0:
            self._yield_to_hub()

    def _read_more(self) -> None:
        if self._bytes_left <= 0:
            raise UnboundedError(f"the answer is over {self._bytes_max} bytes with its head")
        data = self._sock.recv(min(RECV_BYTES, self._bytes_left))
        if not data:
            raise EOFError("the answer ends too early")
        self._bytes_left -= len(data)
        self._buffer += data
        if self._bytes_left <= self._breathe_at:
            self._breathe_at = self._bytes_left - BREATHE_BYTES
            self._yield_to_hub()

    def _yield_to_hub(self) -> None:
        """Let other greenlets run; a time-out of the caller may fire here."""
        if time.monotonic() > self._until:
            raise UnboundedError("the answer has not ended in time")
        gevent.sleep(BREATHE_S)


class Connection:
    """A network connection from a push sink to its receiver.

    `reusable`: the connection can be used again after the present request.
    """

    def __init__(self, host: str, port: int, tls: Any = None) -> None:
        """Create a connection that is not open yet. `tls`: the TLS context; None for an unencrypted
        connection."""
        self.host = host
        self.port = port
        self.sock: Any = None
        self.reusable = False
        self.idle_since = 0.0
        self._tls = tls

    def open(self) -> bool:
        """Connect; return False if the connection was open already. Name lookups go through gevent, too."""
        if self.sock is not None:
            return False
        self.sock = socket.create_connection((self.host, self.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
        return True

    def close(self) -> None:
        """Close the connection; does nothing if it was never open."""
        if self.sock is not None:
            self.sock.close()

    def is_quiet(self) -> bool:
        """Whether nothing has arrived since the last use: neither the end of the connection nor unexpected
        bytes."""
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN)
        return not poll.poll(0)


C = TypeVar("C", bound=Connection)


class ReusableConnections(Generic[C]):
    """Reusable connections to one receiver, at most `connections_max`; a reusable one is reused within
    `idle_s`."""

    def __init__(self, connections_max: int, idle_s: float = math.inf) -> None:
        self.users = 0  # how many callers use a connection, or wait for one
        self._permits = BoundedSemaphore(connections_max)
        self._idle_s = idle_s
        self._idle: list[C] = []
        self._closed = False

    @contextmanager
    def use_connection(self, make: Callable[[], C]) -> Iterator[C]:
        """Lend a connection for exclusive use; afterwards it is closed unless it was marked reusable."""
        self.users += 1
        try:
            with self._permits:
                connection = self._take_quiet() or make()
                connection.reusable = False
                try:
                    yield connection
                finally:
                    if connection.reusable and not self._closed:
                        connection.idle_since = time.monotonic()
                        self._idle.append(connection)
                    else:
                        connection.close()
        finally:
            self.users -= 1

    def close(self) -> None:
        """Close the idle connections; those in use are closed after their use."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _take_quiet(self) -> C | None:
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since <= self._idle_s and connection.is_quiet():
                return connection
            connection.close()
        return None
