"""`ddmq group …`: consumer groups, where they stand, where new ones start."""

from __future__ import annotations

from typing import Any

import click

from ddmq.address import Address
from ddmq.cli.admin_client import AdminClient, admin_option
from ddmq.cli.moments import parse_moment
from ddmq.cli.output import confirm, hint, json_option, print_facts, print_json, print_table

COLUMNS = ("group", "topic", "lag", "in_flight", "retrying", "dead_letters", "ack_span", "waiters")
QUEUE_COLUMNS = ("queue", "qid", "committed", "next", "lag", "in_flight", "retrying", "ack_span", "held")


@click.group()
def group() -> None:
    """List, create, show and delete consumer groups."""


@group.command("list")
@admin_option
@json_option
def list_groups(admin: Address, as_json: bool) -> None:
    """Every group's subscriptions with their lag."""
    rows = AdminClient(admin).get("groups")
    if as_json:
        return print_json(rows)
    print_table("", COLUMNS, ([row[name] for name in COLUMNS] for row in rows))
    if not rows:
        hint("no groups yet: `ddmq group create NAME --topic TOPIC`, or `ddmq pull TOPIC --group NAME`")
    return None


@group.command("show")
@click.argument("name")
@admin_option
@json_option
def show(name: str, admin: Address, as_json: bool) -> None:
    """One group, queue by queue, with its settings."""
    found = AdminClient(admin).get("groups", name)
    if as_json:
        return print_json(found)
    for each in found["subscriptions"]:
        click.echo(f"{name} on {each['topic']}")
        print_facts(each["settings"])
        print_table("", QUEUE_COLUMNS, ([queue[name] for name in QUEUE_COLUMNS] for queue in each["queues"]))
    return None


@group.command("create")
@click.argument("name")
@click.option(
    "--topic", "topics", multiple=True, required=True, help="Topic to subscribe to; may be repeated."
)
@click.option(
    "--start",
    default="last",
    show_default=True,
    metavar="first|last|TIME",
    help="Where queues start that exist now; TIME is ISO or epoch milliseconds.",
)
@click.option(
    "--ack-timeout-ms", type=click.IntRange(100), help="After which an unanswered delivery comes again."
)
@click.option("--concurrency", type=click.IntRange(1), help="Messages in flight at once.")
@admin_option
@json_option
def create(
    name: str, topics: tuple[str, ...], start: str, admin: Address, as_json: bool, **settings: Any
) -> None:
    """Create a group, or add subscriptions to one; what exists stays as it is."""
    if start not in ("first", "last"):
        start = str(parse_moment(start, "--start", "first, last, "))
    given = {key: value for key, value in settings.items() if value is not None}
    client = AdminClient(admin)
    made = client.post("groups", name, body={"topics": list(topics), "start": start} | given)
    for missing in sorted(set(topics) - {row["topic"] for row in client.get("topics")}):
        hint(f"note: topic {missing!r} does not exist yet; the group consumes it once it does")
    print_json(made) if as_json else click.echo(f"{name} consumes {', '.join(topics)}, from {start}")


@group.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_option
def delete(name: str, yes: bool, admin: Address) -> None:
    """Delete a group; its messages stay, its progress is forgotten."""
    if not yes:
        confirm(f"Delete group {name} and forget where it stands?")
    AdminClient(admin).delete("groups", name)
    click.echo(f"deleted {name}")
