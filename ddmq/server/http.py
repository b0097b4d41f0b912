"""A small JSON-over-HTTP shell for the admin API: routes, errors to status codes, nothing else.

A route is `METHOD /literal/{name}/…` and a function `(Request) -> value`; the value is sent as JSON.
CallerError → 400 (NoSuchTopicError and NoSuchGroupError → 404), TryLaterError → 503, StorageError and
RemoteError → 500, each as {"error": text}. Bodies are bounded. Runs in a greenlet per request, so
handlers may wait on completions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

import msgspec
from gevent.pywsgi import WSGIHandler

from ddmq.address import Address
from ddmq.server.errors import NoSuchGroupError
from ddmq_common.errors import CallerError, DdmqError, NoSuchTopicError, TryLaterError

BODY_BYTES_MAX = 1 << 20
_STATUS = {
    200: "200 OK", 400: "400 Bad Request", 404: "404 Not Found", 405: "405 Method Not Allowed",
    413: "413 Content Too Large", 500: "500 Internal Server Error", 503: "503 Service Unavailable",
}  # fmt: skip
log = logging.getLogger("ddmq.admin")


class Request(NamedTuple):
    """What a handler gets: path variables, query parameters (last one wins), the JSON body."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]

    def number(self, name: str, default: int) -> int:
        """A whole number among the query parameters."""
        text = self.query.get(name)
        if text is None:
            return default
        if not text.isdecimal() or len(text) > 18:
            raise CallerError(f"{name} is {text!r}; a whole number of 0 or more is wanted")
        return int(text)


class Text(NamedTuple):
    """An answer that is not JSON."""

    content_type: str
    payload: bytes
    status: int = 200


Handler = Callable[[Request], Any]


class Router:
    """The table of routes as a WSGI application."""

    def __init__(self) -> None:
        self._routes: list[tuple[str, list[str], Handler]] = []

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        self._routes.append((method, pattern.strip("/").split("/"), handler))

    def __call__(
        self, environ: Mapping[str, Any], start: Callable[[str, list[tuple[str, str]]], Any]
    ) -> Iterable[bytes]:
        status, kind, payload = self._answer(environ)
        headers = [("Content-Type", kind), ("Content-Length", str(len(payload)))]
        start(_STATUS[status], headers)
        return [payload]

    def _answer(self, environ: Mapping[str, Any]) -> tuple[int, str, bytes]:
        try:
            value = self._dispatch(environ)
        except _HttpError as error:
            return _json(error.status, {"error": str(error)})
        except (NoSuchTopicError, NoSuchGroupError) as error:
            return _json(404, {"error": str(error)})
        except (TryLaterError, TimeoutError) as error:
            return _json(503, {"error": str(error)})
        except DdmqError as error:
            return _json(400 if isinstance(error, CallerError) else 500, {"error": str(error)})
        except Exception as error:
            log.exception("admin request failed")
            return _json(500, {"error": f"internal error: {type(error).__name__}: {error}"})
        if isinstance(value, Text):
            return value.status, value.content_type, value.payload
        return _json(200, value)

    def _dispatch(self, environ: Mapping[str, Any]) -> Any:
        method = environ["REQUEST_METHOD"]
        parts = [unquote(part) for part in _raw_path(environ).strip("/").split("/")]
        known_path = False
        for route_method, pattern, handler in self._routes:
            variables = _match(pattern, parts)
            if variables is None:
                continue
            known_path = True
            if route_method == method:
                return handler(Request(variables, _query(environ), _body(environ)))
        if known_path:
            raise _HttpError(405, f"{method} is not for /{'/'.join(parts)}")
        known = ", ".join(sorted({"/" + "/".join(pattern) for _, pattern, _ in self._routes}))
        raise _HttpError(404, f"no such path: /{'/'.join(parts)}; there are {known}")


class _HttpError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class AdminConnection(WSGIHandler):  # type: ignore[misc]  # gevent has no types
    """One connection to the admin port; what is not HTTP is one short line in the log."""

    def get_environ(self) -> dict[str, Any]:
        """With the path as it was sent, so that a quoted slash stays inside a name."""
        environ: dict[str, Any] = super().get_environ()
        return environ | {"RAW_URI": self.path}

    def log_error(self, msg: str, *args: Any) -> None:
        said = (msg % args if args else msg)[:100]
        log.warning(
            "admin request refused", extra={"peer": Address(*self.client_address[:2]), "said": repr(said)}
        )


def _raw_path(environ: Mapping[str, Any]) -> str:
    """The path before unquoting, so that a quoted slash or percent stays inside its part."""
    raw: str = environ.get("RAW_URI") or environ.get("REQUEST_URI") or quote_free(environ["PATH_INFO"])
    return raw.partition("?")[0]


def quote_free(path: str) -> str:
    """PATH_INFO is unquoted already, its bytes as Latin-1: make UTF-8 of them, keep percent signs."""
    return path.encode("latin-1", "replace").decode("utf-8", "replace").replace("%", "%25")


def _match(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    variables: dict[str, str] = {}
    for wanted, found in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            variables[wanted[1:-1]] = found
        elif wanted != found:
            return None
    return variables


def _query(environ: Mapping[str, Any]) -> dict[str, str]:
    """An empty value is one: what was to be narrowed by it is not meant as a whole."""
    text = environ.get("QUERY_STRING", "")
    return {key: values[-1] for key, values in parse_qs(text, keep_blank_values=True).items()}


def _body(environ: Mapping[str, Any]) -> Mapping[str, Any]:
    text = environ.get("CONTENT_LENGTH") or "0"
    length = int(text) if text.isdecimal() else 0
    if length > BODY_BYTES_MAX:
        raise _HttpError(413, f"the body has {length} bytes; allowed: {BODY_BYTES_MAX}")
    if not length:
        return {}
    try:
        body = msgspec.json.decode(environ["wsgi.input"].read(length))
    except msgspec.DecodeError as error:
        raise _HttpError(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _HttpError(400, "the body is not a JSON object")
    return body


def _json(status: int, value: Any) -> tuple[int, str, bytes]:
    return status, "application/json", msgspec.json.encode(value)
