"""`ddmq bench NAME`: run one benchmark with its floor, or all, as `python -m bench.…` in the source tree."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import click

from ddmq.cli.output import json_option, print_json, print_line
from ddmq.cli.values import Integer

TREE = Path(__file__).resolve().parents[2]  # where ddmq lies; a source tree has bench/ beside it
PEERS = "peers"  # of its own: it starts other systems, and is not among `all`


def find_benchmarks() -> dict[str, Path]:
    """Return the file of every benchmark in bench/ by name: files named tNN_…, and the peers."""
    folder = TREE / "bench"
    if not folder.is_dir():
        raise click.ClickException(
            f"the benchmarks are not installed: they come with the source tree, and {folder} is not there"
        )
    benchmarks = {path.stem.partition("_")[0]: path for path in sorted(folder.glob("t[0-9]*_*.py"))}
    return benchmarks | {PEERS: folder / "peers" / "__main__.py"}


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="List the benchmarks.")
@json_option
@click.option("--quick", is_flag=True, help="Run one small round, which only shows that the benchmark works.")
@click.option(
    "--pending",
    type=Integer(min=1_000),
    help="Number of pending delayed messages during the run, where it matters (default 10,000,000).",
)
def bench(name: str | None, listing: bool, quick: bool, pending: int | None, as_json: bool) -> None:
    """Run benchmark NAME (t01, t02, …), or all of them with `all`; without NAME, list them.

    Benchmarks need the source tree. Each compares ddmq with its floor: the same work done by the disk, the
    network or Python alone. Raw results go to bench/results/.

    \b
    Examples:
      ddmq bench --list
      ddmq bench t01 --quick
    """
    benchmarks = find_benchmarks()
    if listing or name is None:
        purposes = {short: _first_line(path) for short, path in benchmarks.items()}
        if as_json:
            return print_json([{"name": short, "measures": text} for short, text in purposes.items()])
        for short, text in purposes.items():
            print_line(f"{short:<11} {text}")
        return None
    if as_json:
        raise click.UsageError("--json goes with --list; the raw results of a run are in bench/results/")
    if name != "all" and name not in benchmarks:
        raise click.UsageError(f"no benchmark {name!r}; there are: all, {', '.join(benchmarks)}")
    for short, path in benchmarks.items():
        if name == short or (name == "all" and short != PEERS):
            _run(path, quick, pending)
    if name == "all" and not quick:
        _run(TREE / "bench" / "report.py", quick, pending)
    return None


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _run(path: Path, quick: bool, pending: int | None) -> None:
    """Run one benchmark until it ends; its output goes to the terminal."""
    module = ".".join(path.relative_to(TREE).with_suffix("").parts)
    variables = {"PYTHONSAFEPATH": ""}  # so that -m finds bench/ in the folder it runs in
    if quick:
        variables["DDMQ_BENCH_QUICK"] = "1"
    if pending is not None:
        variables["DDMQ_BENCH_PENDING"] = str(pending)
    ran = subprocess.run([sys.executable, "-m", module], cwd=TREE, env=os.environ | variables, check=False)
    if ran.returncode:
        raise click.ClickException(f"{module} ended with {ran.returncode}")
