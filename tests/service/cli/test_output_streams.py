"""Where output goes: colours only to those who want them, terminals without letters, a disk that is full."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

import ddmq.cli
from tests.scenarios.real_server import ddmq_command
from tests.service.cli.conftest import Shell
from tests.service.cli.terminal import Terminal

CLI = Path(ddmq.cli.__file__).parent
PRINTERS = {"output.py"}


@pytest.mark.parametrize("path", sorted(CLI.rglob("*.py")), ids=lambda path: str(path.relative_to(CLI)))
def test_commands_print_through_one_module(path: Path) -> None:
    """So that what others wrote is escaped in one place and nowhere forgotten."""
    called = {
        ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    }
    direct = called & {
        "print",
        "click.echo",
        "click.secho",
        "sys.stdout.write",
        "sys.stderr.write",
        "Console",
    }
    assert not direct or path.name in PRINTERS


@pytest.mark.parametrize("quiet", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(
    shell: Shell, topic: str, monkeypatch: pytest.MonkeyPatch, quiet: dict[str, str]
) -> None:
    shell("send", topic, "hello", "--key", "k")
    terminal = Terminal(monkeypatch)
    _, coloured = terminal("tail", topic, "--no-follow")
    assert "\x1b[36m" in coloured
    for name, value in quiet.items():
        monkeypatch.setenv(name, value)
    _, plain = terminal("tail", topic, "--no-follow")
    assert "\x1b" not in plain
    assert plain.endswith("key=k  hello\n")


def command(*arguments: str, stdout: int, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ddmq_command(*arguments), stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_a_terminal_without_letters_gets_their_numbers(shell: Shell, topic: str) -> None:
    shell("send", topic, "größe → 1", "--key", "ключ")
    for line in (("tail", topic, "--no-follow"), ("message", topic), ("topic", "list"), ("stats",)):
        completed = command(*line, stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")
        assert (completed.returncode, completed.stderr) == (0, b""), line
    shown = command("message", topic, "--json", stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")
    (row,) = json.loads(shown.stdout.decode("ascii"))
    assert (row["key"], row["body"]) == ("ключ", "größe → 1")


@pytest.mark.parametrize(
    "line", [("topic", "list"), ("topic", "list", "--json"), ("topic", "show", "TOPIC"), ("stats",)]
)
def test_a_full_disk_is_one_line(shell: Shell, topic: str, line: tuple[str, ...]) -> None:
    shell("send", topic, "hello")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        process = command(*(topic if word == "TOPIC" else word for word in line), stdout=full)
    finally:
        os.close(full)
    assert process.returncode == 1
    assert process.stderr.decode() == "Error: standard output cannot be written: No space left on device\n"
