# Generated from ddmq_client/aio/admin/pool.py by tools/unasync.py: change that one.
"""The connections of an admin client: bounded, reused, to the first of several servers that accepts one.

A request that changes something is sent once. One that only reads is sent again, over a new connection, if
the server has closed a reused one without a byte of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddmq_client.admin.http import HttpError, HttpRequest, HttpResponse, ResponseReader
from ddmq_client.core.nodes import ProxyAddress, SecureAddress
from ddmq_client.errors import ClosedError, UnavailableError, UnknownChangeError
from ddmq_client.idl.codes import ADMIN_PORT
from ddmq_client.net.admin.connection import HttpConnection
from ddmq_client.net.sync import Condition, Lock, now
from ddmq_client.security.tls import describe_error

IDLE_MAX_S = 10.0  # the server closes a connection after 30 s without a request
PORT_HINT = f"; check the address, the admin port is {ADMIN_PORT} by default"
CONNECT_MAX_S = 5.0  # to one server, while there are others


class AdminConnections:
    """The connections of an admin client to its servers. Sends requests; safe for concurrent callers."""

    def __init__(self, addresses: Sequence[ProxyAddress], connections_max: int) -> None:
        self._addresses = list(addresses)  # the one that answered last comes first
        self._connections_max = connections_max
        self._lock = Lock()
        self._freed = Condition(self._lock)
        self._idle: list[tuple[float, HttpConnection]] = []
        self._in_use: set[HttpConnection] = set()
        self._slots = 0  # requests that have or will have a connection
        self._closed = False

    def call(self, request: HttpRequest, timeout_s: float) -> tuple[HttpResponse, str]:
        """Send a request; return the answer and the server's address.

        Raises UnavailableError if nothing was changed, UnknownChangeError if something may have been.
        """
        deadline = now() + timeout_s
        self._take_slot(deadline)
        try:
            idle = self._take_idle()
            if idle is not None:
                reader = ResponseReader()
                try:
                    return self._exchange_request(idle, request, reader, deadline)
                except (HttpError, ConnectionError) as error:
                    if request.is_change or not reader.is_empty:
                        raise self._error_after_sending(request, idle, error, timeout_s) from None
                except OSError as error:
                    raise self._error_after_sending(request, idle, error, timeout_s) from None
            connection = self._connect(deadline)
            reader = ResponseReader()
            try:
                return self._exchange_request(connection, request, reader, deadline)
            except (HttpError, OSError) as error:
                hint = PORT_HINT if reader.is_empty else ""
                raise self._error_after_sending(request, connection, error, timeout_s, hint) from None
        finally:
            self._release_slot()

    def close(self) -> None:
        """Close all connections; calls in progress fail."""
        with self._lock:
            self._closed = True
            connections = [connection for _, connection in self._idle] + list(self._in_use)
            self._idle.clear()
            self._freed.notify_all()
        for connection in connections:
            connection.close()

    def _exchange_request(
        self, connection: HttpConnection, request: HttpRequest, reader: ResponseReader, deadline: float
    ) -> tuple[HttpResponse, str]:
        with self._lock:
            self._in_use.add(connection)
        is_reusable = False
        try:
            response = connection.call(request, reader, deadline)
            is_reusable = response.is_reusable
            return response, str(connection.address)
        finally:
            with self._lock:
                self._in_use.discard(connection)
                is_reusable = is_reusable and not self._closed
                if is_reusable:
                    self._idle.append((now(), connection))
            if not is_reusable:
                connection.close()

    def _connect(self, deadline: float) -> HttpConnection:
        failures = []
        for address in list(self._addresses):
            connection = HttpConnection(address)
            try:
                until = deadline if len(self._addresses) == 1 else min(deadline, now() + CONNECT_MAX_S)
                connection.open(until)
            except OSError as error:
                connection.close()
                failures.append(f"{address} ({_reason_of(error, address)})")
                continue
            with self._lock:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
            return connection
        raise UnavailableError(f"no admin server answers at {', '.join(failures)}")

    def _take_idle(self) -> HttpConnection | None:
        stale, usable = [], None
        with self._lock:
            while self._idle and usable is None:
                since, connection = self._idle.pop()
                if now() - since > IDLE_MAX_S or connection.is_stale:
                    stale.append(connection)
                else:
                    usable = connection
        for connection in stale:
            connection.close()
        return usable

    def _take_slot(self, deadline: float) -> None:
        with self._lock:
            while not self._closed and self._slots >= self._connections_max:
                if not self._freed.wait(deadline - now()):
                    raise UnavailableError(
                        f"all {self._connections_max} connections of this client are in use"
                    )
            if self._closed:
                raise ClosedError("the admin client has been closed")
            self._slots += 1

    def _release_slot(self) -> None:
        with self._lock:
            self._slots -= 1
            self._freed.notify()

    def _error_after_sending(
        self,
        request: HttpRequest,
        connection: HttpConnection,
        error: Exception,
        timeout_s: float,
        hint: str = "",
    ) -> Exception:
        """Return the exception to raise for a request that may have reached the server.

        `hint`: added to its text if the server has ended the connection.
        """
        if self._closed:
            return ClosedError("the admin client has been closed")
        server = str(connection.address)
        if isinstance(error, TimeoutError):
            text = f"no answer from {server} within {timeout_s:g} s"
        else:
            text = f"no answer from {server}: {_reason_of(error, connection.address)}{hint}"
        if request.is_change:
            return UnknownChangeError(f"{text}; the change may or may not have been made", None, server)
        return UnavailableError(text, None, server)


def _reason_of(error: Exception, address: ProxyAddress) -> str:
    if isinstance(error, TimeoutError):
        return "the time is up"
    if isinstance(address, SecureAddress):
        return describe_error(error, address) or type(error).__name__
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
