"""Connections to the admin port: their number, their timeouts, and the requests that are rejected unread.

Who is silent, or slow to ask, is closed; where the bound is reached, whoever is silent for the longest makes
room, so that nobody keeps others out by holding connections; one address has not all of them, and inside it
the same holds. Processor time is shared by address too (pace.py). /health and /ready are answered whatever
the others do: a connection without a place may ask for them, too, and their processor time counts by itself.
A connection that is sent a stream of events (streams.py) counts among its viewers only.
What is not HTTP is one short line in the log.

A request names this server and comes from no page of another site. A browser sends what any page tells it
to, also to loopback, and a name of an attacker may point there. It cannot lie about Host, Origin and
Sec-Fetch-Site, nor send JSON to another site unasked. So Host must be an address or name of this server, an
Origin the same as Host, and a POST JSON; only the console's HTML, which has no data, may be opened by a link
of another site. Lengths and header lines (head.py) are exact, so that no proxy in
front sees other requests than this server.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from ipaddress import IPv6Address
from typing import Any, NamedTuple

import gevent
import msgspec
from gevent import socket
from gevent.pywsgi import WSGIHandler, WSGIServer
from gevent.socket import wait_read

from ddmq.address import HostPort
from ddmq.console.assets import is_page
from ddmq.server.http.head import MalformedHeadError, check_request_line, read_headers
from ddmq.server.http.pace import Accounts, PacedGreenlet
from ddmq.server.http.streams import EventFeed, EventStream
from ddmq_common.security.peer_user import peer_uid
from ddmq_rpc.traffic import TlsPort

JSON = "application/json"
NDJSON = "application/x-ndjson"
CONNECTIONS_MAX = 64
ADDRESS_CONNECTIONS_MAX = 48  # of one address
BEYOND_MAX = 64  # connections beyond these bounds, which are told so, or answered /health and /ready
BEYOND_S = 1.0  # for such a connection to ask
PROBES = ("/health", "/ready")
UNSENT_BYTES_MAX = 64 << 20  # of answers that clients do not take; at least one is sent
IDLE_S = 30.0  # from one request to the first line of the next
HEADER_S = 10.0  # from there to the end of the headers
STALLED_S = 30.0  # for a body, and for each chunk of an answer to be taken
BUSY = b'{"error": "too many requests are being answered; try again"}'
BUSY_STATUS = "503 Service Unavailable"
NO_STORE = ("Cache-Control", "no-store")
_ERROR_HEADERS = f"Content-Type: {JSON}\r\nCache-Control: no-store\r\nConnection: close\r\n"
PLAIN = b'{"error": "this port requires TLS; use https (commands: with DDMQ_CA in the environment)"}'
TLS_HANDSHAKE = b"\x16"
UNREAD_BYTES = 1 << 16  # of a plain request that is rejected
BUSY_HEAD = f"HTTP/1.1 {BUSY_STATUS}\r\n{_ERROR_HEADERS}".encode()
BAD_HEAD = f"HTTP/1.1 400 Bad Request\r\n{_ERROR_HEADERS}".encode()
log = logging.getLogger("ddmq.admin")
_AUTHORITY = re.compile(
    r"(?:\[([0-9A-Fa-f:.]+)(?:%[\w.%-]+)?\]|([^\[\]:@/?#\\\s]+))(?::[0-9]{0,5})?", re.ASCII
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class AdminServer(WSGIServer):  # type: ignore[misc]  # gevent has no types
    """The HTTP server of the admin API. It limits its connections, and records which of them wait silently
    for a request, and since when."""

    def __init__(self, listener: Any, application: Any, tls: TlsPort | None = None) -> None:
        self.tls = tls
        self.connections: dict[AdminConnection, float] = {}  # since when each is silent; 0: it is not
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

    def init_socket(self) -> None:
        """Open the listening socket. Its connections send the body of an answer without waiting until the
        client has acknowledged the head, which takes 40 ms."""
        super().init_socket()
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def admit_connection(self, newcomer: AdminConnection) -> bool:
        """Return whether one more connection is within the limits. If they are reached, a silent connection
        is closed instead: one of the same address if that has reached its own limit, else any."""
        others = [each for each in self.connections if not each.beyond]
        own = [each for each in others if each.account is newcomer.account]
        if len(own) >= ADDRESS_CONNECTIONS_MAX:
            return self._displace_silent(own)
        return len(others) < CONNECTIONS_MAX or self._displace_silent(others)

    def admit_beyond(self) -> bool:
        """Return whether one more connection beyond the limits may still send a request for /health or
        /ready."""
        beyond = [each for each in self.connections if each.beyond]
        return len(beyond) < BEYOND_MAX or self._displace_silent(beyond)

    def _displace_silent(self, candidates: Sequence[AdminConnection]) -> bool:
        """Close the connection that has been silent for the longest time. Returns False if none is silent."""
        silent = [each for each in candidates if self.connections[each]]
        if not silent:
            return False
        oldest = min(silent, key=self.connections.__getitem__)
        del self.connections[oldest]
        oldest.greenlet.kill(block=False)
        return True


class AdminConnection(WSGIHandler):  # type: ignore[misc]  # gevent has no types
    """A connection to the admin port. `beyond`: it exceeds the limits of connections. `uid`: the user who
    connected, over the Unix socket."""

    beyond = False
    uid: int | None = None
    application: Any
    socket: Any
    close_connection: bool
    headers_sent: bool

    def handle(self) -> None:
        """Answer requests until the connection ends. A connection beyond the limits only gets answers to
        /health and /ready."""
        self.greenlet = gevent.getcurrent()
        self.socket.settimeout(STALLED_S)
        if self.socket.family == socket.AF_UNIX:
            self.uid = peer_uid(self.socket)
            self.client_address, self.own_address = (f"uid-{self.uid}", 0), ""
        else:
            self.own_address = self.socket.getsockname()[0].removeprefix("::ffff:")
        with self.server.accounts.connected(self.client_address[0]) as account:
            self.account = self.greenlet.account = account
            self.beyond = not self.server.admit_connection(self)
            if self.beyond and not self.server.admit_beyond():
                self.socket.close()
                return
            self.server.connections[self] = time.monotonic()
            try:
                if self.server.tls is None or self._begin_tls(self.server.tls):
                    super().handle()
            finally:
                self.server.connections.pop(self, None)

    def _begin_tls(self, tls: TlsPort) -> bool:
        """Do the handshake if the first byte of the client asks for TLS. Return whether requests may follow;
        a client that speaks plain text to a port that requires TLS is told so."""
        try:
            with gevent.Timeout(BEYOND_S if self.beyond else HEADER_S):
                wait_read(self.socket.fileno())
                first = self.socket.recv(1, socket.MSG_PEEK)
                if first == TLS_HANDSHAKE:
                    from gevent.ssl import SSLSocket  # with the first such client

                    context = tls.certificates.server_context
                    self.socket = SSLSocket(sock=self.socket, server_side=True, _context=context)
                    self.rfile = self.socket.makefile("rb", -1)
                    return True
                if tls.required and first:
                    self.socket.recv(
                        UNREAD_BYTES
                    )  # else the close resets the connection, and loses the answer
                    self.socket.sendall(BAD_HEAD + b"Content-Length: %d\r\n\r\n" % len(PLAIN) + PLAIN)
                return bool(first) and not tls.required
        except (gevent.Timeout, OSError) as error:  # TLS errors, too
            log.info("TLS handshake failed", extra={"peer": self.client_address[0], "why": str(error)[:100]})
            return False

    def handle_one_request(self) -> Any:
        """Answer one request. Beyond the limits, the answer is 503 and the connection is closed."""
        result = super().handle_one_request()
        if not self.beyond:
            return result
        silent = result is None and not self.requestline
        return ("503", BUSY_HEAD + b"Content-Length: %d\r\n\r\n" % len(BUSY) + BUSY) if silent else result

    @property
    def is_probe(self) -> bool:
        """Whether this is a request for /health or /ready. Such requests are always answered."""
        return (
            self.command in ("GET", "HEAD")
            and self.path.partition("?")[0] in PROBES
            and not self.content_length
        )

    def read_requestline(self) -> str:
        """Read the first line of a request; return "" if it does not arrive in time."""
        try:
            with gevent.Timeout(BEYOND_S if self.beyond else IDLE_S):
                begin = self.rfile.peek(1)
                if not begin or begin[:1].isupper():
                    return str(super().read_requestline())
                # What a producer or consumer sends to this port may have no end of a line to wait for.
                return str(begin.partition(b"\n")[0], "latin-1")
        except gevent.Timeout:
            return ""

    def read_request(self, raw_requestline: str) -> bool:
        """Read the headers of a request; return whether they arrived in time."""
        check_request_line(raw_requestline)
        try:
            with gevent.Timeout(BEYOND_S if self.beyond else HEADER_S):
                return bool(super().read_request(raw_requestline))
        except gevent.Timeout:
            return False

    def MessageClass(self, source: Any, *rest: Any) -> Any:  # noqa: N802  # gevent's name
        """Return the headers, of strictly formed lines only. Raises MalformedHeadError."""
        return super().MessageClass(BytesIO(read_headers(source)), *rest)

    def _handle_client_error(self, ex: Exception) -> tuple[str, bytes]:
        """Return the answer to an invalid request. The connection is closed after it."""
        status, _ = super()._handle_client_error(ex)
        text = str(ex) if isinstance(ex, MalformedHeadError) else "this is no HTTP request"
        body = msgspec.json.encode({"error": text})
        return status, BAD_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def handle_one_response(self) -> None:
        """Answer the request with the application or, beyond the limits, with 503."""
        if self.is_probe:
            self.greenlet.account = self.account.probes
        answer = _answer_busy if self.beyond and not self.is_probe else self.application
        self.application = lambda *arguments: self._make_answer(answer, *arguments)
        self.close_connection = self.close_connection or self.beyond
        try:
            super().handle_one_response()
        finally:
            self.greenlet.account = self.account

    def _make_answer(self, answer: Any, *arguments: Any) -> Any:
        """Call `answer` to answer a request. Meanwhile the connection does not count as silent."""
        self._record_silence(0.0)
        try:
            return answer(*arguments)
        finally:
            self._record_silence(time.monotonic())

    @contextmanager
    def await_client(self) -> Iterator[None]:
        """Count the connection as silent while a handler waits for the client."""
        self._record_silence(time.monotonic())
        try:
            yield
        finally:
            self._record_silence(0.0)

    def _record_silence(self, since: float) -> None:
        """Record that the connection has been silent since then (0: it is not silent), unless it was closed
        in favour of another one."""
        if self in self.server.connections:
            self.server.connections[self] = since

    def get_environ(self) -> dict[str, Any]:
        """Return gevent's environment of the request with two additions: the path as it was sent, so that a
        quoted slash stays inside a name, and the values that `check_request` checks."""
        environ: dict[str, Any] = super().get_environ()
        return environ | {
            "RAW_URI": self.path,
            "ddmq.lengths": self.headers.get_all("content-length"),
            "ddmq.own_address": self.own_address,
            "ddmq.silence": self.await_client,
            "ddmq.uid": self.uid,
            "ddmq.certificate": self._client_certificate(),
            "ddmq.account": self.account.probes if self.is_probe else self.account,
        }

    def _client_certificate(self) -> Mapping[str, Any] | None:
        """Return the verified certificate of a client with TLS; None if there is none, {} without one."""
        read_certificate = getattr(self.socket, "getpeercert", None)
        return None if read_certificate is None else read_certificate() or {}

    result: Sequence[bytes] | EventStream
    status: bytes
    response_headers: list[tuple[bytes, bytes]]

    def process_result(self) -> None:
        """Send the answer, or 503 if too many bytes of answers are waiting to be sent."""
        if isinstance(self.result, EventStream):
            self._send_stream(self.result.feed)
            return
        size = sum(len(chunk) for chunk in self.result)
        if not self.is_probe and self.server.unsent and self.server.unsent + size > UNSENT_BYTES_MAX:
            self.result, size = [BUSY], len(BUSY)
            self.start_response(
                BUSY_STATUS, [("Content-Type", JSON), ("Content-Length", str(size)), NO_STORE]
            )
        self.server.unsent += size
        try:
            super().process_result()
        finally:
            self.server.unsent -= size

    def _send_stream(self, feed: EventFeed) -> None:
        """Send a head without a length, then events until the stream ends.

        From now on the connection counts as a viewer of the feed, no longer as a connection of its address.
        """
        self.close_connection = self.headers_sent = True
        lines = [b"HTTP/1.1 " + self.status, *(b": ".join(header) for header in self.response_headers)]
        self.server.connections.pop(self, None)
        self.greenlet.account = feed.account
        with suppress(OSError):  # the viewer has gone
            self.socket.sendall(b"\r\n".join([*lines, b"", b""]))
            if self.command != "HEAD":
                feed.serve_viewer(self.socket)

    def log_error(self, msg: str, *args: Any) -> None:
        text = (msg % args if args else msg)[:100]
        log.warning(
            "admin request refused", extra={"peer": HostPort(*self.client_address[:2]), "said": repr(text)}
        )


def _answer_busy(_: Mapping[str, Any], start: Any) -> Sequence[bytes]:
    """Answer that there are too many connections."""
    length = ("Content-Length", str(len(BUSY)))
    start(BUSY_STATUS, [("Content-Type", JSON), length, NO_STORE, ("Connection", "close")])
    return [BUSY]


class RequestRejection(NamedTuple):
    """The reason why a request is rejected: an HTTP status and a sentence. `details` are only written to the
    log."""

    status: int
    text: str
    details: str = ""


def check_request(environ: Mapping[str, Any], names: Iterable[str]) -> RequestRejection | None:
    """Check a request before its body is read; return why it is rejected, or None. `names`: the allowed names
    of the server's host, besides loopback and the address to which the client connected."""
    return (
        _check_length(environ)
        or _check_host(environ, names)
        or _check_origin(environ)
        or _check_content_type(environ)
    )


def _check_length(environ: Mapping[str, Any]) -> RequestRejection | None:
    if "HTTP_TRANSFER_ENCODING" in environ:
        return RequestRejection(411, "Transfer-Encoding is not taken; send the body with its Content-Length")
    lengths = environ.get("ddmq.lengths") or [environ.get("CONTENT_LENGTH") or "0"]
    if len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdigit() and len(lengths[0]) < 19):
        return RequestRejection(
            400, f"Content-Length is {', '.join(lengths)[:60]!r}; one whole number is wanted"
        )
    return None


def _check_host(environ: Mapping[str, Any], names: Iterable[str]) -> RequestRejection | None:
    host = environ.get("HTTP_HOST")
    if host is None:
        return None  # no browser leaves it out
    own = {
        *LOOPBACK_NAMES,
        *map(_normalize_host, names),
        _normalize_host(environ.get("ddmq.own_address", "")),
    } - {""}
    if _host_of(host) not in own:
        return RequestRejection(
            403,
            f"Host is {host[:100]!r}, no name of this server; admin_names in ddmq.yaml names further ones, "
            "and the server's log has those that it knows",
            f"its names are {', '.join(sorted(own))}",
        )
    return None


def _host_of(authority: str) -> str | None:
    """Return the normalized host of HOST, HOST:PORT or [V6]:PORT; None for anything else."""
    match = _AUTHORITY.fullmatch(authority)
    return None if match is None else _normalize_host(match[1] or match[2])


def _normalize_host(host: str) -> str:
    """Return a host in lower case; an IPv6 address in its canonical form, without its zone."""
    try:
        return str(IPv6Address(host.partition("%")[0]))
    except ValueError:
        return host.lower().rstrip(".")


def _check_origin(environ: Mapping[str, Any]) -> RequestRejection | None:
    origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST", "")
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        return RequestRejection(403, f"Origin is {origin[:100]!r}: pages of other sites may not use this API")
    site = environ.get("HTTP_SEC_FETCH_SITE", "none")
    if site not in ("none", "same-origin") and not _opens_console(environ):
        return RequestRejection(
            403, f"Sec-Fetch-Site is {site[:40]!r}: pages of other sites may not use this API"
        )
    return None


def _opens_console(environ: Mapping[str, Any]) -> bool:
    """Return whether a browser follows a link to a page of the console, such as the link in an alert.

    The console's HTML contains no data, so a link from any site may open it.
    """
    return (
        environ["REQUEST_METHOD"] == "GET"
        and environ.get("HTTP_SEC_FETCH_MODE") == "navigate"
        and environ.get("HTTP_SEC_FETCH_DEST") == "document"
        and is_page(environ.get("RAW_URI", environ.get("PATH_INFO", "")).partition("?")[0])
    )


def _check_content_type(environ: Mapping[str, Any]) -> RequestRejection | None:
    if environ["REQUEST_METHOD"] != "POST" and int(environ.get("CONTENT_LENGTH") or "0") == 0:
        return None
    kind = environ.get("CONTENT_TYPE", "")
    if kind.partition(";")[0].strip().lower() != JSON:
        stated = repr(kind[:100]) if kind else "missing"
        return RequestRejection(415, f"Content-Type is {stated}; allowed: {JSON}")
    return None
