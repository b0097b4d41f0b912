"""Commands in groups, and old names of options and commands, which work for one release."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ddmq.cli.admin_client import AdminClient
from ddmq.cli.old_names import add_old_name, count_option
from ddmq.cli.root import COMMANDS, SECTIONS, root, run


def test_every_command_stands_in_one_section_of_the_help() -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert sorted(placed) == sorted(COMMANDS)
    text = CliRunner().invoke(root, ["--help"]).output
    titles = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Options", *SECTIONS]


@pytest.mark.parametrize(
    ("line", "old"),
    [
        (["delay", "list", "--limit", "7"], "--limit"),
        (["dlq", "show", "g", "--limit=7"], "--limit"),
        (["group", "keys", "g", "--limit", "7"], "--limit"),
        (["group", "show", "g", "--keys", "7"], "--keys"),
        (["tx", "list", "--limit", "7"], "--limit"),
    ],
)
def test_an_old_option_works_and_names_the_new_one(
    line: list[str], old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[dict[str, Any]] = []

    def record(_: AdminClient, *path: str, **query: Any) -> Any:
        queries.append(query)
        raise click.ClickException("enough")

    monkeypatch.setattr(AdminClient, "get", record)
    result = CliRunner().invoke(root, line)
    assert 7 in queries[0].values()
    assert f"note: {old} is called --count now; the old name will go with the next release" in result.stderr
    assert old not in CliRunner().invoke(root, [*line[:2], "--help"]).output
    new = [word.replace(old, "--count") for word in line]
    renamed = CliRunner().invoke(root, new)
    assert queries[1] == queries[0]
    assert "note" not in renamed.stderr


def test_the_time_of_messages_has_the_name_that_dead_letters_have(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[dict[str, Any]] = []
    monkeypatch.setattr(AdminClient, "get", lambda _, *path, **query: queries.append(query) or [])
    old = CliRunner().invoke(root, ["message", "t", "--time", "1764000000000"])
    new = CliRunner().invoke(root, ["message", "t", "--since", "1764000000000"])
    assert queries[0] == queries[1]
    assert queries[0]["time_ms"] == 1_764_000_000_000
    assert "note: --time is called --since now" in old.stderr
    assert "note" not in new.stderr
    assert "--time" not in CliRunner().invoke(root, ["message", "--help"]).output


def commands(command: click.Command = root, path: str = "ddmq") -> Iterator[tuple[str, click.Command]]:
    """Every command that the help lists, with what is typed for it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from commands(below, f"{path} {name}")


ALL = dict(commands())
SELF_EVIDENT = {"producer", "consumer", "delay-service", "demo", "completion"}


def help_of(path: str) -> str:
    return CliRunner().invoke(root, [*path.split()[1:], "--help"], terminal_width=80).output


@pytest.mark.parametrize("path", ALL)
def test_help_fits_80_columns_and_its_examples_are_commands(path: str) -> None:
    text = help_of(path)
    assert max(map(len, text.splitlines())) <= 80
    for line in re.findall(r"^ {4}(ddmq [^>\n]*)", text, re.MULTILINE):
        command, words = ALL["ddmq"], shlex.split(line)[1:]
        while isinstance(command, click.Group):
            _, below, words = command.resolve_command(click.Context(command), words)
            assert below is not None
            command = below
        command.make_context(line, list(words))  # raises UsageError for a wrong one


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - SELF_EVIDENT))
def test_each_command_has_an_example(name: str) -> None:
    assert any("  Examples:\n    ddmq " in help_of(path) for path in ALL if path.startswith(f"ddmq {name}"))


def test_the_help_says_what_commands_of_other_systems_are_here() -> None:
    text = help_of("ddmq")
    for tool in ("kafka-topics.sh", "kafka-consumer-groups.sh", "rabbitmqctl", "redis-cli"):
        assert tool in text


def test_a_wrong_value_under_an_old_name_is_refused() -> None:
    result = CliRunner().invoke(root, ["tx", "list", "--limit", "0"])
    assert result.exit_code == 2
    assert "'--count': 0 is not in the range 1<=x<=1000" in result.stderr


def test_the_old_name_of_a_command_runs_it_and_names_the_new_one() -> None:
    @click.group()
    def shop() -> None:
        """Nothing."""

    @shop.command("set")
    @click.argument("name")
    @count_option()
    def set_(name: str, count: int) -> None:
        click.echo(f"{name} {count}")

    add_old_name(shop, "update", set_)
    result = CliRunner().invoke(shop, ["update", "a"])
    assert (result.stdout, result.exit_code) == ("a 20\n", 0)
    assert "ddmq shop update is called ddmq shop set now" in result.stderr
    assert CliRunner().invoke(shop, ["set", "a"]).stderr == ""
    assert "update" not in CliRunner().invoke(shop, ["--help"]).output


@pytest.mark.parametrize(
    ("line", "suggestions"),
    [
        ("group unpause work", "`ddmq group resume`"),
        ("group continue work", "`ddmq group resume`"),
        ("delay unhold mail", "`ddmq delay release`"),
        ("topic hold mail", "`ddmq delay hold`"),
        ("topic unhold mail", "`ddmq delay release`"),
        ("group lag work", "`ddmq lag`"),
        ("usage", "`ddmq auth usage`"),
        ("resume work", "`ddmq group resume`"),
        ("start", "`ddmq serve`"),
        ("group lst", "`ddmq group list` or `ddmq group set`"),
        ("auth token remove 1", "`ddmq auth token revoke`"),
        ("delay create mail tea", "`ddmq delay add`"),
        ("topic update-all", ""),
        ("qqqq", ""),
    ],
)
def test_a_command_that_does_not_exist_names_those_that_were_meant(
    line: str, suggestions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = line.split()
    assert run(words) == 2
    (text,) = capsys.readouterr().err.splitlines()
    assert text.startswith("Error: No such command '")
    assert (f". Did you mean {suggestions}?; see `ddmq " in text) if suggestions else "mean" not in text
    for name in re.findall("`ddmq ([^`]+)`", suggestions):
        assert f"ddmq {name}" in ALL, "it exists"


def test_lag_accepts_its_group_as_an_option_too(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[dict[str, Any]] = []
    monkeypatch.setattr(AdminClient, "get", lambda _, *path, **query: queries.append(query) or [])
    for line in (["lag", "work"], ["lag", "--group", "work"]):
        assert CliRunner().invoke(root, line).exit_code == 0
    assert queries == [{"group": "work"}] * 2
    result = CliRunner().invoke(root, ["lag", "work", "--group", "work"])
    assert "name the group once" in result.stderr
