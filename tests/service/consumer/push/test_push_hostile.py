"""Receivers that misbehave, TLS, and the retry path: each costs its own messages only."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddmq_common.metrics.registry import Registry
from delay_service.config import DelayConfig
from delay_service.levels.service import LevelService
from tests.service.consumer.push.http_receiver import Receiver
from tests.service.consumer.push.push_rig import PushRig
from tests.service.delay.hand_alarm import HandAlarms
from tests.support.waits import until

TLS = Path(__file__).resolve().parent / "tls"


@contextmanager
def raw_server(speak: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """Every connection is handed to `speak` in a thread; the event says that the test is over."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()

    def guarded(connection: socket.socket) -> None:
        with connection:
            try:
                speak(connection, over)
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        over.set()
        listener.close()


def endless_head(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.is_set():
        connection.sendall(b"X-More: " + b"y" * 1000 + b"\r\n")


def endless_line(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    while not over.is_set():
        connection.sendall(b"HTTP/1.1 200 " + b"y" * 65536)


def endless_body(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not over.is_set():
        connection.sendall(b"ffff\r\n" + b"y" * 0xFFFF + b"\r\n")


def dripping(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while not over.wait(0.02):
        connection.sendall(b"y")


def garbage(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"\x00\xff nothing like it\r\n\r\n")


def truncated_body(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")


def bad_chunk(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nx")


@pytest.mark.parametrize(
    "speak", [endless_head, endless_line, endless_body, dripping, garbage, truncated_body, bad_chunk]
)
def test_a_receiver_that_misbehaves_is_an_error(
    rig: PushRig, receiver: Receiver, speak: Callable[[socket.socket, threading.Event], None]
) -> None:
    rig.topic("U")
    rig.http(receiver.url(), topic="U")
    with raw_server(speak) as port:
        rig.http(f"http://127.0.0.1:{port}/", max_retry=0, timeout_ms=300)
        rig.put(b"x")
        rig.put(b"y", topic="U")
        until(lambda: len(receiver.requests) == 1)
        rig.until_moved(lambda: rig.progress().committed == 1)
    assert [body for body, _ in rig.dead()] == [b"x"]


# --- TLS


@contextmanager
def tls_server(received: list[bytes]) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "loopback.crt", TLS / "loopback.key")

    def speak(connection: socket.socket, over: threading.Event) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            while data := secure.recv(65536):
                received.append(data)
                secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with raw_server(speak) as port:
        yield port


def test_https(rig: PushRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "loopback.crt"))
    received: list[bytes] = []
    with tls_server(received) as port:
        rig.http(f"https://127.0.0.1:{port}/in")
        rig.put(b"secret")
        rig.until_committed(1)
        assert b"params=secret" in b"".join(received)


def test_a_certificate_of_an_untrusted_issuer_is_an_error(rig: PushRig) -> None:
    received: list[bytes] = []
    with tls_server(received) as port:
        rig.http(f"https://127.0.0.1:{port}/in", max_retry=0)
        rig.put(b"secret")
        rig.until_moved(lambda: rig.progress().committed == 1)
    assert any("CERTIFICATE_VERIFY_FAILED" in value for value in rig.dead()[0][1].values())
    assert received == []


# --- the retry path


def test_the_retry_path_pushes_with_the_original_topic(rig: PushRig, receiver: Receiver) -> None:
    alarm = HandAlarms()
    levels = LevelService(rig.backend, DelayConfig(), Registry(), rig.clock, alarm)
    levels.start()
    rig.settle()
    receiver.answers.extend([(200, b'{"errno":5}')] * 2)
    rig.http(receiver.url(), retry_intervals_ms=(100,))
    rig.put(b"x")
    rig.until_moved(lambda: len(receiver.requests) == 2)

    def step() -> bool:
        rig.clock.advance(0.5)
        alarm.ring()
        rig.settle()
        rig.service.tick()
        rig.settle()
        return len(receiver.requests) == 3

    until(step)
    levels.close()
    first, _, third = (request.fields for request in receiver.requests)
    assert third["carrera_topic"] == first["carrera_topic"] == "T"
    assert third["params"] == "x"
    assert third["carrera_qid"] != first["carrera_qid"]
    assert int(third["carrera_req_cnt"]) == 2
    assert third["carrera_msg_key"] == "k"
    until(lambda: rig.outcomes().get("done") == 1)
