"""The head of a request, read strictly.

Python's own parser ends silently at a line that is no header, and so would drop Content-Length, Host and
Origin behind it; it also takes lines that go on in the next one, and a lone carriage return as the end of a
line. A proxy in front may read each of these otherwise, and then sees other requests than this server. So
every line must be as RFC 9112 lets a client send it, to the byte; anything else is refused, and the
connection is closed.
"""

from __future__ import annotations

import re
from typing import Protocol

LINE_BYTES_MAX = 65_536
HEAD_BYTES_MAX = 128 << 10
LINES_MAX = 100
_REQUEST_LINE = re.compile(r"[A-Z]{1,20} [!-~]+ HTTP/1\.[01]\r\n")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n")


class MalformedHeadError(ValueError):
    """A line of a request's head violates HTTP's syntax; the text says which line."""


class _Lines(Protocol):
    def readline(self, size: int, /) -> bytes: ...


def check_request_line(line: str) -> None:
    """Raise MalformedHeadError for a first line that is not METHOD TARGET HTTP/1.1 (or 1.0)."""
    if not _REQUEST_LINE.fullmatch(line):
        raise MalformedHeadError(f"the request line is {_quote_line(line)}; wanted: METHOD PATH HTTP/1.1")


def read_headers(source: _Lines) -> bytes:
    """Return the header lines, including the empty line at their end. Raises MalformedHeadError."""
    head = bytearray()
    for _ in range(LINES_MAX + 1):
        line = source.readline(LINE_BYTES_MAX + 1)
        head += line
        if line == b"\r\n":
            return bytes(head)
        if len(head) > HEAD_BYTES_MAX or not _HEADER.fullmatch(line):
            raise MalformedHeadError(f"header line {_quote_line(line.decode('latin-1'))} is not NAME: VALUE")
    raise MalformedHeadError(f"there are more than {LINES_MAX} header lines")


def _quote_line(line: str) -> str:
    return repr(line if len(line) <= 100 else f"{line[:99]}…")
