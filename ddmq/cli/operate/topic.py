"""`ddmq topic …`: what topics there are, and what may be changed about them."""

from __future__ import annotations

from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.old_names import add_old_name
from ddmq.cli.operate.searches import search_messages
from ddmq.cli.options import combine_options
from ddmq.cli.output import confirm, count_queues, hint, print_facts, print_json, print_line, print_table
from ddmq.cli.values import TOPIC, Integer
from ddmq.moments import format_moment
from ddmq_common.names import DELAY_DIALECTS
from ddmq_common.trace.sampling import ONE_IN_MAX


def _split_dialects(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]


settings_options = combine_options(
    click.option(
        "--queues", type=Integer(1, 1024), help="Number of queues (Kafka: partitions); it can only grow."
    ),
    click.option(
        "--durability",
        type=click.Choice(["sync", "written", "replicated"]),
        help="When a send is answered. sync: after fsync (default); written: after the write, with an fsync "
        "every 500 ms; replicated (Kafka): when two or more brokers have it.",
    ),
    click.option(
        "--delay",
        type=click.Choice(["both", "none", "only"]),
        help="Which sends are accepted. both: all (default); none: no delayed ones; only: only delayed ones.",
    ),
    click.option(
        "--delay-dialects",
        metavar="NAMES",
        callback=lambda _, __, text: _split_dialects(text),
        help="Delay-property dialects accepted on plain sends: "
        f"{', '.join(DELAY_DIALECTS)}, with commas between; none: they are ordinary properties (default).",
    ),
    click.option("--body-bytes-max", type=Integer(1, 1 << 30), help="Largest body, in bytes."),
    click.option(
        "--replication-factor", type=Integer(1, 32_767), help="Kafka: how many brokers have a copy."
    ),
    click.option(
        "--min-insync",
        type=Integer(1, 32_767),
        help="Kafka: how many have a message before it is acknowledged (min.insync.replicas).",
    ),
    click.option(
        "--retention-ms", type=Integer(-1, 1 << 62), help="Kafka: how long messages are kept; -1: for ever."
    ),
    click.option(
        "--trace-one-in",
        type=Integer(0, ONE_IN_MAX),
        help="Trace one message in N, for `ddmq message --story`; 1: each; 0: none (default).",
    ),
    click.option(
        "--hold-delays/--no-hold-delays",
        default=None,
        help="Whether delayed messages wait beyond their due time, as with `ddmq delay hold`.",
    ),
    click.option("--readable/--not-readable", default=None, help="Whether groups may consume it."),
    click.option("--writable/--not-writable", default=None, help="Whether clients may send to it."),
)


@click.group()
def topic() -> None:
    """Topics: list, show, create, set, delete.

    \b
    Examples:
      ddmq topic create orders --queues 8
      ddmq topic list
      ddmq topic set orders --trace-one-in 100
    """


@topic.command("list", short_help="Every topic with its queues and messages.")
@click.option("--all", "internal", is_flag=True, help="Include the topics of the system.")
@admin_options
def list_topics(internal: bool, admin: AdminClient, as_json: bool) -> None:
    """List every topic with its queues, its messages and its settings.

    "source": "log" for a topic that a command or a send created, else the file that declares it.
    """
    if as_json:
        return print_json(admin.get("topics", internal=int(internal)))
    rows = admin.list_items("topics", internal=int(internal))
    columns = ["topic", "queues", "messages", "durability", "delay", "readable", "writable", "source"]
    if rows:
        print_table("", columns, ([row[name] for name in columns] for row in rows))
    else:
        hint("no topics yet: `ddmq topic create NAME`, or `ddmq send NAME hello`, which creates it")
    return None


@topic.command("show", short_help="One topic: its settings, and its queues.")
@click.argument("name", type=TOPIC, metavar="TOPIC")
@admin_options
def show_topic(name: str, admin: AdminClient, as_json: bool) -> None:
    """Show the settings of one topic, and the range of offsets in each of its queues.

    "min": offset of the oldest message; "next": offset that the next message gets.
    """
    info = admin.get("topics", name)
    if as_json:
        return print_json(info)
    facts = {key: value for key, value in info.items() if key not in ("by_queue", "delays_held_since_ms")}
    if since_ms := info.get("delays_held_since_ms"):
        facts["delays held since"] = format_moment(since_ms)
    print_facts(facts)
    columns = ["queue", "min", "next", "messages"]
    print_table("", columns, ([row[column] for column in columns] for row in info["by_queue"]))
    return None


@topic.command("create", short_help="Create a topic.")
@click.argument("name", type=TOPIC, metavar="TOPIC")
@settings_options
@admin_options
def create(name: str, admin: AdminClient, as_json: bool, **changes: Any) -> None:
    """Create TOPIC, with 4 queues unless --queues is given.

    A send to a topic that does not exist creates it, too.

    \b
    Examples:
      ddmq topic create orders --queues 8
      ddmq topic create reminders --delay only
    """
    info = admin.post("topics", name, body={"create": True} | _drop_unset(changes))
    print_json(info) if as_json else print_line(f"created {name} with {count_queues(info['queues'])}")


@topic.command("set", short_help="Change settings of a topic.")
@click.argument("name", type=TOPIC, metavar="TOPIC")
@settings_options
@admin_options
def set_(name: str, admin: AdminClient, as_json: bool, **changes: Any) -> None:
    """Change the given settings of TOPIC; the others stay.

    \b
    Examples:
      ddmq topic set orders --queues 16
      ddmq topic set orders --not-writable
    """
    settings = _drop_unset(changes)
    if not settings:
        raise click.UsageError("nothing to change: name at least one option (see --help)")
    info = admin.post("topics", name, body={"create": False} | settings)
    if "queues" in settings:
        hint("note: with more queues, shard keys go to other queues than before")
    print_json(info) if as_json else print_line(f"changed {name}")


add_old_name(topic, "update", set_)


@topic.command("delete", short_help="Delete a topic and its messages.")
@click.argument("name", type=TOPIC, metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def delete(name: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Delete TOPIC and its messages. A topic that is created later under that name is a new one."""
    waiting = _count_delayed(admin, name)
    if not yes:
        also = f" {_describe_waiting(waiting)}, and will be dead letters." if waiting > 1 else ""
        also = f" {_describe_waiting(waiting)}, and will be a dead letter." if waiting == 1 else also
        confirm(f"Delete topic {name} and every message in it?{also}")
    admin.delete("topics", name)
    answer = {"topic": name, "deleted": True, "delayed": waiting}
    print_json(answer) if as_json else print_line(f"deleted {name}")
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


topic.add_command(search_messages)
