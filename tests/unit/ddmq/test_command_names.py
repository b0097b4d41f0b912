"""Commands in groups, and old names of options and commands, which work for one release."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from ddmq.cli.admin_client import AdminClient
from ddmq.cli.old_names import add_old_name, count_option
from ddmq.cli.root import COMMANDS, SECTIONS, root


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
    again = CliRunner().invoke(root, new)
    assert queries[1] == queries[0]
    assert "note" not in again.stderr


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
