"""The console of several servers: `ddmq console` serves its pages and passes requests on to the servers.

Below /servers/NAME/ are the pages and the admin API of one server; GET /servers says how each is. Requests go
out with the token of the command's user. So if the user has one, the browser must state a code that the
command has printed: other users of the machine can reach the port, too. The port is on loopback, and requests
are checked as those to an admin port: none of a page of another site is passed on.
"""

from __future__ import annotations

import hmac
import http.client
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec

from ddmq.console.assets import ROOT, find_asset
from ddmq.server.http.connection import JSON, NO_STORE, check_request
from ddmq.server.http.encoding import accepts_gzip
from ddmq_client.security.login import check_channel

SERVERS = "servers"
SERVERS_MAX = 100
BODY_BYTES_MAX = 1 << 20
ANSWER_S = 60.0  # for each chunk of an answer
STATE_S = 3.0  # for an answer about the state of a server, and how long it is shown
CHUNK_BYTES = 64 << 10
CLIENT_S = 30.0  # for a request to come, and for a chunk to be taken
CLIENTS_MAX = 256  # connections of browsers
_SENT = {
    "CONTENT_TYPE": "Content-Type", "HTTP_IF_MATCH": "If-Match", "HTTP_ACCEPT": "Accept",
    "HTTP_ACCEPT_ENCODING": "Accept-Encoding",
}  # fmt: skip
_RETURNED = (
    "Content-Type", "Content-Length", "Content-Encoding", "ETag", "Cache-Control", "Retry-After", "Allow",
    "X-Content-Type-Options", "WWW-Authenticate",
)  # fmt: skip
_NO_CODE = "this console needs the login code that `ddmq console` has printed"
Connect = Callable[[str, float], http.client.HTTPConnection]


class GatewayAnswer(NamedTuple):
    """An answer to a browser."""

    status: int
    headers: Sequence[tuple[str, str]]
    chunks: Iterable[bytes]


class ConsoleGateway:
    """The WSGI application. `servers`: their admin addresses. `connect`: opens a connection to one of them
    within some seconds, or raises OSError. `read_token`: returns the user's token, or "". `code`: what a
    browser must state; "" if it need not."""

    def __init__(
        self, servers: Sequence[str], connect: Connect, read_token: Callable[[], str], code: str = ""
    ) -> None:
        self.servers = tuple(dict.fromkeys(servers))
        self._connect = connect
        self._read_token = read_token
        self._code = code
        self._states = _ServerStates(self)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        answer = self._answer_request(environ)
        phrase = http.client.responses.get(answer.status, "Unknown")
        start(f"{answer.status} {phrase}", list(answer.headers))
        return list(answer.chunks)[:0] if environ["REQUEST_METHOD"] == "HEAD" else answer.chunks

    def _answer_request(self, environ: dict[str, Any]) -> GatewayAnswer:
        path, _, query = str(environ["RAW_URI"]).partition("?")
        server, rest = self._find_server(path)
        environ["RAW_URI"] = rest
        rejection = check_request(environ, ())
        if rejection is not None:
            return _make_error(rejection.status, rejection.text)
        target = rest + (f"?{query}" if query else "")
        segments = [unquote(segment) for segment in rest.strip("/").split("/")]
        if segments[0] == ROOT:
            if server is None and segments[1:2] != ["assets"]:
                return _make_redirect(f"/{SERVERS}/{quote(self.servers[0], safe=':')}{target}")
            return _answer_asset(segments, environ)
        if server is None and path == "/":
            return _make_redirect(f"/{SERVERS}/{quote(self.servers[0], safe=':')}/{ROOT}/")
        if not self._is_logged_in(environ):
            return _make_error(401, _NO_CODE, [("WWW-Authenticate", "Bearer")])
        if path == f"/{SERVERS}":
            return _make_json(200, {"items": self._states.read_rows()})
        if server is None:
            return _make_error(
                404, f"no such path: {path[:100]}; there are /, /{SERVERS}, /{SERVERS}/SERVER/…"
            )
        return self._forward_request(environ, server, target)

    def _find_server(self, path: str) -> tuple[str | None, str]:
        """Return the server that a path names and the path below it, or None and the path."""
        for name in self.servers:
            for text in (name, quote(name, safe="")):
                prefix = f"/{SERVERS}/{text}"
                if path == prefix or path.startswith(f"{prefix}/"):
                    return name, path[len(prefix) :] or f"/{ROOT}/"
        return None, path

    def _is_logged_in(self, environ: Mapping[str, Any]) -> bool:
        stated = str(environ.get("HTTP_AUTHORIZATION", ""))
        return not self._code or hmac.compare_digest(stated.encode(), f"Bearer {self._code}".encode())

    def _forward_request(self, environ: Mapping[str, Any], server: str, target: str) -> GatewayAnswer:
        length = int(environ.get("CONTENT_LENGTH") or "0")
        if length > BODY_BYTES_MAX:
            return _make_error(413, f"the body has {length} bytes; allowed: {BODY_BYTES_MAX}")
        method, body = environ["REQUEST_METHOD"], environ["wsgi.input"].read(length) if length else None
        headers = {name: environ[key] for key, name in _SENT.items() if environ.get(key)}
        is_sent = False
        connection: http.client.HTTPConnection | None = None
        try:
            authorization = self._make_authorization(environ)
            connection = self._connect(server, ANSWER_S)
            if authorization:
                check_channel(connection.sock)
            is_sent = True
            connection.request(method, target, body, headers | authorization)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            if connection is not None:
                connection.close()
            if is_sent and method not in ("GET", "HEAD"):
                return _make_error(
                    504, f"{server} did not answer ({error}); the change may have been made or not"
                )
            return _make_error(503, f"{server} does not answer ({error})")
        returned = [(name, value) for name in _RETURNED if (value := response.headers.get(name))]
        return GatewayAnswer(response.status, returned, _read_chunks(connection, response))

    def _make_authorization(self, environ: Mapping[str, Any]) -> dict[str, str]:
        """Return the header with the user's token; without a login code, with that of the browser."""
        if not self._code:
            stated = environ.get("HTTP_AUTHORIZATION")
            return {"Authorization": stated} if stated else {}
        token = self._read_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def fetch_json(self, server: str, target: str) -> Any:
        """Return the answer of a server to a GET request of this process; None if it has an error status.
        Raises OSError, HTTPException, ValueError."""
        token = self._read_token() if self._code else ""
        with closing(self._connect(server, STATE_S)) as connection:
            if token:
                check_channel(connection.sock)
            connection.request("GET", target, headers={"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            payload = response.read()
            return msgspec.json.decode(payload) if response.status == 200 else None


class _ServerStates:
    """The states of the servers, asked for at once and kept for a moment, however many pages show them."""

    def __init__(self, gateway: ConsoleGateway) -> None:
        self._gateway = gateway
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._rows: list[dict[str, Any]] = []

    def read_rows(self) -> list[dict[str, Any]]:
        """Return a row for each server, in the order of the command line."""
        with self._lock:
            if time.monotonic() - self._read_at > STATE_S:
                servers = self._gateway.servers
                with ThreadPoolExecutor(min(len(servers), 16)) as pool:
                    self._rows = list(pool.map(self._read_state, servers))
                self._read_at = time.monotonic()
            return self._rows

    def _read_state(self, server: str) -> dict[str, Any]:
        """Return whether a server is ready, else why not, and how much needs attention: null if that is not
        known."""
        try:
            health = self._gateway.fetch_json(server, "/health")
            findings = self._gateway.fetch_json(server, "/findings?form=2&count=1000&fields=severity")
            severities = None if findings is None else [each["severity"] for each in findings["items"]]
            urgent = None if severities is None else sum(each != "info" for each in severities)
            return {"server": server, "ready": health["ready"], "reason": health["reason"], "urgent": urgent}
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            return {"server": server, "ready": False, "reason": f"no answer ({error})", "urgent": None}


def _read_chunks(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse
) -> Iterator[bytes]:
    """Yield an answer as it comes, so that a stream of events is one. What breaks off ends early, and its
    reader sees that by its length."""
    with closing(connection), suppress(OSError, http.client.HTTPException):
        while chunk := response.read1(CHUNK_BYTES):
            yield chunk


def _answer_asset(segments: list[str], environ: Mapping[str, Any]) -> GatewayAnswer:
    asset = find_asset(segments)
    if asset is None:
        return _make_error(404, "no such file; reload the page")
    is_compressed = accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", ""))
    payload = asset.compressed if is_compressed else asset.plain
    headers = [("Content-Type", asset.content_type), ("Content-Length", str(len(payload))), *asset.headers]
    headers += [("Vary", "Accept-Encoding"), ("X-Content-Type-Options", "nosniff")]
    return GatewayAnswer(200, headers + [("Content-Encoding", "gzip")] * is_compressed, [payload])


def _make_redirect(address: str) -> GatewayAnswer:
    return GatewayAnswer(302, [("Location", address), ("Content-Length", "0")], [])


def _make_json(status: int, value: Any, headers: Sequence[tuple[str, str]] = ()) -> GatewayAnswer:
    payload = msgspec.json.encode(value)
    own = [("Content-Type", JSON), ("Content-Length", str(len(payload))), NO_STORE]
    return GatewayAnswer(status, [*own, *headers], [payload])


def _make_error(status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> GatewayAnswer:
    return _make_json(status, {"error": text}, headers)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_S

    def get_environ(self) -> dict[str, Any]:
        """Return the environ of a request, with its path as it was sent."""
        return super().get_environ() | {"RAW_URI": self.path}

    def log_message(self, *_: Any) -> None:
        """Print nothing: paths may contain names and keys."""


class GatewayServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves a gateway, each request in a thread."""

    daemon_threads = True
    request_queue_size = 128  # a browser opens many connections at once for the files of a page

    def __init__(self, host: str, port: int, gateway: ConsoleGateway) -> None:
        self._slots = threading.BoundedSemaphore(CLIENTS_MAX)
        super().__init__((host, port), _Handler)
        self.set_app(gateway)

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = map(str, self.server_address[:2])  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or close it if there are too many."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and free its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, *_: Any) -> None:
        """Print nothing: browsers close connections as they like."""
