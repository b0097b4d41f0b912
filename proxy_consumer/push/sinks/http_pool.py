"""HTTP/1.1 connections that are kept, one stack per origin, on gevent's own sockets.

Answers are read under bounds (http_reading.py), so that a request waits in its greenlet and never on the
hub. Whoever calls has checked what goes into the head: target, header names and values. A
kept connection is used again within IDLE_S, and only if nothing has arrived on it meanwhile (an end, or
bytes nobody asked for).
"""

from __future__ import annotations

import select
import time
from typing import Any

import gevent
from gevent import socket, ssl
from gevent.lock import BoundedSemaphore

from proxy_consumer.push.actions.targets import Url
from proxy_consumer.push.sinks.http_reading import BadAnswerError, HttpAnswer, read_http
from proxy_consumer.push.sinks.receiving import UnboundedError

IDLE_S = 4.0  # below what servers keep idle connections open
ORIGINS_MAX = 256


class NoAnswerError(Exception):
    """No whole answer came; the text says why."""


class _HttpConnection:
    """One connection: a request leaves with one send, then its answer is read."""

    def __init__(self, url: Url, context: Any) -> None:
        self._url = url
        self._context = context
        self._sock: Any = None
        host = f"[{url.host}]" if ":" in url.host else url.host
        usual = url.port == (443 if url.scheme == "https" else 80)
        self._host = host if usual else f"{host}:{url.port}"
        self.idle_since = 0.0

    def exchange(
        self, method: str, target: str, body: bytes, headers: dict[str, str], bytes_max: int, until: float
    ) -> HttpAnswer:
        """One request and its answer, with at most `bytes_max` bytes of body. `until`: monotonic seconds."""
        if self._sock is None:
            self._connect()
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return read_http(self._sock, bytes_max, until)

    def _connect(self) -> None:
        """Name lookups go through gevent too."""
        sock = socket.create_connection((self._url.host, self._url.port))
        self._sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self._sock = self._context.wrap_socket(sock, server_hostname=self._url.host)

    def close(self) -> None:
        """Harmless when it never was open."""
        if self._sock is not None:
            self._sock.close()

    def is_quiet(self, now: float) -> bool:
        """It may be used again."""
        if now - self.idle_since > IDLE_S:
            return False
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        return not poll.poll(0)


class _Origin:
    """One scheme, host and port."""

    def __init__(self, connections_max: int) -> None:
        self.kept: list[_HttpConnection] = []
        self.permits = BoundedSemaphore(connections_max)
        self.users = 0

    def close(self) -> None:
        while self.kept:
            self.kept.pop().close()


class HttpPool:
    """All connections of one sink."""

    def __init__(self, connections_max: int, response_bytes_max: int) -> None:
        self._connections_max = connections_max
        self._response_bytes_max = response_bytes_max
        self._origins: dict[tuple[str, str, int], _Origin] = {}
        self._tls: Any = None
        self._closed = False

    def close(self) -> None:
        """Close what is kept."""
        self._closed = True
        for origin in self._origins.values():
            origin.close()

    def request(
        self, url: Url, method: str, target: str, body: bytes, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        """Status and body. Raises NoAnswerError. The time-out begins when there is a connection to use."""
        origin = self._origin(url)
        origin.users += 1
        try:
            with origin.permits:
                return self._exchange(origin, url, method, target, body, headers, timeout_s)
        finally:
            origin.users -= 1

    def _exchange(
        self,
        origin: _Origin,
        url: Url,
        method: str,
        target: str,
        body: bytes,
        headers: dict[str, str],
        timeout_s: float,
    ) -> tuple[int, bytes]:
        connection = self._connection(origin, url)
        whole = False
        try:
            with gevent.Timeout(timeout_s):
                until = time.monotonic() + timeout_s
                status, content, whole = connection.exchange(
                    method, target, body, headers, self._response_bytes_max, until
                )
            return status, content
        except gevent.Timeout:
            raise NoAnswerError(f"no answer from {url.shown} within {timeout_s:g} s") from None
        except (BadAnswerError, UnboundedError, EOFError) as error:
            raise NoAnswerError(f"{url.shown}: {error}") from error
        except (OSError, ValueError) as error:
            raise NoAnswerError(f"{url.shown}: {type(error).__name__}: {error}") from error
        finally:
            if whole and not self._closed:
                connection.idle_since = time.monotonic()
                origin.kept.append(connection)
            else:
                connection.close()

    def _connection(self, origin: _Origin, url: Url) -> _HttpConnection:
        now = time.monotonic()
        while origin.kept:
            connection = origin.kept.pop()
            if connection.is_quiet(now):
                return connection
            connection.close()
        if url.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        return _HttpConnection(url, self._tls if url.scheme == "https" else None)

    def _origin(self, url: Url) -> _Origin:
        found = self._origins.pop(url.origin, None)
        if found is None:
            self._make_room()
            found = _Origin(self._connections_max)
        self._origins[url.origin] = found  # used last
        return found

    def _make_room(self) -> None:
        if len(self._origins) < ORIGINS_MAX:
            return
        for key, origin in self._origins.items():
            if not origin.users:
                origin.close()
                del self._origins[key]
                return
        raise NoAnswerError(f"{ORIGINS_MAX} hosts are being sent to; that is the bound")
