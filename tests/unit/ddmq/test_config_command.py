"""`ddmq config show`: every setting in force, and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddmq.cli.root import root
from ddmq.server.config import KEYS


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in KEYS:
        monkeypatch.delenv(key.variable, raising=False)


def show(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["config", "show", *arguments])


def test_it_lists_every_key_with_its_variable() -> None:
    rows = json.loads(show("--json").stdout)
    assert [(row["key"], row["variable"]) for row in rows] == [(key.name, key.variable) for key in KEYS]
    assert {row["source"] for row in rows} == {"default"}
    assert {row["key"]: row["value"] for row in rows}["ddmq.samples.bytes_max"] == 10 << 30


def test_a_line_has_the_key_its_source_and_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rpc.yaml"
    path.write_text("idle_s: 5\nin_flight_bytes_max: 4MiB\nframe_read_s: 10.0\n")
    monkeypatch.setenv("DDMQ__LOG_LEVEL", "debug")
    result = show("--config", str(tmp_path), "--admin", "127.0.0.1:1", "--changed")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["key", "source", "value"],
        ["ddmq.admin", "command", "line", "127.0.0.1:1"],
        ["ddmq.log_level", "variable", "DDMQ__LOG_LEVEL", "debug"],
        ["rpc.in_flight_bytes_max", f"{path}:2", "4MiB"],
        ["rpc.idle_s", f"{path}:1", "5.0"],
    ]
    assert "frame_read_s" not in result.stdout, "it has its default"


def test_a_secret_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proxy_consumer.yaml").write_text("defaults: {push: {redis: {password: hush}}}")
    monkeypatch.setenv("DDMQ_PROXY_CONSUMER__DEFAULTS__PUSH__FORM__TOKEN_KEY", "hush")
    for arguments in ((), ("--json",)):
        output = show("--config", str(tmp_path), *arguments).stdout
        assert "***" in output
        assert "hush" not in output


def test_a_retired_key_is_reported_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "rpc.yaml").write_text("oneway_open_max: 3")
    result = show("--config", str(tmp_path), "--changed")
    assert "rpc.yaml:1: oneway_open_max is no longer a setting; its value is 256; remove it" in result.stderr
    assert "oneway_open_max" not in result.stdout


def test_an_unknown_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDMQ_LOG_LEVEL", "debug")
    result = show()
    assert result.exit_code == 1
    assert "did you mean DDMQ__LOG_LEVEL?" in str(result.exception)
