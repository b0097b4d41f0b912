"""One HTTP connection over a blocking socket; `aio.http` has the same for asyncio."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from ddmq_client.admin.http import HttpRequest, HttpResponse, ResponseReader
from ddmq_client.core.nodes import ProxyAddress, UnixAddress
from ddmq_client.net.connection import open_socket
from ddmq_client.security.tls import has_unread

READ_BYTES = 64 * 1024


def connect_unix(path: str, timeout_s: float) -> socket.socket:
    """Return a socket that is connected to a Unix socket. Raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        connected.connect(path)
    except BaseException:
        connected.close()
        raise
    return connected


class HttpConnection:
    """A connection to one server, for one request at a time."""

    def __init__(self, address: ProxyAddress) -> None:
        self.address = address
        self._socket: socket.socket | None = None

    @property
    def is_stale(self) -> bool:
        """Return whether the server has closed the connection, or sent bytes that no request asked for."""
        return self._socket is None or has_unread(self._socket)

    def open(self, deadline: float) -> None:
        """Connect to the server. Raises OSError."""
        if isinstance(self.address, UnixAddress):
            self._socket = connect_unix(self.address.host, _remaining_s(deadline))
            return
        sends_token = self.address.login is not None and bool(self.address.login.read_token())
        self._socket = open_socket(self.address, _remaining_s(deadline), sends_token=sends_token)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, request: HttpRequest, reader: ResponseReader, deadline: float) -> HttpResponse:
        """Send the request and wait for its answer. Raises OSError (TimeoutError) or HttpError."""
        open_socket = self._socket
        if open_socket is None:
            raise ConnectionAbortedError("the connection is closed")
        open_socket.settimeout(_remaining_s(deadline))
        open_socket.sendall(request.encode(self.address))
        while True:
            open_socket.settimeout(_remaining_s(deadline))
            response = reader.feed_bytes(open_socket.recv(READ_BYTES))
            if response is not None:
                return response

    def close(self) -> None:
        """Close the connection; a call that waits on it fails."""
        open_socket, self._socket = self._socket, None
        if open_socket is not None:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()


def _remaining_s(deadline: float) -> float:
    """Return the seconds until the deadline. Raises TimeoutError if there are none."""
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError("the time is up")
    return remaining_s
