"""`ddmq serve`, and its components alone: producer, consumer, delay-service; in one or several processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from backend.engines import ENGINES
from ddmq.address import ADDRESS, ADMIN, CONSUMER, PRODUCER, ready_line
from ddmq.cli.options import combine_options
from ddmq.cli.output import print_line, reason
from ddmq.cli.values import FOLDER
from ddmq_common.private_files import UMASK


def check_engine(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """Check the name of an engine: it must be one of this package, or be registered by an installed
    package."""
    if name is not None and name not in ENGINES:
        raise click.BadParameter(f"there is no engine {name!r}; allowed: {', '.join(ENGINES)}")
    return name


server_options = combine_options(
    click.option(
        "--data-dir", type=FOLDER, help="Directory of all data; created if missing (default: data)."
    ),
    click.option(
        "--config",
        "config_dir",
        type=FOLDER,
        help="Folder with ddmq.yaml, topics.yaml, proxy_producer.yaml, …; see conf/ of the source tree.",
    ),
    click.option(
        "--backend",
        "engine",
        metavar="[file_log|kafka|…]",
        callback=check_engine,
        shell_complete=lambda _, __, typed: [name for name in ENGINES if name.startswith(typed)],
        help="Where messages are stored: the file log on this machine (default), Kafka, or an engine that an "
        "installed package registers.",
    ),
    click.option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="Brokers of the Kafka cluster, one or more; goes with --backend kafka.",
    ),
    click.option(
        "--admin", type=ADDRESS, help=f"Where HTTP is served: health, metrics, admin API (default {ADMIN})."
    ),
    click.option(
        "--insecure",
        is_flag=True,
        callback=lambda _, __, value: value or None,
        help="Listen where other machines reach the server, without security.yaml: they may do everything.",
    ),
    click.option(
        "--beyond-loopback",
        is_flag=True,
        hidden=True,
        callback=lambda _, __, value: value or None,
        help="The name of --insecure in the previous release.",
    ),
    click.option(
        "--process-name", hidden=True, help="process_name of ddmq.yaml; `serve --processes` gives it."
    ),
    click.option(
        "--with-parent",
        is_flag=True,
        hidden=True,
        help="End with standard input; `serve --processes` holds it.",
    ),
)


@click.command()
@server_options
@click.option("--producer", type=ADDRESS, help=f"Where producers connect (default {PRODUCER}).")
@click.option("--consumer", type=ADDRESS, help=f"Where consumers connect (default {CONSUMER}).")
@click.option(
    "--processes", is_flag=True, help="Run each component as a process of its own over the same directory."
)
def serve(config_dir: Path | None, processes: bool, **flags: Any) -> None:
    """Run a whole server: producer proxy, consumer proxy, delay service, log and admin API.

    \b
    Examples:
      ddmq serve --data-dir ./data
      ddmq serve --config conf --processes
      ddmq serve --data-dir ./data --backend kafka --bootstrap broker-1:9092

    Prints a line that starts with `ready`, with all addresses, once its ports answer. SIGTERM (or Ctrl-C)
    finishes open work and stops; a second one stops at once. SIGHUP reads the files of --config again:
    topics, groups, limits, rates. Options override those files.

    Several servers may run over one directory, each with its own ports: one writes, the others write through
    it, and one of them takes over if it dies.
    """
    if processes:
        from ddmq.server.process.processes import run_processes

        flags.pop("with_parent")
        run_processes(config_dir, flags)
    else:
        _run(config_dir, flags, ("producer", "consumer", "delay", "admin"))


@click.command()
@server_options
@click.option("--producer", type=ADDRESS, help=f"Where producers connect (default {PRODUCER}).")
def producer(config_dir: Path | None, **flags: Any) -> None:
    """Run the producer proxy alone. Other processes over the same directory run the other components."""
    _run(config_dir, flags, ("producer", "admin"))


@click.command()
@server_options
@click.option("--consumer", type=ADDRESS, help=f"Where consumers connect (default {CONSUMER}).")
def consumer(config_dir: Path | None, **flags: Any) -> None:
    """Run the consumer proxy alone. Other processes over the same directory run the other components."""
    _run(config_dir, flags, ("consumer", "admin"))


@click.command("delay-service")
@server_options
def delay_service(config_dir: Path | None, **flags: Any) -> None:
    """Run the delay service alone. It delivers delayed messages of every kind, and retries, when they are
    due.

    Several may run over one directory; they divide the delay levels and the other delayed messages among
    them.
    """
    _run(config_dir, flags, ("delay", "admin"))


def _run(config_dir: Path | None, flags: dict[str, Any], components: tuple[str, ...]) -> None:
    from ddmq.server.config import load_folder, with_flags
    from ddmq.server.process import logs
    from ddmq.server.process.processes import block_hangup
    from ddmq.server.process.server_process import ServerProcess
    from ddmq.server.process.signals import install_signals, when_parent_ends
    from ddmq.server.retired_keys import warn_of_old_name, warn_of_retired

    os.umask(UMASK)
    block_hangup()
    with_parent = flags.pop("with_parent")
    config = with_flags(load_folder(config_dir), **flags)
    logs.set_up(config.serve.log_level, config.serve.log_format)
    if not with_parent:  # it reports them
        warn_of_retired(config.retired)
        warn_of_old_name(config.serve.beyond_loopback)
    process = ServerProcess(config, components)
    if with_parent:
        when_parent_ends(process.on_parent_exit, process.others.record_address)
    try:
        process.start()
    except OSError as error:
        raise click.ClickException(_describe_start_error(error, process)) from error
    install_signals(process)
    print_line(ready_line(process.addresses, config.serve.data_dir))
    process.run_until_stopped()


def _describe_start_error(error: OSError, process: Any) -> str:
    folder = process.config.serve.data_dir
    where = f" at {error.filename}" if error.filename and str(error.filename) != str(folder) else ""
    return (
        f"cannot start over --data-dir {folder}: {reason(error)}{where}; choose a folder that can be written"
    )
