"""Connections to the admin port: how many, how long each may take to ask, and what is refused before that.

Who is silent, or slow to ask, is closed; where the bound is reached, whoever is silent for the longest makes
room, so that nobody keeps others out by holding connections; one address has not all of them. Processor time
is shared by address too (pace.py). What is not HTTP is one short line in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

import gevent
from gevent.pywsgi import WSGIHandler, WSGIServer

from ddmq.address import HostPort
from ddmq.server.http.checks import JSON
from ddmq.server.http.pace import Accounts, PacedGreenlet

CONNECTIONS_MAX = 64
ADDRESS_CONNECTIONS_MAX = 48  # of one address
REFUSED_MAX = 256  # of one address are told why
UNSENT_BYTES_MAX = 64 << 20  # of answers that clients do not take; at least one is sent
IDLE_S = 30.0  # from one request to the first line of the next
HEADER_S = 10.0  # from there to the end of the headers
STALLED_S = 30.0  # for a body, and for each part of an answer to be taken
BUSY = b'{"error": "too many requests are being answered; try again"}'
BUSY_STATUS = "503 Service Unavailable"
BUSY_HEAD = f"HTTP/1.1 {BUSY_STATUS}\r\nContent-Type: {JSON}\r\nConnection: close\r\n".encode()
log = logging.getLogger("ddmq.admin")


class AdminServer(WSGIServer):  # type: ignore[misc]  # gevent has no types
    """Knows its connections, and which of them wait for a request since when."""

    def __init__(self, listener: Any, application: Any) -> None:
        self.connections: dict[
            AdminConnection, float
        ] = {}  # the moment since when it is silent; 0: it is not
        self.accounts = Accounts()
        self.unsent = 0
        super().__init__(
            listener,
            application,
            log=None,
            error_log=logging.getLogger("ddmq.admin"),
            handler_class=AdminConnection,
            spawn=PacedGreenlet.spawn,
        )

    def room(self) -> bool:
        """Whether one more fits, if need be in the place of one that is silent."""
        if len(self.connections) < CONNECTIONS_MAX:
            return True
        silent = [(since, each) for each, since in self.connections.items() if since]
        if not silent:
            return False
        _, oldest = min(silent, key=lambda found: found[0])
        del self.connections[oldest]
        oldest.greenlet.kill(block=False)
        return True


class AdminConnection(WSGIHandler):  # type: ignore[misc]  # gevent has no types
    """A connection to the admin port."""

    def handle(self) -> None:
        """Answer requests until it ends. Refused with 503 where none can make room for it."""
        self.greenlet = gevent.getcurrent()
        self.socket.settimeout(STALLED_S)
        self.own_address = self.socket.getsockname()[0].removeprefix("::ffff:")
        with self.server.accounts.connected(self.client_address[0]) as account:
            self.greenlet.account = account
            if account.connections > ADDRESS_CONNECTIONS_MAX or not self.server.room():
                if account.connections <= REFUSED_MAX:
                    account.pause()
                    self.socket.sendall(BUSY_HEAD + b"Content-Length: %d\r\n\r\n" % len(BUSY) + BUSY)
                self.socket.close()
                return
            self.server.connections[self] = time.monotonic()
            try:
                super().handle()
            finally:
                self.server.connections.pop(self, None)

    def read_requestline(self) -> str:
        """The first line of a request, empty where none comes in time."""
        try:
            with gevent.Timeout(IDLE_S):
                return str(super().read_requestline())
        except gevent.Timeout:
            return ""

    def read_request(self, raw_requestline: str) -> bool:
        """Whether the headers came in time; they end the connection's silence."""
        try:
            with gevent.Timeout(HEADER_S):
                return bool(super().read_request(raw_requestline))
        except gevent.Timeout:
            return False
        except HTTPException as error:  # too many headers, or one that is too long
            self.log_error("%s", error)
            return False

    def handle_one_response(self) -> None:
        """Answer one request."""
        self.server.connections[self] = 0.0
        try:
            super().handle_one_response()
        finally:
            self.server.connections[self] = time.monotonic()

    def get_environ(self) -> dict[str, Any]:
        """Add the path as it was sent, so that a quoted slash stays inside a name, and what checks need."""
        environ: dict[str, Any] = super().get_environ()
        return environ | {
            "RAW_URI": self.path,
            "ddmq.lengths": self.headers.get_all("content-length"),
            "ddmq.own_address": self.own_address,
            "ddmq.account": self.greenlet.account,
        }

    result: Sequence[bytes]

    def process_result(self) -> None:
        """Send the answer, or say that too much is on its way already."""
        size = sum(len(piece) for piece in self.result)
        if self.server.unsent and self.server.unsent + size > UNSENT_BYTES_MAX:
            self.result, size = [BUSY], len(BUSY)
            self.start_response(BUSY_STATUS, [("Content-Type", JSON), ("Content-Length", str(size))])
        self.server.unsent += size
        try:
            super().process_result()
        finally:
            self.server.unsent -= size

    def log_error(self, msg: str, *args: Any) -> None:
        said = (msg % args if args else msg)[:100]
        log.warning(
            "admin request refused", extra={"peer": HostPort(*self.client_address[:2]), "said": repr(said)}
        )
