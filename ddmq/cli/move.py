"""`ddmq move`: an installation from one engine to another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddmq.cli.output import cell, hint, json_option, print_facts, print_json, print_line
from ddmq.cli.values import FOLDER
from ddmq_common.private_files import UMASK

if TYPE_CHECKING:
    from ddmq.move.runs import MoveReport, MoveRun

SHOW_S = 5.0


@click.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--finish", is_flag=True, help="Do the last step: copy the remaining messages, then progress and delays."
)
@click.option("--follow", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@click.option("--verify", is_flag=True, help="Compare the copies with the source.")
@click.option("--dry-run", is_flag=True, help="Show what would be copied; write nothing.")
@click.option("--topics", multiple=True, metavar="PATTERN",
              help="Only these topics (* and ?), with their groups and delayed messages.")  # fmt: skip
@click.option("--source-config", type=FOLDER, help="Configuration folder of the source's servers.")
@click.option("--target-config", type=FOLDER, help="Configuration folder of the target's servers.")
@json_option
def move(
    source: str,
    target: str,
    source_config: Path | None,
    target_config: Path | None,
    topics: tuple[str, ...],
    as_json: bool,
    **mode: bool,
) -> None:
    """Copy the installation SOURCE into TARGET, each `file_log:DIRECTORY` or `kafka:HOST:PORT,…`.

    \b
    Examples:
      ddmq move file_log:./data kafka:broker-1:9092 --dry-run
      ddmq move file_log:./data kafka:broker-1:9092 --follow
      ddmq move file_log:./data kafka:broker-1:9092 --finish

    Without an option, the messages that exist now are copied, while the servers of the source keep running. A
    later run, also one with --follow or one after a kill, continues where the last one ended. For the last
    step, stop all servers of the source, start no consumer at the target, and run with --finish: it copies
    the remaining messages, the groups with their progress, retries and pending delays, and compares both
    sides. Then the target takes over.

    Topics of the target that have messages of their own are rejected. Exit code 1 if the copy failed, or if
    the comparison found a difference.
    """
    modes = [name for name, enabled in mode.items() if enabled]
    if len(modes) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in modes)
        raise click.UsageError(f"{names} exclude each other")
    os.umask(UMASK)
    with _open_run(source, target, source_config, target_config, topics, make=modes != ["dry_run"]) as run:
        report = _run_mode(run, modes[0] if modes else "copy")
    _print_report(report, as_json)
    if report.differences:
        raise click.ClickException(f"source and target are not the same in {len(report.differences)} places")


def _run_mode(run: MoveRun, mode: str) -> MoveReport:
    if mode == "dry_run":
        return run.plan_move()
    if mode == "finish":
        return run.finish_move()
    if mode == "verify":
        return run.verify_copies()
    return run.copy((lambda: False) if mode == "follow" else None)


@contextmanager
def _open_run(
    source: str,
    target: str,
    source_config: Path | None,
    target_config: Path | None,
    topics: tuple[str, ...],
    *,
    make: bool,
) -> Iterator[MoveRun]:
    """Open both sides of the move as a MoveRun for the block, and close them afterwards. Raises DdmqError."""
    from ddmq.move.context import MoveContext, MoveError
    from ddmq.move.core.scope import Scope
    from ddmq.move.engines import open_side, parse_side, source_id
    from ddmq.move.runs import MoveRun
    from ddmq_common.clock import SystemClock
    from ddmq_common.hub_timer import HubTimer
    from delay_service.store.opening import stores_in

    sides = parse_side(source, source_config), parse_side(target, target_config)
    if (
        sides[0].engine == sides[1].engine == "file_log"
        and Path(sides[0].where).resolve() == Path(sides[1].where).resolve()
    ):
        raise MoveError(f"{source} is given as source and as target")
    clock = SystemClock()
    with ExitStack() as stack:
        source_side = open_side(sides[0], clock, must_exist=True)
        stack.callback(source_side.backend.close)
        target_side = open_side(sides[1], clock, must_exist=False)
        stack.callback(target_side.backend.close)
        identity = source_id(source_side.backend, clock, make=make)
        context = MoveContext(source_side.backend, target_side.backend, identity, clock, Scope(topics), hint)
        folder = sides[0].config.delay.dir or Path(sides[0].where) / "delay"
        if sides[0].engine == "kafka":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddmq-move-")))
        shards = sides[0].config.delay.shards
        watch = HubTimer(ref=False)
        watch.every(SHOW_S, lambda: _print_tally(context.tally))
        stack.callback(watch.stop)
        yield MoveRun(
            context, str(sides[0]), sides[0].config.delay, stores_in(folder, shards),
            exclusive=source_side.exclusive,
        )  # fmt: skip


def _print_tally(tally: Any) -> None:
    if tally.copied:
        hint(
            f"{cell(tally.copied)} messages, {cell(tally.copied_bytes)} bytes copied, "
            f"{cell(tally.remaining)} left"
        )


def _print_report(report: Any, as_json: bool) -> None:
    import msgspec

    facts = msgspec.to_builtins(report)
    if as_json:
        print_json(facts)
        return
    lists = {name: facts.pop(name) for name in ("passed", "left", "faults")}
    print_facts(facts)
    for why, count in sorted(lists["passed"].items()):
        print_line(f"not copied: {cell(count)} {why}")
    for topic, count in sorted(lists["left"].items()):
        print_line(f"left: {cell(count)} of {topic}")
    for difference in lists["faults"]:
        print_line(f"not the same: {difference}")
