"""Quotas and the audit log of a real server, at its Thrift ports and its admin port: in one process, and with
a process for each component."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.real_server import RealServer
from tests.support.rights import P, TokenClient, Who, write_rights
from tests.support.waits import until

pytestmark = pytest.mark.slow
BODY, KEY = b"card 4111", "order-17"
GRANTS = frozenset({("send", "mine"), ("create", "own"), ("metrics", "")})
PEOPLE = [Who("app", GRANTS), Who("other", GRANTS), Who("small", GRANTS)]


class Setting:
    def __init__(self, server: RealServer, tokens: dict[str, str]) -> None:
        self.server = server
        self.tokens = tokens

    def client(self, who: str, token: str = "") -> TokenClient:
        return TokenClient("producer", self.server.ports["producer"], token or self.tokens[who])

    def admin(self, who: str, method: str, path: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.ports["admin"], timeout=30)
        headers = {"Authorization": f"Bearer {self.tokens[who]}", "Content-Type": "application/json"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
        connection.close()
        return answer


@pytest.fixture(scope="module", params=["one process", "processes"])
def setting(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("quotas")
    tokens = write_rights(folder / "conf", PEOPLE)
    path = folder / "conf" / "security.yaml"
    tree = json.loads(path.read_text())
    tree["identities"]["small"]["quotas"] = {"requests_per_s": 3, "connections": 2}
    path.write_text(json.dumps(tree))
    (folder / "conf" / "topics.yaml").write_text(json.dumps({"topics": {"mine": {"queues": 1}}}))
    server = RealServer(folder, folder / "conf", request.param == "processes")
    try:
        yield Setting(server.start(), tokens)
    finally:
        server.end()


def send(client: TokenClient, topic: str = "mine", **fields: Any) -> Any:
    stated = P.Message(topic=topic, key="", tags="", body=BODY, clientId="till-7", **fields)
    return client.call("sendSync", message=stated, timeout=0)


def test_calls_above_a_quota_get_code_15_and_others_do_not(setting: Setting) -> None:
    small, app = setting.client("small"), setting.client("app")
    answers = [send(small) for _ in range(40)]
    codes = {answer.code for answer in answers}
    assert codes == {0, 15}
    text = next(answer.msg for answer in answers if answer.code == 15)
    assert b"allowed: 3 (requests_per_s in security.yaml); retry in " in text
    assert [send(app).code for _ in range(40)] == [0] * 40


def test_a_login_above_the_quota_of_connections_gets_code_15(setting: Setting) -> None:
    logins = [setting.client("small") for _ in range(3)]
    assert 15 in [client.login.code for client in logins]
    for client in logins:
        client.__exit__()
    until(lambda: setting.client("small").login.code == 0)


def test_the_admin_port_answers_429_with_the_time_to_wait(setting: Setting) -> None:
    answers = [setting.admin("small", "GET", "/usage") for _ in range(20)]
    rejected = [answer for answer in answers if answer.status == 429]
    assert rejected
    assert rejected[0].headers["Retry-After"] == "1"
    rows = {row["identity"]: row for row in json.loads(setting.admin("app", "GET", "/usage").text)}
    assert rows["small"]["rejected"]["requests_per_s"] >= len(rejected)
    assert rows["app"]["requests"] > 0


def test_a_key_of_another_identity_does_not_swallow_a_send(setting: Setting) -> None:
    other, app = setting.client("other"), setting.client("app")
    assert send(other, idempotencyKey=KEY).duplicate in (None, 0)
    first, again = send(app, idempotencyKey=KEY), send(app, idempotencyKey=KEY)
    assert (first.code, first.duplicate or 0) == (0, 0)
    assert (again.code, again.duplicate) == (0, 1)


def test_the_audit_log_says_who_did_what_without_bodies_and_secrets(setting: Setting) -> None:
    app = setting.client("app")
    for _ in range(50):
        assert send(app, "theirs").code == 13
    wrong = f"ddmq_{'0' * 24}_{'a' * 64}"
    setting.client("app", wrong).__exit__()
    changed = setting.admin("app", "POST", "/topics/own", '{"queues": 1, "body_bytes_max": 54321}')
    assert changed.status == 200, changed.text
    assert setting.admin("app", "DELETE", "/topics/theirs").status == 403
    folder = Path(setting.server.data_dir) / "audit"

    def read_text() -> str:
        return "".join(path.read_text() for path in folder.glob("*.jsonl"))

    def has(**fields: Any) -> bool:
        lines = [json.loads(line) for line in read_text().splitlines()]
        return any(all(line.get(name) == value for name, value in fields.items()) for line in lines)

    reason = "identity 'app' lacks the right `send theirs`"
    until(lambda: has(event="rejected", who="app", client="till-7", action="sendSync", reason=reason))
    until(lambda: has(event="rejected", reason=reason, count=49))
    until(lambda: has(event="change", who="app", action="POST /topics/{topic}", object="topic=own"))
    until(lambda: has(event="rejected", who="app", action="DELETE /topics/{topic}"))
    until(lambda: has(event="login", who="app"))
    until(lambda: has(event="login_rejected"))
    text = read_text()
    secrets = [BODY.decode(), KEY, wrong, "54321", *setting.tokens.values()]
    assert [secret for secret in secrets if secret in text] == []
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
