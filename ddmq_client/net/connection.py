"""One blocking connection to one proxy, one request at a time, within a deadline; names to addresses.

Only the standard library's socket is used, and only at call time: where gevent has patched it, a wait
parks the greenlet. A connection that failed, or whose call was interrupted, is closed and cannot be used
again: a late answer could otherwise be read as that of the next request.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from ddmq_client.core import verdicts
from ddmq_client.core.frames import FrameBuffer, FrameError, HttpAnswerError
from ddmq_client.core.nodes import ADDRESSES_MAX, ProxyAddress, from_info, is_literal
from ddmq_client.errors import OptionError
from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_client.security.login import ExposedTokenError, check_channel
from ddmq_client.security.tls import describe_error, has_unread, is_rejected_certificate, secure_socket
from ddmq_client.testing.proxies import connect_in_process
from ddmq_client.wire.login import encode_login, find_login_failure

CONNECT_MAX_S = 2.0
IDLE_CHECK_S = 1.0  # a connection idle for longer is checked before it is used
READ_BYTES = 64 * 1024  # larger buffers come from mmap: 30 us more for each small answer


class FramedConnection:
    """One connection with framed requests. Not for use by two threads at the same time."""

    def __init__(self, address: ProxyAddress, frame_bytes_max: int = FRAME_BYTES_MAX * 2) -> None:
        self.name = str(address)
        self._address = address
        self._frame_bytes_max = frame_bytes_max
        self._socket: socket.socket | None = None
        self._buffer = FrameBuffer(frame_bytes_max)
        self._sequence_id = 0
        self._used_at = 0.0
        self._login = b""  # a frame to be sent ahead of the first call
        self._awaits_login = False

    @property
    def closed(self) -> bool:
        """Return whether no socket is open."""
        return self._socket is None

    def next_sequence_id(self) -> int:
        """Return the sequence id of the next request; numbering continues over new sockets."""
        self._sequence_id = self._sequence_id % 0x7FFFFFFF + 1
        return self._sequence_id

    def call(self, make_frame: Callable[[float, int], bytes], deadline: float) -> tuple[bytes, int]:
        """Send a request and return its answer as (payload, sequence id).

        Raises CallFailed otherwise; the connection is then closed. `make_frame` is called with the time
        (monotonic seconds) and the sequence id, once connected.
        """
        try:
            sequence_id = self._send(make_frame, deadline)
            payload = self._receive(deadline)
        except BaseException:
            self.close()
            raise
        self._used_at = time.monotonic()
        return payload, sequence_id

    def send_only(self, make_frame: Callable[[float, int], bytes], deadline: float) -> None:
        """Send a request that has no answer."""
        try:
            self._send(make_frame, deadline)
            if self._awaits_login:
                self._receive_login(deadline)
        except BaseException:
            self.close()
            raise
        self._used_at = time.monotonic()

    def close(self) -> None:
        """Close the socket; a call waiting on it fails."""
        open_socket, self._socket = self._socket, None
        if open_socket is not None:
            _close_socket(open_socket)

    def _send(self, make_frame: Callable[[float, int], bytes], deadline: float) -> int:
        now = time.monotonic()
        open_socket = self._socket  # another thread may close it meanwhile
        if open_socket is not None and now - self._used_at > IDLE_CHECK_S and has_unread(open_socket):
            self.close()
        if self._socket is None:
            self._connect(deadline)
            now = time.monotonic()
        sequence_id = self.next_sequence_id()
        frame = make_frame(now, sequence_id)
        if self._login:
            frame, self._login, self._awaits_login = self._login + frame, b"", True
        try:
            self._get_socket(deadline).sendall(frame)
        except OSError as error:
            raise verdicts.not_written(self.name, error) from error
        return sequence_id

    def _receive(self, deadline: float) -> bytes:
        if self._awaits_login:
            self._receive_login(deadline)
        return self._receive_answer(deadline)

    def _receive_login(self, deadline: float) -> None:
        """Receive the answer to the login. Raises CallFailed if it was rejected."""
        failure = find_login_failure(self.name, self._receive_answer(deadline))
        if failure is not None:
            raise failure
        self._awaits_login = False

    def _receive_answer(self, deadline: float) -> bytes:
        started = time.monotonic()
        try:
            payload = self._buffer.feed_bytes(b"") if len(self._buffer) else None
            while payload is None:
                data = self._get_socket(deadline).recv(READ_BYTES)
                if not data:
                    raise verdicts.answer_lost(self.name, "connection closed")
                payload = self._buffer.feed_bytes(data)
            return payload
        except TimeoutError as error:
            raise verdicts.timed_out(self.name, time.monotonic() - started) from error
        except HttpAnswerError as error:
            raise verdicts.wrong_server(self.name, error) from error
        except (OSError, FrameError) as error:
            if is_rejected_certificate(error):
                raise verdicts.not_connected(self.name, describe_error(error, self._address)) from error
            raise verdicts.answer_lost(self.name, describe_error(error, self._address)) from error

    def _get_socket(self, deadline: float) -> socket.socket:
        """Return the socket, with the remaining time as its time-out."""
        open_socket = self._socket
        if open_socket is None:
            raise ConnectionAbortedError("closed here")
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("the time is up")
        open_socket.settimeout(remaining_s)
        return open_socket

    def _connect(self, deadline: float) -> None:
        remaining_s = min(deadline - time.monotonic(), CONNECT_MAX_S)
        if remaining_s <= 0:
            raise verdicts.connect_timed_out(self.name, at_deadline=True)
        login = make_login_frame(self._address)
        try:
            fresh = connect_in_process(self._address) or open_socket(
                self._address, remaining_s, sends_token=bool(login)
            )
        except TimeoutError as error:
            raise verdicts.connect_timed_out(self.name, at_deadline=remaining_s < CONNECT_MAX_S) from error
        except ExposedTokenError as error:
            raise verdicts.login_impossible(self.name, error) from error
        except OSError as error:
            raise verdicts.not_connected(self.name, describe_error(error, self._address)) from error
        fresh.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fresh.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._buffer = FrameBuffer(self._frame_bytes_max)
        self._socket, self._login, self._awaits_login = fresh, login, False


def open_socket(address: ProxyAddress, timeout_s: float, *, sends_token: bool) -> socket.socket:
    """Return a socket that is connected to the address, with TLS if the address has it. Raises OSError, also
    if others could read a token that it will carry."""
    connected = secure_socket(address, socket.create_connection(address, timeout=timeout_s))
    try:
        if sends_token:
            check_channel(connected)
    except BaseException:
        connected.close()
        raise
    return connected


def make_login_frame(address: ProxyAddress) -> bytes:
    """Return the frame that logs a new connection in; b"" if it does not log in. Raises CallFailed if there
    is a token and it cannot be read."""
    try:
        token = b"" if address.login is None else address.login.read_token()
    except OptionError as error:
        raise verdicts.login_impossible(str(address), error) from error
    return encode_login(token) if token else b""


def _close_socket(open_socket: socket.socket) -> None:
    try:
        open_socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in recv
    except OSError:
        pass
    open_socket.close()


def resolve_addresses(
    addresses: Iterable[ProxyAddress], cache: dict[ProxyAddress, list[ProxyAddress]]
) -> list[ProxyAddress]:
    """Resolve names to addresses.

    If a name cannot be resolved now, its addresses in `cache` are used; `cache` is updated with those that
    can.
    """
    resolved: dict[ProxyAddress, None] = {}
    for address in addresses:
        try:
            cache[address] = from_info(socket.getaddrinfo(*address, type=socket.SOCK_STREAM), address)
        except (OSError, UnicodeError):
            pass
        resolved.update(dict.fromkeys(cache.get(address, ())))
    return list(resolved)[:ADDRESSES_MAX]


def resolve_in_time(
    addresses: Sequence[ProxyAddress], cache: dict[ProxyAddress, list[ProxyAddress]], timeout_s: float
) -> list[ProxyAddress] | None:
    """Call `resolve_addresses`; return None if a name server has not answered within `timeout_s`.

    A waiting getaddrinfo cannot be interrupted: it continues in a thread of its own.
    """
    if all(map(is_literal, addresses)):
        return resolve_addresses(addresses, cache)
    connection: list[list[ProxyAddress]] = []
    thread = threading.Thread(
        target=lambda: connection.append(resolve_addresses(addresses, cache)),
        name="ddmq-resolve",
        daemon=True,
    )
    thread.start()
    thread.join(max(0.0, timeout_s))
    return connection[0] if connection else None
