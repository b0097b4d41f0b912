"""Identities, tokens and the audit log of a server with rights, by requests to its admin port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq_common.security.files import SECURITY_FILE, TOKENS_FILE
from tests.scenarios.real_server import RealServer
from tests.support.admin_contract import check_answer
from tests.support.rights import AdminClient, Who, write_rights
from tests.support.waits import until

pytestmark = pytest.mark.slow
APP = Who("app", frozenset({("send", "orders"), ("metrics", "")}))
HOSTILE = "<b>\u202e\n"


class AccessSetting:
    def __init__(self, folder: Path) -> None:
        self.conf = folder / "conf"
        self.tokens = write_rights(self.conf, [APP], legacy={"192.0.2.0/24": "app"})
        self.server = RealServer(folder, self.conf)

    def ask(self, who: str, method: str, *path: str, query: str = "", **body: Any) -> tuple[int, Any]:
        """The status and answer of a request by an identity, or with a token; checked against its
        description."""
        client = AdminClient(self.server.ports["admin"], self.tokens.get(who, who))
        status, answer = client.request(method, *path, query=query, body=body or None)
        check_answer(method, f"/{'/'.join(path)}{f'?{query}' if query else ''}", status, answer)
        return status, answer


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessSetting]:
    made = AccessSetting(tmp_path_factory.mktemp("access"))
    made.server.start()
    try:
        yield made
    finally:
        made.server.end()


def test_a_token_that_was_made_by_a_request_logs_in_until_it_is_revoked(installed: AccessSetting) -> None:
    status, token = installed.ask("root", "POST", "auth", "tokens", identity="app", name=HOSTILE)
    assert status == 200
    assert installed.ask(token["token"], "GET", "auth")[1]["identity"] == "app"
    rows = installed.ask("root", "GET", "auth", "tokens", query="identity=app")[1]["items"]
    assert [row["name"] for row in rows] == [HOSTILE, "test"]
    assert "token" not in rows[0]
    assert token["token"] not in (installed.conf / TOKENS_FILE).read_text()
    assert installed.ask("root", "DELETE", "auth", "tokens", token["id"])[0] == 200
    assert installed.ask(token["token"], "GET", "auth")[0] == 401
    assert installed.ask("root", "DELETE", "auth", "tokens", token["id"])[0] == 404


def test_a_token_is_refused_for_nobody_and_for_a_time_that_is_over(installed: AccessSetting) -> None:
    status, answer = installed.ask("root", "POST", "auth", "tokens", identity="nobody")
    assert (status, "allowed: app, root, server; to make a new one" in answer["error"]) == (400, True)
    assert f"add it below `identities:` in {installed.conf / 'security.yaml'} on" in answer["error"]
    status, answer = installed.ask("root", "POST", "auth", "tokens", identity="app", expires_ms=1)
    assert (status, "a time after now" in answer["error"]) == (400, True)


def test_an_identity_sees_itself_and_an_administrator_sees_all(installed: AccessSetting) -> None:
    own = installed.ask("app", "GET", "auth", "identities")[1]["items"]
    assert [row["identity"] for row in own] == ["app"]
    assert (own[0]["networks"], own[0]["quotas"]["connections"]) == (["192.0.2.0/24"], 5_000)
    assert {row["rule"] for row in own[0]["rules"]} == {"send orders", "metrics"}
    first = installed.ask("root", "GET", "auth", "identities", query="count=2")[1]
    assert ([row["identity"] for row in first["items"]], first["total"]) == (["app", "root"], 3)
    rest = installed.ask("root", "GET", "auth", "identities", query=f"count=2&after={first['next']}")[1]
    assert ([row["identity"] for row in rest["items"]], rest["next"]) == (["server"], None)
    tokens = installed.ask("app", "GET", "auth", "tokens")[1]["items"]
    assert {row["identity"] for row in tokens} == {"app"}


def test_a_right_is_explained_to_its_identity_and_to_administrators(installed: AccessSetting) -> None:
    def explain(who: str, identity: str, right: str, name: str = "") -> tuple[int, Any]:
        query = f"identity={identity}&right={right}&name={name}"
        return installed.ask(who, "GET", "auth", "explain", query=query)

    assert explain("app", "app", "send", "orders")[1]["reason"] == "rule `send orders`"
    answer = explain("root", "app", "consume", "orders")[1]
    assert (answer["allowed"], answer["reason"]) == (False, "identity 'app' lacks the right `consume orders`")
    assert explain("app", "root", "metrics")[0] == 403
    assert "did you mean send?" in explain("root", "app", "sned", "orders")[1]["error"]


def test_the_audit_log_says_who_made_which_token_and_who_was_rejected(installed: AccessSetting) -> None:
    installed.ask("root", "POST", "auth", "tokens", identity="app")
    assert installed.ask("app", "POST", "auth", "tokens", identity="root")[0] == 403

    def read_audit(query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = installed.ask("root", "GET", "auth", "audit", query=query)[1]["items"]
        return rows

    until(lambda: read_audit("who=app&event=rejected&text=admin"), "the rejection is written")
    made = read_audit("who=root&event=change&text=POST /auth/tokens".replace(" ", "%20"))
    assert made[0]["object"] == "identity=app"


def test_a_change_states_the_identity_that_made_it(installed: AccessSetting) -> None:
    assert installed.ask("root", "POST", "topics", "own", queues=1)[0] == 200
    (change, *_) = installed.ask("root", "GET", "changes")[1]["items"]
    assert (change["object"], change["who"], change["address"]) == ("topic own", "root", "127.0.0.1")


def test_a_broken_file_is_reported_with_what_is_wrong(installed: AccessSetting) -> None:
    path = installed.conf / SECURITY_FILE
    before = path.read_text()
    path.write_text("identities: {app: {allow: [sned orders]}}")
    until(lambda: "did you mean send?" in installed.ask("app", "GET", "auth")[1]["error"])
    path.write_text(before)
    until(lambda: installed.ask("app", "GET", "auth")[1]["error"] == "")
