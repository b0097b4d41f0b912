"""`ddmq config …`: the settings that a server would have or has, and where each comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddmq.address import ADDRESS
from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.options import combine_options
from ddmq.cli.output import hint, json_option, print_json, print_line
from ddmq.cli.serve import server_options

if TYPE_CHECKING:
    from ddmq.server.effective_settings import EffectiveSetting

_addresses = combine_options(
    click.option("--producer", type=ADDRESS, help="Where producers connect."),
    click.option("--consumer", type=ADDRESS, help="Where consumers connect."),
)


@click.group("config")
def config_command() -> None:
    """Show the settings of a server: from the command line, the environment, files, or the defaults."""


@config_command.command("show")
@server_options
@_addresses
@click.option("--changed", is_flag=True, help="Only the settings that are not the defaults.")
@json_option
def show_settings(
    config_dir: Path | None, changed: bool, as_json: bool, with_parent: bool, **flags: Any
) -> None:
    """Print the value of every setting that `ddmq serve` with the same options would have, and its source.

    Run it in the environment of the server. The command line overrides the environment, and the environment
    overrides the files of --config. Secrets are masked. --json also lists the environment variable of each
    key.

    \b
    Examples:
      ddmq config show --config conf --changed
      ddmq config show --json
    """
    from ddmq.server.config import load_folder, with_flags
    from ddmq.server.effective_settings import list_settings

    configuration = with_flags(load_folder(config_dir), **flags)
    settings = [setting for setting in list_settings(configuration) if setting.is_changed or not changed]
    if as_json:
        print_json([_to_json(setting) for setting in settings])
    elif settings:
        _print_columns([("key", "source", "value"), *map(_to_row, settings)])
    else:
        hint("every setting has its default; without --changed they are listed")
    for retired in configuration.retired:
        hint(str(retired))


@config_command.command("running")
@click.option("--changed", is_flag=True, help="Only the settings that are not the defaults.")
@admin_options
def show_running_settings(changed: bool, admin: AdminClient, as_json: bool) -> None:
    """Print the value of every setting of a running server process, and its source. Secrets are masked.

    \b
    Examples:
      ddmq config running --changed
      ddmq config running --admin 127.0.0.1:9913
    """
    answer = admin.get("config", changed="1" if changed else None)
    if as_json:
        return print_json(answer)
    rows = [(item["key"], item["source"], _format_value(item["value"])) for item in answer["items"]]
    if rows:
        _print_columns([("key", "source", "value"), *rows])
    else:
        hint("every setting has its default; without --changed they are listed")
    return None


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _print_columns(rows: list[tuple[str, str, str]]) -> None:
    """Print one setting per line, with its value in the last column, so that a long value shifts no other
    column."""
    key_width, source_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for key, source, value in rows:
        print_line(f"{key:<{key_width}}  {source:<{source_width}}  {value}")


def _to_row(setting: EffectiveSetting) -> tuple[str, str, str]:
    return setting.key.name, setting.source, setting.format_value()


def _to_json(setting: EffectiveSetting) -> dict[str, Any]:
    return {
        "key": setting.key.name,
        "value": setting.value,
        "source": setting.source,
        "variable": setting.key.variable,
    }
