"""`ddmq stats`: rates, lag and what is in flight; with --watch a live view."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live

from ddmq.address import Address
from ddmq.cli.admin_client import AdminClient, admin_option
from ddmq.cli.output import json_option, print_json, table

GROUP_COLUMNS = ("group", "topic", "lag", "in_flight", "retrying", "dead_letters", "ack_span", "waiters")


@click.command()
@click.option("--watch", is_flag=True, help="Keep showing, with rates, until interrupted.")
@click.option("--interval", default=1.0, show_default=True, type=click.FloatRange(0.1, 60), help="Seconds.")
@admin_option
@json_option
def stats(watch: bool, interval: float, admin: Address, as_json: bool) -> None:
    """Topics with their rates, groups with their lag, latencies."""
    client = AdminClient(admin)
    if as_json:
        while True:
            print_json(client.get("stats"))
            if not watch:
                return
            time.sleep(interval)
    before, now = None, client.get("stats")
    if not watch:
        Console().print(view(before, now))
        return
    with Live(view(before, now), auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            before, now = now, client.get("stats")
            live.update(view(before, now), refresh=True)


def view(before: dict[str, Any] | None, now: dict[str, Any]) -> Group:
    """The tables of one moment; rates need the moment before."""
    parts: list[Any] = [_health_line(now), _topics(before, now)]
    if now.get("groups"):
        parts.append(_groups(now))
    parts.append(_latencies(now))
    return Group(*parts)


def _health_line(now: dict[str, Any]) -> str:
    health = now["health"]
    return f"{'ready' if health['ready'] else 'NOT READY'}  {health['reason']}"


def _topics(before: dict[str, Any] | None, now: dict[str, Any]) -> Any:
    seconds = (now["at_ms"] - before["at_ms"]) / 1000 if before else 0
    stored = {row["topic"]: row["stored"] for row in before["topics"]} if before else {}
    rows = [
        [
            row["topic"],
            row["queues"],
            row["messages"],
            (row["stored"] - stored.get(row["topic"], 0)) / seconds if seconds > 0 else None,
        ]
        for row in now["topics"]
    ]
    return table("topics", ["topic", "queues", "messages", "stored/s"], rows)


def _groups(now: dict[str, Any]) -> Any:
    return table(
        "groups", GROUP_COLUMNS, ([row.get(name) for name in GROUP_COLUMNS] for row in now["groups"])
    )


def _latencies(now: dict[str, Any]) -> Any:
    rows = [
        [name, int(cell["count"]), cell["p50"] / 1000, cell["p99"] / 1000, cell["max"] / 1000]
        for name, cells in now["counters"].items()
        for cell in cells
        if "p99" in cell
    ]
    return table("latencies", ["what", "count", "p50 ms", "p99 ms", "max ms"], rows)
