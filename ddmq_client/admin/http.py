"""HTTP/1.1 as the admin client speaks it: requests to bytes, bytes to answers. Pure.

An answer ends by its Content-Length, by its last chunk, or with the connection. Headers and bodies have a
bound; whatever is not HTTP is an HttpError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from ddmq_client.core.nodes import ProxyAddress, UnixAddress

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
_BODYLESS = (204, 304)


class HttpError(Exception):
    """The peer does not speak HTTP, or closed its connection in the middle of an answer."""


class HttpRequest(NamedTuple):
    """One request. `body`: an object that is sent as JSON, or None for a request without a body."""

    method: str
    target: str
    body: Mapping[str, Any] | None = None

    @property
    def is_change(self) -> bool:
        """Return whether the request may change something, so that it must not be sent twice."""
        return self.method != "GET"

    def encode(self, address: ProxyAddress) -> bytes:
        """Encode the request for the server at `address`."""
        body = b"" if self.body is None else json.dumps(self.body).encode()
        host = "localhost" if isinstance(address, UnixAddress) else str(address)
        lines = [f"{self.method} {self.target} HTTP/1.1", f"Host: {host}", "Accept: application/json"]
        token = b"" if address.login is None else address.login.read_token()
        if token:
            lines.append(f"Authorization: Bearer {token.decode()}")
        if self.method != "GET":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


def build_target(path: tuple[str, ...], query: Mapping[str, object]) -> str:
    """Return the target of a request: the percent-encoded path, and the query without items that are None."""
    target = "/" + "/".join(quote(segment, safe="") for segment in path)
    stated = {name: value for name, value in query.items() if value is not None}
    return f"{target}?{urlencode(stated)}" if stated else target


class HttpResponse(NamedTuple):
    """One answer. `is_reusable`: whether the connection can carry another request."""

    status: int
    body: bytes
    is_reusable: bool


class ResponseReader:
    """Collects the bytes of one answer."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._status = 0  # 0: the headers are incomplete
        self._is_reusable = False
        self._length: int | None = None  # None: chunked, or until the connection ends
        self._chunked = False
        self._body = bytearray()  # of chunks so far

    @property
    def is_empty(self) -> bool:
        """Whether no byte of the answer was received yet."""
        return not (self._data or self._status)

    def feed_bytes(self, data: bytes) -> HttpResponse | None:
        """Process received bytes (b"" at the end of the connection).

        Return the answer once it is complete, else None. Raises HttpError.
        """
        self._data += data
        if not self._status and not self._read_head():
            if not data:
                raise HttpError("the connection ended before an answer")
            return None
        if self._chunked:
            complete = self._read_chunks()
        elif self._length is not None:
            complete = len(self._data) >= self._length
        else:
            complete = not data
        if not complete:
            if not data:
                raise HttpError("the connection ended in the middle of an answer")
            if len(self._data) + len(self._body) > BODY_BYTES_MAX:
                raise HttpError(f"an answer of more than {BODY_BYTES_MAX} bytes")
            return None
        body = self._body if self._chunked else self._data[: self._length]
        return HttpResponse(self._status, bytes(body), self._is_reusable)

    def _read_head(self) -> bool:
        while True:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > HEAD_BYTES_MAX:
                    raise HttpError(f"headers of more than {HEAD_BYTES_MAX} bytes")
                return False
            lines = self._data[:end].decode("latin-1").split("\r\n")
            del self._data[: end + 4]
            status = _parse_status(lines[0])
            if status >= 200:
                self._apply_headers(lines[0], status, lines[1:])
                return True

    def _apply_headers(self, first_line: str, status: int, lines: list[str]) -> None:
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise HttpError(f"a header line {line[:80]!r}")
            headers[name.strip().lower()] = value.strip()
        self._status = status
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        if status in _BODYLESS:
            self._length = 0
        elif not self._chunked and "content-length" in headers:
            self._length = _parse_number(headers["content-length"], 10)
        keeps = first_line.startswith("HTTP/1.1") and headers.get("connection", "").lower() != "close"
        self._is_reusable = keeps and (self._chunked or self._length is not None)

    def _read_chunks(self) -> bool:
        while True:
            end = self._data.find(b"\r\n")
            if end < 0:
                return False
            size = _parse_number(self._data[:end].decode("latin-1").partition(";")[0], 16)
            if not size:
                return self._data[end:].startswith(b"\r\n\r\n") or b"\r\n\r\n" in self._data[end + 2 :]
            if len(self._data) < end + 2 + size + 2:
                return False
            self._body += self._data[end + 2 : end + 2 + size]
            del self._data[: end + 2 + size + 2]


def _parse_status(line: str) -> int:
    version, _, rest = line.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not code.isdecimal() or len(code) < 3:
        raise HttpError(f"a status line {line[:80]!r}")
    return int(code)


def _parse_number(text: str, base: int) -> int:
    try:
        number = int(text.strip(), base)
    except ValueError as error:
        raise HttpError(f"a length {text[:40]!r}") from error
    if not 0 <= number <= BODY_BYTES_MAX:
        raise HttpError(f"a length {text[:40]!r}; allowed: at most {BODY_BYTES_MAX}")
    return number
