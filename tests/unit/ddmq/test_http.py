"""The admin API's shell: routes, errors to status codes, bounded bodies."""

import io
from typing import Any

import msgspec
import pytest

from ddmq.server.http.connection import check_request
from ddmq.server.http.routing import BODY_BYTES_MAX, AdminRequest, AdminRouter, NoSuchGroupError, Text
from ddmq_common.errors import CallerError, RemoteError, StorageError, TryLaterError, UnknownTopicError


def call(router: AdminRouter, method: str, path: str, body: bytes = b"", query: str = "") -> tuple[str, Any]:
    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": method,
        "RAW_URI": path + ("?" + query if query else ""),
        "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)),
        "CONTENT_TYPE": "application/json",
        "wsgi.input": io.BytesIO(body),
    }
    payload = b"".join(router(environ, lambda status, headers: statuses.append(status)))
    return statuses[0], payload


def router_with(handler: Any, method: str = "GET", pattern: str = "/topics/{topic}") -> AdminRouter:
    router = AdminRouter()
    router.add(method, pattern, handler)
    return router


def test_variables_query_and_body_reach_the_handler() -> None:
    requests: list[AdminRequest] = []
    router = router_with(lambda request: requests.append(request) or {"ok": True}, "POST")
    status, payload = call(router, "POST", "/topics/%25DLQ%25a", b'{"queues": 3}', "x=1&x=2")
    assert (status, payload) == ("200 OK", b'{"ok":true}')
    assert requests == [
        AdminRequest({"topic": "%DLQ%a"}, {"x": "2"}, {"queues": 3}, "POST", "/topics/{topic}", concealed=[])
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownTopicError("no topic 'a'"), "404 Not Found"),
        (CallerError("queues is 0"), "400 Bad Request"),
        (TryLaterError("draining"), "503 Service Unavailable"),
        (StorageError("disk"), "500 Internal Server Error"),
        (RemoteError("silent"), "504 Gateway Timeout"),
        (NoSuchGroupError("no group 'g'"), "404 Not Found"),
        (ZeroDivisionError("a bug"), "500 Internal Server Error"),
        (KeyError("a bug"), "500 Internal Server Error"),
    ],
)
def test_errors_become_status_codes_with_their_text(error: Exception, status: str) -> None:
    def fail(_: AdminRequest) -> None:
        raise error

    answer_status, payload = call(router_with(fail), "GET", "/topics/a")
    assert answer_status == status
    assert str(error) in msgspec.json.decode(payload)["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", "404 Not Found"), ("PUT", "/topics/a", "405 Method Not Allowed")],
)
def test_unknown_paths_and_methods(method: str, path: str, status: str) -> None:
    assert call(router_with(lambda _: 1), method, path)[0] == status


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", "400"), (b"[1]", "400"), (bytes(BODY_BYTES_MAX + 1), "413")]
)
def test_bad_bodies(body: bytes, status: str) -> None:
    assert call(router_with(lambda _: 1, "POST"), "POST", "/topics/a", body)[0].startswith(status)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (rb'{"a": "\ud83d"}', "half of a surrogate pair"),
        (rb'{"a": "x', "truncated"),
        (b"{'a': 1}", "malformed"),
    ],
)
def test_a_body_that_is_not_json_is_told_why(body: bytes, reason: str) -> None:
    status, answer = call(router_with(lambda _: 1, "POST"), "POST", "/topics/a", body)
    assert status.startswith("400")
    assert reason in answer.decode()


def test_text_answers_keep_their_status() -> None:
    router = router_with(lambda _: Text("text/plain", b"no", 503))
    assert call(router, "GET", "/topics/a") == ("503 Service Unavailable", b"no")


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("localhost", True),
        ("LOCALHOST.:9813", True),
        ("[::1]", True),
        ("[::1]:9813", True),
        ("[0:0:0:0:0:0:0:1]:9813", True),
        ("[fe80::1]", True),
        ("[FE80::1%25eth0]:9813", True),
        ("[fd00::17]", True),
        ("[fe80::2]", False),
        ("[::1]evil.example", False),
        ("evil.example[::1]", False),
        ("evil.example[::1]:80", False),
        ("[::1", False),
        ("::1", False),
        ("localhost:80:80", False),
        ("evil@localhost", False),
        ("localhost\n", False),
        ("", False),
    ],
)
def test_a_host_is_one_of_ours_whole(host: str, is_allowed: bool) -> None:
    environ = {"REQUEST_METHOD": "GET", "HTTP_HOST": host, "ddmq.own_address": "fe80::1%eth0"}
    assert (check_request(environ, ["fd00:0::17"]) is None) is is_allowed
