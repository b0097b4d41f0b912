"""A small JSON-over-HTTP shell for the admin API: routes, pages of listings, errors to status codes.

A route is `METHOD /literal/{name}/…` and a function `(AdminRequest) -> value`; the value is sent as JSON,
None as {}. CallerError → 400 (unknown topics, groups and messages → 404), TryLaterError → 503,
RemoteError (a change may or may not be made) → 504, StorageError → 500, each as {"error": text}. Bodies are
bounded. Runs in a greenlet per request, so handlers may wait on completions; a long answer is encoded in
chunks, between which other greenlets run, and pace.py limits how many listings are made at a time. A request
that `connection.check_request` rejects reaches no handler. `forward_request` passes a request on to another
process.
"""

from __future__ import annotations

import http.client
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlencode

import gevent
import msgspec

from ddmq.address import parse
from ddmq.server.http.connection import JSON, RequestRejection, check_request
from ddmq.server.http.pace import Account, yield_if_long
from ddmq_common.errors import CallerError, DdmqError, RemoteError, TryLaterError, UnknownTopicError

COUNT_MAX = 1 << 30  # of names in a listing, where nobody says
BODY_BYTES_MAX = 1 << 20
BODY_S = 30.0  # for a whole body to come
CHUNK_BYTES = 256 << 10  # of an answer
CHANGE_S = 0.002  # processor time that the backend takes for a change
NO_LISTINGS = ("/health", "/ready", "/metrics")  # wait for none to be made
_STATUS = {
    200: "200 OK", 400: "400 Bad Request", 403: "403 Forbidden", 404: "404 Not Found",
    405: "405 Method Not Allowed", 408: "408 Request Timeout", 411: "411 Length Required",
    413: "413 Content Too Large", 415: "415 Unsupported Media Type", 500: "500 Internal Server Error",
    503: "503 Service Unavailable", 504: "504 Gateway Timeout",
}  # fmt: skip
FORWARDED = "forwarded"  # in the query: it is never passed on again
OTHER_S = 600.0  # for the answer of another process: a backup may take long
T = TypeVar("T")
log = logging.getLogger("ddmq.admin")


class NoSuchMessageError(CallerError):
    """The requested message does not exist (404)."""


class NoSuchGroupError(CallerError):
    """The consumer group (or its subscription, or its dead letters) does not exist."""


class UncertainOutcomeError(RemoteError):
    """A change may or may not have been made (504), whether or not this process is ready."""


class Page(NamedTuple):
    """One page of a long listing that is sorted by name: at most `most` items whose names come after `after`.

    The next page is requested with the last name of this one, so that no item is repeated or skipped if
    others appear or disappear meanwhile. `after`: a name that need not exist any more; "" means the
    beginning.
    """

    after: str = ""
    most: int = COUNT_MAX

    def of(self, items: Iterable[T], name: Callable[[T], str]) -> list[T]:
        """Return the items of this page, sorted by name."""
        return sorted((each for each in items if name(each) > self.after), key=name)[: self.most]


ALL_ITEMS = Page()


class AdminRequest(NamedTuple):
    """A request as its handler gets it: path variables, query (the last value of a repeated name), JSON body,
    and its route. `body`: a JSON object, or the Struct that its route declares for it."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    method: str = ""
    pattern: str = ""

    @property
    def topic(self) -> str:
        return self.path["topic"]

    @property
    def group(self) -> str:
        return self.path["group"]

    def number(self, name: str, default: int) -> int:
        """Return a query parameter as a whole number, or `default` if it is absent. Raises CallerError."""
        text = self.query.get(name)
        if text is None:
            return default
        if not text.isdecimal() or len(text) > 18:
            raise CallerError(f"{name} is {text!r}; a whole number of 0 or more is wanted")
        return int(text)

    def flag(self, name: str) -> bool:
        """Return whether a query parameter is set to anything but 0, false or nothing."""
        return self.query.get(name, "0") not in ("0", "false", "")

    def page(self) -> Page:
        """Return the page that `after` and `count` of the query describe."""
        return Page(self.query.get("after", ""), self.number("count", COUNT_MAX))


class Text(NamedTuple):
    """The answer to a request that is not JSON: content type, body and status."""

    content_type: str
    payload: bytes
    status: int = 200


Handler = Callable[[AdminRequest], Any]


class AdminRouter:
    """The routes as a WSGI application. `names`: the host names of the server, besides loopback. `closed`: if
    not empty, the reason with which all unknown paths are answered with 503 for now."""

    def __init__(self, names: Iterable[str] = (), closed: Callable[[], str] | None = None) -> None:
        self._closed = closed
        self._routes: list[tuple[str, list[str], Handler]] = []
        self._names = tuple(names)

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        self._routes.append((method, pattern.strip("/").split("/"), handler))

    def __call__(
        self, environ: Mapping[str, Any], start: Callable[[str, list[tuple[str, str]]], Any]
    ) -> Iterable[bytes]:
        rejection = check_request(environ, self._names)
        status, kind, chunks = self._answer_request(environ, rejection)
        length = sum(map(len, chunks))
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(length)),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if rejection or status in (408, 413):
            headers.append(("Connection", "close"))  # its body was not read
        start(_STATUS[status], headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else chunks

    def _answer_request(
        self, environ: Mapping[str, Any], rejection: RequestRejection | None
    ) -> tuple[int, str, Sequence[bytes]]:
        try:
            if rejection is not None:
                _log_rejection(environ, rejection)
                raise _HttpError(rejection.status, rejection.text)
            return self._dispatch_request(environ)
        except _HttpError as error:
            return _error_answer(error.status, str(error))
        except (UnknownTopicError, NoSuchGroupError, NoSuchMessageError) as error:
            return _error_answer(404, str(error))
        except (TryLaterError, TimeoutError) as error:
            return _error_answer(503, str(error))
        except RemoteError as error:
            return _error_answer(504, str(error))
        except DdmqError as error:
            return _error_answer(400 if isinstance(error, CallerError) else 500, str(error))
        except Exception as error:
            log.exception("admin request failed")
            return _error_answer(500, f"internal error: {type(error).__name__}: {error}")

    def _dispatch_request(self, environ: Mapping[str, Any]) -> tuple[int, str, Sequence[bytes]]:
        method = environ["REQUEST_METHOD"].replace("HEAD", "GET")
        segments = [unquote(segment) for segment in _raw_path(environ).strip("/").split("/")]
        path_exists = False
        for route_method, pattern, handler in self._routes:
            variables = _match(pattern, segments)
            if variables is None:
                continue
            path_exists = True
            if route_method == method:
                path = "/" + "/".join(pattern)
                request = AdminRequest(variables, _read_query(environ), _read_body(environ), method, path)
                with _await_slot(environ, path):
                    return _encode_answer(handler(request))
        if self._closed is not None:
            raise TryLaterError(self._closed())
        if path_exists:
            raise _HttpError(405, f"{method} is not for /{'/'.join(segments)}")
        paths = ", ".join(sorted({"/" + "/".join(pattern) for _, pattern, _ in self._routes}))
        raise _HttpError(404, f"no such path: /{'/'.join(segments)}; there are {paths}")


def _await_slot(environ: Mapping[str, Any], pattern: str) -> AbstractContextManager[None]:
    """Return a context that waits for a slot for this request; a listing holds its slot until it is
    answered."""
    account: Account | None = environ.get("ddmq.account")
    if account is None:
        return nullcontext()
    if environ["REQUEST_METHOD"] != "POST" and pattern not in NO_LISTINGS:
        return account.listing_slot()
    account.pause()
    if environ["REQUEST_METHOD"] == "POST":
        account.charge(CHANGE_S)
    return nullcontext()


class _HttpError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _raw_path(environ: Mapping[str, Any]) -> str:
    """Return the path as it was sent, so that a quoted slash or percent sign stays inside its segment."""
    raw: str = environ.get("RAW_URI") or environ.get("REQUEST_URI") or quote_free(environ["PATH_INFO"])
    return raw.partition("?")[0]


def quote_free(path: str) -> str:
    """Return PATH_INFO (unquoted, decoded as Latin-1) decoded as UTF-8, with percent signs quoted."""
    return path.encode("latin-1", "replace").decode("utf-8", "replace").replace("%", "%25")


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    variables: dict[str, str] = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            variables[expected[1:-1]] = segment
        elif expected != segment:
            return None
    return variables


def _read_query(environ: Mapping[str, Any]) -> dict[str, str]:
    """Parse the query. Empty values are kept, so that an empty filter does not mean all."""
    text = environ.get("QUERY_STRING", "")
    return {key: values[-1] for key, values in parse_qs(text, keep_blank_values=True).items()}


def _read_body(environ: Mapping[str, Any]) -> Mapping[str, Any]:
    length = int(environ.get("CONTENT_LENGTH") or "0")
    if length > BODY_BYTES_MAX:
        raise _HttpError(413, f"the body has {length} bytes; allowed: {BODY_BYTES_MAX}")
    if not length:
        return {}
    try:
        with environ.get("ddmq.silence", nullcontext)():
            text = _read(environ["wsgi.input"], length)
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _HttpError(400, f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise _HttpError(400, "the body is not JSON of any use: it is nested too deeply") from error
    if not isinstance(body, dict):
        raise _HttpError(400, "the body is not a JSON object")
    return body


def _read(source: Any, length: int) -> bytes:
    late = _HttpError(408, f"the body of {length} bytes did not come in {BODY_S:g} s")
    try:
        with gevent.Timeout(BODY_S, late):
            return bytes(source.read(length))
    except OSError as error:
        raise late from error


def _encode_answer(value: Any) -> tuple[int, str, Sequence[bytes]]:
    if isinstance(value, Text):
        return value.status, value.content_type, [value.payload]
    return 200, JSON, _encode_chunks({} if value is None else value)


def _encode_chunks(value: Any) -> list[bytes]:
    """Encode the value as JSON, in chunks; other greenlets run in between."""
    chunks, chunk = [], bytearray()
    for fragment in _json_fragments(value):
        if len(chunk) + len(fragment) > CHUNK_BYTES:
            chunks += [bytes(chunk), fragment]
            chunk.clear()
        else:
            chunk += fragment
        yield_if_long()
    return [*chunks, bytes(chunk)]


def _json_fragments(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value in fragments. A value without nested containers, such as the row of a
    listing, is one fragment."""
    if isinstance(value, dict) and any(each and isinstance(each, dict | list) for each in value.values()):
        for index, (key, each) in enumerate(value.items()):
            yield (b"," if index else b"{") + msgspec.json.encode(str(key)) + b":"
            yield from _json_fragments(each)
        yield b"}"
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield b"," if index else b"["
            yield from _json_fragments(each)
        yield b"]" if value else b"[]"
    else:
        yield msgspec.json.encode(value)


def _error_answer(status: int, text: str) -> tuple[int, str, Sequence[bytes]]:
    return status, JSON, [msgspec.json.encode({"error": text})]


def _log_rejection(environ: Mapping[str, Any], rejection: RequestRejection) -> None:
    facts = {"peer": environ.get("REMOTE_ADDR", ""), "path": environ.get("PATH_INFO", "")[:100]}
    why = "; ".join(filter(None, (rejection.text, rejection.details)))
    log.warning("admin request refused", extra=facts | {"why": why})


def forward_request(address: str, request: AdminRequest) -> Text:
    """Send the request to the process at an admin address and return its answer unchanged. Blocks, so call it
    in a native thread. Raises TryLaterError if it changed nothing there, UncertainOutcomeError if a change
    got no answer."""
    filled = re.sub(r"\{(\w+)\}", lambda match: quote(request.path[match[1]], safe=""), request.pattern)
    target = f"{filled}?{urlencode({**request.query, FORWARDED: '1'})}"
    connection = http.client.HTTPConnection(*parse(address), timeout=OTHER_S)
    is_connected = False
    try:
        connection.connect()
        is_connected = True
        body: Any = msgspec.json.encode(request.body) if request.body else None
        connection.request(request.method, target, body, {"Content-Type": JSON})
        response = connection.getresponse()
        return Text(JSON, response.read(), response.status)
    except (OSError, http.client.HTTPException) as error:
        silence = f"the process at {address} does not answer ({error})"
        if is_connected and request.method != "GET":
            raise UncertainOutcomeError(f"{silence}; the change may or may not have been made") from error
        raise TryLaterError(f"{silence}; try again") from error
    finally:
        connection.close()
