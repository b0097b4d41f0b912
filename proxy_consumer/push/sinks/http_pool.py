"""Reusable HTTP/1.1 connections, one stack per origin, on gevent's own sockets.

A request waits in its greenlet and never blocks the hub. The caller has checked the parts of the head:
target, header names and values. An idle connection is reused within IDLE_S, and only if nothing has arrived
on it meanwhile (its end, or unexpected bytes).

A reply is read to its end: interim responses, head, body by length, in chunks or up to the close. Every part
has its own bound besides those of `Receiving`: at most HEAD_LINES_MAX lines before and after the body, and at
most CHUNKS_MAX chunks.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

import gevent
from gevent import ssl

from proxy_consumer.push.actions.targets import Url
from proxy_consumer.push.sinks.connections import Connection, Receiving, ReusableConnections, UnboundedError

IDLE_S = 4.0  # shorter than servers keep idle connections open
ORIGINS_MAX = 256
HEAD_BYTES_MAX = 64 << 10  # all heads, trailers and chunk sizes together
LINE_BYTES_MAX = 16 << 10
HEAD_LINES_MAX = 128
INTERIM_MAX = 8  # responses such as 103 Early Hints before the final one
CHUNKS_MAX = 16_384
READS_MAX = 3 * CHUNKS_MAX + (INTERIM_MAX + 2) * HEAD_LINES_MAX
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?\Z")
_SIZE = re.compile(rb"\s*([0-9A-Fa-f]{1,8})\s*(?:;.*)?\Z", re.DOTALL)
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\Z")
_WITHOUT_BODY = (204, 304)


class NoAnswerError(Exception):
    """No complete reply was received; the text says why."""


class _HttpConnection(Connection):
    """An HTTP connection: a request is written by one send, then its reply is read."""

    def send_request(
        self, url: Url, method: str, target: str, body: bytes, headers: dict[str, str], bytes_max: int,
        until: float,
    ) -> HttpAnswer:  # fmt: skip
        """Send one request and read its reply, with at most `bytes_max` bytes of body.

        `until`: the deadline in monotonic seconds.
        """
        self.open()
        host = f"[{url.host}]" if ":" in url.host else url.host
        default_port = url.port == (443 if url.scheme == "https" else 80)
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host if default_port else f'{host}:{url.port}'}"]
        lines += [f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return read_http(self.sock, bytes_max, until)


_Origin = ReusableConnections[_HttpConnection]


class HttpPool:
    """The HTTP connections of one sink."""

    def __init__(self, connections_max: int, response_bytes_max: int) -> None:
        self._connections_max = connections_max
        self._response_bytes_max = response_bytes_max
        self._origins: dict[tuple[str, str, int], _Origin] = {}
        self._tls: Any = None

    def close(self) -> None:
        """Close the idle connections."""
        for origin in self._origins.values():
            origin.close()

    def send_request(
        self, url: Url, method: str, target: str, body: bytes, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        """Send a request and return status and body. Raises NoAnswerError.

        The time-out begins when a connection is available.
        """
        with self._find_origin(url).use_connection(lambda: self._open_connection(url)) as connection:
            try:
                with gevent.Timeout(timeout_s):
                    until, bytes_max = time.monotonic() + timeout_s, self._response_bytes_max
                    answer = connection.send_request(url, method, target, body, headers, bytes_max, until)
            except gevent.Timeout:
                raise NoAnswerError(f"no answer from {url.shown_url} within {timeout_s:g} s") from None
            except (BadAnswerError, UnboundedError, EOFError) as error:
                raise NoAnswerError(f"{url.shown_url}: {error}") from error
            except (OSError, ValueError) as error:
                raise NoAnswerError(f"{url.shown_url}: {type(error).__name__}: {error}") from error
            connection.reusable = answer.complete
            return answer.status, answer.body

    def _open_connection(self, url: Url) -> _HttpConnection:
        if url.scheme != "https":
            return _HttpConnection(url.host, url.port)
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return _HttpConnection(url.host, url.port, self._tls)

    def _find_origin(self, url: Url) -> _Origin:
        pooled = self._origins.pop(url.pool_key, None)
        if pooled is None:
            self._evict_origin()
            pooled = _Origin(self._connections_max, IDLE_S)
        self._origins[url.pool_key] = pooled  # used last
        return pooled

    def _evict_origin(self) -> None:
        if len(self._origins) < ORIGINS_MAX:
            return
        for key, origin in self._origins.items():
            if not origin.users:
                origin.close()
                del self._origins[key]
                return
        raise NoAnswerError(f"{ORIGINS_MAX} hosts are being sent to; that is the bound")


class BadAnswerError(Exception):
    """The reply is not HTTP/1.1, or too long; the text says why."""


class HttpAnswer(NamedTuple):
    """A received reply. `complete`: it was read to its end, and the connection can be reused."""

    status: int
    body: bytes
    complete: bool


class _AnswerHead(NamedTuple):
    status: int
    length: int | None
    chunked: bool
    closes: bool


def read_http(sock: Any, body_bytes_max: int, until: float) -> HttpAnswer:
    """Read the reply to one request. Raises BadAnswerError, UnboundedError, EOFError, OSError.

    `until`: the deadline in monotonic seconds.
    """
    receiving = Receiving(sock, 2 * body_bytes_max + HEAD_BYTES_MAX, READS_MAX, until)
    head = _final_head(receiving)
    if head.status in _WITHOUT_BODY:
        body, delimited = b"", True
    elif head.chunked:
        body, delimited = _read_chunks(receiving, body_bytes_max), True
    elif head.length is not None:
        if head.length > body_bytes_max:
            raise BadAnswerError(f"the answer is over {body_bytes_max} bytes")
        body, delimited = receiving.read_exactly(head.length), True
    else:
        body, delimited = receiving.read_to_end(), False
        if len(body) > body_bytes_max:
            raise BadAnswerError(f"the answer is over {body_bytes_max} bytes")
    return HttpAnswer(head.status, body, delimited and not head.closes and not receiving.left_over)


def _final_head(receiving: Receiving) -> _AnswerHead:
    """Read heads up to the final one, past interim responses (1xx)."""
    for _ in range(INTERIM_MAX + 1):
        head = _read_head(receiving)
        if head.status == 101:
            raise BadAnswerError("status 101: nobody asked for another protocol")
        if head.status >= 200:
            return head
    raise BadAnswerError(f"over {INTERIM_MAX} interim answers (1xx) and no answer")


def _read_head(receiving: Receiving) -> _AnswerHead:
    line = receiving.read_line(LINE_BYTES_MAX)
    match = _STATUS.match(line)
    if match is None:
        raise BadAnswerError(f"{line[:60]!r} is no status line of HTTP/1.1")
    lengths: set[bytes] = set()
    coding, connection = b"", b""
    fields, well_formed = _read_fields(receiving)
    for name, value in fields:
        if name == b"content-length":
            lengths |= {each.strip() for each in value.split(b",")}
        elif name == b"transfer-encoding":
            coding = b", ".join(filter(None, (coding, value.lower())))
        elif name == b"connection":
            connection = value.lower()
    if coding not in (b"", b"chunked"):
        raise BadAnswerError(f"Transfer-Encoding {coding[:40]!r}; allowed: chunked")
    old = match[1] == b"0"
    closes = b"close" in connection or (old and b"keep-alive" not in connection)
    doubtful = not well_formed or (bool(coding) and bool(lengths))  # the end of the reply is uncertain
    return _AnswerHead(int(match[2]), _parse_length(lengths), bool(coding), closes or doubtful)


def _parse_length(lengths: set[bytes]) -> int | None:
    if not lengths:
        return None
    (first, *others) = lengths
    if others or not first.isdigit() or len(first) > 15:
        raise BadAnswerError(f"Content-Length is {b', '.join(sorted(lengths))[:60]!r}")
    return int(first)


def _read_fields(receiving: Receiving) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Read the lines of a head or of trailers as (name in lower case, value), and whether all are
    well-formed.

    Malformed lines are accepted, because receivers are sloppy; such a connection is not reused.
    """
    fields: list[tuple[bytes, bytes]] = []
    size, well_formed = 0, True
    for _ in range(HEAD_LINES_MAX):
        line = receiving.read_line(LINE_BYTES_MAX)
        if not line:
            return fields, well_formed
        well_formed = well_formed and _FIELD.match(line) is not None
        size += len(line)
        if size > HEAD_BYTES_MAX:
            break
        name, _, value = line.partition(b":")
        fields.append((name.strip().lower(), value.strip()))
    raise BadAnswerError(f"a head over {HEAD_LINES_MAX} lines or {HEAD_BYTES_MAX} bytes")


def _read_chunks(receiving: Receiving, bytes_max: int) -> bytes:
    """Read the body of a reply in chunks; the trailers are read and dropped."""
    chunks: list[bytes] = []
    size = 0
    for _ in range(CHUNKS_MAX):
        line = receiving.read_line(LINE_BYTES_MAX)
        match = _SIZE.match(line)
        if match is None:
            raise BadAnswerError(f"{line[:40]!r} is no size of a chunk")
        length = int(match[1], 16)
        if length == 0:
            _read_fields(receiving)
            return b"".join(chunks)
        size += length
        if size > bytes_max:
            raise BadAnswerError(f"the answer is over {bytes_max} bytes")
        chunks.append(receiving.read_exactly(length))
        if receiving.read_line(2):
            raise BadAnswerError("a chunk does not end where it should")
    raise BadAnswerError(f"the answer is in over {CHUNKS_MAX} chunks")
