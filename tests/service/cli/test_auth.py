"""`ddmq auth`: explanations, identities and tokens of a configuration folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddmq.cli.root import root
from ddmq_common.security.callers import CallerTable, LoginRejectedError
from ddmq_common.security.files import TOKENS_FILE, SecurityFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tree = {
        "identities": {
            "root": {"kind": "admin"},
            "app": {"roles": ["sender"], "allow": ["consume billing"]},
        },
        "roles": {"sender": {"allow": ["send orders*"]}},
    }
    (tmp_path / "security.yaml").write_text(json.dumps(tree))
    return tmp_path


def ddmq(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(root, ["auth", *words, "--config", str(folder)])


def test_an_explanation_names_the_rule_or_the_missing_right(folder: Path) -> None:
    allowed = ddmq(folder, "explain", "app", "send", "orders-eu")
    assert (allowed.exit_code, allowed.output) == (
        0, "✓ app may send orders-eu: rule `send orders*` of role sender\n",
    )  # fmt: skip
    missing = ddmq(folder, "explain", "app", "send", "billing", "--json")
    assert missing.exit_code == 1
    assert json.loads(missing.output)["reason"] == "identity 'app' lacks the right `send billing`"
    assert (
        "there is no identity 'nobody'; allowed: app, root"
        in ddmq(folder, "explain", "nobody", "send", "x").output
    )
    assert "did you mean send?" in ddmq(folder, "explain", "app", "sned", "x").output


def test_a_token_logs_in_until_it_is_revoked(folder: Path, tmp_path: Path) -> None:
    table = CallerTable(lambda: 1_000)
    files = SecurityFiles(folder, table)
    files.start()
    made = ddmq(folder, "token", "create", "app", "--name", "laptop")
    token = next(line for line in made.output.splitlines() if line.startswith("ddmq_"))
    files.check()
    login = table.log_in(b"token", token.encode())
    assert login.caller.name == "app"
    files.check()
    (row,) = json.loads(ddmq(folder, "token", "list", "--json").output)
    assert (row["id"], row["identity"], row["name"], row["expired"]) == (
        login.token_id,
        "app",
        "laptop",
        False,
    )
    assert row["used_ms"] is not None
    assert token not in (folder / TOKENS_FILE).read_text()
    wrong = ddmq(folder, "token", "revoke", login.token_id, "absent")
    assert wrong.exit_code == 1
    assert "nothing was revoked" in wrong.output
    assert ddmq(folder, "token", "revoke", login.token_id).exit_code == 0
    files.check()
    with pytest.raises(LoginRejectedError):
        table.log_in(b"token", token.encode())


def test_a_token_for_a_file_is_private_and_not_shown(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "app.token"
    made = ddmq(folder, "token", "create", "app", "--expires", "30d", "--out", str(path))
    token = path.read_text().strip()
    assert token not in made.output
    assert path.stat().st_mode & 0o777 == 0o600
    again = ddmq(folder, "token", "create", "app", "--out", str(path))
    assert "allowed: a new file" in again.output
    assert len(json.loads(ddmq(folder, "token", "list", "--json").output)) == 1
    assert (
        "there is no identity 'nobody'; allowed: app, root; to make a new one, add it below `identities:` in "
        f"{folder / 'security.yaml'}"
    ) in ddmq(folder, "token", "create", "nobody").output


def test_identities_are_listed_with_their_rules(folder: Path) -> None:
    rows = {row["identity"]: row for row in json.loads(ddmq(folder, "identities", "--json").output)}
    assert rows["app"]["rules"] == ["consume billing", "send orders*"]
    assert rows["root"]["kind"] == "admin"
    (folder / "security.yaml").write_text("{}")
    assert "rights are off" in ddmq(folder, "identities").output
