"""HTTP answers, however their bytes are cut; what is not HTTP is an HttpError."""

from __future__ import annotations

import json

import pytest

from ddmq_client.admin.http import HttpError, HttpRequest, HttpResponse, ResponseReader, build_target
from ddmq_client.core.nodes import ProxyAddress

SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
TRAILED = CHUNKED[:-2] + b"X: y\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
CLOSING = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"
ANSWERS = [
    (SIZED, HttpResponse(200, b"hello", True)),
    (CHUNKED, HttpResponse(404, b"hello", True)),
    (TRAILED, HttpResponse(404, b"hello", True)),
    (EMPTY, HttpResponse(204, b"", True)),
    (CONTINUED, HttpResponse(200, b"hello", True)),
    (CLOSING, HttpResponse(503, b"{}", False)),
    (OLD, HttpResponse(200, b"{}", False)),
]


@pytest.mark.parametrize(("data", "response"), ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_an_answer_is_complete_with_its_last_byte(data: bytes, response: HttpResponse, size: int) -> None:
    reader = ResponseReader()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    answers = [reader.feed_bytes(chunk) for chunk in chunks]
    assert answers == [None] * (len(chunks) - 1) + [response]


def test_without_a_length_it_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed_bytes(b"HTTP/1.1 200 OK\r\n\r\n{") is None
    assert reader.feed_bytes(b"}") is None
    assert reader.feed_bytes(b"") == HttpResponse(200, b"{}", False)


@pytest.mark.parametrize("data", [answer for answer, _ in ANSWERS])
def test_a_connection_that_ends_early_is_an_error(data: bytes) -> None:
    reader = ResponseReader()
    reader.feed_bytes(data[:-1])
    with pytest.raises(HttpError, match="the connection ended"):
        reader.feed_bytes(b"")


def test_an_answer_of_which_nothing_came_is_empty() -> None:
    reader = ResponseReader()
    assert reader.is_empty
    with pytest.raises(HttpError, match="ended before an answer"):
        reader.feed_bytes(b"")
    reader.feed_bytes(b"H")
    assert not reader.is_empty


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x12\x80\x01\x00\x03\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_an_error(data: bytes) -> None:
    with pytest.raises(HttpError):
        ResponseReader().feed_bytes(data)


def test_requests_name_the_server_and_the_length() -> None:
    get = HttpRequest("GET", build_target(("topics", "a/b ü"), {"count": 3, "after": None, "key": "x y"}))
    assert not get.is_change
    assert get.encode(ProxyAddress("::1", 9813)) == (
        b"GET /topics/a%2Fb%20%C3%BC?count=3&key=x+y HTTP/1.1\r\nHost: [::1]:9813\r\n"
        b"Accept: application/json\r\n\r\n"
    )
    post = HttpRequest("POST", "/topics/t", {"queues": 2})
    assert post.is_change
    head, _, body = post.encode(ProxyAddress("mq", 1)).partition(b"\r\n\r\n")
    assert b"Content-Type: application/json\r\nContent-Length: %d" % len(body) in head
    assert json.loads(body) == {"queues": 2}
    assert b"Content-Length: 0" in HttpRequest("DELETE", "/topics/t").encode(ProxyAddress("mq", 1))
