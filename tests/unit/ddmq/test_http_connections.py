"""Connections to the admin port: bounded in number and in time, and nobody keeps others out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gevent import socket
from gevent.event import Event

from ddmq.server.http import connection as http_connection
from ddmq.server.http import routing
from ddmq.server.http.connection import AdminServer
from ddmq.server.http.routing import AdminRouter
from tests.support.waits import until

ASK = b"GET /x HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def server() -> Iterator[AdminServer]:
    router = AdminRouter(["mq.example"])
    router.add("GET", "/x", lambda _: {"fine": True})
    router.add("GET", "/slow", lambda _: Event().wait())  # at work until `stop` kills it
    router.add("POST", "/x", lambda request: dict(request.body))
    started = AdminServer(("127.0.0.1", 0), router)
    started.start()
    yield started
    started.stop(timeout=0)


def connect(server: AdminServer, said: bytes = b"") -> Any:
    connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
    connection.sendall(said)
    return connection


def answer(connection: Any) -> bytes:
    """All that comes until the other side closes."""
    said = b""
    try:
        while more := connection.recv(1 << 16):
            said += more
    except ConnectionResetError:
        pass
    connection.close()
    return said


@pytest.mark.parametrize("said", [b"", b"GET /x HT", ASK, ASK + b"X-A: " + b"b" * 50])
def test_who_does_not_ask_in_time_is_closed(
    server: AdminServer, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "IDLE_S", 0.05)
    monkeypatch.setattr(http_connection, "HEADER_S", 0.05)
    assert b"200" not in answer(connect(server, said))
    assert answer(connect(server, ASK + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert not server.connections


def test_a_body_that_does_not_come_is_408(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "BODY_S", 0.05)
    head = b"POST /x HTTP/1.1\r\nHost: mq.example\r\nContent-Type: application/json\r\n"
    monkeypatch.setattr(http_connection, "STALLED_S", 0.5)
    assert answer(connect(server, head + b"Content-Length: 9\r\n\r\n{")).startswith(b"HTTP/1.1 408")


def test_the_one_that_is_silent_for_the_longest_makes_room(
    server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 4)
    silent = []
    for _ in range(4):
        silent.append(connect(server, ASK))
        until(lambda: len(server.connections) == len(silent))
    assert answer(connect(server, ASK + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert answer(silent[0]) == b""
    silent[3].sendall(b"Connection: close\r\n\r\n")
    assert answer(silent[3]).startswith(b"HTTP/1.1 200")


def test_at_the_bound_of_requests_at_work_others_are_told_so(
    server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 2)
    busy = [connect(server, b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(2)]
    until(lambda: list(server.connections.values()) == [0.0, 0.0])
    assert answer(connect(server)).startswith(b"HTTP/1.1 503")
    assert len(server.connections) == 2
    for connection in busy:
        connection.close()


@pytest.mark.parametrize("headers", [b"X-A: b\r\n" * 200, b"X-A: " + b"b" * 70_000 + b"\r\n"])
def test_too_many_headers_are_refused_without_a_traceback(
    server: AdminServer, headers: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert answer(connect(server, ASK + headers + b"\r\n"))[:12] in (b"HTTP/1.1 400", b"")
    assert "Traceback" not in capfd.readouterr().err
