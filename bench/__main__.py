"""`python -m bench NAME` in the source tree: run one benchmark with its floor, or all."""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path

import click

PEERS = "delay_peers"  # of its own: it starts other systems, and is not among `all`


def available() -> dict[str, str]:
    """Name → module of every benchmark here (files named tNN_…, and the peers side by side)."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    found = {name.split("_")[0]: f"bench.{name}" for name in names if name[0] == "t" and name[1].isdigit()}
    return found | {PEERS.replace("_", "-"): f"bench.{PEERS}"}


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="Show what there is.")
@click.option("--quick", is_flag=True, help="One small round that only shows that it works.")
@click.option(
    "--pending",
    type=click.IntRange(min=1_000),
    help="Delayed messages that are pending meanwhile, where that matters (default 10,000,000).",
)
def bench(name: str | None, listing: bool, quick: bool, pending: int | None) -> None:
    """Run benchmark NAME (t01, t02, …) or `all`; raw results go to bench/results/."""
    if quick:
        os.environ["DDMQ_BENCH_QUICK"] = "1"
    if pending is not None:
        os.environ["DDMQ_BENCH_PENDING"] = str(pending)
    known = available()
    if listing or name is None:
        for short, module in known.items():
            text = (importlib.import_module(module).__doc__ or "").strip().splitlines()[0]
            click.echo(f"{short:<11} {text}")
        return
    if name != "all" and name not in known:
        raise click.UsageError(f"no benchmark {name!r}; there are: all, {', '.join(known)}")
    for short, module in known.items():
        if name == short or (name == "all" and not short.startswith("delay")):
            importlib.import_module(module).main()
    if name == "all" and not quick:
        importlib.import_module("bench.report").main()


if __name__ == "__main__":
    bench(prog_name="ddmq bench")
