"""`ddmq console`: what it serves, what it passes on to which server, and whom it refuses."""

from __future__ import annotations

import http.client
import json
from io import BytesIO
from typing import Any

import pytest

from ddmq.console.gateway import BODY_BYTES_MAX, ConsoleGateway

SERVERS = ["mq-1:9813", "[::1]:9813"]
CODE = "a-code"


class FakeResponse(BytesIO):
    status = 200

    def __init__(self, payload: bytes) -> None:
        super().__init__(payload)
        self.headers = {"Content-Type": "application/json", "ETag": '"7"', "Set-Cookie": "no"}


class FakeServers:
    """Connections to servers that answer with the request that they got; those in `silent` do not."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str, Any, dict[str, str]]] = []
        self.silent: set[str] = set()
        self.breaks = False
        self.address = "127.0.0.1"

    def connect(self, server: str, timeout_s: float) -> Any:
        if server in self.silent:
            raise ConnectionRefusedError("refused")
        return FakeConnection(server, self)


class FakeConnection:
    def __init__(self, server: str, servers: FakeServers) -> None:
        self._server, self._servers = server, servers
        self.sock = self

    def getpeername(self) -> tuple[str, int]:
        return self._servers.address, 9813

    def request(self, method: str, target: str, body: Any = None, headers: Any = None) -> None:
        self._servers.requests.append((self._server, method, target, body, headers or {}))

    def getresponse(self) -> FakeResponse:
        if self._servers.breaks:
            raise http.client.RemoteDisconnected("ended")
        target = self._servers.requests[-1][2]
        answers = {"/health": {"ready": True, "reason": ""}}
        if target.startswith("/findings"):
            return FakeResponse(b'{"items": [{"severity": "critical"}, {"severity": "info"}]}')
        return FakeResponse(json.dumps(answers.get(target, {"target": target})).encode())

    def close(self) -> None:
        pass


class Browser:
    """Makes requests to a gateway as a browser does."""

    def __init__(self, code: str = "", token: str = "") -> None:
        self.upstream = FakeServers()
        self.gateway = ConsoleGateway(SERVERS, self.upstream.connect, lambda: token, code)  # type: ignore[arg-type]
        self.headers: dict[str, str] = {}

    def ask(
        self, path: str, method: str = "GET", body: bytes = b"", **more: str
    ) -> tuple[int, dict[str, str], bytes]:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method, "RAW_URI": path, "PATH_INFO": path.partition("?")[0],
            "HTTP_HOST": "127.0.0.1:9814", "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body),
            "CONTENT_TYPE": "application/json", **more,
        }  # fmt: skip
        started: list[Any] = []
        chunks = self.gateway(environ, lambda status, headers: started.extend((status, dict(headers))))
        return int(started[0].split()[0]), started[1], b"".join(chunks)


@pytest.fixture
def browser() -> Browser:
    return Browser()


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/", "/servers/mq-1:9813/console/"),
        ("/console/keys?group=a%2Fb", "/servers/mq-1:9813/console/keys?group=a%2Fb"),
    ],
)
def test_an_address_without_a_server_leads_to_the_first_one(browser: Browser, path: str, target: str) -> None:
    status, headers, _ = browser.ask(path)
    assert (status, headers["Location"]) == (302, target)


@pytest.mark.parametrize("server", ["mq-1:9813", "mq-1%3A9813", "%5B%3A%3A1%5D%3A9813"])
def test_each_server_has_the_page_with_its_policy(browser: Browser, server: str) -> None:
    status, headers, payload = browser.ask(f"/servers/{server}/console/keys")
    assert (status, b'<div id="app">' in payload) == (200, True)
    assert "require-trusted-types-for 'script'" in headers["Content-Security-Policy"]
    assert browser.upstream.requests == []


def test_a_request_goes_to_its_server_as_it_was_sent(browser: Browser) -> None:
    path = "/servers/%5B%3A%3A1%5D%3A9813/topics/a%2Fb?x=%20y"
    status, headers, _ = browser.ask(path, "POST", b'{"a":1}', HTTP_IF_MATCH='"6"', HTTP_COOKIE="c=1")
    assert (status, headers["ETag"], "Set-Cookie" in headers) == (200, '"7"', False)
    passed_on = {"Content-Type": "application/json", "If-Match": '"6"'}
    assert browser.upstream.requests == [
        ("[::1]:9813", "POST", "/topics/a%2Fb?x=%20y", b'{"a":1}', passed_on)
    ]


def test_the_token_of_the_user_goes_out_only_for_those_who_state_the_code() -> None:
    browser = Browser(CODE, "secret")
    for stated in ({}, {"HTTP_AUTHORIZATION": "Bearer other"}, {"HTTP_AUTHORIZATION": "Bearer secret"}):
        status, _, payload = browser.ask("/servers/mq-1:9813/topics", **stated)
        assert (status, b"login code" in payload) == (401, True)
        assert browser.ask("/servers", **stated)[0] == 401
    assert browser.upstream.requests == []
    assert browser.ask("/servers/mq-1:9813/topics", HTTP_AUTHORIZATION=f"Bearer {CODE}")[0] == 200
    assert browser.upstream.requests[0][4]["Authorization"] == "Bearer secret"


def test_a_user_without_a_token_may_log_in_in_the_browser(browser: Browser) -> None:
    browser.ask("/servers/mq-1:9813/topics", HTTP_AUTHORIZATION="Bearer mine")
    assert browser.upstream.requests[0][4]["Authorization"] == "Bearer mine"


def test_no_token_goes_in_plain_text_to_another_machine(browser: Browser) -> None:
    browser.upstream.address = "192.0.2.1"
    status, _, payload = browser.ask("/servers/mq-1:9813/topics", HTTP_AUTHORIZATION="Bearer mine")
    assert (status, b"in plain text" in payload) == (503, True), payload
    assert browser.upstream.requests == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"HTTP_HOST": "evil.example"}, 403),
        ({"HTTP_ORIGIN": "http://evil.example"}, 403),
        ({"HTTP_SEC_FETCH_SITE": "cross-site"}, 403),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, 411),
        ({"CONTENT_LENGTH": str(BODY_BYTES_MAX + 1)}, 413),
    ],
)
def test_requests_of_other_sites_are_not_passed_on(
    browser: Browser, fields: dict[str, str], status: int
) -> None:
    assert browser.ask("/servers/mq-1:9813/topics", "POST", b"{}", **fields)[0] == status
    assert browser.upstream.requests == []


def test_a_link_in_an_alert_opens_the_page_of_a_server(browser: Browser) -> None:
    fetch = {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "navigate"}
    path = "/servers/mq-1:9813/console/keys"
    assert browser.ask(path, **fetch, HTTP_SEC_FETCH_DEST="document")[0] == 200
    assert browser.ask("/servers/mq-1:9813/topics", **fetch, HTTP_SEC_FETCH_DEST="document")[0] == 403


def test_the_state_of_each_server_is_known_also_of_a_silent_one(browser: Browser) -> None:
    browser.upstream.silent = {"mq-1:9813"}
    rows = json.loads(browser.ask("/servers")[2])["items"]
    assert [(row["server"], row["ready"], row["urgent"]) for row in rows] == [
        ("mq-1:9813", False, None), ("[::1]:9813", True, 1),
    ]  # fmt: skip
    assert rows[0]["reason"] == "no answer (refused)"
    asked = len(browser.upstream.requests)
    browser.ask("/servers")
    assert len(browser.upstream.requests) == asked


@pytest.mark.parametrize(("method", "status"), [("GET", 503), ("POST", 504)])
def test_a_change_without_an_answer_may_have_been_made(browser: Browser, method: str, status: int) -> None:
    browser.upstream.breaks = True
    assert browser.ask("/servers/mq-1:9813/topics/t", method)[0] == status
    browser.upstream.silent = set(SERVERS)
    assert browser.ask("/servers/mq-1:9813/topics/t", method)[0] == 503


@pytest.mark.parametrize("path", ["/servers/other:1/topics", "/topics", "/servers/mq-1:98131/topics"])
def test_only_the_servers_of_the_command_line_are_reached(browser: Browser, path: str) -> None:
    assert browser.ask(path)[0] == 404
    assert browser.upstream.requests == []
