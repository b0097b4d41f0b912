"""Whether the commands that the console shows are commands that `ddmq` has."""

from __future__ import annotations

import shlex

import click

from ddmq.cli.root import root


def check_command(line: str) -> None:
    """Parse a command line as `ddmq` would, without running it. Raises AssertionError."""
    program, *words = shlex.split(line.replace("--config CONF", "--config ."))  # CONF: as its reader knows
    assert program == "ddmq", line
    command: click.Command = root
    context = click.Context(root, info_name=program)
    try:
        while isinstance(command, click.Group):
            chosen = command.get_command(context, words[0])
            assert chosen is not None, line
            command, words = chosen, words[1:]
        command.make_context(command.name, words)
    except click.ClickException as error:
        raise AssertionError(f"{line}: {error.format_message()}") from error
