"""A small JSON-over-HTTP shell for the admin API: routes, pages of listings, errors to status codes.

A route is `METHOD /literal/{name}/…` and a function `(AdminRequest) -> value`; the value is sent as JSON,
None as {}. CallerError → 400 (unknown topics, groups and messages → 404, ConflictError → 409, a version that
is not required → 412), TryLaterError → 503, RemoteError (a change may or may not be made) → 504, StorageError
→ 500, each as {"error": text}. Bodies are bounded. Runs in a greenlet per request, so handlers may wait on
completions; encoding.py encodes a long answer in chunks, and pace.py limits how many listings are made at a
time. An EventStream (streams.py) is sent by its connection, without a length. A request that
`connection.check_request` rejects reaches no handler. `forward_request` passes a request on to another
process.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlencode

import gevent
import msgspec

from ddmq.address import parse
from ddmq.console.assets import ROOT, Asset, find_asset
from ddmq.server.http.connection import JSON, NO_STORE, PROBES, RequestRejection, check_request
from ddmq.server.http.encoding import GZIP_BYTES_MIN, accepts_gzip, compress_chunks, encode_json
from ddmq.server.http.oversight import ON_BEHALF, ForbiddenError, OverQuotaError, Oversight
from ddmq.server.http.pace import Account
from ddmq.server.http.parameters import Query, query_texts
from ddmq.server.http.streams import EVENT_STREAM, EventStream
from ddmq_common.errors import (
    CallerError,
    ConflictError,
    DdmqError,
    RemoteError,
    TryLaterError,
    UnknownTopicError,
)
from ddmq_common.security.callers import Caller, CallerTable, LoginRejectedError
from ddmq_common.security.connecting import check_channel, secure_connection

COUNT_MAX = 1 << 30  # of names in a listing, where nobody says
BODY_BYTES_MAX = 1 << 20
BODY_S = 30.0  # for a whole body to come
HALF_SURROGATE = r"a text has half of a surrogate pair, such as \ud83d without the half that follows it"
CHANGE_S = 0.002  # processor time that the backend takes for a change
NO_LISTINGS = ("/health", "/ready", "/metrics")  # wait for none to be made
_STATUS = {
    200: "200 OK", 302: "302 Found", 400: "400 Bad Request", 401: "401 Unauthorized", 403: "403 Forbidden",
    404: "404 Not Found", 405: "405 Method Not Allowed", 408: "408 Request Timeout", 409: "409 Conflict",
    411: "411 Length Required", 412: "412 Precondition Failed", 413: "413 Content Too Large",
    415: "415 Unsupported Media Type", 429: "429 Too Many Requests", 500: "500 Internal Server Error",
    503: "503 Service Unavailable", 504: "504 Gateway Timeout",
}  # fmt: skip
_NO_SNIFF = ("X-Content-Type-Options", "nosniff")
STREAM_HEADERS = [
    ("Content-Type", EVENT_STREAM), _NO_SNIFF, NO_STORE,
    ("X-Accel-Buffering", "no"),  # or nginx holds the events back
    ("Connection", "close"),
]  # fmt: skip
FORWARDED = "forwarded"  # in the query: it is never passed on again
OTHER_S = 600.0  # for the answer of another process: a backup may take long
T = TypeVar("T")
log = logging.getLogger("ddmq.admin")


class NoSuchMessageError(CallerError):
    """The requested message does not exist (404)."""


class NoSuchGroupError(CallerError):
    """The consumer group (or its subscription, or its dead letters) does not exist."""


class NoSuchOperationError(CallerError):
    """The plan or operation does not exist (404)."""


class NoSuchChangeError(CallerError):
    """The change is not among the recorded ones (404)."""


class NoSuchTokenError(CallerError):
    """The token is not in the table (404)."""


class UncertainOutcomeError(RemoteError):
    """A change may or may not have been made (504), whether or not this process is ready."""


class VersionConflictError(CallerError):
    """The version of what is to be changed is none of those that the request requires (412)."""


_NOT_FOUND = (
    UnknownTopicError, NoSuchGroupError, NoSuchMessageError, NoSuchOperationError, NoSuchChangeError,
    NoSuchTokenError,
)  # fmt: skip


class Page(NamedTuple):
    """One page of a long listing that is sorted by name: at most `most` items whose names come after `after`.

    The next page is requested with the last name of this one, so that no item is repeated or skipped if
    others appear or disappear meanwhile. `after`: a name that need not exist any more; "" means the
    beginning. `allows`: whether the caller may see a name; None: it may see all.
    """

    after: str = ""
    most: int = COUNT_MAX
    allows: Callable[[str], bool] | None = None

    def of(self, items: Iterable[T], name: Callable[[T], str]) -> list[T]:
        """Return the items of this page, sorted by name."""
        allows = self.allows
        items = (each for each in items if name(each) > self.after and (allows is None or allows(name(each))))
        return sorted(items, key=name)[: self.most]


ALL_ITEMS = Page()


class AdminRequest(NamedTuple):
    """A request as its handler gets it: path variables, query (the last value of a repeated name), JSON body,
    and its route.

    `query`: the Struct that its route declares; a mapping of texts before it is checked, and for probes.
    `body`: a JSON object, or the Struct that its route declares. `is_forwarded`: another process passed it
    on, so it must be answered here. `if_match`: the versions of which a change requires one. `address`: that
    of the client. `caller`: who makes the request; None: rights are off, or this process makes it.
    `on_behalf`: a node has passed it on for the caller. `is_encrypted`: it came over TLS. `concealed`: gets
    the sentences about missing rights of which the answer says nothing, for the audit log.
    """

    path: Mapping[str, str]
    query: Any
    body: Any
    method: str = ""
    pattern: str = ""
    is_forwarded: bool = False
    if_match: str = ""
    address: str = ""
    caller: Caller | None = None
    on_behalf: bool = False
    is_encrypted: bool = False
    concealed: list[str] | None = None

    def visible(self, right: str = "describe") -> Callable[[str], bool] | None:
        """Return a function that says whether the caller may see a name; None: it may see all."""
        caller = self.caller
        return (
            None
            if caller is None or caller.is_admin
            else lambda name: caller.has_right(right, name.encode("utf-8", "replace"))
        )

    def name_objects(self) -> str:
        """Return the names of what the request changes: those of its path, and the topic or identity of its
        body."""
        names = dict(self.path)
        body = self.body if isinstance(self.body, dict) else {}
        for kind in ("topic", "identity"):
            name = body.get(kind)
            if isinstance(name, str):
                names.setdefault(kind, name)
        return " ".join(f"{kind}={name}" for kind, name in names.items())

    @property
    def page(self) -> Page:
        """Return the page of a listing that the query asks for, with the names that the caller may see."""
        page: Page = self.query.page._replace(allows=self.visible())
        return page

    @property
    def topic(self) -> str:
        return self.path["topic"]

    @property
    def group(self) -> str:
        return self.path["group"]


class Text(NamedTuple):
    """An answer that is encoded already: content type, body and status."""

    content_type: str
    payload: bytes
    status: int = 200


class Versioned(NamedTuple):
    """The answer to a request about something with a version, which becomes its ETag."""

    answer: Any
    version: str


class _Answer(NamedTuple):
    """An answer as it is sent. `headers`: those that not every answer has."""

    status: int
    content_type: str
    chunks: Sequence[bytes] | EventStream
    headers: Sequence[tuple[str, str]] = ()


Handler = Callable[[AdminRequest], Any]


class AdminRouter:
    """The routes as a WSGI application. `names`: the host names of the server, besides loopback. `closed`: if
    not empty, the reason with which all unknown paths are answered with 503 for now. `callers`: who may do
    what; None if rights are off."""

    def __init__(
        self,
        names: Iterable[str] = (),
        closed: Callable[[], str] | None = None,
        callers: CallerTable | None = None,
    ) -> None:
        self._closed = closed
        self._oversight = Oversight(callers)
        self._routes: list[tuple[str, list[str], Handler]] = []
        self._names = tuple(names)

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        self._routes.append((method, pattern.strip("/").split("/"), handler))

    def __call__(
        self, environ: Mapping[str, Any], start: Callable[[str, list[tuple[str, str]]], Any]
    ) -> Iterable[bytes]:
        rejection = check_request(environ, self._names)
        answer = self._answer_request(environ, rejection)
        if isinstance(answer.chunks, EventStream):
            start(_STATUS[answer.status], STREAM_HEADERS)
            return answer.chunks
        length = sum(map(len, answer.chunks))
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(length)),
            _NO_SNIFF,
            *answer.headers,
        ]
        if answer.content_type == JSON:
            headers.append(NO_STORE)
        if rejection or answer.status in (408, 413):
            headers.append(("Connection", "close"))  # its body was not read
        start(_STATUS[answer.status], headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else answer.chunks

    def _answer_request(self, environ: Mapping[str, Any], rejection: RequestRejection | None) -> _Answer:
        try:
            if rejection is not None:
                if rejection.status == 415:  # of what nobody may send, the method is the first thing to say
                    self._check_method(environ)
                _log_rejection(environ, rejection)
                raise _HttpError(rejection.status, rejection.text)
            return self._dispatch_request(environ)
        except _HttpError as error:
            return _error_answer(error.status, str(error), error.headers)
        except ForbiddenError as error:
            return _error_answer(403, str(error))
        except LoginRejectedError as error:
            return _error_answer(401, str(error), [("WWW-Authenticate", "Bearer")])
        except OverQuotaError as error:
            return _error_answer(429, str(error), [("Retry-After", str(math.ceil(error.over.wait_s)))])
        except VersionConflictError as error:
            return _error_answer(412, str(error))
        except _NOT_FOUND as error:
            return _error_answer(404, str(error))
        except ConflictError as error:
            return _error_answer(409, str(error))
        except (TryLaterError, TimeoutError) as error:
            return _error_answer(503, str(error))
        except RemoteError as error:
            return _error_answer(504, str(error))
        except DdmqError as error:
            return _error_answer(400 if isinstance(error, CallerError) else 500, str(error))
        except Exception as error:
            log.exception("admin request failed")
            return _error_answer(500, f"internal error: {type(error).__name__}: {error}")

    def _dispatch_request(self, environ: Mapping[str, Any]) -> _Answer:
        method, segments = _read_target(environ)
        if method == "GET" and (segments[0] == ROOT or _is_front_door(environ, segments)):
            return _answer_page(environ, segments)
        for route_method, pattern, handler in self._routes:
            variables = _match(pattern, segments)
            if variables is None or route_method != method:
                continue
            path = "/" + "/".join(pattern)
            action = f"{method} {path}"
            sender = self._oversight.admit_request(environ, action, path in PROBES)
            concealed: list[str] = []
            request = AdminRequest(
                variables, _read_query(environ), _read_body(environ), method, path,
                if_match=_read_if_match(environ), address=str(environ.get("REMOTE_ADDR", "")),
                caller=sender.caller, on_behalf=sender.on_behalf,
                is_encrypted=environ.get("ddmq.certificate") is not None, concealed=concealed,
            )  # fmt: skip
            watch = self._oversight.watch_request(environ, sender, action, request.name_objects, concealed)
            with _await_slot(environ, path), watch:
                return _encode_answer(handler(request), environ)
        if self._closed is not None:
            raise TryLaterError(self._closed())
        self._check_method(environ)
        paths = ", ".join(sorted({"/" + "/".join(pattern) for _, pattern, _ in self._routes}))
        raise _HttpError(404, f"no such path: /{'/'.join(segments)}; there are {paths}")

    def _check_method(self, environ: Mapping[str, Any]) -> None:
        """Raise _HttpError if the path exists, but not for this method."""
        method, segments = _read_target(environ)
        methods = [name for name, pattern, _ in self._routes if _match(pattern, segments) is not None]
        if methods and method not in methods:
            allowed = ", ".join(methods).replace("GET", "GET, HEAD")
            text = f"{method} is not for /{'/'.join(segments)}; allowed: {allowed}"
            raise _HttpError(405, text, [("Allow", allowed)])


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
    def __init__(self, status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def _read_target(environ: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the method of a request (GET for HEAD) and the segments of its path."""
    segments = [unquote(segment) for segment in _raw_path(environ).strip("/").split("/")]
    return environ["REQUEST_METHOD"].replace("HEAD", "GET"), segments


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


def _read_if_match(environ: Mapping[str, Any]) -> str:
    """Return the versions of which a change requires one; "" without the header.

    Raises CallerError for a blank header: its sender wants a condition, but has no version.
    """
    header: str | None = environ.get("HTTP_IF_MATCH")
    if header is not None and not header.strip():
        raise CallerError(f"If-Match is {header!r}; allowed: ETags with commas between them, or *")
    return header or ""


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
        reason = HALF_SURROGATE if _has_half_surrogate(text) else error
        raise _HttpError(400, f"the body is not JSON: {reason}") from error
    except RecursionError as error:
        raise _HttpError(400, "the body is not JSON of any use: it is nested too deeply") from error
    if not isinstance(body, dict):
        raise _HttpError(400, "the body is not a JSON object")
    return body


def _has_half_surrogate(text: bytes) -> bool:
    """Return whether a text in JSON has one half of a surrogate pair, which msgspec calls truncated."""
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        pass
    return False


def _read(source: Any, length: int) -> bytes:
    late = _HttpError(408, f"the body of {length} bytes did not come in {BODY_S:g} s")
    try:
        with gevent.Timeout(BODY_S, late):
            return bytes(source.read(length))
    except OSError as error:
        raise late from error


def _encode_answer(value: Any, environ: Mapping[str, Any]) -> _Answer:
    """Encode an answer for the client that made the request. Metrics are never compressed: a cached page
    would cost processor time at each scrape."""
    if isinstance(value, EventStream):
        return _Answer(200, EVENT_STREAM, value)
    headers: list[tuple[str, str]] = []
    if isinstance(value, Versioned):
        headers.append(("ETag", f'"{value.version}"'))
        value = value.answer
    if isinstance(value, Text):
        status, content_type, chunks = value.status, value.content_type, [value.payload]
    else:
        status, content_type, chunks = 200, JSON, encode_json({} if value is None else value)
    accepted = accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", ""))
    if accepted and content_type == JSON and sum(map(len, chunks)) >= GZIP_BYTES_MIN:
        chunks = compress_chunks(chunks)
        headers.append(("Content-Encoding", "gzip"))
    return _Answer(status, content_type, chunks, headers)


def _is_front_door(environ: Mapping[str, Any], segments: Sequence[str]) -> bool:
    """Return whether a browser opens the bare address of the server."""
    return list(segments) == [""] and "text/html" in environ.get("HTTP_ACCEPT", "")


def _answer_page(environ: Mapping[str, Any], segments: list[str]) -> _Answer:
    """Answer with a file of the console, or send a browser from the bare address to the console."""
    if segments[0] != ROOT or _raw_path(environ) == f"/{ROOT}":
        return _Answer(302, "text/plain", [], [("Location", f"/{ROOT}/")])
    asset = find_asset(segments)
    if asset is None:
        return _error_answer(404, f"no such file: /{'/'.join(segments)}; reload the page")
    return _encode_asset(asset, environ)


def _encode_asset(asset: Asset, environ: Mapping[str, Any]) -> _Answer:
    headers = [*asset.headers, ("Vary", "Accept-Encoding")]
    if not accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", "")):
        return _Answer(200, asset.content_type, [asset.plain], headers)
    headers.append(("Content-Encoding", "gzip"))
    return _Answer(200, asset.content_type, [asset.compressed], headers)


def _error_answer(status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> _Answer:
    return _Answer(status, JSON, [msgspec.json.encode({"error": text})], headers)


def _log_rejection(environ: Mapping[str, Any], rejection: RequestRejection) -> None:
    facts = {"peer": environ.get("REMOTE_ADDR", ""), "path": environ.get("PATH_INFO", "")[:100]}
    why = "; ".join(filter(None, (rejection.text, rejection.details)))
    log.warning("admin request refused", extra=facts | {"why": why})


def forward_request(address: str, request: AdminRequest, token: bytes = b"") -> Text:
    """Send the request to the process at an admin address and return its answer unchanged. `token`: of this
    process, with which it acts for the request's caller. Blocks, so call it
    in a native thread. Raises TryLaterError if it changed nothing there, UncertainOutcomeError if a change
    got no answer."""
    filled = re.sub(r"\{(\w+)\}", lambda match: quote(request.path[match[1]], safe=""), request.pattern)
    texts = query_texts(request.query) if isinstance(request.query, Query) else request.query
    target = f"{filled}?{urlencode({**texts, FORWARDED: '1'})}"
    host, port = parse(address)
    connection = http.client.HTTPConnection(host, port, timeout=OTHER_S)
    is_connected = False
    try:
        connection.connect()
        connection.sock = secure_connection(connection.sock, "admin", host)
        if token:
            check_channel(connection.sock)
        is_connected = True
        body: Any = msgspec.json.encode(request.body) if request.body else None
        headers = {"Content-Type": JSON}
        if token:
            headers["Authorization"] = f"Bearer {token.decode()}"
        if request.caller is not None:
            headers[ON_BEHALF] = request.caller.name
        connection.request(request.method, target, body, headers)
        response = connection.getresponse()
        return Text(JSON, response.read(), response.status)
    except (OSError, http.client.HTTPException) as error:
        silence = f"the process at {address} does not answer ({error})"
        if is_connected and request.method != "GET":
            raise UncertainOutcomeError(f"{silence}; the change may or may not have been made") from error
        raise TryLaterError(f"{silence}; try again") from error
    finally:
        connection.close()


def read_forwarded(answer: Any, who: str) -> Any:
    """Return the answer of this process or, decoded, that of another one. Raises TryLaterError if the other
    process, `who` in the text, answers with an error."""
    if not isinstance(answer, Text):
        return answer
    row = msgspec.json.decode(answer.payload)
    if answer.status != 200:
        raise TryLaterError(str(row.get("error", f"{who} answers with status {answer.status}")))
    return row
