"""`ddmq tail` watches a topic and takes nothing from anyone."""

from __future__ import annotations

import base64
from typing import Any

import click

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, admin_option
from ddmq.cli.output import json_option, pause, print_json, say_message, show_row_body
from ddmq.cli.values import NAME, TOPIC, Whole
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
@click.option("--key", type=NAME, help="Show only messages with this key.")
@click.option(
    "--grep", "text", metavar="TEXT", type=NAME, help="Show only those whose body or key contains TEXT."
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Keep watching.")
@admin_option
@json_option
def tail(
    topic: str,
    count: int,
    key: str | None,
    text: str | None,
    follow: bool,
    admin: HostPort,
    as_json: bool,
) -> None:
    """Show what is stored in TOPIC as it comes; takes nothing from anyone.

    --key and --grep choose from the last messages of each queue (--count) and from what comes. Capital and
    small letters differ.
    """
    client = AdminClient(admin)
    detail = client.get("topics", topic)
    at = {row["queue"]: max(row["min"], row["next"] - count) for row in detail["by_queue"]}
    while True:
        rows = [row for queue in at for row in _newer(client, topic, queue, at)]
        for row in sorted(rows, key=lambda row: (row["stored_ms"], row["position"])):
            if key in (None, row["key"]) and (text is None or _contains(row, text)):
                print_json(row) if as_json else _show(row)
        if not rows and not follow:
            return
        if not rows:
            pause(PAUSE_S)


def _newer(client: AdminClient, topic: str, queue: int, at: dict[int, int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(
        "topics", topic, "messages", queue=queue, offset=at[queue], count=100
    )
    if rows:
        at[queue] = rows[-1]["offset"] + 1
    return rows


def _contains(row: dict[str, Any], text: str) -> bool:
    """Whether its key or body has the text, a binary body the bytes of it."""
    if "body_base64" in row:
        found = text.encode(errors="surrogateescape") in base64.b64decode(row["body_base64"])
    else:
        found = text in row["body"]
    return found or text in row["key"]


def _show(row: dict[str, Any]) -> None:
    place = f"{shown(row['stored_ms'])} {row['queue']}/{row['offset']}"
    say_message(place, {"key": row["key"], "tags": row["tags"]}, row["properties"], show_row_body(row))
