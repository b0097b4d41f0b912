"""Every path of the admin API against what a page of another site can make a browser send."""

from __future__ import annotations

import re
import socket
from contextlib import closing

import pytest

from ddmq.server.admin.routes import ROUTES
from tests.scenarios.real_server import PATIENCE_S, RealServer
from tests.service.cli.conftest import Shell


def routes() -> list[tuple[str, str]]:
    return [(route.method, re.sub(r"\{\w+\}", "owned", route.path)) for route in ROUTES]


def sent(server: RealServer, head: str, body: bytes = b"") -> tuple[int, str]:
    """Status and body of the answer to a request as it stands."""
    with closing(socket.create_connection(("127.0.0.1", server.ports["admin"]), PATIENCE_S)) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        answer = b""
        while more := connection.recv(1 << 16):
            answer += more
    status, _, text = answer.decode().partition("\r\n\r\n")
    return int(status.split()[1]), text


FOREIGN = {
    "host": "Host: evil.example\nContent-Type: application/json",
    "host and port": "Host: evil.example:9813\nContent-Type: application/json",
    "host like ours": "Host: localhost.evil.example\nContent-Type: application/json",
    "origin": "Host: localhost\nOrigin: https://evil.example\nContent-Type: application/json",
    "other port": "Host: localhost:9\nOrigin: http://localhost:3000\nContent-Type: application/json",
    "no origin of its own": "Host: localhost\nOrigin: null\nContent-Type: application/json",
    "site": "Host: localhost\nSec-Fetch-Site: cross-site\nContent-Type: application/json",
    "neighbour": "Host: localhost\nSec-Fetch-Site: same-site\nContent-Type: application/json",
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_no_path_answers_pages_of_other_sites(server: RealServer, foreign: str) -> None:
    for method, path in [*routes(), ("HEAD", "/ready"), ("OPTIONS", "/topics")]:
        body = b"{}" if method == "POST" else b""
        head = f"{method} {path} HTTP/1.1\n{FOREIGN[foreign]}\nContent-Length: {len(body)}\nConnection: close"
        status, text = sent(server, head, body)
        assert status == 403, (method, path, status, text)
        assert method == "HEAD" or "error" in text
    assert server.admin("GET", "topics", "owned")["writable"] is True


@pytest.mark.parametrize(
    "kind", ["", "Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded"]
)
def test_changes_that_an_html_form_could_send_are_rejected(server: RealServer, kind: str) -> None:
    for method, path in routes():
        for body in (b"", b'{"all": true}') if method == "POST" else (b'{"all": true}',):
            head = (
                f"{method} {path} HTTP/1.1\nHost: localhost\nConnection: close\nContent-Length: {len(body)}"
            )
            status, text = sent(server, head + (f"\n{kind}" if kind else ""), body)
            assert (status, "application/json" in text) == (415, True), (method, path)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("Transfer-Encoding: chunked", 411),
        ("Transfer-Encoding: chunked\nContent-Length: 2", 411),
        ("Content-Length: +2", 400),
        ("Content-Length: 2\nContent-Length: 3", 400),
        ("Content-Length: 2\nContent-Length: 2", 400),
        ("Content-Length: -2", 400),
        ("Content-Length: two", 400),
    ],
)
def test_lengths_that_two_readers_may_take_differently(server: RealServer, lines: str, status: int) -> None:
    head = f"POST /topics/lengths HTTP/1.1\nHost: localhost\nContent-Type: application/json\n{lines}"
    assert sent(server, head + "\nConnection: close", b"{}")[0] == status
    assert server.request("GET", "/topics/lengths")[0] == 404


def test_a_body_that_is_nested_too_deeply(server: RealServer) -> None:
    body = b'{"a":' + b"[" * 200_000
    head = "POST /topics/deep HTTP/1.1\nHost: localhost\nContent-Type: application/json\nConnection: close"
    status, text = sent(server, f"{head}\nContent-Length: {len(body)}", body)
    assert (status, "nested too deeply" in text) == (400, True)


@pytest.mark.parametrize(
    "lines",
    [
        "Host: localhost",
        "Host: 127.0.0.1:9813",
        "Host: LOCALHOST.:1",
        f"Host: {socket.gethostname()}",
        "Host: localhost:9813\nOrigin: http://localhost:9813\nSec-Fetch-Site: same-origin",
        "Host: localhost\nSec-Fetch-Site: none",
    ],
)
def test_own_names_and_own_pages_are_answered(server: RealServer, lines: str) -> None:
    assert sent(server, f"GET /ready HTTP/1.1\n{lines}\nConnection: close")[0] == 200
    assert sent(server, "GET /ready HTTP/1.0")[0] == 200  # no browser leaves Host out


@pytest.mark.parametrize("path", ["/ready", "/health", "/metrics"])
def test_head_answers_as_get_does_without_a_body(server: RealServer, path: str) -> None:
    status, text = sent(server, f"HEAD {path} HTTP/1.1\nHost: localhost\nConnection: close")
    assert (status, text) == (200, "")


def test_the_rejection_names_the_setting_that_allows_more_origins(server: RealServer, shell: Shell) -> None:
    status, text = sent(server, "GET /topics HTTP/1.1\nHost: mq.example\nConnection: close")
    assert status == 403
    assert "'mq.example', no name of this server" in text
    assert "admin_names in ddmq.yaml" in text
    assert not any(name in text for name in ("localhost", "127.0.0.1", "::1", socket.gethostname()))
    assert f"its names are 127.0.0.1, ::1, localhost, {socket.gethostname().lower()}" in server.log
    assert "admin request refused" in server.log
