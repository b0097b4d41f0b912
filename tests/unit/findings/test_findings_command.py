"""`ddmq findings`: a table for people, and an exit code for checks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ddmq.cli.admin_client import AdminClient
from ddmq.cli.root import root

READY = {"ready": True, "reason": ""}
EMPTY: dict[str, Any] = {"health": READY, "items": [], "missing": [], "left_out": {}, "unevaluated": []}
NOT_READY = {"health": {"ready": False, "reason": "no process writes the log"}}
MISSING = [{"name": "delay", "admin": "127.0.0.1:10013"}]


def build_item(severity: str, text: str = "billing is 14 min behind in orders") -> dict[str, Any]:
    return {
        "id": "DdmqLagOld", "severity": severity, "since_ms": time.time_ns() // 1_000_000 - 840_000,
        "labels": {"group": "billing", "topic": "orders"}, "text": text, "page": "/console/groups/billing",
        "command": "ddmq lag billing", "action": "…", "runbook": "docs/alerts.md#ddmqlagold",
    }  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run_command(answer: dict[str, Any], *options: str) -> Result:
        monkeypatch.setattr(AdminClient, "get", lambda _, *path: answer if path == ("findings",) else None)
        return CliRunner().invoke(root, ["findings", *options])

    return run_command


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (EMPTY, 0),
        (EMPTY | {"items": [build_item("info")]}, 0),
        (EMPTY | {"items": [build_item("warning")]}, 1),
        (EMPTY | {"items": [build_item("critical"), build_item("info")]}, 1),
        (EMPTY | {"missing": MISSING}, 1),
        (EMPTY | NOT_READY, 1),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_exit_code_is_that_of_a_check(
    run: Any, answer: dict[str, Any], code: int, options: tuple[str, ...]
) -> None:
    result = run(answer, *options)
    assert result.exit_code == code, result.output
    if options:
        assert json.loads(result.stdout) == answer


def test_all_well_is_one_line(run: Any) -> None:
    assert run(EMPTY).stdout == "✓ nothing is wrong\n"


def test_a_finding_is_a_row_with_its_age_and_command(run: Any) -> None:
    result = run(EMPTY | {"items": [build_item("warning")], "left_out": {"DdmqLagOld": 1234}})
    words = result.stdout.split()
    assert words[:4] == ["severity", "since", "what", "command"]
    assert "14 m" in result.stdout
    assert "billing is 14 min behind in orders" in result.stdout
    assert "ddmq lag billing" in result.stdout
    assert "… and 1,234 more of DdmqLagOld" in result.stdout
    assert "docs/alerts.md explains each: DdmqLagOld" in result.stderr


def test_a_process_that_does_not_answer_is_named(run: Any) -> None:
    result = run(EMPTY | {"missing": MISSING})
    assert result.stdout == "without findings of delay: no answer at 127.0.0.1:10013\n"


def test_a_server_that_is_not_ready_is_not_well(run: Any) -> None:
    assert run(EMPTY | NOT_READY).stdout == "server: NOT READY: no process writes the log\n"
    warned = run(EMPTY | {"health": READY | {"warning": "two servers share an address"}})
    assert warned.stdout == "server: two servers share an address\n✓ nothing is wrong\n"


def test_names_are_text_and_nothing_else(run: Any) -> None:
    result = run(EMPTY | {"items": [build_item("warning", "[red]x[/] \x1b[31m\nfake line")]})
    assert "\x1b" not in result.stdout
    assert "[red]x[/]" in result.stdout
    assert not any(line.startswith("fake") for line in result.stdout.splitlines())
