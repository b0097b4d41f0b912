"""`ddmq lag`: how far behind consumer groups are, and for how long; with --watch a live view."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.live import Live
from rich.table import Table

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, admin_option
from ddmq.cli.output import console, hint, json_option, print_json, print_table, table
from ddmq.cli.values import GROUP, Number
from ddmq.moments import age

COLUMNS = ("group", "topic", "lag", "oldest", "in flight", "retrying", "later", "delivered/s", "acked/s")
FRAME_LINES = 6


@click.command()
@click.argument("group", type=GROUP, required=False)
@click.option("--watch", is_flag=True, help="Keep showing until interrupted.")
@click.option(
    "--interval", default=2.0, show_default=True, type=Number(0.1, 60),
    help="Seconds between two looks of --watch.",
)  # fmt: skip
@admin_option
@json_option
def lag(group: str | None, watch: bool, interval: float, admin: HostPort, as_json: bool) -> None:
    """How far behind groups (or GROUP alone) are: messages, and how long the oldest has waited.

    "retrying" wait for one of the quick retries. "later" are on the retry path: they wait for one of the
    later retries, 10 s to 2 h apart, or such a retry is due. Rates are over the last 5 to 10 seconds.
    `ddmq group show GROUP` goes into detail.
    """
    client = AdminClient(admin)
    rows = client.get("lag", group=group)
    if as_json:
        print_json(rows)
        while watch:
            time.sleep(interval)
            print_json(client.get("lag", group=group))
        return
    if not watch:
        print_table("", COLUMNS, _cells(rows))
        if not rows:
            hint("no groups yet: `ddmq group create NAME --topic TOPIC`")
        return
    screen = console()
    with Live(_view(rows, screen.height), console=screen, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(_view(client.get("lag", group=group), screen.height), refresh=True)


def _view(rows: Sequence[dict[str, Any]], height: int) -> Table:
    room = max(1, height - FRAME_LINES)
    left_out = len(rows) - room
    title = f"the {room} furthest behind; {left_out:,} more" if left_out > 0 else ""
    return table(title, COLUMNS, _cells(rows[:room]))


def retry_path(row: Mapping[str, Any]) -> str | None:
    """Count the messages on the retry path; None where their number is not known."""
    if row.get("retry_waiting") is None:
        return None
    return ("" if row["retry_waiting_whole"] else "≥ ") + f"{row['retry_waiting']:,}"


def _cells(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    return [
        [
            row["group"],
            row["topic"],
            row["lag"],
            None if row["lag_age_s"] is None else age(row["lag_age_s"]),
            row["in_flight"],
            row["retrying"],
            retry_path(row),
            row["delivered_per_s"],
            row["acked_per_s"],
        ]
        for row in rows
    ]
