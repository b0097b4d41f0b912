"""`ddmq kafka …`: a Kafka cluster on this machine, for a trial."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from ddmq.cli.output import hint, json_option, print_json, print_line, print_table
from ddmq.cli.values import FOLDER
from ddmq.trial.cluster import HOST, Ports, TrialCluster
from ddmq_common.errors import ConfigError

folder_option = click.option(
    "--dir",
    "folder",
    type=FOLDER,
    default=Path("kafka-trial"),
    show_default=True,
    help="Where the brokers keep their data and output.",
)


@click.group()
def kafka() -> None:
    """Start and stop Kafka brokers on this machine, for a trial. They listen on loopback and keep running
    after the command.

    \b
    Examples:
      ddmq kafka up --brokers 3
      ddmq serve --backend kafka --bootstrap 127.0.0.1:9092 --data-dir ./data
      ddmq kafka down
    """


@kafka.command("up", short_help="Start the brokers.")
@folder_option
@click.option("--brokers", type=click.IntRange(1, 9), default=1, show_default=True, help="Number of brokers.")
@click.option("--port", type=click.IntRange(1024, 65_000), default=9092, show_default=True,
              help="Port of the first broker; each broker uses two consecutive ports.")  # fmt: skip
def up(folder: Path, brokers: int, port: int) -> None:
    """Start the brokers that do not run, and print their addresses for `ddmq serve --bootstrap`."""
    cluster = TrialCluster(folder)
    ports = [Ports(port + 2 * n, port + 2 * n + 1) for n in range(brokers)]
    cluster.make(ports)
    for number in cluster.brokers:
        if cluster.pid(number) is None:
            _check_free(ports[number - 1])
    hint(f"starting {brokers} broker{'s' * (brokers > 1)} in {folder}; the first time Kafka is brought, too")
    cluster.start()
    print_line(cluster.bootstrap)


def _check_free(ports: Ports) -> None:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise ConfigError(
                    f"cannot listen on {HOST}:{port}: {error.strerror}; choose other ports with --port"
                ) from error


@kafka.command("down")
@folder_option
def down(folder: Path) -> None:
    """Stop the brokers; their data stays."""
    _open_cluster(folder).stop()


@kafka.command("status")
@folder_option
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show which brokers run."""
    cluster = _open_cluster(folder)
    addresses = cluster.bootstrap.split(",")
    pids = {n: cluster.pid(n) for n in cluster.brokers}
    if as_json:
        return print_json([{"broker": n, "address": addresses[n - 1], "pid": pid} for n, pid in pids.items()])
    rows = [(n, addresses[n - 1], "does not run" if pid is None else "runs", pid) for n, pid in pids.items()]
    print_table("", ("broker", "address", "state", "pid"), rows)
    return None


def _open_cluster(folder: Path) -> TrialCluster:
    cluster = TrialCluster(folder)
    if not cluster.brokers:
        raise ConfigError(f"{folder} holds no cluster; `ddmq kafka up --dir {folder}` makes one")
    return cluster
