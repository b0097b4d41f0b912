"""Answers are compressed for clients that accept it, by slices, between which other greenlets run."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.http import encoding
from ddmq.server.http.encoding import (
    GZIP_BYTES_MIN,
    GZIP_SLICE_BYTES,
    accepts_gzip,
    compress_chunks,
    encode_json,
)
from ddmq.server.http.routing import AdminRequest, AdminRouter, Text, Versioned

Answers = Callable[[AdminRequest], Any]


def fetch(answer: Answers, method: str = "GET", **headers: str) -> tuple[str, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request for /a."""
    router = AdminRouter()
    router.add("GET", "/a", answer)
    router.add("DELETE", "/a", answer)
    responses: list[tuple[str, dict[str, str]]] = []
    environ = {"REQUEST_METHOD": method, "RAW_URI": "/a", "wsgi.input": io.BytesIO()} | headers
    body = b"".join(router(environ, lambda status, lines: responses.append((status, dict(lines)))))
    return *responses[0], body


@given(st.lists(st.binary(max_size=3 * GZIP_SLICE_BYTES), max_size=5))
def test_compressed_chunks_are_the_chunks(chunks: list[bytes]) -> None:
    assert gzip.decompress(b"".join(compress_chunks(chunks))) == b"".join(chunks)


def test_compression_yields_after_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message of 4 MiB would otherwise hold the loop for as long as all of it takes."""
    yields: list[None] = []
    monkeypatch.setattr(encoding, "yield_if_long", lambda: yields.append(None))
    compress_chunks([os.urandom(10 * GZIP_SLICE_BYTES), b"x"])
    assert len(yields) == 11


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("identity", False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("br;q=1, *;q=0.1", True),
        ("gzip;q=much", False),
        (",,;", False),
    ],
)
def test_gzip_is_for_clients_that_accept_it(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


ROWS = [{"topic": f"t{number}", "queues": 4} for number in range(100)]


def test_a_large_answer_is_compressed_for_who_accepts_it() -> None:
    _, headers, body = fetch(lambda _: ROWS, HTTP_ACCEPT_ENCODING="gzip, deflate")
    assert (headers["Content-Encoding"], headers["Content-Length"]) == ("gzip", str(len(body)))
    assert msgspec.json.decode(gzip.decompress(body)) == ROWS
    assert len(body) < len(msgspec.json.encode(ROWS)) / 3
    _, headers, body = fetch(lambda _: ROWS)
    assert "Content-Encoding" not in headers
    assert msgspec.json.decode(body) == ROWS


@pytest.mark.parametrize("answer", [{"a": "x" * (GZIP_BYTES_MIN - 9)}, {}, None])
def test_a_small_answer_is_not_compressed(answer: Any) -> None:
    _, headers, body = fetch(lambda _: answer, HTTP_ACCEPT_ENCODING="gzip")
    assert "Content-Encoding" not in headers
    assert msgspec.json.decode(body) == (answer or {})


def test_metrics_are_not_compressed() -> None:
    page = Text("text/plain; version=0.0.4", b"# HELP a\n" * 1_000)
    _, headers, body = fetch(lambda _: page, HTTP_ACCEPT_ENCODING="gzip")
    assert (body, "Content-Encoding" in headers, "Cache-Control" in headers) == (page.payload, False, False)


def test_no_cache_keeps_an_answer() -> None:
    assert fetch(lambda _: {})[1]["Cache-Control"] == "no-store"
    assert fetch(lambda _: {}, method="PUT")[1]["Cache-Control"] == "no-store"


def test_another_method_is_told_which_there_are() -> None:
    status, headers, body = fetch(lambda _: {}, method="PUT", CONTENT_TYPE="application/json")
    assert (status, headers["Allow"]) == ("405 Method Not Allowed", "GET, HEAD, DELETE")
    assert "allowed: GET, HEAD, DELETE" in msgspec.json.decode(body)["error"]


def test_a_method_that_no_path_has_is_wrong_whatever_the_content_type() -> None:
    assert fetch(lambda _: {}, method="POST")[0] == "405 Method Not Allowed"


def test_a_version_is_the_etag() -> None:
    assert fetch(lambda _: Versioned({"a": 1}, "v7"))[1]["ETag"] == '"v7"'
    assert "ETag" not in fetch(lambda _: {"a": 1})[1]


VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=3),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
)


@given(VALUES)
def test_json_in_chunks_is_the_json(value: Any) -> None:
    assert msgspec.json.decode(b"".join(encode_json(value))) == value
