"""Commands as a user would type them: printed, then run just as they were printed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping

import click

from ddmq.address import HostPort


class Typed:
    """Runs `ddmq LINE` in this process against one server, whose addresses stand in the environment."""

    def __init__(self) -> None:
        self._shown = ""

    def at(self, addresses: Mapping[str, HostPort]) -> None:
        """From now on this server; says what to type once, before everything else."""
        where = {f"DDMQ_{part.upper()}": str(address) for part, address in addresses.items()}
        os.environ.update(where)
        export = "export " + " ".join(f"{name}={value}" for name, value in where.items())
        if export != self._shown:
            click.echo(f"$ {export}")
            self._shown = export

    def __call__(self, line: str) -> None:
        """Print the command and run it. Raises ClickException when it fails."""
        from ddmq.cli.root import run

        click.echo(f"$ ddmq {line}")
        code = run(shlex.split(line))
        sys.stdout.flush()
        if code != 0:
            raise click.ClickException(f"`ddmq {line}` ended with exit code {code}")
