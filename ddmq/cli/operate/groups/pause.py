"""`ddmq group pause` and `resume`: stop the deliveries of a group, and continue them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.output import print_json, print_line
from ddmq.cli.values import GROUP, TOPIC
from ddmq.moments import format_age

topic_option = click.option("--topic", type=TOPIC, help="Only the subscription to this topic.")


@click.command("pause", short_help="Deliver nothing until the group is resumed.")
@click.argument("name", type=GROUP, metavar="GROUP")
@topic_option
@admin_options
def pause_group(name: str, topic: str | None, admin: AdminClient, as_json: bool) -> None:
    """Deliver no message of GROUP's topics, or of one --topic, until `ddmq group resume`.

    This applies at every proxy within a second, and stays over restarts. Clients remain connected, and may
    finish the messages that they hold. Messages that come meanwhile wait; offsets do not move.

    \b
    Examples:
      ddmq group pause billing
      ddmq group pause billing --topic orders
    """
    _set_paused(admin, name, topic, paused=True, as_json=as_json)


@click.command("resume", short_help="Deliver the messages of a paused group again.")
@click.argument("name", type=GROUP, metavar="GROUP")
@topic_option
@admin_options
def resume_group(name: str, topic: str | None, admin: AdminClient, as_json: bool) -> None:
    """Deliver the messages of GROUP's topics, or of one --topic, again, from where they stopped."""
    _set_paused(admin, name, topic, paused=False, as_json=as_json)


def _set_paused(admin: AdminClient, name: str, topic: str | None, *, paused: bool, as_json: bool) -> None:
    topics = [row["topic"] for row in admin.get("lag", group=name)]
    if not topics:
        raise click.ClickException(f"group {name} consumes no topic")
    if topic is not None and topic not in topics:
        raise click.ClickException(
            f"group {name} does not consume topic {topic}; it consumes: {', '.join(sorted(topics))}"
        )
    answers = [
        admin.post("groups", name, "topics", each, body={"paused": paused})
        for each in sorted(topics)
        if topic in (None, each)
    ]
    if as_json:
        return print_json(answers)
    for answer in answers:
        print_line(_describe_change(answer))
    return None


def _describe_change(answer: Mapping[str, Any]) -> str:
    where = f"{answer['group']} on {answer['topic']}"
    changed = bool(answer["changed"])
    if answer["paused"]:
        return f"paused {where}" if changed else f"{where} is paused already"
    return f"resumed {where}" if changed else f"{where} is not paused"


def paused_age(row: Mapping[str, Any]) -> str | None:
    """Return for how long the subscription of a row has been paused; None if it is not."""
    if not row.get("paused"):  # a server of the release before does not state it
        return None
    return format_age(time.time() - row["paused_since_ms"] / 1000)


def with_paused_column(
    columns: Sequence[str], cells: Sequence[list[Any]], rows: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[str], Sequence[list[Any]]]:
    """Add the column "paused" to the cells of a table of subscriptions if any of them is paused."""
    ages = [paused_age(row) for row in rows]
    if not any(ages):
        return columns, cells
    return (*columns, "paused"), [[*line, age] for line, age in zip(cells, ages, strict=True)]


def paused_text(row: Mapping[str, Any]) -> str:
    """Describe the subscription of a row that is paused."""
    return (
        f"{row['group']} on {row['topic']} has been paused for {paused_age(row)}, nothing is delivered: "
        f"`ddmq group resume {row['group']} --topic {row['topic']}`"
    )
