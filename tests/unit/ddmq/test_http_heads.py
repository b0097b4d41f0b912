"""A head that is not as HTTP has it is refused to the byte, and nothing behind it is read as a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gevent import socket
from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.http.connection import AdminServer
from ddmq.server.http.head import HEAD_BYTES_MAX, LINES_MAX
from ddmq.server.http.routing import AdminRouter

INNER = b"GET /inner HTTP/1.1\r\nHost: localhost\r\n\r\n"
HOST, JSON = b"Host: localhost\r\n", b"Content-Type: application/json\r\n"
MALFORMED_LINES = {
    "a space before the colon": b"X : y\r\n",
    "a tab before the colon": b"X\t: y\r\n",
    "no colon": b"nonsense\r\n",
    "no name": b": y\r\n",
    "a control character in the name": b"X\x01: y\r\n",
    "a control character in the value": b"X: \x01\r\n",
    "NUL": b"X: a\0b\r\n",
    "DEL": b"X: a\x7fb\r\n",
    "a space in the name": b"X Y: z\r\n",
    "a name beyond ASCII": "Ä: y\r\n".encode(),
    "a line that goes on": b"X: a\r\n b\r\n",
    "a line that goes on with a tab": b"X: a\r\n\tb\r\n",
    "a line that only goes on": b" \r\n",
    "a first line that goes on": b" Host: evil.example\r\n",
    "LF alone": b"X: y\n",
    "CR alone": b"X: y\rContent-Length: 7\r\n",
    "CR twice": b"X: y\r\r\n",
    "CR before the colon": b"X\r: y\r\n",
    "an empty line of LF": b"\n",
    "an empty line of CR": b"\r",
    "Transfer-Encoding with a space": b"Transfer-Encoding : chunked\r\n",
    "Transfer-Encoding with a tab": b"Transfer-Encoding\t: chunked\r\n",
    "Transfer-Encoding that goes on": b"Transfer-Encoding:\r\n chunked\r\n",
    "Transfer-Encoding behind VT": b"Transfer-Encoding:\x0bchunked\r\n",
    "Content-Length with a space": b"Content-Length : 0\r\n",
    "Content-Length in quotes": b'"Content-Length": 0\r\n',
    "mbox line": b"From: x\r\nFrom me\r\n",
    "too long": b"X: " + b"y" * HEAD_BYTES_MAX + b"\r\n",
    "too many": b"X: y\r\n" * LINES_MAX,
}
REFUSED_ENCODINGS = {
    "chunked": b"Transfer-Encoding: chunked\r\n",
    "chunked and more": b"Transfer-Encoding: identity, chunked\r\n",
    "of no name": b"Transfer-Encoding: x\r\n",
    "twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
    "two lengths": b"Content-Length: 0\r\n",
    "a length with a sign": b"Content-Length: +41\r\n",
}
REQUEST_LINES = [
    b"GET /x\r\n", b"GET  /x HTTP/1.1\r\n", b"GET /x HTTP/1.1 \r\n", b"GET /x\xa0HTTP/1.1\r\n",
    b"GET\t/x HTTP/1.1\r\n",
    b" GET /x HTTP/1.1\r\n", b"GET /x HTTP/1.1\n", b"GET /x HTTP/2.0\r\n", b"GET /x\x01 HTTP/1.1\r\n",
    b"get /x HTTP/1.1\r\n",
    b"GET /x HTTP/1.1\rHost: localhost\r\n", b"\r\n", b"GET /x y HTTP/1.1\r\n", b"GET /x HTTP/1.1junk\r\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[AdminServer]:
    router = AdminRouter()
    router.add("GET", "/x", lambda _: {"outer": True})
    router.add("POST", "/x", lambda request: {"body": dict(request.body)})
    router.add("GET", "/inner", lambda _: {"inner": True})
    started = AdminServer(("127.0.0.1", 0), router)
    started.start()
    yield started
    started.stop(timeout=0)


def exchange(server: AdminServer, request: bytes) -> bytes:
    """Return all that comes until the other side closes; it does, though ours stays open."""
    with socket.create_connection(("127.0.0.1", server.server_port), 20) as connection:
        answer = b""
        try:
            connection.sendall(request)
            while more := connection.recv(1 << 16):
                answer += more
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answer


@pytest.mark.parametrize("position", ["first", "between", "last"])
@pytest.mark.parametrize("malformed", MALFORMED_LINES)
def test_a_malformed_line_is_400_and_the_end(server: AdminServer, malformed: str, position: str) -> None:
    lines = [HOST, JSON, b"Content-Length: %d\r\n" % len(INNER)]
    lines.insert({"first": 0, "between": 1, "last": 3}[position], MALFORMED_LINES[malformed])
    answer = exchange(server, b"GET /x HTTP/1.1\r\n" + b"".join(lines) + b"\r\n" + INNER + INNER)
    assert answer.startswith(b"HTTP/1.1 400") or (len(MALFORMED_LINES[malformed]) > 1_000 and not answer)
    assert answer.count(b"HTTP/1.1") <= 1
    assert b"inner" not in answer
    assert b"outer" not in answer


@pytest.mark.parametrize("coding", REFUSED_ENCODINGS)
def test_lengths_that_may_be_read_otherwise_end_the_connection(server: AdminServer, coding: str) -> None:
    head = b"POST /x HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n" % len(INNER)
    answer = exchange(server, head + REFUSED_ENCODINGS[coding] + b"\r\n" + INNER + INNER)
    assert answer[9:12] in (b"400", b"411")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"inner" not in answer


@pytest.mark.parametrize("line", REQUEST_LINES)
def test_a_malformed_request_line_is_400_and_the_end(server: AdminServer, line: bytes) -> None:
    answer = exchange(server, line + HOST + b"\r\n" + INNER)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert b"inner" not in answer
    assert answer.count(b"\r\n\r\n") == 1


def test_a_frame_of_a_producer_is_answered_at_once(server: AdminServer) -> None:
    answer = exchange(server, b"\x00\x00\x00\x09sendSync")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"wanted: METHOD PATH HTTP/1.1" in answer


@pytest.mark.parametrize("header", [b"Origin: http://evil.example\r\n", b"Sec-Fetch-Site: cross-site\r\n"])
@pytest.mark.parametrize("malformed", MALFORMED_LINES)
def test_no_malformed_line_hides_where_a_request_comes_from(
    server: AdminServer, malformed: str, header: bytes
) -> None:
    answer = exchange(
        server,
        b"GET /x HTTP/1.1\r\n" + HOST + MALFORMED_LINES[malformed] + header + b"Connection: close\r\n\r\n",
    )
    assert not answer.startswith(b"HTTP/1.1 200")


@given(line=st.binary(min_size=1, max_size=40).filter(lambda line: b"\n" not in line))
def test_any_line_is_refused_or_hides_nothing(server: AdminServer, line: bytes) -> None:
    """Either it is a header, and what stands behind it counts, or the request is refused as a whole."""
    end = b"Host: evil.example\r\nConnection: close\r\n\r\n"
    answer = exchange(server, b"GET /x HTTP/1.1\r\n" + line + b"\r\n" + end + INNER)
    assert answer[9:12] in (b"400", b"403"), answer
    assert answer.count(b"\r\n\r\n") == 1


def test_the_answer_says_which_line_it_was(server: AdminServer) -> None:
    answer = exchange(server, b"GET /x HTTP/1.1\r\n" + HOST + b"X : y\r\n\r\n")
    assert b"header line 'X : y\\\\r\\\\n' is not NAME: VALUE" in answer
    assert b"Connection: close" in answer
    assert b"application/json" in answer


@pytest.mark.parametrize(
    "headers",
    [
        b"X:\r\n",
        b"X:  a  \r\n",
        b"X:\ta\t\r\n",
        "X: ä\r\n".encode(),
        b"!#$%&'*+.^_`|~0-9: y\r\n",
        b"X: y\r\n" * 90,
    ],
)
def test_headers_that_http_has_are_taken(server: AdminServer, headers: Any) -> None:
    answer = exchange(server, b"GET /x HTTP/1.1\r\n" + HOST + headers + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
