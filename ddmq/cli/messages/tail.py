"""`ddmq tail` watches a topic and takes nothing from anyone."""

from __future__ import annotations

import time
from typing import Any

import click

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, admin_option
from ddmq.cli.output import json_option, print_json, say_message, show_row_body
from ddmq.cli.values import TOPIC, Whole
from ddmq.moments import shown

PAUSE_S = 0.2


@click.command()
@click.argument("topic", type=TOPIC)
@click.option(
    "--count",
    default=10,
    show_default=True,
    type=Whole(0, 1000),
    help="Start with the last N of each queue.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Keep watching.")
@admin_option
@json_option
def tail(topic: str, count: int, follow: bool, admin: HostPort, as_json: bool) -> None:
    """Show what is stored in TOPIC as it comes; takes nothing from anyone."""
    client = AdminClient(admin)
    detail = client.get("topics", topic)
    at = {row["queue"]: max(row["min"], row["next"] - count) for row in detail["by_queue"]}
    while True:
        rows = [row for queue in at for row in _newer(client, topic, queue, at)]
        for row in sorted(rows, key=lambda row: (row["stored_ms"], row["position"])):
            print_json(row) if as_json else _show(row)
        if not rows and not follow:
            return
        if not rows:
            time.sleep(PAUSE_S)


def _newer(client: AdminClient, topic: str, queue: int, at: dict[int, int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(
        "topics", topic, "messages", queue=queue, offset=at[queue], count=100
    )
    if rows:
        at[queue] = rows[-1]["offset"] + 1
    return rows


def _show(row: dict[str, Any]) -> None:
    place = f"{shown(row['stored_ms'])} {row['queue']}/{row['offset']}"
    say_message(place, {"key": row["key"], "tags": row["tags"]}, row["properties"], show_row_body(row))
