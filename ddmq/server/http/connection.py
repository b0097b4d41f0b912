"""Connections to the admin port: how many, how long each may take to ask, and what is refused unread.

Who is silent, or slow to ask, is closed; where the bound is reached, whoever is silent for the longest makes
room, so that nobody keeps others out by holding connections; one address has not all of them. Processor time
is shared by address too (pace.py). What is not HTTP is one short line in the log.

A request names this server and comes from no page of another site. A browser sends what any page tells it
to, also to loopback, and a name of an attacker may point there. It cannot lie about Host, Origin and
Sec-Fetch-Site, nor send JSON to another site unasked. So Host must be an address or name of this server, an
Origin the same as Host, and a POST JSON. Lengths are exact, so that no proxy in front sees other requests
than this server.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPException
from ipaddress import IPv6Address
from typing import Any, NamedTuple

import gevent
from gevent.pywsgi import WSGIHandler, WSGIServer

from ddmq.address import HostPort
from ddmq.server.http.pace import Accounts, PacedGreenlet

JSON = "application/json"
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
_AUTHORITY = re.compile(
    r"(?:\[([0-9A-Fa-f:.]+)(?:%[\w.%-]+)?\]|([^\[\]:@/?#\\\s]+))(?::[0-9]{0,5})?", re.ASCII
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class AdminServer(WSGIServer):  # type: ignore[misc]  # gevent has no types
    """Knows its connections, and which of them wait for a request since when."""

    def __init__(self, listener: Any, application: Any) -> None:
        self.connections: dict[AdminConnection, float] = {}  # silent since that moment; 0: it is not
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


class RefusedRequest(NamedTuple):
    """Why a request is not taken: an HTTP status and a sentence."""

    status: int
    text: str


def refusal(environ: Mapping[str, Any], names: Iterable[str]) -> RefusedRequest | None:
    """Return what is wrong with the request before its body is read; None: nothing.

    `names`: what the server is called beside loopback and the address that the client connected to.
    """
    return _length(environ) or _host(environ, names) or _origin(environ) or _content(environ)


def _length(environ: Mapping[str, Any]) -> RefusedRequest | None:
    if "HTTP_TRANSFER_ENCODING" in environ:
        return RefusedRequest(411, "Transfer-Encoding is not taken; send the body with its Content-Length")
    given = environ.get("ddmq.lengths") or [environ.get("CONTENT_LENGTH") or "0"]
    if len(given) > 1 or not (given[0].isascii() and given[0].isdigit() and len(given[0]) < 19):
        return RefusedRequest(400, f"Content-Length is {', '.join(given)[:60]!r}; one whole number is wanted")
    return None


def _host(environ: Mapping[str, Any], names: Iterable[str]) -> RefusedRequest | None:
    given = environ.get("HTTP_HOST")
    if given is None:
        return None  # no browser leaves it out
    own = {*LOOPBACK_NAMES, *map(_plain, names), _plain(environ.get("ddmq.own_address", ""))} - {""}
    if _host_of(given) not in own:
        return RefusedRequest(
            403,
            f"Host is {given[:100]!r}, no name of this server, which is {', '.join(sorted(own))}; "
            "admin_names in ddmq.yaml names further ones",
        )
    return None


def _host_of(authority: str) -> str | None:
    """The host of HOST or HOST:PORT, of [V6] too, as `_plain` has it; None where it is none."""
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None else _plain(found[1] or found[2])


def _plain(host: str) -> str:
    """Return a host in lower case; an IPv6 address as it is mostly written, without its zone."""
    try:
        return str(IPv6Address(host.partition("%")[0]))
    except ValueError:
        return host.lower().rstrip(".")


def _origin(environ: Mapping[str, Any]) -> RefusedRequest | None:
    origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST", "")
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        return RefusedRequest(403, f"Origin is {origin[:100]!r}: pages of other sites may not use this API")
    site = environ.get("HTTP_SEC_FETCH_SITE", "none")
    if site not in ("none", "same-origin"):
        return RefusedRequest(
            403, f"Sec-Fetch-Site is {site[:40]!r}: pages of other sites may not use this API"
        )
    return None


def _content(environ: Mapping[str, Any]) -> RefusedRequest | None:
    if environ["REQUEST_METHOD"] != "POST" and int(environ.get("CONTENT_LENGTH") or "0") == 0:
        return None
    kind = environ.get("CONTENT_TYPE", "")
    if kind.partition(";")[0].strip().lower() != JSON:
        said = repr(kind[:100]) if kind else "missing"
        return RefusedRequest(415, f"Content-Type is {said}; allowed: {JSON}")
    return None
