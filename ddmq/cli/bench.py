"""`ddmq bench NAME`: the source tree's `python -m bench NAME`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

TREE = Path(__file__).resolve().parents[2]  # where ddmq lies; a source tree has bench/ beside it


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False
)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Run benchmark NAME (t01, t02, …) or `all`; raw results go to bench/results/."""
    if not (TREE / "bench" / "__main__.py").is_file():
        raise click.ClickException(
            "the benchmarks are not installed; they come with the source tree: run `python -m bench` there"
        )
    environment = os.environ | {"PYTHONSAFEPATH": ""}  # so that -m finds bench/ in the folder it runs in
    ran = subprocess.run([sys.executable, "-m", "bench", *ctx.args], cwd=TREE, env=environment, check=False)
    ctx.exit(ran.returncode)
