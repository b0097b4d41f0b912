"""Connections to the admin port: bounded in number and in time, and nobody keeps others out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gevent import socket
from gevent.event import Event

from ddmq.server.http import connection as http_connection
from ddmq.server.http import pace as http_pace
from ddmq.server.http import routing
from ddmq.server.http.connection import AdminServer
from ddmq.server.http.routing import AdminRouter, Text
from tests.support.waits import until

REQUEST_HEAD = b"GET /x HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def server() -> Iterator[AdminServer]:
    router = AdminRouter(["mq.example"])
    router.add("GET", "/x", lambda _: {"fine": True})
    router.add("GET", "/slow", lambda _: Event().wait())  # at work until `stop` kills it
    router.add("GET", "/ready", lambda _: {"ready": True})
    router.add("GET", "/health", lambda _: {"alive": True})
    router.add("GET", "/long", lambda _: Text("text/plain", b"x" * (16 << 20)))
    router.add("POST", "/x", lambda request: dict(request.body))
    started = AdminServer(("127.0.0.1", 0), router)
    started.start()
    yield started
    started.stop(timeout=0)


def connect(server: AdminServer, request_bytes: bytes = b"") -> Any:
    connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
    connection.sendall(request_bytes)
    return connection


def answer(connection: Any) -> bytes:
    """All that comes until the other side closes."""
    received_bytes = b""
    try:
        while more := connection.recv(1 << 16):
            received_bytes += more
    except ConnectionResetError:
        pass
    connection.close()
    return received_bytes


def test_no_answer_waits_for_an_acknowledgement_of_its_head(server: AdminServer) -> None:
    with connect(server, REQUEST_HEAD + b"\r\n") as client:
        assert client.recv(1 << 16)
        (connection,) = server.connections
        assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "request_bytes", [b"", b"GET /x HT", REQUEST_HEAD, REQUEST_HEAD + b"X-A: " + b"b" * 50]
)
def test_who_does_not_ask_in_time_is_closed(
    server: AdminServer, request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "IDLE_S", 0.05)
    monkeypatch.setattr(http_connection, "HEADER_S", 0.05)
    assert b"200" not in answer(connect(server, request_bytes))
    assert answer(connect(server, REQUEST_HEAD + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
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
        silent.append(connect(server, REQUEST_HEAD))
        until(lambda: len(server.connections) == len(silent))
    assert answer(connect(server, REQUEST_HEAD + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
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


def request(path: bytes, headers: bytes = b"", body: bytes | None = None) -> bytes:
    head = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s" % (path, headers)
    if body is not None:
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    return head + b"\r\n" + (body or b"")


HALF_SENT = {
    "nothing": b"",
    "half a line": b"GET /x HT",
    "half a head": REQUEST_HEAD,
    "a probe's head": b"GET /ready HTTP/1.1\r\n",
    "a body that does not come": request(b"/x", b"Content-Type: application/json\r\nContent-Length: 9\r\n"),
    "a probe's body": request(b"/ready", b"Content-Type: application/json\r\nContent-Length: 9\r\n"),
    "a body that nobody reads": request(b"/none", b"Content-Type: application/json\r\nContent-Length: 9\r\n"),
}


@pytest.mark.parametrize("half_sent", HALF_SENT)
def test_half_sent_requests_of_an_address_lock_nobody_of_it_out(server: AdminServer, half_sent: str) -> None:
    """The one that is silent for the longest gives way to the newcomer, inside the address, too."""
    silent = [connect(server, HALF_SENT[half_sent]) for _ in range(http_connection.CONNECTIONS_MAX)]
    for _ in range(3):
        for path in (b"/x", b"/ready", b"/health"):
            assert answer(connect(server, request(path))).startswith(b"HTTP/1.1 200"), path
    assert len(server.connections) <= http_connection.CONNECTIONS_MAX
    for connection in silent:
        connection.close()


def test_probes_are_answered_while_nothing_else_is(server: AdminServer) -> None:
    busy = [connect(server, request(b"/slow")) for _ in range(http_connection.ADDRESS_CONNECTIONS_MAX)]
    until(lambda: list(server.connections.values()) == [0.0] * len(busy))
    beyond = [connect(server, half_sent) for half_sent in HALF_SENT.values() for _ in range(20)]
    for path in (b"/ready", b"/health", b"/ready?x=1"):
        assert answer(connect(server, request(path))).startswith(b"HTTP/1.1 200"), path
    assert answer(connect(server, request(b"/x"))).startswith(b"HTTP/1.1 503")
    assert len(server.connections) <= len(busy) + http_connection.BEYOND_MAX
    for connection in (*busy, *beyond):
        connection.close()


def test_probes_are_answered_while_answers_are_not_taken(
    server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "UNSENT_BYTES_MAX", 1 << 20)
    slow_readers = [connect(server, request(b"/long")) for _ in range(http_connection.CONNECTIONS_MAX)]
    until(lambda: server.unsent > 0)
    assert answer(connect(server, request(b"/long"))).startswith(b"HTTP/1.1 503")
    for path in (b"/ready", b"/health"):
        assert answer(connect(server, request(path))).startswith(b"HTTP/1.1 200"), path
    for connection in slow_readers:
        connection.close()


def test_probes_wait_for_no_debt_of_others(server: AdminServer) -> None:
    with server.accounts.connected("127.0.0.1") as account:
        account.charge(3_600.0)
        assert answer(connect(server, request(b"/ready"))).startswith(b"HTTP/1.1 200")
        assert account.debt_s > 3_000
        account.probes.charge(http_pace.DEBT_S + 0.05 * http_pace.SHARE_S)
        assert answer(connect(server, request(b"/ready"))).startswith(b"HTTP/1.1 200")
        assert account.probes.debt_s <= http_pace.DEBT_S + 0.05, "a flood of probes waits"


@pytest.mark.parametrize("headers", [b"X-A: b\r\n" * 200, b"X-A: " + b"b" * 70_000 + b"\r\n"])
def test_too_many_headers_are_refused_without_a_traceback(
    server: AdminServer, headers: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert answer(connect(server, REQUEST_HEAD + headers + b"\r\n"))[:12] in (b"HTTP/1.1 400", b"")
    assert "Traceback" not in capfd.readouterr().err
