"""Receivers that never stop sending: their messages fail, and the proxy goes on, while they still send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from proxy_consumer.push.actions.config import PushConfig, RedisConfig
from tests.service.consumer.push.http_receiver import Receiver
from tests.service.consumer.push.push_rig import PushRig
from tests.service.consumer.push.test_push_hostile import raw_server
from tests.support.waits import until

Speak = Callable[[socket.socket, threading.Event], None]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HTTP = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    "head": (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
    "lines of a head": (b"HTTP/1.1 200 OK\r\nA: ", b"b" * 1000),
    "blank status lines": (b"", b"\r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"A: b\r\n"),
    "tiny chunks": (CHUNKED, b"1\r\nx\r\n"),
    "chunk extensions": (CHUNKED, b"1;" + b"e" * 4000 + b"\r\nx\r\n"),
    "one chunk extension": (CHUNKED + b"1;", b"e" * 4000),
    "chunk sizes": (CHUNKED, b"0"),
    "large chunks": (CHUNKED, b"ffff\r\n" + b"y" * 0xFFFF + b"\r\n"),
    "a body to the end": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 60_000),
    "a body to the end, HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\n", b"x" * 60_000),
    "a length of a terabyte": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", b"x" * 60_000),
}
REDIS = {
    "an array": (b"*2000000000\r\n", b":1\r\n"),
    "arrays in arrays": (b"", b"*1\r\n"),
    "a line": (b"+", b"O" * 1000),
    "an error": (b"-", b"E" * 1000),
    "a text of a gigabyte": (b"$1000000000\r\n", b"x" * 1000),
    "a negative text": (b"$-5\r\n", b"x" * 1000),
    "replies": (b"", b"+OK\r\n"),
    "pushes": (b"", b">1\r\n+x\r\n"),
}


def hose(head: bytes, chunk: bytes) -> Speak:
    """Sends `head` and then `piece` until the test is over."""
    many = chunk * (65_536 // len(chunk) + 1)

    def speak(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(head)
        while not over.is_set():
            connection.sendall(many)

    return speak


@pytest.mark.parametrize("what", [*HTTP, *REDIS])
def test_answers_without_end(rig: PushRig, receiver: Receiver, what: str) -> None:
    rig.topic("U")
    rig.http(receiver.url(), topic="U")
    with raw_server(hose(*(HTTP | REDIS)[what])) as port:
        if what in HTTP:
            rig.http(f"http://127.0.0.1:{port}/", max_retry=0, timeout_ms=2_000)
        else:
            config = RedisConfig(
                hosts=(f"127.0.0.1:{port}",), timeout_ms=2_000, commands=(("SET", "k", "v"),) * 5
            )
            rig.pushed("Redis", push=PushConfig(redis=config), retry_intervals_ms=(), retry_steps=0)
        rig.put(b"x")
        rig.put(b"y", topic="U")
        until(lambda: len(receiver.requests) == 1)
        rig.until_moved(lambda: rig.progress().committed == 1)
    assert [body for body, _ in rig.dead()] == [b"x"]


def test_interim_answers_are_read_past(rig: PushRig) -> None:
    def speak(connection: socket.socket, over: threading.Event) -> None:
        while connection.recv(65536):
            peers.append(connection.getpeername())
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    peers: list[object] = []
    with raw_server(speak) as port:
        rig.http(f"http://127.0.0.1:{port}/", max_retry=0, concurrency=1)
        rig.put(b"x", b"y")
        rig.until_committed(2)
    assert rig.outcomes() == {"done": 2}
    assert len(set(peers)) == 1, "the connection is kept"


RIGHT = [
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b\r\n{\r\n1\r\n}\r\n0\r\nA: b\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    b"HTTP/1.0 200 OK\r\n\r\n{}",
    b"HTTP/1.1 200\r\nContent-Length: 2, 2\r\n\r\n{}",
]
NO_ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/2 200\r\n\r\n",
]


@pytest.mark.parametrize("answer", [*RIGHT, *NO_ANSWERS])
def test_answers_that_are_right_and_that_are_none(rig: PushRig, answer: bytes) -> None:
    def speak(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with raw_server(speak) as port:
        rig.http(f"http://127.0.0.1:{port}/", max_retry=0)
        rig.put(b"x")
        rig.until_moved(lambda: rig.progress().committed == 1)
    if answer in RIGHT:
        assert rig.outcomes() == {"done": 1}
    assert [body for body, _ in rig.dead()] == ([] if answer in RIGHT else [b"x"])
