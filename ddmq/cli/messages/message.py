"""`ddmq message` finds messages, `ddmq tail` watches a topic; neither takes anything from anyone."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.messages.story import print_story
from ddmq.cli.old_names import OldOption
from ddmq.cli.output import (
    hint,
    join_properties,
    pause,
    print_facts,
    print_json,
    print_message_line,
    print_table,
    show_row_body,
)
from ddmq.cli.values import GROUP, NAME, TOPIC, Integer, parse_moment
from ddmq.moments import format_moment

MESSAGE_ID = re.compile(r"[0-9a-fA-F]{32}\Z")
PAUSE_S = 0.2


@click.command()
@click.argument("topic", type=TOPIC, required=False)
@click.option(
    "--id",
    "message_id",
    type=NAME,
    metavar="ID",
    help="Message id: the 32 hex digits that `ddmq send` printed; TOPIC may be left out.",
)
@click.option("--key", type=NAME, help="Only messages with this key, the newest first.")
@click.option("--queue", type=Integer(0), help="Only this queue; goes with --offset.")
@click.option("--offset", type=Integer(0), help="From this offset on; goes with --queue.")
@click.option(
    "--since",
    "moment",
    metavar="TIME",
    help="Stored at this time or later: 2026-11-21T12:00 (local), -2h (ago) or epoch milliseconds.",
)
@click.option("--time", "old_time", cls=OldOption, now="--since", parameter="moment")
@click.option("--group", type=GROUP, help="Show the state of each message for this consumer group.")
@click.option("--count", default=10, show_default=True, type=Integer(1, 1000), help="Show so many at most.")
@click.option(
    "--story",
    is_flag=True,
    help="Show how one message spent its time; with --group, only in that group.",
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
    """Find messages of TOPIC by id, key, offset or time; without any of these, show the newest.

    \b
    Examples:
      ddmq message orders --count 3
      ddmq message --id 4630fdb124c9c5fe0000000000000002
      ddmq message orders --key 17 --group billing
      ddmq message orders --key 17 --story

    With --group, "state" says what became of each message in that group: done (or left out by its filter), in
    flight, retrying, behind its key (an earlier message of the same order key is not finished), parked, dead
    (a dead letter), or not yet.

    --story shows how one message (--id, the newest with --key, or --queue and --offset) spent its time, for
    each group, from sent to acknowledged. docs/story.md explains it, and how to trace messages for more
    detail.

    No consumer loses a message by this. Exit code 1 if there is no such message.
    """
    query = _build_query(message_id, key, queue, offset, moment)
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


def _build_query(
    message_id: str | None, key: str | None, queue: int | None, offset: int | None, moment: str | None
) -> dict[str, Any]:
    """Return the query of the admin API for the options. Raises UsageError for options that exclude each
    other."""
    if (queue is None) != (offset is None):
        raise click.UsageError("--queue and --offset go together")
    query: dict[str, Any] = {"id": message_id, "key": key, "queue": queue, "offset": offset}
    if moment is not None:
        query["time_ms"] = parse_moment(moment, "--since")
    if sum(value is not None for name, value in query.items() if name != "queue") > 1:
        raise click.UsageError("choose one of --id, --key, --offset, --since")
    if message_id is not None and not MESSAGE_ID.match(message_id):
        raise click.UsageError(
            f"--id {message_id!r} is not a message id (32 hex digits, as send prints them)"
        )
    return query


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
        return f"no message with key {key!r} in {where}; `ddmq message {topic}` shows the newest messages"
    if offset is not None:
        return f"no message at or after offset {offset} in queue {queue} of {where}"
    if moment is not None:
        return f"no message in {where} from {moment} on; without --since, the newest are shown"
    return f"no message in {where}; `ddmq send {topic} hello` sends one"


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
    "--count", default=10, show_default=True, type=Integer(0, 1000), help="Start with so many of each queue."
)
@click.option("--key", type=NAME, help="Show only messages with this key.")
@click.option(
    "--grep", "text", metavar="TEXT", type=NAME, help="Show only messages whose body or key contains TEXT."
)
@click.option(
    "--follow/--no-follow",
    default=True,
    show_default=True,
    help="Keep waiting for new messages, until Ctrl-C.",
)
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
    """Show the last messages of TOPIC, and new ones as they are stored. Consumers still get all of them.

    \b
    Examples:
      ddmq tail orders
      ddmq tail orders --no-follow --count 100 --grep refund

    --key and --grep filter the last messages of each queue (--count) and the new ones; upper and lower case
    differ.
    """
    detail = admin.get("topics", topic)
    at = {row["queue"]: max(row["min"], row["next"] - count) for row in detail["by_queue"]}
    nothing_shown = True
    while True:
        rows = [row for queue in at for row in _read_newer(admin, topic, queue, at)]
        for row in sorted(rows, key=lambda row: (row["stored_ms"], row["position"])):
            if key in (None, row["key"]) and (text is None or _contains_text(row, text)):
                print_json(row) if as_json else _print_message(row)
                nothing_shown = False
        if not rows and nothing_shown and not as_json:
            hint(_describe_nothing(topic, detail["messages"], count, follow))
            nothing_shown = False
        if not rows and not follow:
            return
        if not rows:
            pause(PAUSE_S)


def _describe_nothing(topic: str, stored: int, count: int, follow: bool) -> str:
    """Return a text that explains why a tail has not shown any message yet, and what happens next."""
    if follow:
        return f"nothing yet: waiting for messages in {topic}; Ctrl-C ends"
    if not stored:
        return f"topic {topic} is empty; `ddmq send {topic} hello` sends it a message"
    return f"none of the last {count} of each queue of {topic} is to be shown; --count shows more"


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
    position = f"{format_moment(row['stored_ms'])} {row['queue']}/{row['offset']}"
    print_message_line(
        position, {"key": row["key"], "tags": row["tags"]}, row["properties"], show_row_body(row)
    )
