"""Heads of receivers' answers: one that leaves open where the answer ends is not followed by another."""

from __future__ import annotations

import time

import pytest

from proxy_consumer.push.sinks.http_pool import BadAnswerError, HttpAnswer, read_http


class ReceiverSocket:
    """Sends these bytes, then closes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def recv(self, count: int) -> bytes:
        chunk, self._answer = self._answer[:count], self._answer[count:]
        return chunk


def read(*lines: bytes, body: bytes = b"{}") -> HttpAnswer:
    answer = b"".join(line + b"\r\n" for line in (b"HTTP/1.1 200 OK", *lines, b"")) + body
    return read_http(ReceiverSocket(answer), 100, time.monotonic() + 30)


LENGTH = b"Content-Length: 2"
MALFORMED = [
    b"X : y", b"nonsense", b": y", b"X\x01: y", b" X: y", b"\tX: y", b"X Y: z", b"X: a\x00b", b"X: a\rY: b",
    b"Transfer-Encoding : ", b"Content-Length : 2", "Ä: y".encode(),
]  # fmt: skip


@pytest.mark.parametrize("malformed", MALFORMED)
def test_after_a_malformed_line_the_connection_is_not_reused(malformed: bytes) -> None:
    for lines in ((malformed, LENGTH), (LENGTH, malformed)):
        assert read(*lines) == HttpAnswer(200, b"{}", complete=False)


@pytest.mark.parametrize("line", [b"X: y", b"X:", b"X:  y  ", b"x-y_z: ~", "X: ä".encode()])
def test_a_well_formed_answer_leaves_the_connection_usable(line: bytes) -> None:
    assert read(line, LENGTH) == HttpAnswer(200, b"{}", complete=True)


def test_a_length_beside_chunks_is_the_end_of_the_connection() -> None:
    chunks = b"2\r\n{}\r\n0\r\n\r\n"
    assert read(b"Transfer-Encoding: chunked", body=chunks) == HttpAnswer(200, b"{}", complete=True)
    assert read(b"Transfer-Encoding: chunked", LENGTH, body=chunks) == HttpAnswer(200, b"{}", complete=False)


def test_two_codings_are_not_the_last_one_of_them() -> None:
    with pytest.raises(BadAnswerError, match="Transfer-Encoding"):
        read(b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")
