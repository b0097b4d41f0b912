"""`ddmq message` finds messages, `ddmq tail` watches a topic; neither takes anything from anyone."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.messages.story import print_story
from ddmq.cli.output import (
    join_properties,
    pause,
    print_facts,
    print_json,
    print_table,
    say_message,
    show_row_body,
)
from ddmq.cli.values import GROUP, NAME, TOPIC, Whole, parse_moment
from ddmq.moments import format_moment

MESSAGE_ID = re.compile(r"[0-9a-fA-F]{32}\Z")
PAUSE_S = 0.2


@click.command()
@click.argument("topic", type=TOPIC, required=False)
@click.option(
    "--id", "message_id", type=NAME, help="The 32 hex digits that send printed; TOPIC may be left out."
)
@click.option("--key", type=NAME, help="Message key; newest first.")
@click.option("--queue", type=Whole(0), help="Queue number; goes with --offset.")
@click.option("--offset", type=Whole(0), help="First offset; goes with --queue.")
@click.option(
    "--time", "moment", help="From this time on: 2026-11-21T12:00 (local), -2h (ago) or epoch milliseconds."
)
@click.option("--group", type=GROUP, help="Show the state of each message for this consumer group.")
@click.option("--count", default=10, show_default=True, type=Whole(1, 1000), help="At most.")
@click.option(
    "--story",
    is_flag=True,
    help="Show the whole story of one message and what it waited for; with --group, for that group.",
)
@admin_options
def message(
    topic: str | None,
    message_id: str | None,
    key: str | None,
    queue: int | None,
    offset: int | None,
    moment: str | None,
    group: str | None,
    count: int,
    story: bool,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Messages of TOPIC by id, key, offset or time; without any of these, the newest.

    With --group each says where it is for that group: done (or kept back by its filter), in flight, retrying,
    behind its key (an earlier message of the same order key is not finished), parked, dead (a dead letter),
    or not yet.

    --story tells of one message (--id, the newest with --key, or --queue and --offset) where its time went,
    for each group: spans from sent to acknowledged that add up to the whole. What is known without a trace,
    and how to trace: docs/story.md.

    Nothing is taken from anyone. Exit code 1 when there is no such message.
    """
    if (queue is None) != (offset is None):
        raise click.UsageError("--queue and --offset go together")
    query = {"id": message_id, "key": key, "queue": queue, "offset": offset}
    if moment is not None:
        query["time_ms"] = parse_moment(moment, "--time")
    if sum(value is not None for name, value in query.items() if name != "queue") > 1:
        raise click.UsageError("choose one of --id, --key, --offset, --time")
    if message_id is not None and not MESSAGE_ID.match(message_id):
        raise click.UsageError(
            f"--id {message_id!r} is not a message id (32 hex digits, as send prints them)"
        )
    if story:
        _print_story(admin, topic, query, group, as_json=as_json)
        return
    if topic is not None and queue is not None:
        rows = list(_from_offset(admin, topic, query, count, group))
    elif topic is not None:
        rows = admin.get("topics", topic, "messages", count=count, group=group, **query)
    elif message_id is not None:
        rows = admin.get("messages", message_id, group=group)
    else:
        raise click.UsageError("TOPIC is missing; only --id finds a message without it")
    if as_json:
        print_json(rows)
    if not rows:
        raise click.ClickException(_describe_no_match(topic, message_id, key, queue, offset, moment))
    if as_json:
        return
    if len(rows) == 1:
        print_facts(_readable_row(rows[0]))
    else:
        _print_rows(rows)


def _print_story(
    admin: AdminClient, topic: str | None, query: dict[str, Any], group: str | None, *, as_json: bool
) -> None:
    """Print the story of the one message that the options name."""
    if all(query[name] is None for name in ("id", "key", "offset")):
        raise click.UsageError("--story tells of one message: give --id, --key, or --queue and --offset")
    if topic is not None:
        story = admin.get("topics", topic, "story", group=group, **query)
    elif query["id"] is not None:
        story = admin.get("messages", query["id"], "story", group=group)
    else:
        raise click.UsageError("TOPIC is missing; only --id finds a message without it")
    print_json(story) if as_json else print_story(story)


def _from_offset(
    client: AdminClient, topic: str, query: dict[str, Any], count: int, group: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the messages of a queue from an offset on. One answer of the server contains only as many as fit,
    so the rest is requested in further calls."""
    while count > 0:
        rows = client.get("topics", topic, "messages", count=count, group=group, **query)
        yield from rows
        if not rows:
            return
        query, count = query | {"offset": rows[-1]["offset"] + 1}, count - len(rows)


def _describe_no_match(
    topic: str | None, message_id: str | None, key: str | None, queue: int | None, offset: int | None,
    moment: str | None,
) -> str:  # fmt: skip
    where = f"topic {topic!r}" if topic is not None else "any topic"
    if message_id is not None:
        return f"no message with id {message_id} in {where}; it may be older than what is kept"
    if key is not None:
        return f"no message with key {key!r} in {where}"
    if offset is not None:
        return f"no message at or after offset {offset} in queue {queue} of {where}"
    return f"no message in {where}" + ("" if moment is None else f" from {moment} on")


def _readable_row(row: dict[str, Any]) -> dict[str, Any]:
    facts = dict(row)
    facts["born"] = format_moment(facts.pop("born_ms"))
    facts["stored"] = format_moment(facts.pop("stored_ms"))
    if "due_ms" in facts:
        facts["due"] = format_moment(facts.pop("due_ms"))
    facts["properties"] = join_properties(row["properties"])
    facts.pop("body_base64", None)
    facts["body"] = show_row_body(row)
    return facts


def _print_rows(rows: list[dict[str, Any]]) -> None:
    states = ["state"] if "state" in rows[0] else []
    cells = (
        [row["queue"], str(row["offset"]), row["id"], row["key"], row["tags"],
         format_moment(row["stored_ms"]),
         *(row[name] for name in states), row["body_bytes"], show_row_body(row)[:60]]
        for row in rows
    )  # fmt: skip
    print_table("", ["queue", "offset", "id", "key", "tags", "stored", *states, "bytes", "body"], cells)


@click.command()
@click.argument("topic", type=TOPIC)
@click.option(
    "--count", default=10, show_default=True, type=Whole(0, 1000), help="Start with the last N of each queue."
)
@click.option("--key", type=NAME, help="Show only messages with this key.")
@click.option(
    "--grep", "text", metavar="TEXT", type=NAME, help="Show only those whose body or key contains TEXT."
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Keep watching.")
@admin_options
def tail(
    topic: str,
    count: int,
    key: str | None,
    text: str | None,
    follow: bool,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Show what is stored in TOPIC as it comes; takes nothing from anyone.

    --key and --grep choose from the last messages of each queue (--count) and from what comes. Capital and
    small letters differ.
    """
    detail = admin.get("topics", topic)
    at = {row["queue"]: max(row["min"], row["next"] - count) for row in detail["by_queue"]}
    while True:
        rows = [row for queue in at for row in _read_newer(admin, topic, queue, at)]
        for row in sorted(rows, key=lambda row: (row["stored_ms"], row["position"])):
            if key in (None, row["key"]) and (text is None or _contains_text(row, text)):
                print_json(row) if as_json else _print_message(row)
        if not rows and not follow:
            return
        if not rows:
            pause(PAUSE_S)


def _read_newer(client: AdminClient, topic: str, queue: int, at: dict[int, int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(
        "topics", topic, "messages", queue=queue, offset=at[queue], count=100
    )
    if rows:
        at[queue] = rows[-1]["offset"] + 1
    return rows


def _contains_text(row: dict[str, Any], text: str) -> bool:
    """Return whether the key or the body of a message contains the text. In a binary body, its bytes are
    searched."""
    if "body_base64" in row:
        in_body = text.encode(errors="surrogateescape") in base64.b64decode(row["body_base64"])
    else:
        in_body = text in row["body"]
    return in_body or text in row["key"]


def _print_message(row: dict[str, Any]) -> None:
    place = f"{format_moment(row['stored_ms'])} {row['queue']}/{row['offset']}"
    say_message(place, {"key": row["key"], "tags": row["tags"]}, row["properties"], show_row_body(row))
