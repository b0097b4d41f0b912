"""Connections of the ordinary clients to a broker in this process, in place of a socket and a transport.

The broker serves a request on the thread that sends it, so an answer is mostly there before the client waits.
A held pull is answered by the thread that brings messages, or by its own when the linger of the client ends.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from ddmq_client.testing.proxies import InProcessProxy


class BrokerConnection(Protocol):
    """One connection as the broker serves it (ddmq/in_process/server.py)."""

    closed: bool

    @property
    def linger_s(self) -> float | None: ...

    def send(self, data: bytes, on_answer: Callable[[bytes], object]) -> None: ...

    def end_wait(self) -> None: ...

    def close(self) -> None: ...


class BrokerSocket:
    """The methods of a socket that the blocking client uses."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._arrived = threading.Condition()
        self._data = b""
        self._timeout: float | None = None
        self._is_shut = False

    def ignore_option(self, level: int, option: int, value: int) -> None:
        """Do nothing, because these connections do not use a network."""

    def set_timeout(self, timeout: float | None) -> None:
        """Limit the wait of each later call, in seconds; None: no limit."""
        self._timeout = timeout

    def send_bytes(self, data: bytes) -> None:
        """Send a request; the broker serves it before this returns."""
        if self._is_shut or self._connection.closed:
            raise BrokenPipeError(errno.EPIPE, "the broker has closed the connection")
        self._connection.send(data, self._add_answer)

    def receive_bytes(self, size: int, flags: int = 0) -> bytes:
        """Return bytes of an answer; b"" once the connection is closed."""
        now = time.monotonic()
        until = None if self._timeout is None else now + self._timeout
        linger_s = self._connection.linger_s
        ends_at = None if linger_s is None else now + linger_s
        with self._arrived:
            while not self._data:
                if self._is_shut or self._connection.closed:
                    return b""
                now = time.monotonic()
                if until is not None and now >= until:
                    raise BlockingIOError() if self._timeout == 0.0 else TimeoutError("timed out")
                if ends_at is not None and now >= ends_at:
                    ends_at = None
                    self._end_wait()
                    continue
                moments = [moment - now for moment in (until, ends_at) if moment is not None]
                self._arrived.wait(min(moments, default=None))
            data = self._data[:size]
            if not flags & socket.MSG_PEEK:
                self._data = self._data[len(data) :]
            return data

    def _end_wait(self) -> None:
        """Let the broker end this wait, without the lock: the broker answers under its own lock."""
        self._arrived.release()
        try:
            self._connection.end_wait()
        finally:
            self._arrived.acquire()

    def shut_down(self, how: int) -> None:
        """Close both directions of the connection."""
        self.close()

    def close(self) -> None:
        """End the connection; a thread that waits for an answer gets none."""
        with self._arrived:
            self._is_shut = True
            self._arrived.notify_all()
        self._connection.close()

    def _add_answer(self, frame: bytes) -> None:
        with self._arrived:
            self._data += frame
            self._arrived.notify_all()

    setsockopt, settimeout, sendall, recv, shutdown = (
        ignore_option,
        set_timeout,
        send_bytes,
        receive_bytes,
        shut_down,
    )


class BrokerTransport(asyncio.Transport):
    """The transport of one asyncio client."""

    def __init__(self, connection: BrokerConnection, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._connection = connection
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._is_lost

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        if self._is_lost:
            return
        self._connection.send(bytes(data), self._add_answer)
        if self._connection.closed:
            self._lose_connection()
            return
        linger_s = self._connection.linger_s
        if linger_s is not None:
            self._timer = self._loop.call_later(linger_s, self._connection.end_wait)

    def _add_answer(self, frame: bytes) -> None:
        with suppress(RuntimeError):  # the loop was closed with the answer under way
            self._loop.call_soon_threadsafe(self._deliver_frame, frame)

    def _deliver_frame(self, frame: bytes) -> None:
        if not self._is_lost:
            self._stop_timer()
            self._protocol.data_received(frame)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """End the connection; an answer that is under way is lost."""
        self._lose_connection()

    abort = close

    def _lose_connection(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._stop_timer()
            self._connection.close()
            self._loop.call_soon(self._protocol.connection_lost, None)


class BrokerProxy(InProcessProxy):
    """An in-process stand-in for a proxy of the test broker. `connect` opens a connection to the broker."""

    def __init__(self, connect: Callable[[], BrokerConnection]) -> None:
        self._connect = connect

    def open_socket(self) -> BrokerSocket:
        return BrokerSocket(self._connect())

    def open_transport(self, protocol: asyncio.Protocol) -> BrokerTransport:
        return BrokerTransport(self._connect(), protocol)
