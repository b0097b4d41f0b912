"""`ddmq message …`: find messages without taking them from anyone."""

from __future__ import annotations

import datetime
from typing import Any

import click

from ddmq.address import Address
from ddmq.cli.admin_client import AdminClient, admin_option
from ddmq.cli.output import json_option, print_facts, print_json, print_table


@click.command()
@click.argument("topic")
@click.option("--id", "message_id", help="The 32 hex digits that send printed.")
@click.option("--key", help="Message key; newest first.")
@click.option("--queue", type=click.IntRange(0), help="With --offset.")
@click.option("--offset", type=click.IntRange(0), help="First offset, with --queue.")
@click.option("--time", "moment", help="From this moment on: 2026-11-21T12:00 (local) or epoch milliseconds.")
@click.option("--count", default=10, show_default=True, type=click.IntRange(1, 1000), help="At most.")
@admin_option
@json_option
def message(
    topic: str,
    message_id: str | None,
    key: str | None,
    queue: int | None,
    offset: int | None,
    moment: str | None,
    count: int,
    admin: Address,
    as_json: bool,
) -> None:
    """Messages of TOPIC by id, key, offset or time; without any of these, the newest."""
    if (queue is None) != (offset is None):
        raise click.UsageError("--queue and --offset go together")
    query = {"id": message_id, "key": key, "queue": queue, "offset": offset}
    if moment is not None:
        query["time_ms"] = parse_moment(moment)
    if sum(value is not None for name, value in query.items() if name != "queue") > 1:
        raise click.UsageError("choose one of --id, --key, --offset, --time")
    rows = AdminClient(admin).get("topics", topic, "messages", count=count, **query)
    if as_json:
        print_json(rows)
    elif not rows:
        raise click.ClickException("no such message")
    elif len(rows) == 1:
        print_facts(_readable(rows[0]))
    else:
        _print_rows(rows)


def parse_moment(text: str) -> int:
    """Epoch milliseconds from digits or ISO text in local time."""
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as error:
        raise click.UsageError(
            f"{text!r} is neither epoch milliseconds nor ISO time like 2026-11-21T12:00:00"
        ) from error


def show_moment(wall_ms: int) -> str:
    """Local time with milliseconds."""
    return datetime.datetime.fromtimestamp(wall_ms / 1000).isoformat(sep=" ", timespec="milliseconds")


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    facts = dict(row)
    facts["born"] = show_moment(facts.pop("born_ms"))
    facts["stored"] = show_moment(facts.pop("stored_ms"))
    facts["properties"] = ", ".join(f"{name}={value}" for name, value in row["properties"].items())
    facts["body"] = facts.pop("body", None) or facts.pop("body_base64", "")
    return facts


def _print_rows(rows: list[dict[str, Any]]) -> None:
    cells = (
        [row["queue"], str(row["offset"]), row["id"], row["key"], row["tags"], show_moment(row["stored_ms"]),
         row["body_bytes"], (row.get("body") or row.get("body_base64", ""))[:60]]
        for row in rows
    )  # fmt: skip
    print_table("", ["queue", "offset", "id", "key", "tags", "stored", "bytes", "body"], cells)
