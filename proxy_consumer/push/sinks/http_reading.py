"""One HTTP/1.1 answer, read to its end: interim answers, head, body by length, in chunks or to the close.

Every part has a bound of its own beside those of `Receiving`: what a receiver may send before and after
the body is HEAD_LINES_MAX lines, and chunks may be small, but not many.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from proxy_consumer.push.sinks.receiving import Receiving

HEAD_BYTES_MAX = 64 << 10  # of all heads and trailers together, and what chunks add to the body
LINE_BYTES_MAX = 16 << 10
HEAD_LINES_MAX = 128
INTERIM_MAX = 8  # answers such as 103 Early Hints before the real one
CHUNKS_MAX = 16_384
PIECES_MAX = 3 * CHUNKS_MAX + (INTERIM_MAX + 2) * HEAD_LINES_MAX
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?\Z")
_SIZE = re.compile(rb"\s*([0-9A-Fa-f]{1,8})\s*(?:;.*)?\Z", re.DOTALL)
_WITHOUT_BODY = (204, 304)


class BadAnswerError(Exception):
    """What came is no HTTP/1.1 answer, or one that is too long; the text says why."""


class HttpAnswer(NamedTuple):
    """`whole`: it came to its end, and the connection may be used again."""

    status: int
    body: bytes
    whole: bool


class _AnswerHead(NamedTuple):
    status: int
    length: int | None
    chunked: bool
    closes: bool


def read_http(sock: Any, body_bytes_max: int, until: float) -> HttpAnswer:
    """The answer to one request. Raises BadAnswerError, UnboundedError, EOFError, OSError.

    `until`: monotonic seconds at which it must have ended.
    """
    receiving = Receiving(sock, 2 * body_bytes_max + HEAD_BYTES_MAX, PIECES_MAX, until)
    head = _final_head(receiving)
    if head.status in _WITHOUT_BODY:
        body, delimited = b"", True
    elif head.chunked:
        body, delimited = _chunks(receiving, body_bytes_max), True
    elif head.length is not None:
        if head.length > body_bytes_max:
            raise BadAnswerError(f"the answer is over {body_bytes_max} bytes")
        body, delimited = receiving.exactly(head.length), True
    else:
        body, delimited = receiving.to_the_end(), False
        if len(body) > body_bytes_max:
            raise BadAnswerError(f"the answer is over {body_bytes_max} bytes")
    return HttpAnswer(head.status, body, delimited and not head.closes and not receiving.left_over)


def _final_head(receiving: Receiving) -> _AnswerHead:
    """The head that is not an interim answer's."""
    for _ in range(INTERIM_MAX + 1):
        head = _head(receiving)
        if head.status == 101:
            raise BadAnswerError("status 101: nobody asked for another protocol")
        if head.status >= 200:
            return head
    raise BadAnswerError(f"over {INTERIM_MAX} interim answers (1xx) and no answer")


def _head(receiving: Receiving) -> _AnswerHead:
    line = receiving.line(LINE_BYTES_MAX)
    match = _STATUS.match(line)
    if match is None:
        raise BadAnswerError(f"{line[:60]!r} is no status line of HTTP/1.1")
    lengths: set[bytes] = set()
    coding, connection = b"", b""
    for name, value in _fields(receiving):
        if name == b"content-length":
            lengths |= {each.strip() for each in value.split(b",")}
        elif name == b"transfer-encoding":
            coding = value.lower()
        elif name == b"connection":
            connection = value.lower()
    if coding not in (b"", b"chunked"):
        raise BadAnswerError(f"Transfer-Encoding {coding[:40]!r}; allowed: chunked")
    old = match[1] == b"0"
    closes = b"close" in connection or (old and b"keep-alive" not in connection)
    return _AnswerHead(int(match[2]), _length(lengths), bool(coding), closes)


def _length(lengths: set[bytes]) -> int | None:
    if not lengths:
        return None
    (first, *others) = lengths
    if others or not first.isdigit() or len(first) > 15:
        raise BadAnswerError(f"Content-Length is {b', '.join(sorted(lengths))[:60]!r}")
    return int(first)


def _fields(receiving: Receiving) -> list[tuple[bytes, bytes]]:
    """The lines of a head, or of trailers: name in lower case and value."""
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for _ in range(HEAD_LINES_MAX):
        line = receiving.line(LINE_BYTES_MAX)
        if not line:
            return found
        size += len(line)
        if size > HEAD_BYTES_MAX:
            break
        name, _, value = line.partition(b":")
        found.append((name.strip().lower(), value.strip()))
    raise BadAnswerError(f"a head over {HEAD_LINES_MAX} lines or {HEAD_BYTES_MAX} bytes")


def _chunks(receiving: Receiving, bytes_max: int) -> bytes:
    """The body of an answer in chunks; the trailers are read and left."""
    pieces: list[bytes] = []
    size = 0
    for _ in range(CHUNKS_MAX):
        line = receiving.line(LINE_BYTES_MAX)
        match = _SIZE.match(line)
        if match is None:
            raise BadAnswerError(f"{line[:40]!r} is no size of a chunk")
        length = int(match[1], 16)
        if length == 0:
            _fields(receiving)
            return b"".join(pieces)
        size += length
        if size > bytes_max:
            raise BadAnswerError(f"the answer is over {bytes_max} bytes")
        pieces.append(receiving.exactly(length))
        if receiving.line(2):
            raise BadAnswerError("a chunk does not end where it should")
    raise BadAnswerError(f"the answer is in over {CHUNKS_MAX} chunks")
