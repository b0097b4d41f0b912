"""`ddmq topic …`: what topics there are, and what may be changed about them."""

from __future__ import annotations

from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.old_names import add_old_name
from ddmq.cli.options import combine_options
from ddmq.cli.output import confirm, hint, print_facts, print_json, print_table, say
from ddmq.cli.values import TOPIC, Whole
from ddmq_common.names import DELAY_DIALECTS
from ddmq_common.trace.sampling import ONE_IN_MAX


def _split_dialects(given: str | None) -> list[str] | None:
    if given is None:
        return None
    return [name.strip() for name in given.split(",") if name.strip() not in ("", "none")]


settings_options = combine_options(
    click.option("--queues", type=Whole(1, 1024), help="How many queues; they can only be added."),
    click.option(
        "--durability",
        type=click.Choice(["sync", "written", "replicated"]),
        help="sync: answered after fsync (default); written: after the write, fsync every 500 ms; "
        "replicated: Kafka, when two brokers or more have it.",
    ),
    click.option(
        "--delay",
        type=click.Choice(["both", "none", "only"]),
        help="Accepted sends: both kinds, no delayed ones, only delayed ones.",
    ),
    click.option(
        "--delay-dialects",
        metavar="NAMES",
        callback=lambda _, __, given: _split_dialects(given),
        help="Delay-property dialects accepted on plain sends: "
        f"{', '.join(DELAY_DIALECTS)}, with commas between; none: they are ordinary properties (default).",
    ),
    click.option("--body-bytes-max", type=Whole(1, 1 << 30), help="Largest body, in bytes."),
    click.option("--replication-factor", type=Whole(1, 32_767), help="Kafka: how many brokers have a copy."),
    click.option(
        "--min-insync",
        type=Whole(1, 32_767),
        help="Kafka: how many have a message before it is acknowledged (min.insync.replicas).",
    ),
    click.option(
        "--retention-ms", type=Whole(-1, 1 << 62), help="Kafka: how long messages are kept; -1: for ever."
    ),
    click.option(
        "--trace-one-in",
        type=Whole(0, ONE_IN_MAX),
        help="Trace one message in N, for `ddmq message --story`; 1: each; 0: none (default).",
    ),
    click.option("--readable/--not-readable", default=None, help="Whether groups may consume it."),
    click.option("--writable/--not-writable", default=None, help="Whether clients may send to it."),
)


@click.group()
def topic() -> None:
    """Topics: list, show, create, set, delete."""


@topic.command("list")
@click.option("--all", "internal", is_flag=True, help="Include internal topics.")
@admin_options
def list_topics(internal: bool, admin: AdminClient, as_json: bool) -> None:
    """List every topic with its queues and messages."""
    rows = admin.get("topics", internal=int(internal))
    if as_json:
        return print_json(rows)
    columns = ["topic", "queues", "messages", "durability", "delay", "readable", "writable", "source"]
    print_table("", columns, ([row[name] for name in columns] for row in rows))
    if not rows:
        hint("no topics yet: `ddmq topic create NAME`, or just send to one")
    return None


@topic.command("show")
@click.argument("name", type=TOPIC)
@admin_options
def show_topic(name: str, admin: AdminClient, as_json: bool) -> None:
    """Show one topic, queue by queue."""
    info = admin.get("topics", name)
    if as_json:
        return print_json(info)
    print_facts({key: value for key, value in info.items() if key != "by_queue"})
    columns = ["queue", "min", "next", "messages"]
    print_table("", columns, ([row[column] for column in columns] for row in info["by_queue"]))
    return None


@topic.command("create")
@click.argument("name", type=TOPIC)
@settings_options
@admin_options
def create(name: str, admin: AdminClient, as_json: bool, **changes: Any) -> None:
    """Create a topic (4 queues unless told otherwise)."""
    info = admin.post("topics", name, body={"create": True} | _drop_unset(changes))
    print_json(info) if as_json else say(f"created {name} with {info['queues']} queues")


@topic.command("set")
@click.argument("name", type=TOPIC)
@settings_options
@admin_options
def set_(name: str, admin: AdminClient, as_json: bool, **changes: Any) -> None:
    """Change a topic that exists; settings that are not named stay."""
    settings = _drop_unset(changes)
    if not settings:
        raise click.UsageError("nothing to change: name at least one option (see --help)")
    info = admin.post("topics", name, body={"create": False} | settings)
    if "queues" in settings:
        hint("note: with more queues, shard keys go to other queues than before")
    print_json(info) if as_json else say(f"changed {name}")


add_old_name(topic, "update", set_)


@topic.command("delete")
@click.argument("name", type=TOPIC)
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def delete(name: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Delete a topic and its messages; one created later under that name is a new one."""
    waiting = _count_delayed(admin, name)
    if not yes:
        also = f" {_describe_waiting(waiting)}, and will be dead letters." if waiting > 1 else ""
        also = f" {_describe_waiting(waiting)}, and will be a dead letter." if waiting == 1 else also
        confirm(f"Delete topic {name} and every message in it?{also}")
    admin.delete("topics", name)
    print_json({"topic": name, "deleted": True, "delayed": waiting}) if as_json else say(f"deleted {name}")
    if waiting:
        they_are, them = ("it is a dead letter", "it") if waiting == 1 else ("they are dead letters", "them")
        hint(f"note: {_describe_waiting(waiting)}: {they_are} when due, unless a topic {name} is there "
             f"again; ddmq delay cancel --topic {name} takes {them} back")  # fmt: skip


def _describe_waiting(count: int) -> str:
    return "1 delayed message for it waits" if count == 1 else f"{count} delayed messages for it wait"


def _count_delayed(client: AdminClient, name: str) -> int:
    """Count the delayed messages that wait for this topic; 0 if no delay service answers."""
    try:
        return int(client.get("delay", "count", topic=name)["count"])
    except click.ClickException:
        return 0


def _drop_unset(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if value is not None}
